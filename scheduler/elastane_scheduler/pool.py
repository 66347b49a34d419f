"""Devices of a pool by type. Pure.

Everywhere in this package the devices of a job, of an offer or of a pool are a tuple of counts, one for each
device type of the pool in the pool's order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings

Counts = tuple[int, ...]
"""Devices of each type, in the order of `Pool.types`."""

DEVICES_MAX = 2**31 - 1


def common(one: Counts, other: Counts) -> Counts:
    """Return the devices that both have."""
    return tuple(map(min, one, other))


@dataclass(frozen=True)
class Pool:
    """Devices that policies may allocate.

    types: names of the device types. counts: devices of each. prices_per_hour: money for each device of a
    type. Raises InvalidSettings for doubled names, negative counts, and prices that are no amounts.
    """

    types: tuple[str, ...]
    counts: Counts
    prices_per_hour: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.types or len(set(self.types)) != len(self.types):
            raise InvalidSettings(
                "a pool needs device types of different names", hint="Write v100=32,p100=16."
            )
        for name, count in zip(self.types, self.counts, strict=True):
            if not 0 <= count <= DEVICES_MAX:
                raise InvalidSettings(
                    f"a pool cannot have {count} devices of type {name}", hint="Count from 0."
                )
        if not self.prices_per_hour:
            object.__setattr__(self, "prices_per_hour", (1.0,) * len(self.types))
        for name, price in zip(self.types, self.prices_per_hour, strict=True):
            check_amount(f"the price of {name}", price)

    def index(self, device_type: str) -> int:
        """Return the place of a device type.

        Raises InvalidSettings for a type that the pool does not have.
        """
        try:
            return self.types.index(device_type)
        except ValueError:
            raise InvalidSettings(
                f"the pool has no device type {device_type!r}", hint=f"It has {', '.join(self.types)}."
            ) from None

    def describe(self, counts: Counts) -> str:
        """Return devices as text: "4 v100, 1 t4", or "no devices"."""
        told = [f"{count} {name}" for name, count in zip(self.types, counts, strict=True) if count]
        return ", ".join(told) or "no devices"


def parse_pool(text: str, prices: str = "") -> Pool:
    """Read `v100=32,p100=16`, and prices per hour in the same form. Raises InvalidSettings."""
    counts = {name: _whole(name, value) for name, value in _pairs(text)}
    pool = Pool(tuple(counts), tuple(counts.values()))
    if not prices:
        return pool
    given = {name: _number(name, value) for name, value in _pairs(prices)}
    for name in given:
        pool.index(name)
    return Pool(pool.types, pool.counts, tuple(given.get(name, 1.0) for name in pool.types))


def _pairs(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not name or not equals:
            raise InvalidSettings(f"{part.strip()!r} is not TYPE=NUMBER", hint="Write v100=32,p100=16.")
        if name in (known for known, _ in found):
            raise InvalidSettings(f"device type {name} is given twice", hint="Name each type once.")
        found.append((name, value))
    return found


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InvalidSettings(f"{name}={value!r} is not a number of devices", hint="Count from 0.") from None


def _number(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InvalidSettings(f"{name}={value!r} is not a price", hint="Give money per hour.") from None
