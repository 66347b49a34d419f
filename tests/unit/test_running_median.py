"""A running median: strays change nothing, a real change is followed within three samples."""

from __future__ import annotations

import random
import statistics

import pytest

from elastane_common.observe.running_median import WINDOW, RunningMedian


def filled(*samples: float) -> RunningMedian:
    value = RunningMedian()
    for sample in samples:
        value.add(sample)
    return value


def test_noise_and_strays_leave_the_median_where_it_is() -> None:
    rng = random.Random(1)
    value = RunningMedian()
    for number in range(500):
        value.add(rng.gauss(0.1, 0.005) * (30 if number % 50 == 7 else 1))
    assert value.value == pytest.approx(0.1, rel=0.02)
    assert value.spread == pytest.approx(0.005, rel=0.5)
    assert value.count == WINDOW


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_median_of_the_last_samples_in_their_window(seed: int) -> None:
    rng = random.Random(seed)
    samples = [rng.choice([1.0, 1.1, 1.25, rng.uniform(1.0, 1.9)]) for _ in range(3 * WINDOW)]
    value = RunningMedian()
    for count, sample in enumerate(samples, 1):
        value.add(sample)
        assert value.value == statistics.median(samples[max(0, count - WINDOW) : count])
        assert value.count == min(count, WINDOW)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_jump_is_believed_at_the_third_sample(factor: float) -> None:
    value = filled(*[0.1] * WINDOW)
    for _ in range(2):
        value.add(0.1 * factor)
        assert value.value == 0.1
    value.add(0.1 * factor)
    assert value.value == pytest.approx(0.1 * factor)
    assert value.count == 3


def test_doubted_samples_count_only_in_a_row_and_if_they_agree() -> None:
    assert filled(*[1.0] * 9, 10.0, 10.0, 1.0, 10.0, 10.0).value == 1.0
    assert filled(*[1.0] * 9, 10.0, 100.0, 10.0, 100.0).value == 1.0


@pytest.mark.parametrize("sample", [0.0, -1.0, float("nan")])
def test_what_no_clock_gives_is_ignored(sample: float) -> None:
    assert filled(sample).count == 0
    assert filled(1.0, sample).value == 1.0


def test_without_samples_all_is_zero() -> None:
    value = RunningMedian()
    assert (value.count, value.value, value.spread) == (0, 0.0, 0.0)
