"""What a runner's session decides: when it connects again, to which master, and when it gives up."""

from __future__ import annotations

import pytest

from elastane_common.stream_session import STANDBY_SECONDS_MAX, Connect, Started, StreamEnded, StreamOpened
from elastane_runner.attending import (
    HEARTBEAT_SECONDS_DEFAULT,
    Action,
    AttendingMachine,
    Closed,
    End,
    Event,
    Stage,
    Welcomed,
)

BROKEN = StreamEnded("UNAVAILABLE", "connection refused")
NOT_LEADING = StreamEnded("UNAVAILABLE", "b:1 leads", "NOT_LEADING", True, facts={"leader": "b:1"})


class Session:
    """A machine whose backoff is as long as the outage; `at` sets the time and handles events."""

    def __init__(self) -> None:
        self.machine = AttendingMachine(now=0.0, backoff=lambda seconds: seconds)

    def at(self, now: float, *events: Event) -> Action | None:
        action = None
        for event in events:
            action = self.machine.handle(event, now)
        return action


def attending() -> Session:
    session = Session()
    session.at(0, Started(), StreamOpened(), Welcomed(2.5))
    return session


def test_it_stays_with_the_first_master_that_welcomes_it() -> None:
    session = Session()
    assert session.at(0, Started()) == Connect(stays=True)
    assert session.at(1, StreamOpened()) is None and session.at(1, Welcomed(2.5)) is None
    assert (session.machine.stage, session.machine.heartbeat_seconds) == (Stage.ATTENDING, 2.5)


def test_a_master_that_names_no_interval_gets_the_default() -> None:
    session = Session()
    session.at(0, Started(), StreamOpened(), Welcomed(0.0))
    assert session.machine.heartbeat_seconds == HEARTBEAT_SECONDS_DEFAULT


def test_it_connects_to_the_next_master_with_a_wait_that_grows_with_the_outage_for_ever() -> None:
    session = attending()
    assert session.at(100, BROKEN) == Connect(0.0)
    assert session.at(103, StreamOpened(), BROKEN) == Connect(3.0)
    assert session.at(1e6, StreamOpened(), BROKEN) == Connect(1e6 - 100)
    session.at(1e6, StreamOpened(), Welcomed())
    assert session.at(1e6 + 5, StreamEnded()) == Connect(0.0)


def test_a_standby_is_left_at_once_for_the_leader_that_it_names() -> None:
    session = attending()
    session.at(100, BROKEN)
    assert session.at(160, StreamOpened(), NOT_LEADING) == Connect(STANDBY_SECONDS_MAX, leader="b:1")


@pytest.mark.parametrize(
    "ended",
    [
        StreamEnded("PERMISSION_DENIED", "no", hint="ask", facts={"role": "runner"}),
        StreamEnded("UNAUTHENTICATED", "no", hint="ask", facts={"role": "runner"}),
        StreamEnded("INVALID_ARGUMENT", "no", hint="ask", facts={"role": "runner"}),
        StreamEnded("UNIMPLEMENTED", "no", hint="ask", facts={"role": "runner"}),
        StreamEnded("FAILED_PRECONDITION", "no", hint="ask", facts={"role": "runner"}),
    ],
    ids=lambda ended: ended.code,
)
@pytest.mark.parametrize("welcomed", [False, True])
def test_a_permanent_refusal_ends_it_with_the_masters_reason(ended: StreamEnded, welcomed: bool) -> None:
    session = attending() if welcomed else Session()
    if not welcomed:
        session.at(0, Started(), StreamOpened())
    action = session.at(1, ended)
    assert isinstance(action, End) and action.error is not None
    assert str(action.error) == "the master refused this runner: no (ask)"
    assert action.error.facts == {"role": "runner"} and session.machine.stage is Stage.ENDED


@pytest.mark.parametrize(
    "ended",
    [
        BROKEN,
        NOT_LEADING,
        StreamEnded(),
        StreamEnded("ABORTED", "another stream", "EVICTED", True),
        StreamEnded("FAILED_PRECONDITION", "held", "DAMAGED", True),
        StreamEnded("RESOURCE_EXHAUSTED", "too many"),
        StreamEnded("INTERNAL", "oops"),
    ],
    ids=lambda ended: ended.reason or ended.code or "closed",
)
def test_after_any_other_end_it_connects_again(ended: StreamEnded) -> None:
    assert isinstance(attending().at(1, ended), Connect)


@pytest.mark.parametrize("events", [(), (StreamOpened(),), (StreamOpened(), Welcomed())])
def test_it_ends_when_the_runner_does_and_stays_so(events: tuple[Event, ...]) -> None:
    session = Session()
    session.at(0, Started(), *events)
    assert session.at(1, Closed()) == End() == session.at(2, BROKEN)


def test_a_stage_that_cannot_follow_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="connecting cannot be attending"):
        Session().at(0, Welcomed())
