"""Who leads: every answer of the store, and every way two masters can alternate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastane_master.decisions.succession import (
    Fenced,
    Held,
    Leader,
    NoAnswer,
    Succession,
    Taken,
    action,
    decide,
)

OTHER = Leader("b:1", "b:7")
LEADING = decide(Succession(3.0), 10.0, Held(1, 10.0))[0]


def test_a_free_lease_makes_a_leader_and_a_taken_one_a_standby() -> None:
    assert (LEADING.role, LEADING.token) == ("leading", 1)
    standby, reason = decide(Succession(3.0), 10.0, Taken(OTHER))
    assert (standby.role, standby.leader, reason) == ("standby", OTHER, "")


def test_a_leader_that_cannot_renew_is_unsure_when_its_lease_may_be_over_and_not_before() -> None:
    state, _ = decide(LEADING, 13.0, NoAnswer("away"))
    assert state.role == "leading"
    state, reason = decide(state, 13.01, NoAnswer("away"))
    assert (state.role, "away" in reason) == ("unsure", True)
    assert action(LEADING, state) == "pause"
    again, _ = decide(state, 20.0, Held(1, 20.0))
    assert action(state, again) == "resume"


def test_a_leader_whose_lease_another_has_gives_way() -> None:
    state, reason = decide(LEADING, 12.0, Taken(OTHER))
    assert (state.role, action(LEADING, state)) == ("standby", "yield")
    assert "b:1" in reason


def test_who_led_in_between_is_not_overlooked() -> None:
    """The lease is ours again, but another held it: what we know is old."""
    state, reason = decide(LEADING, 20.0, Held(3, 20.0))
    assert action(LEADING, state) == "yield"
    assert action(Succession(3.0), state) == "lead"
    assert reason


def test_who_is_fenced_leaves_the_other_in_peace_for_the_time_of_a_lease() -> None:
    state, reason = decide(LEADING, 12.0, Fenced("taken over"))
    assert (state.role, reason, action(LEADING, state)) == ("standby", "taken over", "yield")
    assert state.acquire_seconds(12.0) == 3.0
    assert decide(state, 14.9, Held(1, 14.0))[0].role == "standby"
    assert decide(state, 15.1, Held(1, 15.1))[0].role == "leading"


EVENTS = st.one_of(
    st.builds(Held, st.integers(1, 3), st.floats(0, 100)),
    st.just(Taken(OTHER)),
    st.just(NoAnswer("away")),
    st.just(Fenced("taken over")),
)


@given(st.lists(st.tuples(st.floats(0, 5), EVENTS), max_size=30))
def test_changes_lead_to_what_was_decided_and_a_stale_leader_never_just_goes_on(
    history: list[tuple[float, object]],
) -> None:
    now, state, served = 0.0, Succession(3.0), Succession(3.0)
    for seconds, event in history:
        now += seconds
        state, _ = decide(state, now, event)  # type: ignore[arg-type]
        for _ in range(3):
            step = action(served, state)
            if step == "stay":
                break
            if served.role != "standby" and served.token != state.token:
                assert step == "yield"
            served = Succession(3.0) if step == "yield" else state
        assert action(served, state) == "stay"
        assert served.role == state.role or (served.role, state.role) == ("standby", "unsure")
