"""Virtual time, the random seed, and the checkpoints, which outlive processes.

Every event is an entry of one heap; ties are broken by the order of scheduling. One
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
    """A member's part of a checkpoint: lineage, weights, contexts of its ESTs, units of a pipeline."""

    lineage: int
    weights: bytes
    contexts: dict[int, dict[str, bytes]]
    units: dict[int, bytes] = field(default_factory=dict)


@dataclass
class StoredCheckpoint:
    """A complete checkpoint on the workers' shared storage."""

    name: str
    step: int
    shards: list[StoredShard]
    corrupt: bool = False


@dataclass
class World:
    """The simulated world. now: virtual seconds. failure: the first broken property; it ends the run."""

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
        """Schedule `action` after `seconds`."""
        heapq.heappush(self.heap, (self.now + seconds, next(self.order), action))

    def at(self, when: float, action: Action) -> None:
        """Schedule `action` at the time `when`, or now if that is past."""
        heapq.heappush(self.heap, (max(when, self.now), next(self.order), action))

    def fail(self, checker: str, text: str) -> None:
        """Record a broken property. Does not raise, because the calling code may catch all exceptions."""
        if self.failure is None:
            self.log(f"BROKEN {checker}: {text}")
            self.failure = SimulationError(checker, text)

    def run_until(self, done: Callable[[], bool], deadline: float, events_max: int) -> bool:
        """Run until `done`; return False if the deadline or the limit on events is reached first.

        Raises SimulationError as soon as a property is found broken.
        """
        heap = self.heap
        for number in range(events_max):
            if self.failure is not None:
                raise self.failure
            # `done` is expensive, and nothing depends on noticing it at once.
            if number % 8 == 0 and done():
                return True
            if not heap or heap[0][0] > deadline:
                return done()
            self.now, _, action = heapq.heappop(heap)
            self.events += 1
            action()
        return done()

    def log(self, text: str) -> None:
        """Add a line to the trace that a failure prints."""
        self.trace.append(f"{self.now - BEGIN:9.4f} {text}")
