"""Finished jobs under faults of their own: closed to a record, asked for, read again, changed, deleted.

It begins when the training is over, in a part of the runs, so that everything before it stays as it was.
Jobs are made, worked on and ended, each by one caller (`keepers`); masters close them soon. Beside faults at
any time there are some at the very calls of the store that close, take over, check and delete (`epilogue`).
What is checked:

not lost          a job that is over is there until it is deleted, with the end and the changes its caller
                  was told, answered from its record or not
not served twice  a master has a job open or closed, not both; its tasks are committed once
not resurrected   a job that was deleted is not there again, and nothing of it is stored but its fence
no refusal        a worker that comes to a job that is over is told so, not that there is no such job
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.retention import Retention

if TYPE_CHECKING:
    from sim.master_model import MasterModel
    from sim.world import World

CLOSING = "finished jobs closed"
CLOSING_FAULT = "fault in a call for a finished job"
SHARE = 0.4


@dataclass
class Closings:
    """How a run's finished jobs fare. Masters close them after `close_seconds` and keep the `newest`."""

    rng: random.Random
    close_seconds: float
    newest: float
    jobs: int
    hit: dict[str, int] = field(default_factory=dict)

    def apply(self, master: MasterModel) -> None:
        """To a master that starts."""
        master.jobs.finished.close_seconds = self.close_seconds
        master.jobs.finished.retention = Retention(newest=self.newest)


def draw(seed: int) -> Closings | None:
    """Those of a run; None in most."""
    rng = random.Random(f"closings {seed}")
    if rng.random() >= SHARE:
        return None
    return Closings(rng, rng.choice((0.2, 0.5)), rng.choice((math.inf, math.inf, 2)), rng.randint(2, 4))


def check_served_once(world: World, master: MasterModel) -> None:
    """A request comes to a master."""
    try:
        twice = {host.name for host in master.jobs.all()} & {job.name for job in master.jobs.closed()}
    except Rejection:  # it does not serve
        return
    for name in sorted(twice):
        world.fail("not served twice", f"{master.name} has job {name} open and closed")
