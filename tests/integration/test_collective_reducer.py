"""`Reducer` on changing rings of real processes against stock DDP of N processes, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp
from torch._C._distributed_c10d import TCPStore

from integration.reduction_run import STEPS, VARIANTS, Phase, elastic, reference
from slow import slow

#: `make test` has gradients and weights of DDP in the runs of test_matrix and test_gallery.
pytestmark = slow

RANKS = 5

PHASES = [
    Phase(0, [(0, 2), (2, 3), (3, 5)]),
    Phase(2, [(0, 1), (1, 2), (2, 5)]),
    Phase(3, [(0, 1), (1, 4), (4, 5)], aborts=1),
    Phase(4, [(0, 3), (3, 5)]),
    Phase(5, [(0, 5)]),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each rank of DDP and each member of the rings saw."""
    folder = tmp_path_factory.mktemp("runs")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.start_processes(reference, (RANKS, store.port, folder), nprocs=RANKS, start_method="forkserver")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.start_processes(
        elastic, (store.port, PHASES, folder), nprocs=len(PHASES[0].ranges), start_method="forkserver"
    )
    references = [torch.load(folder / f"reference-{rank}.pt") for rank in range(RANKS)]
    members = [torch.load(folder / f"elastic-{host}.pt") for host in range(len(PHASES[0].ranges))]
    return references, members


def _same(mine, theirs):
    return all(
        a.dtype == b.dtype
        and torch.equal(a.contiguous().view(-1).view(torch.uint8), b.contiguous().view(-1).view(torch.uint8))
        for a, b in zip(mine, theirs, strict=True)
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_gradients_and_weights_of_every_step_are_ddps(runs, variant):
    references, members = runs
    for step in range(STEPS):
        for what in ("grads", "params"):
            key = f"{variant.name} {step} {what}"
            holders = [member for member in members if key in member]
            assert holders
            for member in holders:
                assert _same(member[key], references[0][key]), key


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_losses_and_buffers_of_every_rank_are_ddps(runs, variant):
    references, members = runs
    for step in range(STEPS):
        for rank in range(RANKS):
            key = f"{variant.name} {step} loss {rank}"
            (member,) = [member for member in members if key in member][-1:]
            assert member[key] == references[rank][f"{variant.name} {step} loss"], key
            key = f"{variant.name} {step} buffers"
            assert _same(member[f"{key} {rank}"], references[rank][key]), (key, rank)
