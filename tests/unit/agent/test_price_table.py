"""The table of prices: what is read, what is refused, and what the master is told when."""

from __future__ import annotations

import queue
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_agent.supervisor.price_feed import PriceFeedSettings, prices_at
from elastane_agent.supervisor.price_table import (
    PriceFeed,
    PriceRow,
    PriceTable,
    PriceTableError,
    parse_price_table,
)
from elastane_common.errors import RefusedError

CSV = "# of zone a\nat, spot, on-demand\n0, 0.3123, 0.98\n\n3600,0.35,\n7200.5,,1\n"
ROWS = (PriceRow(0, 312_300, 980_000), PriceRow(3600, 350_000, None), PriceRow(7200.5, None, 1_000_000))


def test_csv_and_json_say_the_same() -> None:
    assert parse_price_table(CSV) == PriceTable(ROWS, relative=True)
    as_json = (
        '[{"at": 0, "spot": 0.3123, "on_demand": "0.98"}, {"at": 3600, "spot": 0.350, "on_demand": null},'
    )
    assert parse_price_table(as_json + '{"at": 7200.5, "on-demand": 1}]').rows == ROWS


def test_times_of_the_clock() -> None:
    table = parse_price_table(
        "at,spot\n2026-11-22T08:00:00Z,1\n2026-11-22T08:00:01,2\n2026-11-22T10:30:00+02:00,3"
    )
    assert not table.relative
    first = table.rows[0].at
    assert [row.at - first for row in table.rows] == [0.0, 1.0, 1800.0]
    assert table.since_epoch(123.0) is table
    assert [row.at for row in PriceTable(ROWS, relative=True).since_epoch(1000.0).rows] == [
        1000.0,
        4600.0,
        8200.5,
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns are missing"),
        ("at,spot\n", "no rows"),
        ("time,spot\n0,1\n", "columns time, spot"),
        ("at,spot,spot\n0,1,1\n", "columns"),
        ("at,spot\n0,1,2\n", "row 1 has more cells"),
        ("at,spot\n0,\n", "row 1 has no price"),
        ("at,spot\n0,1\n0,2\n", "row 2 is not later"),
        ("at,spot\n5,1\n1,2\n", "row 2 is not later"),
        ("at,spot\n0,1\n2026-11-22T08:00:00Z,2\n", "row 2: the table mixes seconds"),
        ("at,spot\n-1,1\n", "is not a time"),
        ("at,spot\nnan,1\n", "is not a time"),
        ("at,spot\nsoon,1\n", "row 1: 'soon' is not a time"),
        ("at,spot\n0,0.1234567\n", "row 1: .* at most 6 decimals"),
        ("at,spot\n0,-1\n", "is not a price"),
        ("at,spot\n0,1e3\n", "is not a price"),
        ('{"at": 0}', "not a list"),
        ("[1]", "not a list"),
        ("[", "not JSON"),
    ],
)
def test_what_is_no_table(text: str, words: str) -> None:
    with pytest.raises(PriceTableError, match=words):
        parse_price_table(text)


def test_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        prices_at(PriceFeedSettings(str(tmp_path / "none")))
    path = tmp_path / "prices.csv"
    path.write_text("at,spot\n0,x\n")
    with pytest.raises(RefusedError, match=r"prices\.csv: row 1"):
        prices_at(PriceFeedSettings(str(path)))


@given(st.lists(st.floats(0, 8000), min_size=1, max_size=8))
def test_however_often_it_is_asked_the_newest_prices_hold(times: list[float]) -> None:
    table, told, spot, on_demand = PriceTable(ROWS, relative=False), 0, None, None
    for now in sorted(times):
        prices, told, later = table.due(told, now)
        if prices is not None:
            spot = prices.spot_micros if prices.spot_micros is not None else spot
            on_demand = prices.on_demand_micros if prices.on_demand_micros is not None else on_demand
        passed = [row for row in ROWS if row.at <= now]
        assert spot == next(
            (row.spot_micros for row in reversed(passed) if row.spot_micros is not None), None
        )
        wanted = [row.on_demand_micros for row in passed if row.on_demand_micros is not None]
        assert on_demand == (wanted[-1] if wanted else None)
        assert later == next((row.at for row in ROWS if row.at > now), None)
        assert table.due(told, now)[0] is None, "nothing is told twice"


def test_the_feed_tells_what_has_passed_at_once_and_the_rest_in_time() -> None:
    start = time.time()
    rows = (PriceRow(start - 9, 1, 5), PriceRow(start - 5, 2), PriceRow(start + 0.2, None, 6))
    told: queue.SimpleQueue[tuple[float, PriceRow]] = queue.SimpleQueue()
    feed = PriceFeed(PriceTable(rows, relative=False), lambda row: told.put((time.time(), row)), pytest.fail)
    feed.start()
    assert told.get(timeout=30)[1] == PriceRow(start - 5, 2, 5)
    at, prices = told.get(timeout=30)
    assert at >= start + 0.2 and prices == PriceRow(start + 0.2, None, 6)
    feed.stop()


def test_a_master_that_refuses_is_told_of_and_the_next_row_comes() -> None:
    start, troubles, told = time.time(), [], queue.SimpleQueue[PriceRow]()

    def tell(row: PriceRow) -> None:
        told.put(row)
        if row.spot_micros == 1:
            raise RefusedError("no right to")

    table = PriceTable((PriceRow(start - 1, 1), PriceRow(start + 0.1, 2)), relative=False)
    feed = PriceFeed(table, tell, troubles.append)
    feed.start()
    assert [told.get(timeout=30).spot_micros for _ in range(2)] == [1, 2]
    feed.stop()
    assert len(troubles) == 1 and "no right to" in troubles[0]
