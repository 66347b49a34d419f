"""Times of blocks in recent steps, as reported by pipeline workers. In memory only.

Workers report a step every few seconds, each with its next heartbeat. The newest steps of each worker are
kept, and the newest step that all have reported is shown.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

STEPS_KEPT: Final = 4
"""Number of steps kept for each worker."""


@dataclass(frozen=True, slots=True)
class ToldStep:
    """A worker's blocks in a step. began: by its clock, in seconds since the Unix epoch; spans: start, end,
    start, end, ... in seconds since then, in the order of its schedule."""

    generation: int
    step: int
    began: float
    spans: tuple[float, ...]

    @property
    def blocks(self) -> tuple[tuple[float, float], ...]:
        """The spans in pairs."""
        return tuple(zip(self.spans[::2], self.spans[1::2], strict=False))


class LastSteps:
    """Steps reported by the workers of one job. Used from one event loop."""

    def __init__(self, workers_max: int) -> None:
        self._workers_max = workers_max
        self._told: OrderedDict[str, deque[ToldStep]] = OrderedDict()

    def tell(self, worker: str, generation: int, step: int, began: float, spans: Sequence[float]) -> None:
        """Record a worker's blocks of a step; heartbeats repeat them until there are newer ones."""
        told = self._told.setdefault(worker, deque(maxlen=STEPS_KEPT))
        self._told.move_to_end(worker)
        if not told or (told[-1].generation, told[-1].step) != (generation, step):
            told.append(ToldStep(generation, step, began, tuple(spans)))
        if len(self._told) > self._workers_max:
            self._told.popitem(last=False)

    def newest(self, workers: Iterable[str], generation: int) -> dict[str, ToldStep]:
        """Return the newest step of a ring that all these workers have reported, by worker; {}: none."""
        by_worker = {
            worker: {one.step: one for one in self._told.get(worker, ()) if one.generation == generation}
            for worker in workers
        }
        common = set.intersection(*map(set, by_worker.values())) if by_worker else set()
        return {worker: told[max(common)] for worker, told in by_worker.items()} if common else {}
