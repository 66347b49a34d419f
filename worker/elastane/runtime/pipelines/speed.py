"""Figures of a pipeline's worker: its units' times, for plans, and how long a step takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

import torch

from elastane.runtime.step_speed import SETTLING_STEPS, UPDATE_SECONDS, device_type
from elastane_common.observe.figures import WorkerFigures
from elastane_common.observe.running_median import RunningMedian


class PipelineSpeed:
    """Writes `figures` after applied steps. Used by the script's thread. device: of the units."""

    def __init__(self, device: torch.device, figures: WorkerFigures, memory_bytes: int) -> None:
        self._figures = figures
        self._whole = RunningMedian()
        self._generation = self._steps_in_ring = 0
        self._updated_at = 0.0
        figures.device_type = device_type(device)
        figures.memory_bytes = memory_bytes

    def entered(self) -> None:
        """Forget the units' times: this worker has others now."""
        vars(self._figures).update(first_unit=0, unit_forward_seconds=[], unit_backward_seconds=[])

    def applied(
        self,
        seconds: float,
        units: Callable[[], Mapping[int, tuple[float, float]]],
        *,
        workers: int,
        generation: int,
        is_replay: bool,
    ) -> None:
        """Note an applied step. units: returns their usual (forward, backward) seconds of one micro-batch."""
        if generation != self._generation:
            self._generation, self._steps_in_ring, self._whole = generation, 0, RunningMedian()
        self._steps_in_ring += 1
        if self._steps_in_ring > SETTLING_STEPS and not is_replay:
            self._whole.add(seconds)
        now = perf_counter()
        if now < self._updated_at + UPDATE_SECONDS or self._steps_in_ring <= SETTLING_STEPS:
            return
        self._updated_at = now
        figures = self._figures
        figures.ring_workers = workers
        figures.ring_steps, figures.ring_step_seconds = self._whole.count, self._whole.value
        if found := units():
            order = sorted(found)
            # at once: another thread reads them
            vars(figures).update(
                first_unit=order[0],
                unit_forward_seconds=[found[unit][0] for unit in order],
                unit_backward_seconds=[found[unit][1] for unit in order],
            )
