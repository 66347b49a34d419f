"""Decisions of a runner's session: which master to attend, when, and when to give up. Pure.

`AttendingMachine` takes what has happened to the session's streams, and the time; it returns what to do next.
`MasterStream` carries that out.

    CONNECTING ──▶ OPEN ──▶ ATTENDING        a stream: opened, and welcomed by the master
        ▲            │          │
        ├── Connect ─┴────┬─────┘ StreamEnded
        └── ENDED ◀───────┘                  a permanent refusal, or the runner ends

A runner never gives up because no master answers: its ranks continue without one, and everything that a lost
stream should have carried is in the next Hello, which lists every rank that the runner has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from elastane_common.errors import RefusedError
from elastane_common.stream_session import (
    STANDBY_SECONDS_MAX,
    Connect,
    Started,
    StreamEnded,
    StreamOpened,
)

#: Interval of heartbeats before a master has named one.
HEARTBEAT_SECONDS_DEFAULT: Final = 1.0
#: Status codes with which a master refuses a runner for good; after any other the runner connects again.
PERMANENT_CODES: Final = frozenset(
    {"ALREADY_EXISTS", "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"}
)


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Welcomed:
    """The master has accepted Hello. heartbeat_seconds: the interval it wants; 0: it does not say."""

    heartbeat_seconds: float = 0.0


@dataclass(frozen=True)
class Closed:
    """The runner ends."""


Event = Started | StreamOpened | Welcomed | StreamEnded | Closed


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class End:
    """End the session for good. error: why; None: the runner ends."""

    error: RefusedError | None = None


Action = Connect | End


# ---------------------------------------------------------------- machine


class Stage(Enum):
    """Stage of the session; see the module."""

    CONNECTING = "connecting"
    OPEN = "open"
    ATTENDING = "attending"
    ENDED = "ended"


TRANSITIONS: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.CONNECTING: frozenset({Stage.OPEN, Stage.CONNECTING, Stage.ENDED}),
    Stage.OPEN: frozenset({Stage.ATTENDING, Stage.CONNECTING, Stage.ENDED}),
    Stage.ATTENDING: frozenset({Stage.CONNECTING, Stage.ENDED}),
    Stage.ENDED: frozenset({Stage.ENDED}),
}


def _is_permanent(ended: StreamEnded) -> bool:
    """True if the same Hello, or the same message, would be refused again."""
    if ended.code == "FAILED_PRECONDITION":
        return not ended.is_retryable
    return ended.code in PERMANENT_CODES


class AttendingMachine:
    """The decisions of one runner's session. Not thread-safe.

    now: the current time of any monotonic clock, in seconds. backoff: the wait after an outage of this many
    seconds.
    """

    def __init__(self, *, now: float, backoff: Callable[[float], float]) -> None:
        self.stage = Stage.CONNECTING
        #: Interval of heartbeats.
        self.heartbeat_seconds = HEARTBEAT_SECONDS_DEFAULT
        self._backoff = backoff
        #: When a master was last known to attend to this runner.
        self._contact_at = now

    def handle(self, event: Event, now: float) -> Action | None:
        """Return what to do after `event`; None: nothing, until the next one."""
        match event:
            case Closed():
                self._go_to(Stage.ENDED)
                return End()
            case Started():
                return Connect(stays=True)
            case StreamOpened():
                self._go_to(Stage.OPEN)
            case Welcomed():
                self._go_to(Stage.ATTENDING)
                self._contact_at = now
                self.heartbeat_seconds = event.heartbeat_seconds or HEARTBEAT_SECONDS_DEFAULT
            case StreamEnded():
                return self._stream_ended(event, now)
        return None

    def _stream_ended(self, ended: StreamEnded, now: float) -> Action:
        if self.stage is Stage.ENDED:
            return End()
        if _is_permanent(ended):
            self._go_to(Stage.ENDED)
            text = f"the master refused this runner: {ended.text}"
            return End(RefusedError(text, hint=ended.hint, **dict(ended.facts)))
        if self.stage is Stage.ATTENDING:
            self._contact_at = now
        self._go_to(Stage.CONNECTING)
        seconds = self._backoff(now - self._contact_at)
        if ended.reason == "NOT_LEADING":
            seconds = min(seconds, STANDBY_SECONDS_MAX)
        return Connect(seconds, leader=ended.facts.get("leader", ""))

    def _go_to(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], (
            f"a session that is {self.stage.value} cannot be {stage.value}"
        )
        self.stage = stage
