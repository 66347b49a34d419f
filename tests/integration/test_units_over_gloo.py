"""Hand-over by unit between real processes over gloo: all give and take at once; one dies in the middle."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.queues import Queue
from typing import Any

import torch
from torch import nn

import patience
from elastane.collective.rendezvous import RendezvousStore
from elastane.collective.ring_errors import RingBroken
from elastane.collective.transport import HANDOVER_TAG, RingTransport
from elastane.pipeline.units import Units
from elastane.state.unit_handover import hand_over
from elastane.state.unit_optimizer import UnitOptimizer
from elastane.state.unit_state import Staged, UnitState
from elastane.state.unit_transfers import transfers, units_of
from elastane.state.value_digests import digest_any
from integration.dying_transport import DyingTransport
from unit.state.pipelines import a_plan

MEMBERS, UNITS = 3, 6
PIECE_BYTES = 4096
CUT = [2, 4, 6]


def a_worker(rank: int) -> UnitState:
    """Units of a quarter of a megabyte each; member r holds stage r."""
    torch.manual_seed(0)
    units = Units.build([partial(nn.Linear, 256, 256)] * UNITS)
    state = UnitState(units, UnitOptimizer.build(units, partial(torch.optim.AdamW, lr=0.1)))
    if rank < MEMBERS:
        stage = range(2 * rank, 2 * rank + 2)
        state.adopt(stage, Staged(), initial=stage)
        for place in (p for unit in stage for p in units.owned(unit)):
            units.parameters[place].grad = units.parameters[place].detach().clone()
        state.optimizer.optimizer.step()
    return state


def digests(state: UnitState) -> dict[int, str]:
    return {
        unit: digest_any([state.export_unit(unit).structure, *state.export_unit(unit).tensors])
        for unit in sorted(state.active)
    }


def join(address: str, generation: int, rank: int, size: int) -> RingTransport:
    return RingTransport.form(
        store_address=address,
        prefix=f"g{generation}",
        rank=rank,
        size=size,
        cancel=threading.Event(),
        timeout_seconds=60,
    )


def member_of_whole(rank: int, address: str, results: Queue[Any]) -> None:
    """Every stage changes its member, and stage 0 gets a second replica and a newcomer."""
    torch.set_num_threads(1)
    state = a_worker(rank)
    before = digests(state)
    transport = join(address, 1, rank, 4)
    held = [range(2), range(2, 4), range(4, 6), range(0)]
    wanted = a_plan(CUT, [[1, 3], [2, 1], [0]], held=held)
    moves = transfers(wanted, [0, 1, 2], [3])
    result = hand_over(transport, state, moves, rank, tag_base=HANDOVER_TAG, piece_bytes=PIECE_BYTES)
    state.adopt(units_of(wanted, rank), result.staged)
    results.put((rank, (before, digests(state), sorted(state.units.held))))
    transport.close()


def member_of_broken(rank: int, address: str, results: Queue[Any]) -> None:
    """Member 2 dies in the middle of an exchange; what the others held they still hold, and hand over."""
    torch.set_num_threads(1)
    state = a_worker(rank)
    before, transport = digests(state), join(address, 1, rank, 3)
    wanted = a_plan(CUT, [[1], [2], [0]], held=[range(2), range(2, 4), range(4, 6)])
    moves, place = transfers(wanted, [0, 1, 2], []), DyingTransport(transport, 60) if rank == 2 else transport
    error = ""
    try:
        hand_over(place, state, moves, rank, tag_base=HANDOVER_TAG, piece_bytes=PIECE_BYTES)
    except RingBroken as broken:
        error = type(broken).__name__
    transport.close()
    between = digests(state)
    transport = join(address, 2, rank, 2)
    # Units 4 and 5 are gone; here the others just change places.
    wanted = a_plan([2, 4], [[1], [0]], held=[range(2), range(2, 4)])
    result = hand_over(
        transport, state, transfers(wanted, [0, 1], []), rank, tag_base=HANDOVER_TAG, piece_bytes=PIECE_BYTES
    )
    state.adopt(units_of(wanted, rank), result.staged)
    results.put((rank, (error, before, between, digests(state))))
    transport.close()


def run(member: Callable[..., None], size: int, answers: int) -> dict[int, Any]:
    """Start the processes of a ring; return what they put into the queue."""
    context = multiprocessing.get_context("forkserver")
    store = RendezvousStore("127.0.0.1")
    results: Queue[Any] = context.Queue()
    members = [context.Process(target=member, args=(rank, store.address, results)) for rank in range(size)]
    try:
        for process in members:
            process.start()
        found = dict(patience.wait(lambda s: results.get(timeout=s), 120) for _ in range(answers))
        for process in members:
            process.join(timeout=60)
        return found
    finally:
        for process in members:
            process.kill()
        store.close()


def test_everybody_gives_and_takes_at_once() -> None:
    found = run(member_of_whole, 4, 4)
    origin = {unit: digest for before, _, _ in found.values() for unit, digest in before.items()}
    assert sorted(origin) == list(range(UNITS)) and len(set(origin.values())) == UNITS
    has = {rank: after for rank, (_, after, _) in found.items()}
    assert {rank: sorted(after) for rank, after in has.items()} == {
        0: [4, 5], 1: [0, 1, 2, 3], 2: [2, 3], 3: [0, 1],
    }  # fmt: skip
    assert all(after == {unit: origin[unit] for unit in after} for after in has.values())
    # Until a step is applied nothing is given away for good.
    assert {rank: held for rank, (_, _, held) in found.items()} == {
        0: [0, 1, 4, 5], 1: [0, 1, 2, 3], 2: [2, 3, 4, 5], 3: [0, 1],
    }  # fmt: skip


def test_a_member_that_dies_in_the_middle_costs_a_repetition() -> None:
    found = run(member_of_broken, 3, 2)
    (error_0, before_0, between_0, after_0), (error_1, before_1, between_1, after_1) = found[0], found[1]
    assert error_0 and error_1
    assert (between_0, between_1) == (before_0, before_1)
    assert (after_0, after_1) == (before_1, before_0)
