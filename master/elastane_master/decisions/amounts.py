"""Worker time and money of a job as exact sums: what `cost.py` charges. No floats."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elastane_master.decisions.events import Capacity
from elastane_proto.job_settings import JobSettings

NANOS = 1_000_000_000
HOUR_NANOS = 3600 * NANOS
MARKS_MAX = 64
"""Boundaries of checkpoints that are remembered; the oldest but the first are forgotten."""

# What a store was spoiled to must not be charged on: sums would outgrow what can be stored.
NANOS_MAX = 2**62
"""Of all workers together, 146 years of one: further time is not charged, for it could not be stored."""
Nanos = Annotated[int, Meta(ge=0, le=NANOS_MAX)]
Micros = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Rest = Annotated[int, Meta(ge=0, lt=HOUR_NANOS)]
Count = Annotated[int, Meta(ge=0, le=2**20)]


class Amount(msgspec.Struct, frozen=True, array_like=True):
    """Money: `micros` of the currency and `rest` / HOUR_NANOS of one more, 0 <= rest < HOUR_NANOS.

    In two numbers, because a price times nanoseconds outgrows the 64 bits of the stored form.
    """

    micros: Micros = 0
    rest: Rest = 0

    def plus(self, price_micros: int, nanos: int, times: int = 1) -> Amount:
        """And `nanos` at `price_micros` an hour; times -1: less them."""
        more, rest = divmod(self.rest + times * price_micros * nanos, HOUR_NANOS)
        return Amount(self.micros + more, rest)

    def and_amount(self, other: Amount, times: int = 1) -> Amount:
        """The sum; times -1: the difference."""
        more, rest = divmod(self.rest + times * other.rest, HOUR_NANOS)
        return Amount(self.micros + times * other.micros + more, rest)

    def share(self, part: int, whole: int) -> Amount:
        """part / whole of it, rounded down."""
        micros, rest = divmod((self.micros * HOUR_NANOS + self.rest) * part // whole, HOUR_NANOS)
        return Amount(micros, rest)

    def rounded(self) -> int:
        """Whole micros; half of one counts as one."""
        return self.micros + (2 * self.rest >= HOUR_NANOS)


class Charges(msgspec.Struct, frozen=True, array_like=True):
    """Worker time of one kind, by capacity, and its money.

    spot_nanos, on_demand_nanos, unpriced_nanos: worker-nanoseconds; the last are contained in the others.
    spent: at the price of each capacity. baseline: what of it has a price, at the on-demand price.
    """

    spot_nanos: Nanos = 0
    on_demand_nanos: Nanos = 0
    unpriced_nanos: Nanos = 0
    spent: Amount = Amount()
    baseline: Amount = Amount()

    @property
    def nanos(self) -> int:
        return self.spot_nanos + self.on_demand_nanos

    def charged(self, workers: Workers, nanos: int, settings: JobSettings) -> Charges:
        """And so many workers for so long, at the prices of `settings`."""
        spot, on_demand = workers.spot * nanos, workers.on_demand * nanos
        spot_price, on_demand_price = settings.spot_price_micros, settings.on_demand_price_micros
        unpriced = (0 if spot_price else spot) + (0 if on_demand_price else on_demand)
        # What is missing from the bill is missing from what it is compared with: nothing seems to be saved.
        priced = (spot if spot_price else 0) + on_demand
        return Charges(
            self.spot_nanos + spot,
            self.on_demand_nanos + on_demand,
            self.unpriced_nanos + unpriced,
            self.spent.plus(spot_price, spot).plus(on_demand_price, on_demand),
            self.baseline.plus(on_demand_price, priced),
        )

    def plus(self, other: Charges, times: int = 1) -> Charges:
        """The sum; times -1: the difference."""
        return Charges(
            self.spot_nanos + times * other.spot_nanos,
            self.on_demand_nanos + times * other.on_demand_nanos,
            self.unpriced_nanos + times * other.unpriced_nanos,
            self.spent.and_amount(other.spent, times),
            self.baseline.and_amount(other.baseline, times),
        )

    def minus(self, other: Charges) -> Charges:
        return self.plus(other, -1)

    def share(self, part: int, whole: int) -> Charges:
        """part / whole of it, rounded down."""
        return Charges(
            self.spot_nanos * part // whole,
            self.on_demand_nanos * part // whole,
            self.unpriced_nanos * part // whole,
            self.spent.share(part, whole),
            self.baseline.share(part, whole),
        )


class Workers(msgspec.Struct, array_like=True):
    """Number of workers, by capacity type."""

    spot: Count = 0
    on_demand: Count = 0

    def add(self, capacity: Capacity, count: int = 1) -> None:
        if capacity == "spot":
            self.spot += count
        else:
            self.on_demand += count

    def without(self, other: Workers) -> Workers:
        return Workers(self.spot - other.spot, self.on_demand - other.on_demand)


class CostBook(msgspec.Struct):
    """Amounts charged up to `at`, and the workers charged for from then on.

    at: nanoseconds since the Unix epoch; None: nothing yet. ring_workers, task_workers: who attends;
    members: who of the former works. boundary: the step that is being done, and what `working` was when it
    began; before: the same of the step before it; marks: of steps at which checkpoints were taken.
    """

    at: Nanos | None = None
    ring_workers: Workers = msgspec.field(default_factory=Workers)
    task_workers: Workers = msgspec.field(default_factory=Workers)
    members: Workers = msgspec.field(default_factory=Workers)
    tasks: Charges = Charges()
    idle: Charges = Charges()
    working: Charges = Charges()
    replayed: Charges = Charges()
    boundary: tuple[int, Charges] = (0, Charges())
    before: tuple[int, Charges] = (0, Charges())
    marks: dict[int, Charges] = {}

    @property
    def attended(self) -> Charges:
        return self.tasks.plus(self.idle).plus(self.working).plus(self.replayed)

    @property
    def useful(self) -> Charges:
        return self.tasks.plus(self.working)
