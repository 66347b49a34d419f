"""All-or-nothing decisions: an event that is refused or fails leaves the state as it was.

Decisions change the state in place, because a copy for each of thousands of events per second would cost more
than the decisions. A handler therefore validates an event before it changes anything, so that a refusal
leaves nothing to undo. Where a bug breaks that rule, the state is rebuilt from the last snapshot and the
events since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar

import structlog

from elastane_master.decisions.events import RefusedLate, Rejection
from elastane_master.errors import MachineBroken

logger = structlog.get_logger(__name__)

SMALL_RECORD_BYTES = 1024
"""Largest event since the last snapshot that is kept as its encoded record.

That takes a fourth of the object's memory. A larger event shares its contexts with the state, so there the
object is cheaper.
"""


class Stored(Protocol):
    """An event with the time it is decided at."""

    @property
    def now(self) -> float: ...

    @property
    def event(self) -> Any: ...


class Machine(Protocol):
    """A state machine that can be rebuilt. facts: its position, for log lines."""

    @property
    def facts(self) -> dict[str, object]: ...

    def handle(self, event: Any, now: float) -> Any: ...

    def snapshot(self) -> bytes: ...

    @classmethod
    def restore(cls, snapshot: bytes) -> Self: ...


M = TypeVar("M", bound=Machine)


class Transactions(Generic[M]):
    """Decisions of one machine. machine: replaced when a decision is rolled back. decode: reads a record."""

    def __init__(self, machine: M, decode: Callable[[bytes], Stored]) -> None:
        self.machine = machine
        self._decode = decode
        self._base = machine.snapshot()
        self._since_base: list[Stored | bytes] = []

    def decide(self, stored: Stored) -> Any:
        """Decide on an event; the caller passes it to `keep` if the decision is durable.

        Raises Rejection and MachineBroken; nothing has changed then.
        """
        try:
            return self.machine.handle(stored.event, stored.now)
        except Rejection:
            raise
        except RefusedLate as late:
            logger.exception(
                "an event was refused after it had changed the state",
                **self.machine.facts,
                kind=_kind(stored),
            )
            self._roll_back()
            raise late.refusal from None
        except Exception as error:  # after any error, a partial decision must not remain
            logger.exception("an event could not be decided", **self.machine.facts, kind=_kind(stored))
            self._roll_back()
            raise MachineBroken(f"{_kind(stored)} could not be decided: {error!r}") from error

    def keep(self, stored: Stored, record: bytes) -> None:
        """Remember an event that changed the state. record: `stored`, encoded."""
        self._since_base.append(record if len(record) <= SMALL_RECORD_BYTES else stored)

    def snapshot(self) -> bytes:
        """Return the state after all decisions so far; later ones are rolled back to it."""
        self._base = self.machine.snapshot()
        self._since_base.clear()
        return self._base

    def _roll_back(self) -> None:
        machine = type(self.machine).restore(self._base)
        for kept in self._since_base:
            stored = self._decode(kept) if isinstance(kept, bytes) else kept
            machine.handle(stored.event, stored.now)
        self.machine = machine


def _kind(stored: Stored) -> str:
    """Return the name of an event's type, for messages."""
    return type(stored.event).__name__
