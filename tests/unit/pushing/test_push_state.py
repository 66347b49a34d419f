"""What a worker does after each answer to a push."""

from __future__ import annotations

import pytest

from elastane.slots.frames import CODE_INVALID, CODE_OK, CODE_UNINITIALISED, CODES, SlotFrameError
from elastane.slots.push_state import AGAIN_SECONDS_MAX, AGAIN_SECONDS_MIN, PushState, pause_seconds
from elastane_slots.pushes import AGAIN_VERDICTS, Verdict


def said(state: PushState, slot: int, verdict: Verdict, life: int = 0, staleness: int = 0) -> None:
    state.answered([slot], CODES[verdict], life, 5, staleness)


def test_done_when_every_slot_has_it_with_the_sum_of_the_lives_in_these_answers() -> None:
    state = PushState(range(3))
    said(state, 0, Verdict.APPLIED, life=2, staleness=1)
    said(state, 1, Verdict.APPLIED_BEFORE, life=3, staleness=4)
    assert state.outcome is None and state.open == {2}
    said(state, 2, Verdict.APPLIED, life=1)
    outcome = state.outcome
    assert outcome is not None and outcome.kind == "done"
    assert (outcome.lives_sum, outcome.staleness) == (6, 4)
    assert outcome.versions == {0: 5, 1: 5, 2: 5}


def test_a_later_answer_of_a_slot_does_not_count_twice() -> None:
    state = PushState(range(2))
    said(state, 0, Verdict.APPLIED, life=2)
    said(state, 0, Verdict.APPLIED_BEFORE, life=9)
    said(state, 1, Verdict.APPLIED)
    assert state.outcome is not None and state.outcome.lives_sum == 2


@pytest.mark.parametrize("verdict", sorted(AGAIN_VERDICTS))
def test_is_sent_again(verdict: Verdict) -> None:
    state = PushState(range(2))
    said(state, 0, verdict)
    assert state.outcome is None and state.open == {0, 1} and not state.uninitialised


@pytest.mark.parametrize("verdict", [Verdict.RESTORED, Verdict.TOO_OLD])
def test_one_slot_that_refuses_the_lease_gives_the_task_back(verdict: Verdict) -> None:
    state = PushState(range(3))
    said(state, 0, Verdict.APPLIED)
    said(state, 1, verdict)
    assert state.outcome is not None and state.outcome.kind == "returned"
    assert "slot 1" in state.outcome.reason


def test_a_closed_task_is_over_whatever_others_say() -> None:
    state = PushState(range(3))
    said(state, 0, Verdict.RESTORED)
    said(state, 1, Verdict.CLOSED)
    assert state.outcome is not None and state.outcome.kind == "closed"


def test_a_slot_without_values_gets_them_first() -> None:
    state = PushState(range(1))
    state.answered([0], CODE_UNINITIALISED, -1, -1, 0)
    assert state.uninitialised == {0} and state.open == {0} and state.outcome is None


@pytest.mark.parametrize("code", [CODE_OK, CODE_INVALID, 77, -1])
def test_other_numbers_are_no_answers(code: int) -> None:
    with pytest.raises(SlotFrameError):
        PushState(range(1)).answered([0], code, 0, 0, 0)


def test_pauses_grow_to_a_limit() -> None:
    pauses = [pause_seconds(rounds) for rounds in range(1000)]
    assert pauses[0] == AGAIN_SECONDS_MIN and pauses[-1] == AGAIN_SECONDS_MAX
    assert pauses == sorted(pauses)
