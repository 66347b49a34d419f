"""Worker time, prices and money of a job as exact sums: what `cost.py` charges. No floats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from elastane_master.decisions.events import Capacity

NANOS = 1_000_000_000
HOUR_NANOS = 3600 * NANOS
MARKS_MAX = 64
"""Maximum number of checkpoints whose boundaries are kept; the oldest but the first are dropped."""

# Bounds also for what is read from a corrupted store: sums must never outgrow what can be stored.
NANOS_MAX = 2**62
"""Limit of the time of all workers together (146 years of one); time beyond it is not charged."""
Nanos = Annotated[int, Meta(ge=0, le=NANOS_MAX)]
Micros = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Rest = Annotated[int, Meta(ge=0, lt=HOUR_NANOS)]
Count = Annotated[int, Meta(ge=0, le=2**20)]
DEVICE_TYPES_MAX = 64
"""Maximum number of device types that are counted separately; later ones count as of unknown type, ""."""


class DevicePrice(msgspec.Struct, frozen=True, array_like=True):
    """Price of a worker of one device type per hour, in micros; 0: unknown; None: as of all device types."""

    spot_micros: int | None = None
    on_demand_micros: int | None = None
    expires_at: float | None = None


class PriceBook(msgspec.Struct, frozen=True, array_like=True):
    """The prices that hold now, per worker and hour, in micros; 0: unknown. devices: by device type."""

    spot_micros: int
    on_demand_micros: int
    devices: dict[str, DevicePrice] = {}

    def of(self, device_type: str) -> tuple[int, int]:
        """Return the spot and on-demand price of a worker of this device type."""
        own = self.devices.get(device_type)
        if own is None:
            return self.spot_micros, self.on_demand_micros
        return (
            self.spot_micros if own.spot_micros is None else own.spot_micros,
            self.on_demand_micros if own.on_demand_micros is None else own.on_demand_micros,
        )


class Amount(msgspec.Struct, frozen=True, array_like=True):
    """Money: `micros` of the currency and `rest` / HOUR_NANOS of one more, 0 <= rest < HOUR_NANOS.

    In two numbers, because a price times nanoseconds outgrows the 64 bits of the stored form.
    """

    micros: Micros = 0
    rest: Rest = 0

    def plus(self, price_micros: int, nanos: int, times: int = 1) -> Amount:
        """Return the sum with `nanos` at `price_micros` an hour; times -1: the difference."""
        if not price_micros:
            return self
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
        """Whole micros, halves rounded up."""
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

    def charged(self, workers: Workers, nanos: int, prices: PriceBook) -> Charges:
        """Add the time of these workers, each at the price of its device type and capacity."""
        if not workers.spot and not workers.on_demand:
            return self
        charges = self
        for device_type, spot, on_demand in workers.groups() if prices.devices else (workers.all(),):
            charges = charges.charged_alike(spot * nanos, on_demand * nanos, prices.of(device_type))
        return charges

    def charged_alike(self, spot: int, on_demand: int, price_micros: tuple[int, int]) -> Charges:
        """Add worker-nanoseconds on spot and on demand. price_micros: of both, in this order."""
        spot_price, on_demand_price = price_micros
        unpriced = (0 if spot_price else spot) + (0 if on_demand_price else on_demand)
        # Unpriced time is left out of the baseline as well; otherwise it would look like savings.
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
    """Number of workers, by capacity type. devices: how many of either are of a device type, where known."""

    spot: Count = 0
    on_demand: Count = 0
    devices: dict[str, tuple[Count, Count]] = {}

    def add(self, capacity: Capacity, device_type: str = "", count: int = 1) -> None:
        is_spot = capacity == "spot"
        if is_spot:
            self.spot += count
        else:
            self.on_demand += count
        spot, on_demand = self.devices.get(device_type, (0, 0))
        spot, on_demand = (spot + count, on_demand) if is_spot else (spot, on_demand + count)
        # A store that was written before device types were counted has a worker's type, but no count of it.
        is_full = device_type not in self.devices and len(self.devices) >= DEVICE_TYPES_MAX
        if not device_type or is_full or min(spot, on_demand) < 0:
            return
        self.devices[device_type] = (spot, on_demand)
        if not spot and not on_demand:
            del self.devices[device_type]

    def without(self, other: Workers) -> Workers:
        left = Workers(self.spot - other.spot, self.on_demand - other.on_demand)
        for device_type, (spot, on_demand) in self.devices.items():
            gone_spot, gone_on_demand = other.devices.get(device_type, (0, 0))
            rest = max(spot - gone_spot, 0), max(on_demand - gone_on_demand, 0)
            if any(rest):
                left.devices[device_type] = rest
        return left

    def all(self) -> tuple[str, int, int]:
        """Return all of them as one group, see `groups`."""
        return "", self.spot, self.on_demand

    def groups(self) -> Iterator[tuple[str, int, int]]:
        """Yield device type, workers on spot and on demand; last those whose type is not known, as ""."""
        spot, on_demand = self.spot, self.on_demand
        for device_type, (of_spot, of_on_demand) in self.devices.items():
            of_spot, of_on_demand = min(of_spot, spot), min(of_on_demand, on_demand)
            spot, on_demand = spot - of_spot, on_demand - of_on_demand
            yield device_type, of_spot, of_on_demand
        yield "", spot, on_demand


class CostBook(msgspec.Struct):
    """Amounts charged up to `at`, and the workers charged for from then on.

    at: nanoseconds since the Unix epoch; None: nothing yet. ring_workers, task_workers: numbers with a
    session; members: how many of the former work. boundary: the current step, and the value of `working` when
    it began; before: the same for the previous step; marks: for steps at which checkpoints were taken.
    device_prices: prices of single device types; expires_at: time by which a newer general price is due.
    devices: charges by device type, since they are counted.
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
    device_prices: dict[str, DevicePrice] = {}
    expires_at: float | None = None
    devices: dict[str, Charges] = {}

    @property
    def attended(self) -> Charges:
        return self.tasks.plus(self.idle).plus(self.working).plus(self.replayed)

    @property
    def attended_nanos(self) -> int:
        """Time of all workers together, in worker-nanoseconds."""
        return self.tasks.nanos + self.idle.nanos + self.working.nanos + self.replayed.nanos

    @property
    def useful(self) -> Charges:
        return self.tasks.plus(self.working)
