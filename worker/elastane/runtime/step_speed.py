"""Speed of this worker's device: time of one EST's part of a step, for plans (`elastane plan`).

An EST's part ends with its backward; what follows depends on the ring. On a GPU the device's own clock
counts, and a step is measured when its events have passed, without waiting for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch

from elastane_common.device_types import cpu_type
from elastane_common.observe.figures import WorkerFigures
from elastane_common.observe.running_median import RunningMedian

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


class StepSpeed:
    """Measures the steps of one worker, and writes the results to `figures`. Used by the script's thread."""

    def __init__(self, device: torch.device, figures: WorkerFigures) -> None:
        self._device = device
        self._figures = figures
        self._est, self._whole = RunningMedian(), RunningMedian()
        self._generation = 0
        self._steps_in_ring = 0
        self._updated_at = 0.0
        self._began: Mark | None = None
        self._ended: Mark | None = None
        #: A step whose events on the GPU have not passed yet.
        self._waiting: _Step | None = None
        figures.device_type = device_type(device)

    def begin(self) -> None:
        """Begin a step."""
        self._began, self._ended = self._mark(), None

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
        self._steps_in_ring += 1
        self._figures.ring_workers = workers
        began, ended, self._began = self._began, self._ended, None
        if counts and began is not None and ended is not None and self._steps_in_ring > SETTLING_STEPS:
            if self._waiting is None:
                self._waiting = _Step(began, ended, ests)
            self._whole.add(seconds)
        self._take()
        if (now := perf_counter()) >= self._updated_at + UPDATE_SECONDS:
            self._updated_at = now
            self._update()

    def _take(self) -> None:
        """Add the waiting step, if its time is known."""
        step = self._waiting
        if step is None or (elapsed := _elapsed(step.began, step.ended)) is None:
            return
        self._waiting = None
        self._est.add(elapsed / step.ests)

    def _update(self) -> None:
        figures = self._figures
        figures.est_seconds, figures.est_seconds_spread = self._est.value, self._est.spread
        figures.est_steps, figures.ring_steps = self._est.count, self._whole.count
        figures.ring_step_seconds = self._whole.value

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


def _elapsed(began: Mark, ended: Mark) -> float | None:
    """Return the seconds between two marks; None while the GPU has not passed the second."""
    if isinstance(began, torch.cuda.Event) and isinstance(ended, torch.cuda.Event):
        return began.elapsed_time(ended) / 1000 if ended.query() else None
    assert isinstance(began, float) and isinstance(ended, float)
    return ended - began
