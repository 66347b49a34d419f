"""Virtual time, one seed, and the checkpoints, which outlive processes.

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
BEGIN = 1_000_000.0


class SimulationError(AssertionError):
    """A property does not hold. checker: the property's name."""

    def __init__(self, checker: str, text: str) -> None:
        super().__init__(f"{checker}: {text}")
        self.checker = checker


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
    """now: virtual seconds. failure: the first property found broken; nothing happens after it."""

    rng: random.Random
    now: float = BEGIN
    heap: list[tuple[float, int, Action]] = field(default_factory=list)
    order: itertools.count[int] = field(default_factory=itertools.count)
    checkpoints: list[StoredCheckpoint] = field(default_factory=list)
    written: dict[tuple[str, int], StoredShard] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    storage_broken: bool = False
    failure: SimulationError | None = None
    events: int = 0

    def after(self, seconds: float, action: Action) -> None:
        """Schedules `action`."""
        heapq.heappush(self.heap, (self.now + seconds, next(self.order), action))

    def at(self, when: float, action: Action) -> None:
        """Schedules `action` at a time that is not in the past."""
        heapq.heappush(self.heap, (max(when, self.now), next(self.order), action))

    def fail(self, checker: str, text: str) -> None:
        """A property does not hold. Does not raise: whoever found it may be deep in code that catches all."""
        if self.failure is None:
            self.log(f"BROKEN {checker}: {text}")
            self.failure = SimulationError(checker, text)

    def run_until(self, done: Callable[[], bool], deadline: float, events_max: int) -> bool:
        """Runs until `done`; False when the deadline or the bound on events is reached first.

        Raises SimulationError as soon as a property was found broken.
        """
        heap = self.heap
        for number in range(events_max):
            if self.failure is not None:
                raise self.failure
            # `done` looks at many things; nothing depends on seeing it at once.
            if number % 8 == 0 and done():
                return True
            if not heap or heap[0][0] > deadline:
                return done()
            self.now, _, action = heapq.heappop(heap)
            self.events += 1
            action()
        return done()

    def log(self, text: str) -> None:
        """For the trace that a failure prints."""
        self.trace.append(f"{self.now - BEGIN:9.4f} {text}")
