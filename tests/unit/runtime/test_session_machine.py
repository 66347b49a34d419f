"""What a worker's session decides: when it connects again, to which master, and when it gives up."""

from __future__ import annotations

from itertools import product

import pytest

from elastane.runtime.session_machine import (
    NOT_FOUND_SECONDS,
    PERMANENT_CODES,
    TRANSITIONS,
    Action,
    ByeRequested,
    CheckLeader,
    End,
    Event,
    LeaderChecked,
    LeaveRing,
    MessageReceived,
    Probe,
    Probed,
    RingLeft,
    SendBye,
    SessionMachine,
    Stage,
    SwitchTo,
    Ticked,
    Welcomed,
)
from elastane_common.errors import MasterUnreachableError, RefusedError, WorkerReplacedError
from elastane_common.stream_session import STANDBY_SECONDS_MAX, Connect, Started, StreamEnded, StreamOpened
from elastane_proto import versions

TIMEOUT_SECONDS = 60.0
WELCOME = Welcomed(str(versions.PROTOCOL))
BROKEN = StreamEnded("UNAVAILABLE", "connection refused")
NOT_FOUND = StreamEnded("NOT_FOUND", "there is no job 'j'", facts={"leader": "b:1"})
NOT_LEADING = StreamEnded("UNAVAILABLE", "b:1 leads", "NOT_LEADING", True, facts={"leader": "b:1"})
EVICTED = StreamEnded("ABORTED", "evicted: no heartbeat", "EVICTED", True, facts={"leader": "b:1"})
CLOSED = StreamEnded()
ALLOWED = {
    "connecting": "open",
    "open": "attending connecting checking leaving ended",
    "attending": "attending connecting checking leaving ended",
    "checking": "connecting ended",
    "leaving": "connecting",
    "ended": "",
}


class Session:
    """A machine whose backoff is as long as the outage; `at` sets the time and handles events."""

    def __init__(self) -> None:
        self.machine = SessionMachine(
            "a:1, b:1", timeout_seconds=TIMEOUT_SECONDS, now=0.0, unreachable_hint="hint", backoff=float
        )

    def at(self, now: float, *events: Event) -> Action | None:
        """The last event's action; those before it must not call for one."""
        *before, last = events
        for event in before:
            assert self.machine.handle(event, now) is None
        return self.machine.handle(last, now)

    def end_at(self, now: float, *events: Event) -> Exception | None:
        action = self.at(now, *events)
        assert isinstance(action, End)
        assert self.machine.stage is Stage.ENDED
        return action.error


@pytest.fixture
def session() -> Session:
    """It has just been started."""
    made = Session()
    assert made.at(0.0, Started()) == Connect(stays=True)
    return made


# ---------------------------------------------------------------- streams that end


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (BROKEN, Connect(7.0)),
        (CLOSED, Connect(7.0)),
        (StreamEnded("RESOURCE_EXHAUSTED", "no room", is_retryable=True), Connect(7.0)),
        (NOT_LEADING, Connect(STANDBY_SECONDS_MAX, leader="b:1")),
        (EVICTED, LeaveRing()),
        (NOT_FOUND, Connect(NOT_FOUND_SECONDS)),
    ],
    ids=lambda value: f"{value.code}-{value.reason}" if isinstance(value, StreamEnded) else "",
)
def test_after_a_stream_without_an_answer(session: Session, ended: StreamEnded, expected: Action) -> None:
    """The master has not been heard for seven seconds."""
    assert session.at(7.0, StreamOpened(), ended) == expected


@pytest.mark.parametrize("last", [WELCOME, MessageReceived()], ids=["welcome", "message"])
def test_an_outage_begins_when_the_stream_of_a_heard_master_breaks(session: Session, last: Event) -> None:
    """However long it had nothing to say."""
    session.at(1.0, StreamOpened(), WELCOME)
    session.at(2.0, last)
    assert session.at(2.0 + 2 * TIMEOUT_SECONDS, BROKEN) == Connect(0.0)
    # In the next stream nothing is heard: the outage has not ended.
    assert session.at(12.0 + 2 * TIMEOUT_SECONDS, StreamOpened(), BROKEN) == Connect(10.0)


def test_a_standby_master_is_waited_for_no_longer_than_others(session: Session) -> None:
    assert session.at(0.1, StreamOpened(), NOT_LEADING) == Connect(0.1, leader="b:1")


def test_the_outage_that_ends_the_session_is_longer_than_the_timeout(session: Session) -> None:
    assert session.at(TIMEOUT_SECONDS, StreamOpened(), BROKEN) == Connect(TIMEOUT_SECONDS)
    error = session.end_at(TIMEOUT_SECONDS + 1, StreamOpened(), BROKEN)
    assert isinstance(error, MasterUnreachableError)
    assert str(error) == "no master answered at a:1, b:1 for 61 s: connection refused (hint)"
    assert error.facts == {"last_error": "connection refused"}


@pytest.mark.parametrize("code", sorted({*PERMANENT_CODES, "RESOURCE_EXHAUSTED"} - {"NOT_FOUND"}))
def test_a_permanent_refusal_ends_the_session_at_once(session: Session, code: str) -> None:
    ended = StreamEnded(code, "no", "MISMATCH", hint="do otherwise", facts={"seed": "3"})
    error = session.end_at(0.0, StreamOpened(), ended)
    assert type(error) is RefusedError
    assert str(error) == "the master refused this worker: no (do otherwise)"
    assert error.facts == {"seed": "3"}


def test_a_process_that_was_replaced_learns_so(session: Session) -> None:
    ended = StreamEnded("FAILED_PRECONDITION", "another process joined", "REPLACED")
    assert type(session.end_at(0.0, StreamOpened(), WELCOME, ended)) is WorkerReplacedError


def test_a_master_that_is_too_old_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MASTER_OLDEST", 2)
    error = session.end_at(0.0, StreamOpened(), Welcomed("1"))
    assert isinstance(error, RefusedError)
    assert "too old" in str(error) and error.facts == {"version": "1"}


# ---------------------------------------------------------------- jobs that are not found


def test_a_job_is_gone_when_a_second_answer_says_so_and_that_master_leads(session: Session) -> None:
    assert session.at(0.0, StreamOpened(), NOT_FOUND) == Connect(NOT_FOUND_SECONDS)
    assert session.at(3.0, StreamOpened(), NOT_FOUND) == CheckLeader()
    assert session.at(3.1, LeaderChecked(leads=False)) == Connect(NOT_FOUND_SECONDS)
    assert session.at(6.0, StreamOpened(), NOT_FOUND) == CheckLeader()
    error = session.end_at(6.1, LeaderChecked(leads=True))
    assert type(error) is RefusedError and "there is no job 'j'" in str(error)


def test_a_welcome_between_two_answers_makes_the_second_the_first(session: Session) -> None:
    session.at(0.0, StreamOpened(), NOT_FOUND)
    session.at(3.0, StreamOpened(), WELCOME)
    assert session.at(4.0, NOT_FOUND) == Connect(NOT_FOUND_SECONDS)
    session.at(7.0, StreamOpened(), BROKEN)
    assert session.at(7.0, StreamOpened(), NOT_FOUND) == CheckLeader(), "a broken stream is no welcome"


def test_a_master_that_does_not_lead_is_believed_after_the_timeout(session: Session) -> None:
    session.at(0.0, StreamOpened(), NOT_FOUND)
    assert session.at(TIMEOUT_SECONDS, StreamOpened(), NOT_FOUND) == CheckLeader()
    session.at(TIMEOUT_SECONDS, LeaderChecked(leads=False))
    assert isinstance(session.end_at(TIMEOUT_SECONDS + 0.1, StreamOpened(), NOT_FOUND), RefusedError)


# ---------------------------------------------------------------- evictions, Bye, heartbeats


def test_an_evicted_worker_leaves_the_ring_and_returns_to_the_same_master(session: Session) -> None:
    session.at(0.0, StreamOpened(), WELCOME)
    assert session.at(1.0, EVICTED) == LeaveRing()
    assert session.machine.stage is Stage.LEAVING
    # The time that the script took is no outage.
    back = session.at(1.0 + 2 * TIMEOUT_SECONDS, RingLeft())
    assert back == Connect(0.0, stays=True, leader="b:1")


@pytest.mark.parametrize(("ended", "is_end"), [(CLOSED, True), (BROKEN, False)], ids=["closed", "broken"])
def test_a_stream_that_ends_without_an_error_after_bye_ends_the_session(
    session: Session, ended: StreamEnded, is_end: bool
) -> None:
    session.at(0.0, StreamOpened(), WELCOME)
    assert session.at(1.0, ByeRequested()) == SendBye()
    assert session.at(2.0, ended) == (End() if is_end else Connect(0.0))
    if not is_end:
        assert session.at(3.0, StreamOpened(), WELCOME) == SendBye(), "the first may be lost"


def test_bye_waits_for_a_master_that_welcomes(session: Session) -> None:
    assert session.at(0.0, ByeRequested()) is None
    assert session.at(0.0, StreamOpened(), BROKEN) == Connect(0.0)
    assert session.at(1.0, StreamOpened(), WELCOME) == SendBye()
    assert session.at(1.0, MessageReceived()) is None


def test_the_master_sets_the_interval_of_heartbeats(session: Session) -> None:
    assert session.machine.heartbeat_seconds == 1.0
    session.at(0.0, StreamOpened(), Welcomed(WELCOME.version, 0.25))
    assert session.machine.heartbeat_seconds == 0.25
    session.at(1.0, WELCOME)
    assert session.machine.heartbeat_seconds == 1.0


# ---------------------------------------------------------------- silent masters

TICK = Ticked(("b:1", "c:1", "d:1"))


def test_the_other_masters_are_probed_in_turn_until_one_leads(session: Session) -> None:
    session.at(1.0, StreamOpened(), WELCOME)
    assert session.at(2.0, TICK) is None, "a message came since the last tick"
    assert session.at(4.0, TICK) == Probe("b:1")
    assert session.at(4.1, Probed("b:1", leads=False)) == Probe("c:1")
    assert session.at(4.2, Probed("c:1", leads=True)) == SwitchTo("c:1")
    assert session.at(4.3, StreamEnded("CANCELLED")) == Connect(0.0)


def test_a_look_ends_where_no_other_master_leads(session: Session) -> None:
    session.at(0.0, StreamOpened())
    assert session.at(2.0, Ticked(("b:1",))) == Probe("b:1"), "one that does not welcome is silent too"
    assert session.at(2.1, Probed("b:1", leads=False)) is None
    assert session.at(4.0, Ticked(())) is None
    session.at(5.0, MessageReceived())
    assert session.at(6.0, TICK) is None


def test_a_probe_that_is_answered_after_its_stream_has_ended_counts_for_nothing(session: Session) -> None:
    session.at(0.0, StreamOpened())
    assert session.at(2.0, TICK) == Probe("b:1")
    session.at(2.1, BROKEN)
    assert session.at(2.2, StreamOpened(), Probed("b:1", leads=True)) is None


def test_nobody_is_probed_while_no_stream_is_open(session: Session) -> None:
    assert session.at(2.0, TICK) is None
    session.at(2.0, StreamOpened(), EVICTED)
    assert session.at(4.0, TICK) is None
    session.at(5.0, RingLeft())
    assert session.at(6.0, TICK) is None
    assert session.at(8.0, TICK) is None


# ---------------------------------------------------------------- stages


def test_the_table_of_stages_is_the_one_in_the_docs() -> None:
    assert {a.value: {b.value for b in after} for a, after in TRANSITIONS.items()} == {
        stage: set(after.split()) for stage, after in ALLOWED.items()
    }


@pytest.mark.parametrize(("stage", "event"), list(product(Stage, (StreamOpened(), WELCOME, RingLeft()))))
def test_an_event_that_cannot_happen_is_a_bug(stage: Stage, event: Event) -> None:
    made = Session()
    made.machine.stage = stage
    target = {StreamOpened(): "open", WELCOME: "attending", RingLeft(): "connecting"}[event]
    if target in ALLOWED[stage.value].split():
        made.at(0.0, event)
        return
    with pytest.raises(AssertionError, match=f"a session that is {stage.value} cannot be {target}"):
        made.at(0.0, event)
