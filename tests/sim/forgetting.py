"""Faults in which the store loses acknowledged writes together with every master that remembers them.

They model a power cut with `appendfsync everysec`, or a truncated file. The store returns to its state some
writes ago, but not before the first commit: a job whose beginning is lost would be a new one, started from
any existing checkpoint. Runs with dynamic tasks are excluded, because their callers cannot restore lost
state.

Faults are drawn from a separate generator, so that all other runs keep their draws.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from sim.faults import Cluster
from sim.profiles import GO_FORGOTTEN

FORGETTING = "store and master forget"
SHARE = 0.5
"""Share of the runs without dynamic tasks that have such faults."""
WORKERS_ALL = 1000
WRITES = (1, 1, 1, 2, 3, 5, 10, 40)
GO_WRITES_AND_DOWN = (1, 0.02)
"""Writes lost, and seconds that the store is away, where that a ring goes ahead is forgotten."""


@dataclass(frozen=True)
class Power:
    """A power cut. writes: number of lost newest writes. workers: number of workers that die with it."""

    at_seconds: float
    writes: int
    down_seconds: float
    workers: int


def draw(seed: int, *, loses_all: bool = False) -> tuple[Power, ...]:
    """Draw the power cuts of a run; none for half of the seeds. loses_all: all workers die with the store."""
    rng = random.Random(f"forgetting {seed}")
    if rng.random() >= SHARE:
        return ()
    times = sorted(rng.uniform(0.5, 15.0) for _ in range(rng.choice((1, 2, 4))))
    return tuple(
        Power(
            at,
            rng.choice(WRITES),
            rng.choice((0.02, 0.3, 2.0)),
            WORKERS_ALL if loses_all else rng.choice((0, 0, 0, 1, 2)),
        )
        for at in times
    )


def plan(cluster: Cluster, cuts: tuple[Power, ...]) -> None:
    """Schedule the cuts, and let those happen that the run's profile asks for."""
    follows = any(follow_up.fault == GO_FORGOTTEN for follow_up in cluster.profile.follow_ups)
    if follows:
        cluster.forget_go = lambda: _inject(cluster, Power(cluster.world.now, *GO_WRITES_AND_DOWN, 0))
    if cuts or follows:
        cluster.server.is_begun = lambda: bool(cluster.checkers.standing)
    for cut in cuts:
        cluster.world.after(cut.at_seconds, lambda cut=cut: _inject(cluster, cut))


def _inject(cluster: Cluster, cut: Power) -> None:
    if cluster.is_over or cluster.closings is not None or not cluster.server.is_up:
        return
    for master in cluster.masters_alive:
        master.kill()
    for worker in cluster.alive[: cut.workers]:
        worker.kill()
    cluster.server.cut(cut.writes, cut.down_seconds)
    cluster.forgot()
    cluster.injected[FORGETTING] = cluster.injected.get(FORGETTING, 0) + 1
