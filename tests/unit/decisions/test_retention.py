"""Which finished jobs are kept, when one may be closed, and what is remembered of it."""

from __future__ import annotations

import math

import msgspec
import pytest

from elastane_master.decisions.events import CancelRequested, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.retention import (
    Retention,
    may_close,
    read_record,
    record_of,
    require_deletable,
)
from elastane_master.decisions.views import job_view
from elastane_proto.job_settings import JobSettings

DAY = 86_400.0
ENDED = [("b", 20 * DAY), ("a", 10 * DAY), ("d", 30 * DAY), ("c", 20 * DAY)]


@pytest.mark.parametrize(
    ("text", "seconds", "newest"),
    [
        ("7d", 7 * DAY, math.inf),
        ("90m", 5400, math.inf),
        ("2w", 14 * DAY, math.inf),
        ("0s", 0, math.inf),
        ("100", math.inf, 100),
        ("0", math.inf, 0),
        (" forever ", math.inf, math.inf),
    ],
)
def test_a_retention_is_a_time_or_a_number(text: str, seconds: float, newest: float) -> None:
    assert Retention.parse(text) == Retention(seconds, newest)


@pytest.mark.parametrize("text", ["", "-1", "7 d", "d", "1y", "7.5d", "٧"])
def test_what_is_neither_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="7d, 12h, 30m"):
        Retention.parse(text)


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        ("forever", []),
        ("20d", ["a"]),
        ("10d", ["a", "c", "b"]),
        ("0s", ["a", "c", "b", "d"]),
        ("4", []),
        ("3", ["a"]),
        ("1", ["a", "c", "b"]),
        ("0", ["a", "c", "b", "d"]),
    ],
)
def test_the_oldest_go_first(keep: str, gone: list[str]) -> None:
    now = 30 * DAY + 1
    assert Retention.parse(keep).overdue(ENDED, now) == gone


def test_at_its_very_age_a_job_is_still_kept() -> None:
    assert Retention.parse("10d").overdue(ENDED, 20 * DAY) == []


def cancelled() -> JobMachine:
    machine = JobMachine.create("j", JobSettings(ests=2, currency="EUR"), 100.0)
    machine.handle(CancelRequested("r"), 200.0)
    return machine


def test_a_job_rests_and_is_deleted_only_when_it_is_over() -> None:
    machine = JobMachine.create("j", JobSettings(ests=2), 100.0)
    assert not may_close(machine)
    with pytest.raises(Rejection) as refused:
        require_deletable(machine, force=False)
    assert refused.value.reason == "wrong_phase" and "--force" in refused.value.hint
    require_deletable(machine, force=True)
    assert may_close(cancelled())
    require_deletable(cancelled(), force=False)


def test_a_record_holds_what_can_be_seen_of_the_job() -> None:
    machine = cancelled()
    record = read_record(record_of(machine, 500.0))
    assert record is not None
    assert record.view == job_view(machine, 500.0)
    assert (record.ended_at, record.closed_at) == (200.0, 500.0)


def test_a_record_of_another_form_is_not_guessed_at() -> None:
    assert read_record(b"") is None
    assert read_record(msgspec.msgpack.encode({"view": {"name": "j"}, "ended_at": 1.0})) is None
