"""The user's table of worker prices over time; each price is sent to the master when it becomes due.

    at,spot,on_demand              [{"at": "2026-11-22T08:00:00Z", "spot": "0.31", "on_demand": "0.98"},
    0,0.31,0.98                     {"at": "2026-11-22T09:00:00Z", "spot": "0.35"}]
    3600,0.35,

`at` is in seconds since the job was created, or a time (without a zone: UTC); all rows are of one kind, each
later than the one before. Prices are per worker and hour; an empty cell keeps the previous price. Parsing and
`PriceTable.due` are pure; `PriceFeed` sends the prices.
"""

from __future__ import annotations

import csv
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.prices import price_micros

_COLUMNS: Final = ("at", "spot", "on_demand")


class PriceTableError(RefusedError):
    """The price table is invalid; the text names file and row."""

    code = "ELA417"


@dataclass(frozen=True)
class PriceRow:
    """Prices from `at` on, in millionths of the currency; None: unchanged.

    at: seconds since the job's creation or since the epoch, see `PriceTable.relative`.
    """

    at: float
    spot_micros: int | None = None
    on_demand_micros: int | None = None


@dataclass(frozen=True)
class PriceTable:
    """Rows in ascending order of time. relative: `at` counts from the job's creation, else from the epoch."""

    rows: tuple[PriceRow, ...]
    relative: bool

    def since_epoch(self, created: float) -> PriceTable:
        """Return the table with times since the epoch. created: the job's creation, in the same unit."""
        if not self.relative:
            return self
        return PriceTable(tuple(replace(row, at=row.at + created) for row in self.rows), relative=False)

    def due(self, sent: int, now: float) -> tuple[PriceRow | None, int, float | None]:
        """Return the prices to send at `now`, the number of rows sent then, and the time of the next row.

        sent: rows sent so far. Several rows that are due are merged into one, since prices cannot be changed
        for the past. Prices are None if nothing is due, the time is None after the last row.
        """
        passed = sum(row.at <= now for row in self.rows)
        prices = None
        for row in self.rows[sent:passed]:
            prices = PriceRow(
                row.at,
                _newer(row.spot_micros, prices.spot_micros if prices else None),
                _newer(row.on_demand_micros, prices.on_demand_micros if prices else None),
            )
        later = self.rows[passed].at if passed < len(self.rows) else None
        return prices, max(sent, passed), later


def parse_price_table(text: str) -> PriceTable:
    """Parse a table from JSON or CSV text. Raises PriceTableError."""
    found = _json_rows(text) if text.lstrip().startswith(("[", "{")) else _csv_rows(text)
    rows: list[PriceRow] = []
    kinds: set[bool] = set()
    for number, cells in found:
        at, relative = _time(cells.get("at", ""), number)
        kinds.add(relative)
        row = PriceRow(at, _price(cells.get("spot", ""), number), _price(cells.get("on_demand", ""), number))
        if len(kinds) > 1:
            raise PriceTableError(f"row {number}: the table mixes seconds and clock times")
        if rows and row.at <= rows[-1].at:
            raise PriceTableError(f"row {number} is not later than the row before")
        if row.spot_micros is None and row.on_demand_micros is None:
            raise PriceTableError(f"row {number} has no price")
        rows.append(row)
    if not rows:
        raise PriceTableError("the table has no rows", hint="columns are at,spot,on_demand")
    return PriceTable(tuple(rows), relative=kinds == {True})


class PriceFeed:
    """Sends the prices of a table to the master when they become due, in a thread, from `start` until `stop`.

    tell: sends one row; may block until the master answers. on_trouble: called with a message if that fails.
    """

    def __init__(
        self, table: PriceTable, tell: Callable[[PriceRow], None], on_trouble: Callable[[str], None]
    ) -> None:
        assert not table.relative
        self._table = table
        self._tell = tell
        self._on_trouble = on_trouble
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="prices", daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        sent = 0
        while not self._over.is_set():
            prices, sent, later = self._table.due(sent, time.time())
            if prices is not None:
                try:
                    self._tell(prices)
                except ElastaneError as error:
                    if not self._over.is_set():
                        self._on_trouble(f"the master refused the prices: {error}")
            if later is None:
                return
            # The wall clock may be set meanwhile, so wake up at least once a minute.
            self._over.wait(min(max(later - time.time(), 0.0), 60.0))


def _newer(price: int | None, before: int | None) -> int | None:
    return before if price is None else price


def _csv_rows(text: str) -> Iterable[tuple[int, Mapping[str, str]]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    reader = csv.reader(lines, skipinitialspace=True)
    header = [name.strip().lower().replace("-", "_") for name in next(reader, [])]
    _check_columns(header)
    for number, cells in enumerate(reader, 1):
        if len(cells) > len(header):
            raise PriceTableError(f"row {number} has more cells than the table has columns")
        yield number, {name: cell.strip() for name, cell in zip(header, cells, strict=False)}


def _json_rows(text: str) -> Iterable[tuple[int, Mapping[str, str]]]:
    try:
        # Keep prices as text: parsing them as floats would round them.
        found = json.loads(text, parse_float=str, parse_int=str)
    except ValueError as error:
        raise PriceTableError(f"not JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise PriceTableError(
            "not a list of objects", hint='expected a list like [{"at": 0, "spot": "0.31"}]'
        )
    for number, row in enumerate(found, 1):
        cells: dict[str, Any] = {name.lower().replace("-", "_"): value for name, value in row.items()}
        _check_columns(list(cells))
        yield number, {name: "" if cell is None else str(cell).strip() for name, cell in cells.items()}


def _check_columns(names: list[str]) -> None:
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown or "at" not in names or len(set(names)) < len(names):
        raise PriceTableError(
            f"columns {', '.join(names)[:80] or 'are missing'}", hint=f"they must be {','.join(_COLUMNS)}"
        )


def _time(text: str, number: int) -> tuple[float, bool]:
    try:
        seconds = float(text)
        if math.isfinite(seconds) and seconds >= 0:
            return seconds, True
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), False
        except (ValueError, OverflowError):
            pass
    raise PriceTableError(
        f"row {number}: {text[:40]!r} is not a time",
        hint="give seconds since the job was created, or a time such as 2026-11-22T08:00Z",
    )


def _price(text: str, number: int) -> int | None:
    if not text:
        return None
    try:
        return price_micros(text)
    except ValueError as error:
        raise PriceTableError(f"row {number}: {error}") from None
