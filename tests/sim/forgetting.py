"""A store that loses the end of what it acknowledged, together with every master that remembered it.

A power cut with `appendfsync everysec`, or a file that is cut short. What is lost is the end: the store comes
back as it was some writes ago, but not before the first commit: a job whose beginning is lost is a new one,
which begins with whatever checkpoint there is. Runs with dynamic tasks are left alone: their callers do not
bring anything.

Draws come from a generator of their own: runs in which nothing is forgotten stay as they were.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sim.faults import Cluster

FORGETTING = "store and master forget"
SHARE = 0.5
"""Of the runs without dynamic tasks."""
WRITES = (1, 1, 1, 2, 3, 5, 10, 40)


@dataclass(frozen=True)
class Power:
    """A cut. workers: how many of them die with it."""

    at_seconds: float
    writes: int
    down_seconds: float
    workers: int


def draw(seed: int) -> tuple[Power, ...]:
    """Those of a run; none in most."""
    rng = random.Random(f"forgetting {seed}")
    if rng.random() >= SHARE:
        return ()
    times = sorted(rng.uniform(0.5, 15.0) for _ in range(rng.choice((1, 2, 4))))
    return tuple(
        Power(at, rng.choice(WRITES), rng.choice((0.02, 0.3, 2.0)), rng.choice((0, 0, 0, 1, 2)))
        for at in times
    )


def plan(cluster: Cluster, cuts: tuple[Power, ...]) -> None:
    """Has them happen."""
    if cuts:
        cluster.server.is_begun = lambda: bool(cluster.checkers.standing)
    for cut in cuts:
        cluster.world.after(cut.at_seconds, lambda cut=cut: _strike(cluster, cut))


def _strike(cluster: Cluster, cut: Power) -> None:
    if cluster.is_over or cluster.closings is not None or not cluster.server.is_up:
        return
    for master in cluster.masters_alive:
        master.kill()
    for worker in cluster.alive[: cut.workers]:
        worker.kill()
    cluster.server.cut(cut.writes, cut.down_seconds)
    cluster.forgot()
    cluster.injected[FORGETTING] = cluster.injected.get(FORGETTING, 0) + 1
