"""The distribution of step times as a table."""

from __future__ import annotations

from elastane_master.dashboard.step_times import BAR_WIDTH, StepTimesRow, step_times
from elastane_master.metrics.measures import Histogram


def test_rows_go_from_the_first_to_the_last_that_has_steps() -> None:
    histogram = Histogram((0.1, 0.25, 0.5, 1.0))
    for value in [0.2] * 90 + [0.7] * 9 + [7.0]:
        histogram.observe(value)
    shown = step_times(histogram.distribution())
    assert shown is not None and shown.count == 100 and abs(shown.mean_seconds - 0.313) < 1e-9
    assert shown.rows == (
        StepTimesRow("0.1 to 0.25 s", 90, 0.9, BAR_WIDTH),
        StepTimesRow("0.25 to 0.5 s", 0, 0.0, 0),
        StepTimesRow("0.5 to 1 s", 9, 0.09, 16),
        StepTimesRow("over 1 s", 1, 0.01, 2),
    )
    assert shown.quantiles == ((50, "at most 0.25 s"), (95, "at most 1 s"), (99, "at most 1 s"))


def test_one_step_is_seen_and_none_is_no_table() -> None:
    histogram = Histogram((0.1, 0.25))
    assert step_times(histogram.distribution()) is None
    histogram.observe(0.01)
    shown = step_times(histogram.distribution())
    assert shown is not None and [row.words for row in shown.rows] == ["at most 0.1 s"]
    for _ in range(10_000):
        histogram.observe(5.0)
    shown = step_times(histogram.distribution())
    assert shown is not None and [row.bar for row in shown.rows] == [1, 0, BAR_WIDTH]
