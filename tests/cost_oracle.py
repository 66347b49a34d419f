"""An independent account of a job's cost, kept worker by worker and step by step.

It observes the machine after each event, and uses none of the product's sums: no worker counts, boundaries or
shares. Money is in micros times nanoseconds per hour, so that it is exact. Used by unit tests and the
simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field

from elastane_master.decisions import cost
from elastane_master.decisions.amounts import Amount
from elastane_master.decisions.effects import Note
from elastane_master.decisions.machine import JobMachine

HOUR_NANOS = 3600 * 10**9
Charged = tuple[int, int, int, int]
"""(nanoseconds, nanoseconds on demand, money spent, money at the on-demand price)."""


@dataclass
class Sum:
    """Time of one kind, added up."""

    nanos: int = 0
    on_demand_nanos: int = 0
    spent: int = 0
    baseline: int = 0

    def add(self, spans: Iterable[Charged], times: int = 1) -> None:
        for nanos, on_demand_nanos, spent, baseline in spans:
            self.nanos += times * nanos
            self.on_demand_nanos += times * on_demand_nanos
            self.spent += times * spent
            self.baseline += times * baseline


@dataclass
class CostOracle:
    """The account of one machine, from its creation, or from where it was restored, on.

    steps: what each prepared step of the history that stands was worked on; flight: since the last of them.
    knows_from: steps before it were done, or begun, before the account; is_lost: they are thrown away, and
    what was charged for them is not known. taken: steps before which this history has taken a checkpoint. To
    another one, which a history that the store forgot has left behind, the product only knows the share.
    """

    machine: JobMachine
    idle: Sum = field(default_factory=Sum)
    replayed: Sum = field(default_factory=Sum)
    useful: Sum = field(default_factory=Sum)
    steps: dict[int, list[Charged]] = field(default_factory=dict)
    flight: list[Charged] = field(default_factory=list)
    now: float = 0.0
    knows_from: int = 0
    is_lost: bool = False
    taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        state = self.machine.state
        self.now = state.decided_at or state.created_at
        self.knows_from = state.steps.prepared + 2 if state.ring.generation else 0
        self._keep()
        self._began_in_step = self._running

    def _keep(self) -> None:
        """Record the state that holds until the next event."""
        state = self.machine.state
        self._running = state.ring.stage == "running"
        self._generation = state.ring.generation
        self._members = set(state.ring.names())
        self._workers = [
            (r.worker, r.role, r.capacity == "on_demand", self._prices_of(r.device_type))
            for r in state.workers.values()
        ]
        self._prepared = state.steps.prepared
        self._count = state.steps.prepared_count
        if state.checkpoints.in_flight is not None:
            self.taken.add(state.checkpoints.in_flight.step)

    def seen(self, notes: Iterable[Note], now: float) -> None:
        """Account for the time up to an event that was decided at `now`."""
        nanos = round(now * 1e9) - round(self.now * 1e9)
        self.now = max(now, self.now)
        for worker, role, on_demand, (spot, on_demand_price) in self._workers if nanos > 0 else ():
            spent = nanos * (on_demand_price if on_demand else spot)
            span = (nanos, nanos if on_demand else 0, spent, nanos * on_demand_price if spent else 0)
            works = self._running and worker in self._members
            (self.useful if works or role == "tasks" else self.idle).add([span])
            if works:
                self.flight.append(span)
        state = self.machine.state
        if state.steps.prepared_count > self._count:
            self._began_in_step = False
            self.steps[self._prepared + 1] = self.flight
            self.flight = []
        stopped = self._running and (
            state.ring.stage != "running" or state.ring.generation != self._generation
        )
        if stopped and state.phase != "succeeded" and not state.all_committed:
            self._throw_away_flight()
        for note in notes:
            if note.kind == "ring_formed":
                self._resumed(int(note.facts["resume_step"]))
        self._keep()

    def _prices_of(self, device_type: str) -> tuple[int, int]:
        """Prices of a device type on spot and on demand: those of its own before those of all."""
        settings = self.machine.state.settings
        own = self.machine.state.cost.device_prices.get(device_type)
        of_all = settings.spot_price_micros, settings.on_demand_price_micros
        if own is None:
            return of_all
        named = own.spot_micros, own.on_demand_micros
        return tuple(mine if mine is not None else common for mine, common in zip(named, of_all, strict=True))

    def totals(self) -> dict[str, Sum]:
        """By kind, as `charged`."""
        return {"idle": self.idle, "replayed": self.replayed, "useful": self.useful}

    def _resumed(self, step: int) -> None:
        for later in [known for known in self.steps if known >= step]:
            spans = self.steps.pop(later)
            self.replayed.add(spans)
            self.useful.add(spans, -1)
            self._throw_away_flight()  # worked after the last step, while its members ended
        is_exact = step in self.taken or step == 0 or step >= self._prepared
        self.is_lost = self.is_lost or step < self.knows_from or not is_exact
        self.taken = {one for one in self.taken if one <= step}

    def _throw_away_flight(self) -> None:
        self.is_lost, self._began_in_step = self.is_lost or self._began_in_step, False
        self.replayed.add(self.flight)
        self.useful.add(self.flight, -1)
        self.flight = []


def charged(machine: JobMachine, now: float) -> dict[str, Charged]:
    """Return what the product has charged up to `now`, by kind."""
    book, prices = machine.state.cost, cost.prices(machine.state)
    since = max(0, cost.nanos(now) - book.at) if book.at is not None else 0
    idle = book.idle.charged(book.ring_workers.without(book.members), since, prices)
    useful = book.working.charged(book.members, since, prices)
    useful = useful.plus(book.tasks.charged(book.task_workers, since, prices))
    return {
        kind: (counters.nanos, counters.on_demand_nanos, _exact(counters.spent), _exact(counters.baseline))
        for kind, counters in (("idle", idle), ("replayed", book.replayed), ("useful", useful))
    }


def difference(oracle: CostOracle, base: dict[str, Charged], product: dict[str, Charged]) -> str:
    """Return where the product's account differs; empty if nowhere. base: its account at our start."""
    for kind, account in oracle.totals().items():
        expected = tuple(old + new for old, new in zip(base[kind], astuple(account), strict=True))
        if product[kind] != expected:
            return f"{kind}: {product[kind]} is charged, {expected} is right"
    return ""


def _exact(amount: Amount) -> int:
    return amount.micros * HOUR_NANOS + amount.rest
