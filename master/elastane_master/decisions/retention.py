"""Retention of finished jobs, and the record of closed ones. Pure.

  over --> unused for a while --> closed: a record, from which List and Get answer
    --> older than the limit, or too many --> deleted, with all its stored data

The age of a finished job counts from its last change (new prices, a Resume with another end).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import OVER
from elastane_master.decisions.views import JobView, job_view

FOREVER = "forever"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TIME = re.compile(r"([0-9]{1,9})([smhdw])")


class Retention(msgspec.Struct, frozen=True):
    """Limits for finished jobs: those of the last `seconds` are kept, and of them the `newest`."""

    seconds: float = math.inf
    newest: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Retention:
        """Parse "7d" (s, m, h, d, w), "100" (the newest hundred), or "forever". Raises ValueError."""
        text = text.strip()
        if text == FOREVER:
            return cls()
        if text.isascii() and text.isdigit():
            return cls(newest=int(text))
        if (match := _TIME.fullmatch(text)) is None:
            raise ValueError(f"must be a time (7d, 12h, 30m), a number of jobs, or {FOREVER}")
        return cls(seconds=int(match[1]) * _UNITS[match[2]])

    def overdue(self, ended: Iterable[tuple[str, float]], now: float) -> list[str]:
        """Return finished jobs (name, end time) beyond the limits, oldest first."""
        newest_first = sorted(ended, key=lambda one: (-one[1], one[0]))
        gone = [
            name
            for place, (name, at) in enumerate(newest_first)
            if place >= self.newest or now - at > self.seconds
        ]
        return gone[::-1]


class Record(msgspec.Struct, frozen=True):
    """Record of a closed job. view: as of its closing. ended_at: seconds since the Unix epoch."""

    view: JobView
    ended_at: float
    closed_at: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def require_deletable(machine: JobMachine, force: bool) -> None:
    """Raise Rejection unless the job is over, or `force` allows to end it."""
    state = machine.state
    if state.phase not in OVER and not force:
        raise Rejection(
            "wrong_phase",
            f"the job is {state.phase}: {state.reason}",
            hint="cancel it first, or ask for both: `elastane delete JOB --force` (force in the request)",
            phase=state.phase,
        )


def may_close(machine: JobMachine) -> bool:
    """True if the job is over and no deadline is left, so that it can be closed."""
    return machine.state.phase in OVER and machine.next_deadline() is None


def record_of(machine: JobMachine, now: float) -> bytes:
    """Encode the record of a job that is being closed."""
    return _encoder.encode(Record(job_view(machine, now), machine.state.decided_at, now))


def read_record(payload: bytes) -> Record | None:
    """Decode a record; None for another version: the job must then be read completely."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
