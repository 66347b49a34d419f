"""What a worker measures of its device: ordinary steps of a settled ring, and no others."""

from __future__ import annotations

import pytest
import torch

from elastane.runtime import step_speed
from elastane.runtime.step_speed import SETTLING_STEPS, StepSpeed
from elastane_common.observe.figures import WorkerFigures


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(step_speed, "perf_counter", found)
    return found


class Worker:
    """A worker whose steps take what the test says."""

    def __init__(self, clock: Clock) -> None:
        self.figures = WorkerFigures()
        self.speed = StepSpeed(torch.device("cpu"), self.figures)
        self._clock = clock

    def step(
        self,
        part: float,
        rest: float = 0.1,
        *,
        ests: int = 2,
        turns: int = 0,
        after: float = 0.0,
        once: float = 0.0,
        generation: int = 1,
        counts: bool = True,
    ):
        """Run a step.

        part: computing of all ESTs. rest: sums and optimizer. turns: one for each EST, if not given. after:
        the script's code after each backward. once: its code below `if job.stepped:`.
        """
        began, turns = self._clock.now, turns or ests
        self.speed.begin()
        for turn in range(turns):
            self.speed.mini_batch_began()
            self._clock.now += part / turns
            self.speed.backward_ended()
            if turn < turns - 1:
                self._clock.now += after
        self._clock.now += rest
        self.speed.optimizer_stepped()
        self._clock.now += after
        if once:
            self.speed.once_began()
            self._clock.now += once
        self.speed.turns_ended()
        seconds = self._clock.now - began
        self.speed.applied(seconds, ests=ests, workers=3, generation=generation, counts=counts)

    def settle(self, **step: float):
        """Run the steps of a new ring that are not measured, and then three."""
        for _ in range(SETTLING_STEPS + 3):
            self.step(**step)  # type: ignore[arg-type]


def test_an_ests_part_ends_with_the_backward_and_the_step_later(clock: Clock):
    worker = Worker(clock)
    for _ in range(SETTLING_STEPS):
        worker.step(9.0)
    assert (worker.figures.est_steps, worker.figures.ring_steps) == (0, 0)
    for part in (0.4, 0.5, 0.6):
        worker.step(part)
    figures = worker.figures
    assert (figures.est_steps, figures.ring_steps, figures.ring_workers) == (3, 3, 3)
    assert figures.est_seconds == pytest.approx(0.25)
    assert figures.ring_step_seconds == pytest.approx(0.6)
    assert 0 < figures.est_seconds_spread < 0.1


def test_steps_run_again_or_with_other_turns_are_not_measured(clock: Clock):
    worker = Worker(clock)
    for number in range(9):
        worker.step(0.4 if number % 2 else 0.7, counts=bool(number % 2))
    assert worker.figures.est_seconds == pytest.approx(0.2)
    assert worker.figures.est_steps == 3


def test_a_new_ring_keeps_what_is_known_of_the_device_and_measures_its_steps_anew(clock: Clock):
    worker = Worker(clock)
    for _ in range(5):
        worker.step(0.4)
    for _ in range(SETTLING_STEPS):
        worker.step(0.8, ests=4, generation=2)
    assert (worker.figures.est_steps, worker.figures.ring_steps) == (3, 0)
    worker.step(0.8, 0.3, ests=4, generation=2)
    assert (worker.figures.est_steps, worker.figures.ring_steps) == (4, 1)
    assert worker.figures.est_seconds == pytest.approx(0.2)
    assert worker.figures.ring_step_seconds == pytest.approx(1.1)


@pytest.mark.parametrize("ests", [1, 2, 8])
def test_code_after_the_optimizer_makes_no_worker_slower_than_one_with_fewer_ests(clock: Clock, ests: int):
    worker = Worker(clock)
    worker.settle(part=0.003 * ests, after=0.05, ests=ests)
    figures = worker.figures
    assert figures.est_seconds == pytest.approx(0.003)
    assert figures.est_rates / figures.est_rate_steps == pytest.approx(1 / 0.003)
    assert figures.after_est_seconds == pytest.approx(0.05)
    assert figures.usual_ests_seconds == pytest.approx(ests * 0.003)
    assert figures.usual_after_seconds == pytest.approx(ests * 0.05)
    assert figures.ring_step_seconds == pytest.approx(ests * 0.053 + 0.1)


@pytest.mark.parametrize("ests", [1, 4])
def test_what_is_done_once_a_step_is_no_part_of_what_each_est_adds(clock: Clock, ests: int):
    worker = Worker(clock)
    worker.settle(part=0.2, after=0.01, once=3.0, ests=ests)
    assert worker.figures.after_est_seconds == pytest.approx(0.01)
    assert worker.figures.usual_after_seconds == pytest.approx(ests * 0.01 + 3.0)


def test_an_ests_several_mini_batches_are_its_part_together(clock: Clock):
    worker = Worker(clock)
    worker.settle(part=0.8, after=0.1, ests=2, turns=8)
    assert worker.figures.est_seconds == pytest.approx(0.4)
    assert worker.figures.after_est_seconds == pytest.approx(0.4)
    alone = Worker(clock)
    alone.settle(part=0.4, after=0.1, ests=1, turns=4)
    assert alone.figures.est_seconds == pytest.approx(0.4)
    assert alone.figures.after_est_seconds == pytest.approx(0.4)


def test_the_script_may_step_several_optimizers_and_ask_between_them(clock: Clock):
    worker = Worker(clock)
    for _ in range(SETTLING_STEPS + 3):
        worker.speed.begin()
        worker.speed.mini_batch_began()
        clock.now += 0.2
        worker.speed.backward_ended()
        worker.speed.once_began()
        clock.now += 5.0
        worker.speed.optimizer_stepped()
        worker.speed.once_began()
        clock.now += 7.0
        worker.speed.optimizer_stepped()
        clock.now += 0.3
        worker.speed.turns_ended()
        worker.speed.applied(12.5, ests=1, workers=1, generation=1, counts=True)
    assert worker.figures.after_est_seconds == pytest.approx(0.3)


def test_a_step_without_an_end_of_its_backward_is_not_measured(clock: Clock):
    worker = Worker(clock)
    for _ in range(5):
        worker.speed.begin()
        worker.speed.mini_batch_began()
        worker.speed.applied(1.0, ests=2, workers=1, generation=1, counts=True)
    assert (worker.figures.est_steps, worker.figures.ring_steps) == (0, 0)


def test_every_measured_step_adds_its_rate(clock: Clock):
    worker = Worker(clock)
    for _ in range(SETTLING_STEPS):
        worker.step(9.0)
    for part in (0.4, 0.4, 40.0):
        worker.step(part)
    assert worker.figures.est_rate_steps == 3
    assert worker.figures.est_rates == pytest.approx(2 / 0.4 + 2 / 0.4 + 2 / 40)


def test_a_usual_step_is_told_by_its_parts_and_anew_in_each_ring(clock: Clock):
    worker = Worker(clock)
    figures = worker.figures

    def step(part: float, data: float, waited: float, between: float, generation: int = 1) -> None:
        clock.now += between
        figures.data_wait_seconds += data
        figures.all_reduce_wait_seconds += waited
        worker.step(part, waited, generation=generation)

    for _ in range(SETTLING_STEPS):
        step(9.0, 9.0, 9.0, 9.0)
    for _ in range(5):
        step(0.4, 0.1, 0.3, 0.2)
    step(0.4, 7.0, 8.0, 9.0)  # a pause
    assert figures.usual_steps == 6
    assert figures.usual_ests_seconds == pytest.approx(0.4)
    assert figures.usual_data_wait_seconds == pytest.approx(0.1)
    assert figures.usual_all_reduce_wait_seconds == pytest.approx(0.3)
    assert figures.usual_between_seconds == pytest.approx(0.2)
    for _ in range(SETTLING_STEPS):
        step(0.4, 0.1, 0.3, 0.2, generation=2)
    assert figures.usual_steps == 0
    step(0.4, 0.1, 0.5, 0.2, generation=2)
    assert (figures.usual_steps, figures.usual_all_reduce_wait_seconds) == (1, pytest.approx(0.5))


def test_the_device_has_a_name(clock: Clock):
    assert Worker(clock).figures.device_type
