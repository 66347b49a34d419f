"""A list of prices by device type, capacity and zone, as a price feed serves it: pure.

    {"currency": "USD", "prices": [
      {"device": "NVIDIA L4", "capacity": "spot", "zone": "a", "micros_per_hour": 310000,
       "valid_until": "2026-11-22T09:00:00Z"},
      {"capacity": "on-demand", "micros_per_hour": 980000}]}

or only the array. Prices are per worker, in millionths of the currency. An entry without `device` (or with
"*") applies to all device types without their own entry, one without `zone` to all zones, one without
`valid_until` as long as it is listed. Of several entries for a device type and capacity, the one that expires
first applies, then the next: a list may contain the prices of the coming hours. After all have expired, the
last one is kept, as stale.

A list is accepted as a whole or not at all: an invalid entry (0, negative, not a whole number, another
currency, an unknown field) is named in the error, and no price changes.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from elastane_agent.supervisor.price_table import PriceTableError
from elastane_common.prices import PRICE_MAX, currency_code
from elastane_proto.amounts import MICROS

Capacity = Literal["spot", "on_demand"]

DEVICE_TYPES_MAX: Final = 64
"""The master's limit of device types with prices of their own."""
_MICROS_MAX: Final = PRICE_MAX * MICROS
_TEXT_MAX: Final = 80
_FIELDS: Final = ("device", "capacity", "zone", "micros_per_hour", "valid_until", "currency")
_CAPACITIES: Final[Mapping[str, Capacity]] = {
    "spot": "spot",
    "on-demand": "on_demand",
    "on_demand": "on_demand",
}


@dataclass(frozen=True)
class PriceEntry:
    """Price of a worker per hour, in micros. device: "": of all types. zone: "": of all zones.

    valid_until: seconds since the epoch; infinite: not known.
    """

    device: str
    capacity: Capacity
    zone: str
    micros: int
    valid_until: float = math.inf


@dataclass(frozen=True)
class DevicePrices:
    """Current prices of one device type. None: not listed. expires_at: of the first to expire."""

    spot_micros: int | None = None
    on_demand_micros: int | None = None
    expires_at: float = math.inf


@dataclass(frozen=True)
class PriceList:
    """Entries of one zone, for each device type and capacity in the order in which they apply."""

    entries: Mapping[tuple[str, Capacity], tuple[PriceEntry, ...]]

    def at(self, now: float) -> dict[str, DevicePrices]:
        """Return the prices that apply at `now`, by device type; "": all other types."""
        found: dict[str, DevicePrices] = {}
        for device in dict.fromkeys(device for device, _ in self.entries):
            entries = [self._holding((device, capacity), now) for capacity in ("spot", "on_demand")]
            spot, on_demand = (entry.micros if entry else None for entry in entries)
            expires_at = min(entry.valid_until for entry in entries if entry)
            found[device] = DevicePrices(spot, on_demand, expires_at)
        return found

    def stale(self, now: float) -> list[PriceEntry]:
        """Return the expired entries that are kept because there is no newer one."""
        holding = (self._holding(key, now) for key in self.entries)
        return [entry for entry in holding if entry is not None and entry.valid_until <= now]

    def next_change(self, now: float) -> float:
        """Return when the prices next change or expire; infinite: never."""
        ends = (entry.valid_until for entries in self.entries.values() for entry in entries)
        return min((end for end in ends if end > now), default=math.inf)

    def _holding(self, key: tuple[str, Capacity], now: float) -> PriceEntry | None:
        entries = self.entries.get(key, ())
        return next((entry for entry in entries if entry.valid_until > now), entries[-1] if entries else None)


def is_price_list(text: str) -> bool:
    """True if a text is a price list, as opposed to a table of prices over time."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(found, dict):
        return "prices" in found
    return isinstance(found, list) and any(
        isinstance(entry, dict) and "micros_per_hour" in entry for entry in found
    )


def parse_price_list(text: str, *, zone: str = "", currency: str = "") -> PriceList:
    """Parse a list from JSON.

    zone: to select; "": the only one of the list. currency: of the job; "": not checked. Raises
    PriceTableError, which names the entry.
    """
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise PriceTableError(f"not JSON: {error}") from error
    common = ""
    if isinstance(found, dict):
        unknown = found.keys() - {"currency", "prices"}
        if unknown:
            raise PriceTableError(f"the list has an unknown field, {_short(min(unknown))}")
        common, found = found.get("currency", ""), found.get("prices")
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise PriceTableError(
            "not a list of prices",
            hint='expected [{"device": "NVIDIA L4", "capacity": "spot", "micros_per_hour": 310000}]',
        )
    entries = []
    for number, fields in enumerate(found, 1):
        _check_currency(fields.get("currency", common), currency, number)
        entries.append(_entry(fields, number))
    if not entries:
        raise PriceTableError("the list has no prices")
    return PriceList(_in_order(_of_zone(entries, zone)))


def _of_zone(entries: list[PriceEntry], zone: str) -> list[PriceEntry]:
    zones = sorted({entry.zone for entry in entries if entry.zone})
    if zone:
        wanted = [entry for entry in entries if entry.zone in ("", zone)]
        if not wanted:
            raise PriceTableError(f"no price is of zone {zone}", hint=f"zones are {', '.join(zones)[:200]}")
        # A price of the zone takes precedence over one of all zones.
        own = {(entry.device, entry.capacity) for entry in wanted if entry.zone}
        return [entry for entry in wanted if entry.zone or (entry.device, entry.capacity) not in own]
    if len(zones) > 1:
        raise PriceTableError(
            f"prices of several zones: {', '.join(zones)[:200]}", hint="choose one with --prices-zone"
        )
    return entries


def _in_order(entries: Iterable[PriceEntry]) -> dict[tuple[str, Capacity], tuple[PriceEntry, ...]]:
    by_key: dict[tuple[str, Capacity], list[PriceEntry]] = defaultdict(list)
    for entry in entries:
        by_key[entry.device, entry.capacity].append(entry)
    if len({device for device, _ in by_key if device}) > DEVICE_TYPES_MAX:
        raise PriceTableError(
            f"prices of more than {DEVICE_TYPES_MAX} device types",
            hint="have the feed serve those of the job's machines",
        )
    for (device, capacity), of_key in by_key.items():
        of_key.sort(key=lambda entry: entry.valid_until)
        ends = {entry.valid_until for entry in of_key}
        if len(ends) < len(of_key):
            raise PriceTableError(
                f"two prices of {device or 'all device types'}, {capacity.replace('_', '-')}, for one time"
            )
    return {key: tuple(of_key) for key, of_key in by_key.items()}


def _entry(fields: Mapping[str, Any], number: int) -> PriceEntry:
    if unknown := fields.keys() - set(_FIELDS):
        raise PriceTableError(
            f"entry {number} has an unknown field, {_short(min(unknown))}",
            hint=f"fields: {', '.join(_FIELDS)}",
        )
    capacity = _CAPACITIES.get(_text(fields, "capacity", number))
    if capacity is None:
        raise PriceTableError(f"entry {number}: capacity must be spot or on-demand")
    micros = fields.get("micros_per_hour")
    # A price of 0 is always a mistake, and would make the job free of cost.
    if type(micros) is not int or not 0 < micros <= _MICROS_MAX:
        raise PriceTableError(
            f"entry {number}: micros_per_hour is {_short(micros)}",
            hint=f"a whole number of millionths of the currency, from 1 to {_MICROS_MAX}",
        )
    device = _text(fields, "device", number)
    return PriceEntry(
        "" if device == "*" else device,
        capacity,
        _text(fields, "zone", number),
        micros,
        _time(fields.get("valid_until"), number),
    )


def _text(fields: Mapping[str, Any], name: str, number: int) -> str:
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _TEXT_MAX or not value.isprintable():
        raise PriceTableError(f"entry {number}: {name} is {_short(value)}, which is no name")
    return value


def _time(value: object, number: int) -> float:
    if value is None:
        return math.inf
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 253_402_300_800:
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise PriceTableError(
        f"entry {number}: valid_until is {_short(value)}, which is not a time",
        hint="a time such as 2026-11-22T08:00Z, or seconds since 1970",
    )


def _check_currency(value: object, wanted: str, number: int) -> None:
    if value in ("", None):
        return
    try:
        currency = currency_code(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise PriceTableError(f"entry {number}: {error}") from None
    if wanted and currency != wanted:
        raise PriceTableError(
            f"entry {number}: the price is in {currency}, the job's are in {wanted}",
            hint="prices are not converted: have the feed serve the job's currency, or create the job with "
            f"--currency {currency}",
        )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no price")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
