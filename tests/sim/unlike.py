"""Workers of different speed, in some seeds: the figures that they report, so that rings get unequal ranges.

They report with each heartbeat, and often wrongly: the time of an EST changes now and then, and the time of a
ring's steps is unrelated to its ranges, so that changes are rolled back. None of this may do more than cost
time.

In other seeds some workers are stragglers on one of two hosts: slow from the start or later, temporarily or
for good; some report impossible values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from elastane_master.decisions import balance, stragglers
from elastane_proto.v1 import ring_pb2

SEEDS_OF_20 = (4, 13, 19)
"""Remainders of the seeds that have such workers: no seed that tests name has them, so all other runs stay as
they were."""
STRAGGLING_SEEDS_OF_20 = (5,)
EST_SECONDS = (0.05, 0.05, 0.1, 0.2, 0.8)
ESTS_MAX = (0, 1, 2, 3, 100)
CHANGED_SHARE = 0.05
UPDATE_SECONDS = 1.5
PAUSE_SECONDS = 0.5
BACKOFF_SECONDS = 1.0
HOST_SECONDS = 8.0
SLOW_SHARE, CHANGES_SHARE, LIES_SHARE = 0.4, 0.1, 0.05
LIES = (float("nan"), float("inf"), -1.0, 1e300)


@dataclass
class Speed:
    """The figures that one worker's process reports."""

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


@dataclass
class Pace(Speed):
    """The figures of a process that is sometimes a straggler."""

    host: str = ""
    cause: str = ""
    rates: float = 0.0
    steps: int = 0

    def figures(self, generation: int) -> ring_pb2.WorkerFigures:
        """Return the figures of a heartbeat in the ring of `generation`."""
        if not self.steps or self.rng.random() < CHANGES_SHARE:
            slow = self.rng.random() < SLOW_SHARE
            self.cause = self.rng.choice(("compute", "data", "network")) if slow else ""
            self.est_seconds = 0.1 if self.cause in ("", "network") else self.rng.choice((0.14, 0.2, 0.5))
        if generation != self.generation:
            self.generation, self.step_seconds = generation, self.rng.uniform(0.2, 0.5)
        steps = self.rng.randint(1, 20)
        self.steps, self.rates = self.steps + steps, self.rates + steps / self.est_seconds
        figures = ring_pb2.WorkerFigures(
            generation=generation,
            ests=2,
            device_type="simulated",
            est_seconds=self.est_seconds,
            est_steps=balance.EST_STEPS_MIN,
            ring_step_seconds=self.step_seconds,
            ring_steps=balance.RING_STEPS_MIN,
            est_rates=self.rates,
            est_rate_steps=self.steps,
            usual_steps=self.rng.choice((0, 31, 31, 31)),
            usual_ests_seconds=2 * self.est_seconds,
            usual_data_wait_seconds=self.est_seconds if self.cause == "data" else 0.0,
            usual_all_reduce_wait_seconds=0.0 if self.cause == "network" else 0.4,
        )
        if self.rng.random() < LIES_SHARE:
            name = self.rng.choice(("est_rates", "usual_data_wait_seconds", "usual_all_reduce_wait_seconds"))
            setattr(figures, name, self.rng.choice(LIES))
        return figures


def draw(seed: int, worker: str, pid: int) -> Speed | None:
    """Return the speed of a worker's process; None in most seeds."""
    if seed % 20 in STRAGGLING_SEEDS_OF_20:
        rng = random.Random(f"straggler {seed} {worker} {pid}")
        return Pace(rng, host=f"host-{ord(worker[-1]) % 2}")
    if seed % 20 not in SEEDS_OF_20:
        return None
    return Speed(random.Random(f"unlike {seed} {worker} {pid}"))


@contextmanager
def hurried() -> Iterator[None]:
    """Let ranges and stragglers be changed as often as a run of half a minute needs."""
    hurried = {
        balance: {
            "UPDATE_SECONDS": UPDATE_SECONDS,
            "PAUSE_SECONDS": PAUSE_SECONDS,
            "BACKOFF_SECONDS": BACKOFF_SECONDS,
            "LOOK_STEPS": 1,
        },
        stragglers: {"BAR_SECONDS": HOST_SECONDS},
    }
    before = {module: {name: getattr(module, name) for name in names} for module, names in hurried.items()}
    try:
        for module, changed in hurried.items():
            vars(module).update(changed)
        yield
    finally:
        for module, changed in before.items():
            vars(module).update(changed)
