"""How long finished jobs are kept, and what is remembered of one that is closed. Pure.

    over --> nobody asks for it for a while --> closed: a record, which List and Get answer from
         --> older than is kept, or more of them than are kept --> deleted, with all that is stored of it

A job that is over, but was changed since (its prices, a Resume and a new end), is as old as its last change.
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
    """Which finished jobs are kept: those of the last `seconds`, and of them the `newest`."""

    seconds: float = math.inf
    newest: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Retention:
        """ "7d" (s, m, h, d, w), "100" (the newest hundred), or "forever". Raises ValueError."""
        text = text.strip()
        if text == FOREVER:
            return cls()
        if text.isascii() and text.isdigit():
            return cls(newest=int(text))
        if (match := _TIME.fullmatch(text)) is None:
            raise ValueError(f"must be a time (7d, 12h, 30m), a number of jobs, or {FOREVER}")
        return cls(seconds=int(match[1]) * _UNITS[match[2]])

    def overdue(self, ended: Iterable[tuple[str, float]], now: float) -> list[str]:
        """Which of the finished jobs (name, when it ended) are not kept any longer, oldest first."""
        newest_first = sorted(ended, key=lambda one: (-one[1], one[0]))
        gone = [
            name
            for place, (name, at) in enumerate(newest_first)
            if place >= self.newest or now - at > self.seconds
        ]
        return gone[::-1]


class Record(msgspec.Struct, frozen=True):
    """A closed job. view: as it was when it was closed. ended_at: seconds since the Unix epoch."""

    view: JobView
    ended_at: float
    closed_at: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def require_deletable(machine: JobMachine, force: bool) -> None:
    """Raises Rejection unless the job is over, or is to be ended for it."""
    state = machine.state
    if state.phase not in OVER and not force:
        raise Rejection(
            "wrong_phase",
            f"the job is {state.phase}: {state.reason}",
            hint="cancel it first, or ask for both: `elastane delete JOB --force` (force in the request)",
            phase=state.phase,
        )


def may_rest(machine: JobMachine) -> bool:
    """Whether nothing is awaited of the job any more: it is over, and no deadline is left."""
    return machine.state.phase in OVER and machine.next_deadline() is None


def record_of(machine: JobMachine, now: float) -> bytes:
    """What is stored of a job that is closed."""
    return _encoder.encode(Record(job_view(machine, now), machine.state.decided_at, now))


def read_record(payload: bytes) -> Record | None:
    """The record; None: it is of another version, and the job has to be read whole."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
