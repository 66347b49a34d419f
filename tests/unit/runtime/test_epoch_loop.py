"""Which step follows, and when an epoch and the training are over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elastane.runtime.blocking import finish
from elastane.runtime.epoch_loop import EpochLoop
from elastane.runtime.protocol import WorkerProtocol
from elastane.runtime.step_state import Stage, StepState
from elastane_proto.v1 import ring_pb2

STEPS_PER_EPOCH, STEPS = 4, 10


class Boundary:
    """A step boundary. settles: what happens at each."""

    def __init__(self, *settles: Callable[[], object]) -> None:
        self.pristine = True
        self.in_loop: list[bool] = []
        self._settles = list(settles)

    async def settle(self, *, in_loop: bool = True) -> None:
        self.in_loop.append(in_loop)
        if self._settles:
            self._settles.pop(0)()


def made(applied: int, *settles: Callable[[WorkerProtocol], object]) -> tuple[Any, Boundary, list[bool]]:
    protocol, between = WorkerProtocol(applied_step=applied), []
    boundary: Any = Boundary(*(lambda settle=settle: settle(protocol) for settle in settles))
    loop: Any = EpochLoop(protocol, boundary, STEPS_PER_EPOCH, between.append, STEPS)
    return loop, boundary, between


def go_to(step: int) -> Callable[[WorkerProtocol], object]:
    return lambda protocol: setattr(protocol, "applied_step", step)


@pytest.mark.parametrize(("applied", "epoch"), [(4, 1), (7, 1), (9, 2)])
def test_a_step_of_the_epoch_follows_once_the_boundary_has_settled(applied: int, epoch: int) -> None:
    loop, boundary, between = made(applied)
    assert finish(loop.next_step(epoch))
    assert boundary.in_loop == [True] and between == [False]


@pytest.mark.parametrize(("applied", "epoch"), [(8, 1), (3, 1), (10, 2)])
def test_an_epoch_that_is_over_waits_for_nothing(applied: int, epoch: int) -> None:
    loop, boundary, between = made(applied)
    assert not finish(loop.next_step(epoch))
    assert not boundary.in_loop and not between


@pytest.mark.parametrize("step", [3, 8])
def test_a_ring_may_lead_out_of_the_epoch(step: int) -> None:
    loop, _, between = made(5, go_to(step))
    assert not finish(loop.next_step(1))
    assert between == [False]


@pytest.mark.parametrize(("applied", "step"), [(8, 8), (7, -1), (9, -1), (3, -1), (4, -1)])
def test_only_the_end_of_the_loop_is_a_known_place_between_epochs(applied: int, step: int) -> None:
    assert made(applied)[0].interval_after(1) == step


@pytest.mark.parametrize(("step", "begins"), [(0, True), (3, False), (4, True), (8, True), (12, False)])
def test_an_epoch_begins_at_its_first_step_unless_the_training_is_over(step: int, begins: bool) -> None:
    assert made(0)[0].begins_epoch(step) is begins


@pytest.mark.parametrize(
    ("stage", "pristine"),
    [(Stage.LOST, True), (Stage.REPORTED, True), (Stage.PREPARED, False), (Stage.APPLIED, False)],
)
def test_weights_are_no_longer_initial_once_the_optimizer_may_have_stepped(
    stage: Stage, pristine: bool
) -> None:
    loop, boundary, _ = made(0)
    loop._protocol.attempts.newest = StepState(0, stage)
    loop.end_attempt()
    assert boundary.pristine is pristine


@pytest.mark.parametrize(("resumes", "is_through"), [(10, True), (6, False)])
def test_the_end_takes_part_in_a_change_that_may_lead_back(resumes: int, is_through: bool) -> None:
    loop, boundary, _ = made(10, go_to(resumes))
    loop._protocol.prepare(ring_pb2.Prepare(generation=3))
    assert finish(loop.finish()) is is_through
    assert boundary.in_loop == [False]


def test_the_end_waits_for_nothing_if_the_ring_does_not_change() -> None:
    loop, boundary, _ = made(10)
    assert finish(loop.finish()) and not boundary.in_loop
