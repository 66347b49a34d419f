"""Speed of this worker's device: time of one EST's part of a step, for plans (`elastane plan`).

Beside it, what tells a straggler and its cause: the sum of the rates of all measured steps, and a usual
step's waits. Per step that is a few additions; medians are taken ten times a second.

An EST's part ends with its backward; what follows depends on the ring. On a GPU the device's own clock
counts, and a step is measured when its events have passed, without waiting for them.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch

from elastane_common.device_types import cpu_type
from elastane_common.observe.figures import WorkerFigures
from elastane_common.observe.running_median import WINDOW, RunningMedian

SETTLING_STEPS: Final = 2
"""Steps of a new ring that are not measured: they fill caches and build memory."""
UPDATE_SECONDS: Final = 0.1
"""Minimum time between two updates of the figures, which cost 30 us; heartbeats read them once a second."""

Mark = float | torch.cuda.Event


@dataclass(frozen=True)
class _Step:
    """This worker's part of a step, to be measured. ests: that it hosts."""

    began: Mark
    ended: Mark
    ests: int


class _UsualStep:
    """Seconds of the last steps of one ring, by part."""

    def __init__(self) -> None:
        self.ests: deque[float] = deque(maxlen=WINDOW)
        self.data_wait: deque[float] = deque(maxlen=WINDOW)
        self.all_reduce_wait: deque[float] = deque(maxlen=WINDOW)
        self.between: deque[float] = deque(maxlen=WINDOW)

    def write(self, figures: WorkerFigures) -> None:
        """Write the medians."""
        figures.usual_ests_seconds = _median(self.ests)
        figures.usual_data_wait_seconds = _median(self.data_wait)
        figures.usual_all_reduce_wait_seconds = _median(self.all_reduce_wait)
        figures.usual_between_seconds = _median(self.between)
        figures.usual_steps = len(self.ests)


class StepSpeed:
    """Measures the steps of one worker, and writes the results to `figures`. Used by the script's thread."""

    def __init__(self, device: torch.device, figures: WorkerFigures) -> None:
        self._device = device
        self._figures = figures
        self._est, self._whole, self._usual = RunningMedian(), RunningMedian(), _UsualStep()
        self._begins_at = self._ends_at = perf_counter()
        self._data_wait = self._all_reduce_wait = 0.0
        self._generation = 0
        self._steps_in_ring = 0
        self._rates, self._rate_steps = 0.0, 0
        self._updated_at = 0.0
        self._began: Mark | None = None
        self._ended: Mark | None = None
        #: A step whose events on the GPU have not passed yet.
        self._waiting: _Step | None = None
        figures.device_type = device_type(device)

    def begin(self) -> None:
        """Begin a step."""
        self._began, self._ended, self._begins_at = self._mark(), None, perf_counter()

    def backward_ended(self) -> None:
        """Note that the worker's last backward of the step is over."""
        self._ended = self._mark()

    def applied(self, seconds: float, *, ests: int, workers: int, generation: int, counts: bool) -> None:
        """Note that the step is applied.

        seconds: of the whole step. ests: hosted by this worker. workers: of the ring of `generation`. counts:
        it was an ordinary step, neither run again nor with turns of other ESTs.
        """
        if generation != self._generation:
            self._generation, self._steps_in_ring, self._whole = generation, 0, RunningMedian()
            self._usual = _UsualStep()
        self._steps_in_ring += 1
        figures = self._figures
        figures.ring_workers = workers
        data_wait, self._data_wait = figures.data_wait_seconds - self._data_wait, figures.data_wait_seconds
        waited, self._all_reduce_wait = self._all_reduce_wait, figures.all_reduce_wait_seconds
        between, self._ends_at = self._begins_at - self._ends_at, perf_counter()
        began, ended, self._began = self._began, self._ended, None
        if counts and began is not None and ended is not None and self._steps_in_ring > SETTLING_STEPS:
            if self._waiting is None:
                self._waiting = _Step(began, ended, ests)
            self._whole.add(seconds)
            self._usual.data_wait.append(data_wait)
            self._usual.all_reduce_wait.append(self._all_reduce_wait - waited)
            self._usual.between.append(between)
        self._take()
        if self._ends_at >= self._updated_at + UPDATE_SECONDS:
            self._updated_at = self._ends_at
            self._update()

    def _take(self) -> None:
        """Add the waiting step, if its time is known."""
        step = self._waiting
        if step is None or (elapsed := _elapsed(step.began, step.ended)) is None:
            return
        self._waiting = None
        self._est.add(elapsed / step.ests)
        if elapsed > 0:
            self._usual.ests.append(elapsed)
            self._rates += step.ests / elapsed
            self._rate_steps += 1

    def _update(self) -> None:
        figures = self._figures
        figures.est_seconds, figures.est_seconds_spread = self._est.value, self._est.spread
        figures.est_steps, figures.ring_steps = self._est.count, self._whole.count
        figures.ring_step_seconds = self._whole.value
        # A heartbeat between the two counts one step too few, and the next one counts it.
        figures.est_rates, figures.est_rate_steps = self._rates, self._rate_steps
        self._usual.write(figures)

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def device_type(device: torch.device) -> str:
    """Return the model of a device: of the GPU, or of this machine's CPU as the kernel names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu_type()


def _median(seconds: deque[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0


def _elapsed(began: Mark, ended: Mark) -> float | None:
    """Return the seconds between two marks; None while the GPU has not passed the second."""
    if isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event):
        return began.elapsed_time(ended) / 1000 if ended.query() else None
    assert isinstance(began, float) and isinstance(ended, float)
    return ended - began
