"""Modes of autoscaling: what a user may write, and what is refused in words."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from elastane_scheduler.autoscaling.modes import (
    Budget,
    Deadline,
    Efficiency,
    Utility,
    canonical,
    duration_seconds,
    mode_text,
    parse_mode,
)
from elastane_scheduler.errors import InvalidSettings

NOW = 1_764_182_000.0  # 2025-11-26 18:33:20 UTC


@pytest.mark.parametrize("text", ["", "off", "  off "])
def test_off(text: str) -> None:
    assert parse_mode(text, NOW) is None and canonical(None) == ""


@pytest.mark.parametrize(
    ("text", "mode", "stored"),
    [
        ("efficiency", Efficiency(0.1), "efficiency=0.1"),
        ("efficiency=0.25", Efficiency(0.25), "efficiency=0.25"),
        ("utility=100,2h", Utility(((0.0, 100.0), (7200.0, 0.0)), linear=True), "utility=100,7200"),
        (
            "utility=0:9,1h30m:5, 2h:-1",
            Utility(((0.0, 9.0), (5400.0, 5.0), (7200.0, -1.0))),
            "utility=0:9,5400:5,7200:-1",
        ),
        ("budget=12.50", Budget(12_500_000), "budget=12.5"),
        ("budget=3 USD", Budget(3_000_000), "budget=3"),
        ("deadline=+2h", Deadline(NOW + 7200), "deadline=1764189200"),
        ("deadline=18:00Z", Deadline(NOW - 2000 + 86400), "deadline=1764266400"),
        ("deadline=19:00+00:00", Deadline(NOW + 1600), "deadline=1764183600"),
        ("deadline=2025-11-26T20:00:00+01:00", Deadline(NOW + 1600), "deadline=1764183600"),
    ],
)
def test_modes_come_back_from_their_stored_form_at_any_time(text: str, mode: object, stored: str) -> None:
    assert parse_mode(text, NOW, currency="USD") == mode
    assert canonical(parse_mode(text, NOW, currency="USD")) == stored
    assert parse_mode(stored, 0.0) == mode


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("efficiency=0", "theta is 0"),
        ("efficiency=-0.1", "theta is -0.1"),
        ("efficiency=nan", "theta is nan"),
        ("efficiency=", "not a number"),
        ("utility=", "not a scaling mode"),
        ("utility=0,2h", "worth 0"),
        ("utility=inf,2h", "worth inf"),
        ("utility=5,0", "a duration of 0"),
        ("utility=1h:1,2h:5", "a later end is worth more"),
        ("utility=2h:5,1h:1", "do not ascend"),
        ("utility=" + ",".join(f"{at}:1" for at in range(200)), "200 points"),
        ("budget=0", "the budget is 0"),
        ("budget=-3", "the budget is '-3'"),
        ("budget=nan", "the budget is 'nan'"),
        ("budget=0.0000001", "the budget is 0.0000001"),
        ("budget=1e9", "the budget is '1e9'"),
        ("budget=12 EUR", "prices are in USD"),
        ("deadline=18:00", "no time zone"),
        ("deadline=2026-12-04T18:00", "no time zone"),
        ("deadline=2026-12-04", "no time of day"),
        ("deadline=25:00Z", "not a time of day"),
        ("deadline=tomorrow", "not a time"),
        ("deadline=+0h", "a duration of 0h"),
        ("faster", "not a scaling mode"),
        ("x" * 5000, "5000 characters"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(text: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words.replace("(", r"\(")) as refused:
        parse_mode(text, NOW, currency="USD")
    assert refused.value.hint


def test_a_time_without_zone_is_one_of_its_caller() -> None:
    zone = timezone(timedelta(hours=-5))

    def localize(moment: datetime) -> datetime:
        return moment.replace(tzinfo=zone)

    assert parse_mode("deadline=14:00", NOW, localize=localize) == Deadline(NOW + 1600)
    assert parse_mode("deadline=2025-11-26T14:00", NOW, localize=localize) == Deadline(NOW + 1600)


def test_a_deadline_that_is_past_can_be_stored() -> None:
    """The job says so, with the earliest time; a stored job stays readable when its time has come."""
    assert parse_mode("deadline=2020-01-01T00:00Z", NOW) == Deadline(1_577_836_800.0)


def test_a_deadline_is_shown_as_a_time() -> None:
    assert mode_text("deadline=1764183600") == "deadline=2025-11-26T19:00:00Z"
    assert mode_text("") == "off" and mode_text("budget=3") == "budget=3"


def test_durations() -> None:
    assert [duration_seconds(text) for text in ("90", "1.5m", "1h30m", "2d")] == [90, 90, 5400, 172_800]


def test_utility_is_linear_between_its_points_and_constant_outside() -> None:
    worth = Utility(((10.0, 8.0), (20.0, 4.0)))
    assert [worth.at(at) for at in (0.0, 10.0, 15.0, 20.0, 99.0)] == [8, 8, 6, 4, 4]
    assert not worth.flat and Utility(((0.0, 5.0), (10.0, 5.0))).flat
