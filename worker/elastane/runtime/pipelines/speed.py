"""Performance figures of a pipeline worker: unit times, link bandwidth and step time.

Every few seconds it also reports when the blocks of a step ran. All members must choose the same steps: they
choose multiples of a power of two that depends on the usual step time, so that members whose measurements
differ still have steps in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch

from elastane.runtime.step_speed import SETTLING_STEPS, UPDATE_SECONDS, device_type
from elastane_common.observe.figures import WorkerFigures
from elastane_common.observe.running_median import RunningMedian
from elastane_planner.last_step import BLOCKS_TOLD_MAX

#: Steps of a ring after which unit times are reported: by then the slow first ones are fewer than half.
UNIT_STEPS_MIN: Final = 2 * SETTLING_STEPS + 1
#: Approximate time between two steps whose blocks are reported.
BLOCKS_SECONDS: Final = 2.0


@dataclass(frozen=True)
class StepBlocks:
    """Start of a step, in seconds since the Unix epoch, and (start, end) of its blocks, relative to it."""

    step: int
    began_at: float
    seconds: tuple[tuple[float, float], ...]


def is_told(step: int, step_seconds: float) -> bool:
    """True if the blocks of this step are reported. step_seconds: the usual time of a step."""
    if step_seconds <= 0:
        return False
    every: int = 2 ** max(0, min(20, math.ceil(math.log2(BLOCKS_SECONDS / step_seconds))))
    return step % every == 0


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
        """Discard the units' times: this worker has other units now."""
        vars(self._figures).update(first_unit=0, unit_forward_seconds=[], unit_backward_seconds=[])
        vars(self._figures).update(forward_overhead_seconds=0.0, backward_overhead_seconds=0.0)
        vars(self._figures).update(blocks_step=0, blocks_began=0.0, block_seconds=[])

    def applied(
        self,
        seconds: float,
        units: Callable[[], Mapping[int, tuple[float, float]]],
        overhead: Callable[[], tuple[float, float]],
        links: Callable[[], Mapping[str, float]],
        blocks: StepBlocks,
        *,
        workers: int,
        generation: int,
        is_replay: bool,
    ) -> None:
        """Record an applied step.

        units: returns the usual (forward, backward) seconds of a micro-batch by unit. overhead: the same of a
        block without its units. links: bandwidth of the links from other workers, in bytes per second.
        """
        if generation != self._generation:
            self._generation, self._steps_in_ring, self._whole = generation, 0, RunningMedian()
        self._steps_in_ring += 1
        if self._steps_in_ring > SETTLING_STEPS and not is_replay:
            self._whole.add(seconds)
            self._tell(blocks)
        now = perf_counter()
        if now < self._updated_at + UPDATE_SECONDS or self._steps_in_ring < UNIT_STEPS_MIN:
            return
        self._updated_at = now
        figures = self._figures
        figures.ring_workers = workers
        figures.ring_steps, figures.ring_step_seconds = self._whole.count, self._whole.value
        if found := units():
            order = sorted(found)
            forward, backward = overhead()
            # in one assignment, because another thread reads them
            vars(figures).update(
                first_unit=order[0],
                unit_forward_seconds=[found[unit][0] for unit in order],
                unit_backward_seconds=[found[unit][1] for unit in order],
                forward_overhead_seconds=forward,
                backward_overhead_seconds=backward,
            )
        if known := links():
            vars(figures).update(
                link_workers=list(known), link_bytes_per_second=[known[worker] for worker in known]
            )

    def _tell(self, blocks: StepBlocks) -> None:
        if is_told(blocks.step, self._whole.value) and 0 < len(blocks.seconds) <= BLOCKS_TOLD_MAX:
            vars(self._figures).update(
                blocks_step=blocks.step,
                blocks_began=blocks.began_at,
                block_seconds=[moment for block in blocks.seconds for moment in block],
            )
