"""What is learned from a job's steps: medians that follow changes, what does not count, the exchange."""

from __future__ import annotations

import random

import pytest

from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.measured import WINDOW, Exchange, Measured, RobustValue, StepMeasure, fit_exchange


def filled(*samples: float) -> RobustValue:
    value = RobustValue()
    for sample in samples:
        value.add(sample)
    return value


def test_noise_and_stray_samples_leave_the_median_where_it_is() -> None:
    rng = random.Random(1)
    value = RobustValue()
    for number in range(500):
        value.add(rng.gauss(0.1, 0.005) * (30 if number % 50 == 7 else 1))
    assert value.value == pytest.approx(0.1, rel=0.02)
    assert value.spread == pytest.approx(0.005, rel=0.5)
    assert value.count == WINDOW


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_a_jump_is_believed_after_three_reports(factor: float) -> None:
    value = filled(*[0.1] * WINDOW)
    for _ in range(2):
        value.add(0.1 * factor)
        assert value.value == 0.1
    value.add(0.1 * factor)
    assert value.value == pytest.approx(0.1 * factor) and value.count == 3


def test_doubted_samples_count_only_in_a_row_and_if_they_agree() -> None:
    assert filled(*[1.0] * 9, 10.0, 10.0, 1.0, 10.0, 10.0).value == 1.0
    assert filled(*[1.0] * 9, 10.0, 100.0, 10.0, 100.0).value == 1.0


@pytest.mark.parametrize("sample", [0.0, -1.0, float("nan"), float("inf")])
def test_times_are_above_zero(sample: float) -> None:
    value = filled(1.0)
    with pytest.raises(InvalidSettings):
        value.add(sample)
    assert value.value == 1.0
    with pytest.raises(InvalidSettings, match="nothing was measured"):
        _ = RobustValue().value


def test_replays_and_the_first_steps_after_a_change_do_not_count() -> None:
    measured = Measured()
    assert not measured.add_worker(StepMeasure("a100", [9.0], steps_since_change=0))
    assert not measured.add_worker(StepMeasure("a100", [9.0], steps_since_change=1))
    assert not measured.add_worker(StepMeasure("a100", [9.0], steps_since_change=5, is_replay=True))
    assert not measured.add_worker(StepMeasure("a100", [], steps_since_change=5))
    assert measured.est_seconds("a100") is None
    assert measured.add_worker(StepMeasure("a100", [0.2, 0.4], steps_since_change=2))
    assert measured.est_seconds("a100") == pytest.approx(0.3)
    assert measured.est_seconds("t4") is None


def test_the_exchange_is_what_a_step_takes_beyond_its_slowest_worker() -> None:
    measured = Measured()
    for workers in (1, 2, 4, 8):
        measures = [StepMeasure("t4", [0.1] * (8 // workers), 5) for _ in range(workers)]
        expected = 0.03 + 0.002 * (workers - 1) if workers > 1 else 1e-6
        assert measured.add_step(0.1 * (8 // workers) + expected, measures)
    found = measured.exchange()
    assert found.base_seconds == pytest.approx(0.03)
    assert found.peer_seconds == pytest.approx(0.002)
    assert found.seconds(1) == 0.0 and found.seconds(8) == pytest.approx(0.044)
    assert not measured.add_step(0.05, [StepMeasure("t4", [0.1], 5)]), "shorter than its own part"
    assert not measured.add_step(1.0, [StepMeasure("t4", [0.1], 0)])


def test_neither_part_of_the_exchange_is_negative() -> None:
    assert fit_exchange({}) == fit_exchange({1: 5.0}) == Exchange()
    assert fit_exchange({4: 0.3}) == Exchange(0.3)
    falling = fit_exchange({2: 0.3, 3: 0.2, 4: 0.1})
    assert falling.base_seconds == pytest.approx(0.2) and falling.peer_seconds == 0.0
    steep = fit_exchange({2: 0.0, 3: 0.1, 4: 0.4})
    assert steep.base_seconds == 0.0 and steep.peer_seconds > 0


def test_the_fit_has_the_least_squares_of_all_that_are_allowed() -> None:
    rng = random.Random(2)
    for _ in range(200):
        rests = {workers: rng.random() for workers in rng.sample(range(2, 20), rng.randint(2, 6))}

        def error(exchange: Exchange, rests: dict[int, float] = rests) -> float:
            return sum((exchange.seconds(workers) - rest) ** 2 for workers, rest in rests.items())

        best = fit_exchange(rests)
        for _ in range(200):
            other = Exchange(
                max(0.0, best.base_seconds + rng.gauss(0, 0.1)),
                max(0.0, best.peer_seconds + rng.gauss(0, 0.02)),
            )
            assert error(best) <= error(other) + 1e-12


def test_costs_that_were_not_measured_are_assumed() -> None:
    measured = Measured(stalls=filled(0.04, 0.05, 0.06))
    assert measured.costs(Costs(20.0, 1.0, 5.0)) == Costs(20.0, 0.05, 5.0)
