"""Workers of unlike speed, in some seeds: what they say of themselves, so that rings get unequal ranges.

They say it with each heartbeat, and it is often wrong: the time of an EST changes now and then, and the time
of a ring's steps has nothing to do with its ranges, so that changes are taken back. None of it may do more
than cost time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from elastane_master.decisions import balance
from elastane_proto.v1 import ring_pb2

SEEDS_OF_20 = (4, 13, 19)
"""Remainders of the seeds that have such workers: no seed that tests name has them, so all other runs stay as
they were."""
EST_SECONDS = (0.05, 0.05, 0.1, 0.2, 0.8)
ESTS_MAX = (0, 1, 2, 3, 100)
CHANGED_SHARE = 0.05
UPDATE_SECONDS = 1.5
PAUSE_SECONDS = 0.5
BACKOFF_SECONDS = 1.0


@dataclass
class Speed:
    """What one worker's process says of itself."""

    rng: random.Random
    est_seconds: float = 0.0
    generation: int = 0
    step_seconds: float = 0.0

    def figures(self, generation: int) -> ring_pb2.WorkerFigures:
        """Return the figures of a heartbeat in the ring of `generation`."""
        if not self.est_seconds or self.rng.random() < CHANGED_SHARE:
            self.est_seconds = self.rng.choice(EST_SECONDS)
        if generation != self.generation:
            self.generation, self.step_seconds = generation, self.rng.uniform(0.01, 0.5)
        return ring_pb2.WorkerFigures(
            generation=generation,
            device_type="simulated",
            est_seconds=self.est_seconds,
            est_steps=balance.EST_STEPS_MIN,
            ring_step_seconds=self.step_seconds,
            ring_steps=balance.RING_STEPS_MIN,
            ests_max=self.rng.choice(ESTS_MAX),
        )


def draw(seed: int, worker: str, pid: int) -> Speed | None:
    """Return the speed of a worker's process; None in most seeds."""
    if seed % 20 not in SEEDS_OF_20:
        return None
    return Speed(random.Random(f"unlike {seed} {worker} {pid}"))


@contextmanager
def hurried() -> Iterator[None]:
    """Let ranges be changed as often as a run of half a minute needs."""
    hurried = {
        "UPDATE_SECONDS": UPDATE_SECONDS,
        "PAUSE_SECONDS": PAUSE_SECONDS,
        "BACKOFF_SECONDS": BACKOFF_SECONDS,
        "LOOK_STEPS": 1,
    }
    before = {name: getattr(balance, name) for name in hurried}
    try:
        vars(balance).update(hurried)
        yield
    finally:
        vars(balance).update(before)
