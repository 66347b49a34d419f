"""The facts about a job on which an agent's decisions depend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal[
    "unspecified",
    "waiting",
    "running",
    "suspended",
    "max_wait_exceeded",
    "succeeded",
    "failed",
    "cancelled",
    "damaged",
    "too_new",
]


@dataclass(frozen=True)
class JobView:
    """The facts about a job that the policy needs.

    step: committed steps. steps: total of all epochs; 0 until a worker has reported it. standby: ids of
    connected workers without ESTs. undecided: the sentinel suspended the job. datasets: number of dynamic
    ones; None: the master does not report it. target: total workers that a job that scales by itself asks
    for; None: it does not scale. attending: ids of connected ring workers that are not leaving; on_demand: of
    these, on demand. on_demand_max: limit of on-demand workers; None: none. task_workers: ids of workers that
    only lease dynamic tasks. joined: ids of all connected workers.
    """

    phase: Phase
    reason: str = ""
    workers_max: int = 1
    step: int = 0
    steps: int = 0
    standby: frozenset[str] = frozenset()
    undecided: bool = False
    datasets: int | None = None
    target: int | None = None
    attending: frozenset[str] = frozenset()
    on_demand: frozenset[str] = frozenset()
    on_demand_max: int | None = None
    task_workers: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()

    @property
    def wanted(self) -> int:
        """Total number of workers that the job asks for."""
        return self.workers_max if self.target is None else min(self.target, self.workers_max)
