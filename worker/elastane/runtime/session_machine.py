"""Decisions of a worker's session: which master to connect to, when, and when to give up. Pure.

`SessionMachine` takes what has happened to the session's streams, and the time; it returns what to do next.
`MasterSession` carries that out with threads and gRPC, the simulation in virtual time.

    CONNECTING ──▶ OPEN ──▶ ATTENDING        a stream: opened, and welcomed by the master
        ▲            │          │
        │            └─────┬────┘ StreamEnded
        ├── Connect ───────┤
        ├── CHECKING ◀─────┤                 the job was not found again: does that master lead?
        ├── LEAVING ◀──────┤                 the master has evicted this worker, whose script leaves the ring
        └── ENDED ◀────────┘                 Bye, a permanent refusal, or no master for too long

While a stream is open, `Ticked` finds a silent master. A master that is stopped, or cut off from the store,
keeps its streams open, and the worker would wait for it although another one leads. So the others are probed,
one after the other, and the session moves to the first that leads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from elastane_common.errors import ElastaneError, MasterUnreachableError, RefusedError, WorkerReplacedError
from elastane_common.stream_session import (
    STANDBY_SECONDS_MAX,
    Connect,
    Started,
    StreamEnded,
    StreamOpened,
)
from elastane_proto import versions

#: Interval of `Ticked`: a master that has sent nothing since the last one is silent.
SILENT_SECONDS: Final = 2.0
#: Delay before asking again for a job that was not found: the default duration of a leader's lease.
NOT_FOUND_SECONDS: Final = 3.0
#: Status codes with which a master refuses a worker for good; after any other the worker connects again.
PERMANENT_CODES: Final = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "FAILED_PRECONDITION",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "UNIMPLEMENTED",
    }
)


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Welcomed:
    """The master has accepted Hello. heartbeat_seconds: the interval it wants; 0: it does not say."""

    version: str
    heartbeat_seconds: float = 0.0


@dataclass(frozen=True)
class MessageReceived:
    """The master has sent any other message."""


@dataclass(frozen=True)
class LeaderChecked:
    """The answer to `CheckLeader`. leads: the master says that it leads."""

    leads: bool


@dataclass(frozen=True)
class RingLeft:
    """The script has reached a step boundary, as `LeaveRing` asked."""


@dataclass(frozen=True)
class Ticked:
    """`SILENT_SECONDS` have passed. others: addresses of the masters, without the current one."""

    others: tuple[str, ...]


@dataclass(frozen=True)
class Probed:
    """The answer to `Probe`. leads: a master at `address` says that it leads."""

    address: str
    leads: bool


@dataclass(frozen=True)
class ByeRequested:
    """The worker ends, and has a Bye to send."""


Event = (
    Started
    | StreamOpened
    | Welcomed
    | MessageReceived
    | StreamEnded
    | LeaderChecked
    | RingLeft
    | Ticked
    | Probed
    | ByeRequested
)


# ---------------------------------------------------------------- actions


@dataclass(frozen=True)
class CheckLeader:
    """Ask the master whose stream has ended whether it leads; then `LeaderChecked`."""


@dataclass(frozen=True)
class LeaveRing:
    """Have the script leave the ring, and wait for its next step boundary; then `RingLeft`."""


@dataclass(frozen=True)
class SendBye:
    """Send Bye, after what the session has to say to a Welcome."""


@dataclass(frozen=True)
class Probe:
    """Ask the master at `address` whether it leads; then `Probed`."""

    address: str


@dataclass(frozen=True)
class SwitchTo:
    """Make `address` the current one, and cancel the stream."""

    address: str


@dataclass(frozen=True)
class End:
    """End the session for good. error: to be raised by the worker; None: it has said Bye."""

    error: ElastaneError | None = None


Action = Connect | CheckLeader | LeaveRing | SendBye | Probe | SwitchTo | End


# ---------------------------------------------------------------- machine


class Stage(Enum):
    """Stage of the session; see the module."""

    CONNECTING = "connecting"
    OPEN = "open"
    ATTENDING = "attending"
    CHECKING = "checking"
    LEAVING = "leaving"
    ENDED = "ended"


_OF_STREAM: Final = frozenset({Stage.ATTENDING, Stage.CONNECTING, Stage.CHECKING, Stage.LEAVING, Stage.ENDED})
TRANSITIONS: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.CONNECTING: frozenset({Stage.OPEN}),
    Stage.OPEN: _OF_STREAM,
    Stage.ATTENDING: _OF_STREAM,
    Stage.CHECKING: frozenset({Stage.CONNECTING, Stage.ENDED}),
    Stage.LEAVING: frozenset({Stage.CONNECTING}),
    Stage.ENDED: frozenset(),
}


def _is_permanent(ended: StreamEnded) -> bool:
    """True if the same Hello, or the same message, would be refused again."""
    if ended.code == "RESOURCE_EXHAUSTED":
        return not ended.is_retryable  # a message too large, or beyond another limit
    return ended.code in PERMANENT_CODES


class SessionMachine:
    """The decisions of one worker's session. Not thread-safe.

    masters: addresses as the user gave them, for texts. timeout_seconds: a master unreachable for longer
    ends the session. now: the current time of any monotonic clock, in seconds. backoff: the wait after an
    outage of this many seconds. unreachable_hint: of the error that says so.
    """

    def __init__(
        self,
        masters: str,
        *,
        timeout_seconds: float,
        now: float,
        backoff: Callable[[float], float],
        unreachable_hint: str = "",
    ) -> None:
        self.stage = Stage.CONNECTING
        #: Interval of heartbeats.
        self.heartbeat_seconds = 1.0
        self._masters = masters
        self._timeout_seconds = timeout_seconds
        self._unreachable_hint = unreachable_hint
        self._backoff = backoff
        #: When a master was last known to be reachable; at the last tick.
        self._contact_at = self._contact_at_tick = now
        #: The current or last stream has brought a message; how it ended.
        self._heard = False
        self._ended = StreamEnded()
        #: The last answer to Hello was that there is no such job.
        self._not_found = False
        self._has_bye = False
        #: Masters still to be probed, the first of them now.
        self._probing: tuple[str, ...] = ()

    def handle(self, event: Event, now: float) -> Action | None:
        """Return what to do after `event`; None: nothing, until the next one."""
        match event:
            case Started():
                return Connect(stays=True)
            case StreamOpened():
                self._go_to(Stage.OPEN)
                self._heard = False
            case Welcomed():
                return self._welcomed(event, now)
            case MessageReceived():
                self._note_contact(now)
            case StreamEnded():
                return self._stream_ended(event, now)
            case LeaderChecked():
                return self._leader_checked(event.leads)
            case RingLeft():
                # A master that evicts this worker leads: stay with it.
                self._contact_at = now
                return self._reconnect(now, stays=True)
            case Ticked():
                return self._ticked(event.others)
            case Probed():
                return self._probed(event)
            case ByeRequested():
                self._has_bye = True
                return SendBye() if self.stage is Stage.ATTENDING else None
        return None

    # ------------------------------------------------------------------ a stream

    def _welcomed(self, event: Welcomed, now: float) -> Action | None:
        fault, hint = versions.master_fault(event.version)
        if fault:
            return self._end(RefusedError(fault, hint=hint, version=event.version))
        self._go_to(Stage.ATTENDING)
        self._note_contact(now)
        self._not_found = False
        self.heartbeat_seconds = event.heartbeat_seconds or 1.0
        return SendBye() if self._has_bye else None

    def _note_contact(self, now: float) -> None:
        self._contact_at = now
        self._heard = True

    def _stream_ended(self, event: StreamEnded, now: float) -> Action:
        self._ended = event
        self._probing = ()
        if self._has_bye and not event.code:
            return self._end()
        if _is_permanent(event):
            return self._job_not_found(now) if event.code == "NOT_FOUND" else self._refused()
        if event.reason == "EVICTED":
            self._go_to(Stage.LEAVING)
            return LeaveRing()
        if self._heard:
            # The master was reachable until now, though it may have sent nothing for long.
            self._contact_at = now
        return self._reconnect(now)

    def _reconnect(self, now: float, *, stays: bool = False) -> Action:
        away_seconds = now - self._contact_at
        if away_seconds > self._timeout_seconds:
            return self._end(
                MasterUnreachableError(
                    f"no master answered at {self._masters} for {away_seconds:.0f} s: {self._ended.text}",
                    hint=self._unreachable_hint,
                    last_error=self._ended.text,
                )
            )
        self._go_to(Stage.CONNECTING)
        seconds = self._backoff(away_seconds)
        if self._ended.reason == "NOT_LEADING":
            seconds = min(seconds, STANDBY_SECONDS_MAX)
        return Connect(seconds, stays, self._ended.facts.get("leader", ""))

    # ------------------------------------------------------------------ refusals

    def _job_not_found(self, now: float) -> Action:
        """Handle a master that does not know the job: weights are at stake, and it may not be up to date.

        It is believed only if it is the second to say so, and leads; or after `timeout_seconds`.
        """
        is_repeated, self._not_found = self._not_found, True
        if now - self._contact_at > self._timeout_seconds:
            return self._refused()
        if is_repeated:
            self._go_to(Stage.CHECKING)
            return CheckLeader()
        return self._ask_again()

    def _leader_checked(self, leads: bool) -> Action:
        return self._refused() if leads else self._ask_again()

    def _ask_again(self) -> Action:
        self._go_to(Stage.CONNECTING)
        return Connect(NOT_FOUND_SECONDS)

    def _refused(self) -> Action:
        """End the session with the typed error of a refusal, with the master's facts and hint."""
        ended = self._ended
        error = WorkerReplacedError if ended.reason == "REPLACED" else RefusedError
        return self._end(
            error(f"the master refused this worker: {ended.text}", hint=ended.hint, **dict(ended.facts))
        )

    def _end(self, error: ElastaneError | None = None) -> Action:
        self._go_to(Stage.ENDED)
        return End(error)

    # ------------------------------------------------------------------ silent masters

    def _ticked(self, others: tuple[str, ...]) -> Action | None:
        # Silent means no message since the last tick, so a switch comes after one to two intervals.
        is_silent = self._contact_at == self._contact_at_tick
        self._contact_at_tick = self._contact_at
        if not is_silent or self.stage not in (Stage.OPEN, Stage.ATTENDING):
            return None
        self._probing = others
        return self._next_probe()

    def _probed(self, event: Probed) -> Action | None:
        if self._probing[:1] != (event.address,):
            return None  # the stream has ended meanwhile
        if event.leads:
            self._probing = ()
            return SwitchTo(event.address)
        self._probing = self._probing[1:]
        return self._next_probe()

    def _next_probe(self) -> Probe | None:
        return Probe(self._probing[0]) if self._probing else None

    # ------------------------------------------------------------------ internals

    def _go_to(self, stage: Stage) -> None:
        assert stage in TRANSITIONS[self.stage], (
            f"a session that is {self.stage.value} cannot be {stage.value}"
        )
        self.stage = stage
