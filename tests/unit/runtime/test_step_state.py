"""The stages of an attempt at a step: every transition of the table, and every other one refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from elastane.context import EstContext
from elastane.runtime.protocol import WorkerProtocol
from elastane.runtime.step_attempts import StepAttempts
from elastane.runtime.step_state import TRANSITIONS, InvalidTransitionError, Stage, StepState
from elastane_proto.v1 import ring_pb2

MOVES: dict[Stage, Callable[[StepState], object]] = {
    Stage.FORWARD: StepState.begin,
    Stage.REPORTED: lambda state: state.report(in_backward=False),
    Stage.PREPARED: StepState.prepare,
    Stage.AHEAD: StepState.go_ahead,
    Stage.APPLIED: StepState.apply,
    Stage.LOST: StepState.lose,
}
ALLOWED = {
    ("ready", "forward"),
    ("forward", "reported"),
    ("forward", "lost"),
    ("reported", "prepared"),
    ("reported", "lost"),
    ("reported", "ahead"),
    ("ahead", "prepared"),
    ("ahead", "applied"),
    ("ahead", "lost"),
    ("prepared", "applied"),
}


def test_the_table_is_the_one_in_the_docs() -> None:
    assert set(TRANSITIONS) == set(Stage)
    assert {(a.value, b.value) for a, after in TRANSITIONS.items() for b in after} == ALLOWED


@pytest.mark.parametrize(
    ("stage", "target"), list(product(Stage, MOVES)), ids=lambda stage: stage.value if stage else None
)
def test_each_move_is_made_or_refused_with_the_facts(stage: Stage, target: Stage) -> None:
    state = StepState(7, stage, is_replay=True, contexts={3: EstContext(3, 8)})
    if (stage.value, target.value) in ALLOWED:
        MOVES[target](state)
        assert state.stage is target
        return
    facts = rf"become {target.value}: step 7 is {stage.value} \(is_replay=True, .* done: \[3\]\)"
    with pytest.raises(InvalidTransitionError, match=facts):
        MOVES[target](state)
    assert state.stage is stage


@pytest.mark.parametrize("stage", Stage, ids=lambda stage: stage.value)
def test_the_next_attempt_begins_once_this_one_is_over(stage: Stage) -> None:
    state = StepState(7, stage, in_backward=True, contexts={0: EstContext(0, 8)})
    if stage in (Stage.READY, Stage.APPLIED, Stage.LOST):
        assert not state.in_flight
        assert state.next(8, is_replay=False) == StepState(8)
        return
    assert state.in_flight
    with pytest.raises(InvalidTransitionError, match=f"step 8 cannot begin: step 7 is {stage.value}"):
        state.next(8, is_replay=False)


@pytest.mark.parametrize(
    ("stage", "reported", "may_step", "delays"),
    [
        (Stage.READY, False, False, False),
        (Stage.FORWARD, False, False, False),
        (Stage.REPORTED, True, False, False),
        (Stage.PREPARED, True, True, True),
        (Stage.AHEAD, True, True, False),
        (Stage.APPLIED, True, True, False),
        (Stage.LOST, False, False, False),
    ],
    ids=lambda value: value.value if isinstance(value, Stage) else None,
)
def test_what_each_stage_means(stage: Stage, reported: bool, may_step: bool, delays: bool) -> None:
    state = StepState(0, stage)
    assert (state.is_reported, state.may_step, state.delays_ready) == (reported, may_step, delays)


def test_the_next_attempt_begins_once_the_body_of_a_step_that_is_ahead_has_ended() -> None:
    state = StepState(7, Stage.AHEAD, body_ended=True)
    assert state.next(8, is_replay=False) == StepState(8)


def test_a_report_that_is_held_back_counts_as_made_until_the_step_is_lost() -> None:
    state = StepState(8, Stage.FORWARD)
    state.hold(in_backward=True)
    assert state.is_reported and state.delays_ready
    state.end_backward()
    state.lose()
    assert not state.is_reported and not state.delays_ready


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_backward_that_still_runs_delays_ready_though_the_step_is_lost(is_lost: bool) -> None:
    state = StepState(0, Stage.FORWARD)
    state.report(in_backward=True)
    if is_lost:
        state.lose()
    assert state.delays_ready
    assert state.end_backward() and not state.end_backward()
    assert not state.delays_ready


def test_a_step_that_has_begun_before_is_a_replay() -> None:
    protocol, replays = WorkerProtocol(), []
    for applied, is_lost in ((0, True), (0, False), (1, True), (2, True), (1, False), (3, False)):
        protocol.applied_step = applied
        state = protocol.begin_step()
        replays.append((state.step, state.is_replay))
        if is_lost:
            protocol.lose_step()
            assert state.stage is Stage.LOST
        else:
            protocol.report(ring_pb2.StepReport(step=applied))
            state.prepare()
            protocol.end_apply(applied)
    assert replays == [(0, False), (0, True), (1, False), (2, False), (1, True), (3, False)]


def test_losing_what_is_over_changes_nothing() -> None:
    protocol = WorkerProtocol()
    protocol.lose_step()
    assert protocol.attempts.newest.stage is Stage.READY
    protocol.attempts.newest = StepState(4, Stage.APPLIED)
    protocol.lose_step()
    assert protocol.attempts.newest.stage is Stage.APPLIED


def test_a_step_that_is_being_applied_cannot_be_lost() -> None:
    protocol = WorkerProtocol(attempts=StepAttempts(StepState(4, Stage.PREPARED)))
    with pytest.raises(InvalidTransitionError, match="cannot become lost: step 4 is prepared"):
        protocol.lose_step()
