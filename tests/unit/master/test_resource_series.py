"""Samples of what workers use, from the totals in their heartbeats; and their rows on a page."""

from __future__ import annotations

from typing import Any

import pytest

from elastane_master.dashboard.resource_facts import SPARK_HEIGHT, SPARK_WIDTH, resource_rows
from elastane_master.jobs import resource_series
from elastane_master.jobs.resource_series import SAMPLES_MAX, ResourceSeries, Totals


def totals(time: float, **fields: Any) -> Totals:
    """Totals of a worker that has run for `time` seconds, on two cores, with 5 steps a second."""
    told = {
        "cpu_seconds": 2 * time,
        "resident_bytes": 1000,
        "gpu_use": 0.5,
        "gpu_bytes": 77,
        "step_seconds": time / 2,
        "steps": int(5 * time),
        "data_wait_seconds": time / 10,
        "all_reduce_wait_seconds": time / 4,
    }
    return Totals(time=time, **(told | fields))


def told(*every: Totals, workers_max: int = 10) -> ResourceSeries:
    series = ResourceSeries(workers_max)
    for one in every:
        series.tell("w", one)
    return series


def test_a_sample_has_the_rates_between_two_heartbeats_ten_seconds_apart() -> None:
    series = told(*(totals(float(second)) for second in range(21)))
    first, last = series.samples("w")
    assert (first.time, last.time) == (10.0, 20.0)
    assert (last.cpu_cores, last.steps_per_second) == (2.0, 5.0)
    assert (last.data_wait, last.all_reduce_wait) == pytest.approx((0.2, 0.5))
    assert (last.resident_bytes, last.gpu_use, last.gpu_bytes) == (1000, 0.5, 77)
    assert series.samples("another") == ()


def test_another_process_of_the_same_name_begins_anew() -> None:
    series = told(
        totals(100.0), totals(115.0, cpu_seconds=1.0, steps=1), totals(130.0, cpu_seconds=16.0, steps=4)
    )
    [sample] = series.samples("w")
    assert sample.cpu_cores == 1.0 and sample.time == 130.0


def test_without_a_step_nothing_was_waited_for() -> None:
    [sample] = told(totals(0.0), totals(10.0, step_seconds=0.0, steps=0)).samples("w")
    assert (sample.data_wait, sample.all_reduce_wait, sample.steps_per_second) == (0.0, 0.0, 0.0)


def test_memory_is_bounded_for_each_worker_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    series = told(*(totals(10.0 * number) for number in range(2 * SAMPLES_MAX)))
    assert len(series.samples("w")) == SAMPLES_MAX
    monkeypatch.setattr(resource_series, "ALL_SAMPLES_MAX", 30)
    series = ResourceSeries(4)
    for number in range(20):
        for worker in ("a", "b", "c"):
            series.tell(worker, totals(10.0 * number))
    assert [len(series.samples(worker)) for worker in "abc"] == [10, 10, 10]
    for worker in ("d", "e"):
        series.tell(worker, totals(0.0))
    assert series.samples("a") == () and series.samples("b")


def test_curves_of_one_kind_have_one_scale() -> None:
    series = told(*(totals(10.0 * number) for number in range(4)))
    for number in range(4):
        series.tell("busy", totals(10.0 * number, cpu_seconds=40.0 * number))
    rows = {row.worker: row for row in resource_rows(["busy", "w", "absent"], series.samples)}
    assert list(rows) == ["busy", "w"]
    top, half = 2.0, 2.0 + (SPARK_HEIGHT - 4) / 2
    assert rows["busy"].cpu.split()[0] == f"2.0,{top:.1f}"
    assert rows["w"].cpu.split()[-1] == f"{SPARK_WIDTH - 2:.1f},{half:.1f}"
    assert resource_rows(["w"], told(totals(0.0), totals(10.0)).samples)[0].cpu == "", "one point is no curve"
