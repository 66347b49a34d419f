"""A pipeline of real processes over gloo has the bits of the same in one process, which has stock's."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp
from torch._C._distributed_c10d import TCPStore

from elastane_planner.plan import Plan, Stage
from integration.pipeline_ring_run import RingCase, worker
from parity.pipeline_models import MODELS
from parity.pipeline_runs import LocalJob

RANGES = ((0, 2), (2, 3), (3, 4))
CASES = [
    RingCase("mixed", Plan((Stage(0, 2, (1,)), Stage(2, 5, (0, 2), "checkpoint")), ((0,), ())), RANGES),
    RingCase("cnn", Plan((Stage(0, 3, (2, 0)), Stage(3, 7, (1,)))), RANGES, (1, 1)),
    RingCase("widened", Plan((Stage(0, 3, (0,)), Stage(3, 5, (1,)), Stage(5, 6, (2,)))), RANGES, (0, 2)),
    RingCase("gpt", Plan((Stage(0, 6, (1, 2), "swap"),), ((0,),)), RANGES),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each worker saw, by worker and case."""
    folder = tmp_path_factory.mktemp("rings")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.start_processes(worker, (store.port, CASES, folder), nprocs=len(RANGES), start_method="forkserver")
    return [torch.load(folder / f"{me}.pt", weights_only=False) for me in range(len(RANGES))]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: CASES[number].model)
def test_real_rings_have_the_bits_of_the_pipeline_in_one_process(seen, number):
    case = CASES[number]
    job = LocalJob(MODELS[case.model])
    job.set_plan(case.plan, len(RANGES))
    trace = job.run()
    for me, member in enumerate(seen):
        mine = member[number]
        assert mine["losses"] == trace.losses
        held = [unit for unit in range(job.members[me].units.count) if me in case.plan.holders(unit)]
        for unit in held:
            assert mine[f"unit {unit}"] == job.digest_of(unit)
        computed = {unit for stage in case.plan.stages if me in stage.devices
                    for unit in range(stage.first_unit, stage.end_unit)}  # fmt: skip
        assert set(mine["seconds"]) == computed
        assert all(forward > 0 for forward, _ in mine["seconds"].values())
    job.close()
