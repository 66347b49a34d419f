"""The facts about a job that an agent decides by."""

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
    ones; None: the master does not say. target: workers that a job wants that scales by itself, of all
    agents; None: it does not. attending: ids of all workers of the ring that are not leaving; on_demand: of
    those on demand. on_demand_max: how many may be on demand; None: any number. task_workers: ids of those
    that lease dynamic tasks only. joined: ids of connected workers, with ESTs or without.
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
        """Number of workers that the job wants, of all agents."""
        return self.workers_max if self.target is None else min(self.target, self.workers_max)
