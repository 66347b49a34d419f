"""Virtual time, one seed, and the places that outlive processes: the store's log and the checkpoints.

Everything that happens is an entry of one heap; ties are broken by the order of scheduling. One
`random.Random` decides every delay and every fault, so a seed replays a run exactly.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]


class SimulationError(AssertionError):
    """A property does not hold; the message bears time and facts, the test adds the seed."""


@dataclass
class StoredShard:
    """What a member wrote: weights and who began them, and the contexts of its ESTs."""

    lineage: int
    weights: bytes
    contexts: dict[int, dict[str, bytes]]


@dataclass
class StoredCheckpoint:
    """A complete checkpoint on the storage that all workers reach."""

    name: str
    step: int
    shards: list[StoredShard]
    corrupt: bool = False


@dataclass
class World:
    """now: virtual seconds. faults_until: after that only what liveness needs happens."""

    rng: random.Random
    now: float = 1_000_000.0
    heap: list[tuple[float, int, Action]] = field(default_factory=list)
    order: itertools.count[int] = field(default_factory=itertools.count)
    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    written: dict[tuple[str, int], StoredShard] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    storage_broken: bool = False

    def after(self, seconds: float, action: Action) -> None:
        """Schedules `action`."""
        heapq.heappush(self.heap, (self.now + seconds, next(self.order), action))

    def at(self, when: float, action: Action) -> None:
        """Schedules `action` at a time that is not in the past."""
        heapq.heappush(self.heap, (max(when, self.now), next(self.order), action))

    def run_until(self, done: Callable[[], bool], deadline: float, steps_max: int) -> bool:
        """Runs until `done`; False when the deadline or the bound on events is reached first."""
        for _ in range(steps_max):
            if done():
                return True
            if not self.heap or self.heap[0][0] > deadline:
                return False
            self.now, _, action = heapq.heappop(self.heap)
            action()
        return done()

    def log(self, text: str) -> None:
        """For the trace that a failure prints."""
        self.trace.append(f"{self.now - 1_000_000:9.4f} {text}")
