"""A second account of what a job costs, kept from outside: worker by worker, in fractions, every step apart.

It sees the machine after each event, and nothing of how the product keeps its sums: no counts of workers, no
boundaries, no shares. Used by the unit tests and by the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from elastane_master.decisions import cost
from elastane_master.decisions.effects import Note
from elastane_master.decisions.machine import JobMachine

HOUR_NANOS = 3600 * 10**9


@dataclass(frozen=True)
class Span:
    """One worker's time between two events, with the prices that held."""

    nanos: int
    on_demand: bool
    spot_price: int
    on_demand_price: int

    @property
    def spent(self) -> Fraction:
        return Fraction(
            self.nanos * (self.on_demand_price if self.on_demand else self.spot_price), HOUR_NANOS
        )

    @property
    def baseline(self) -> Fraction:
        return Fraction(self.nanos * self.on_demand_price, HOUR_NANOS)


@dataclass
class Sum:
    """Spans of one kind, added up."""

    nanos: int = 0
    on_demand_nanos: int = 0
    spent: Fraction = Fraction()
    baseline: Fraction = Fraction()

    def add(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.nanos += span.nanos
            self.on_demand_nanos += span.nanos * span.on_demand
            self.spent += span.spent
            self.baseline += span.baseline


@dataclass
class CostOracle:
    """The account of one machine, from its creation, or from where it was restored, on.

    steps: what each prepared step of the history that stands was worked on; flight: since the last of them.
    knows_from: steps before it were done before the account began.
    """

    machine: JobMachine
    idle: Sum = field(default_factory=Sum)
    replayed: Sum = field(default_factory=Sum)
    tasks: Sum = field(default_factory=Sum)
    steps: dict[int, list[Span]] = field(default_factory=dict)
    flight: list[Span] = field(default_factory=list)
    now: float = 0.0
    knows_from: int = 0
    is_lost: bool = False

    def __post_init__(self) -> None:
        state = self.machine.state
        self.now = state.decided_at or state.created_at
        self.knows_from = state.steps.prepared + 1
        self._keep()

    def _keep(self) -> None:
        """What held until the next event."""
        state = self.machine.state
        self._running = state.ring.stage == "running"
        self._generation = state.ring.generation
        self._members = set(state.ring.names())
        self._workers = [(r.worker, r.role, r.capacity == "on_demand") for r in state.workers.values()]
        self._prices = state.settings.spot_price_micros, state.settings.on_demand_price_micros
        self._prepared = state.steps.prepared
        self._count = state.steps.prepared_count

    def seen(self, notes: Iterable[Note], now: float) -> None:
        """An event that changed something was decided at `now`."""
        nanos = round(now * 1e9) - round(self.now * 1e9)
        self.now = max(now, self.now)
        state = self.machine.state
        for worker, role, on_demand in self._workers if nanos > 0 else ():
            span = Span(nanos, on_demand, *self._prices)
            if role == "tasks":
                self.tasks.add([span])
            elif self._running and worker in self._members:
                self.flight.append(span)
            else:
                self.idle.add([span])
        if state.steps.prepared_count > self._count:
            self.steps[self._prepared + 1] = self.flight
            self.flight = []
        stopped = self._running and (
            state.ring.stage != "running" or state.ring.generation != self._generation
        )
        if stopped and state.phase != "succeeded" and not state.all_committed:
            self.replayed.add(self.flight)
            self.flight = []
        for note in notes:
            if note.kind == "ring_formed":
                self._resumed(int(note.facts["resume_step"]))
        self._keep()

    def _resumed(self, step: int) -> None:
        for later in [known for known in self.steps if known >= step]:
            self.replayed.add(self.steps.pop(later))
            self.replayed.add(self.flight)  # worked after the last step, while its members ended
            self.flight = []
        self.is_lost = self.is_lost or step < self.knows_from

    def totals(self) -> dict[str, Sum]:
        """By kind: idle, replayed, useful."""
        useful = Sum()
        useful.add(span for spans in self.steps.values() for span in spans)
        useful.add(self.flight)
        for name in ("nanos", "on_demand_nanos", "spent", "baseline"):
            setattr(useful, name, getattr(useful, name) + getattr(self.tasks, name))
        return {"idle": self.idle, "replayed": self.replayed, "useful": useful}


def charged(machine: JobMachine, now: float) -> dict[str, tuple[int, int, Fraction, Fraction]]:
    """What the product has charged up to `now`, by kind: nanoseconds, those on demand, spent, baseline."""
    book, settings = machine.state.cost, machine.state.settings
    since = max(0, cost.nanos(now) - book.at) if book.at is not None else 0
    idle = book.idle.charged(book.ring_workers.without(book.members), since, settings)
    useful = book.working.charged(book.members, since, settings)
    useful = useful.plus(book.tasks.charged(book.task_workers, since, settings))
    return {
        kind: (tally.nanos, tally.on_demand_nanos, _exact(tally.spent), _exact(tally.baseline))
        for kind, tally in (("idle", idle), ("replayed", book.replayed), ("useful", useful))
    }


def _exact(amount: cost.Amount) -> Fraction:
    return amount.micros + Fraction(amount.rest, HOUR_NANOS)
