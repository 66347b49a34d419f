"""Input and output of a policy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from elastane_scheduler.costs import Costs
from elastane_scheduler.jobs import JobState
from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.queues import Queue


@dataclass(frozen=True, slots=True)
class View:
    """The jobs that are not over, in the order of their arrival, and the devices that may be allocated now.

    offered: devices of each type, at most those of the pool. queues: who has which part of them, for
    `ByQueuePolicy`; jobs name theirs.
    """

    now: float
    jobs: Sequence[JobState]
    pool: Pool
    offered: Counts
    costs: Costs
    queues: tuple[Queue, ...] = ()


Allocation = list[Counts]
"""Devices of each job, in the order of `View.jobs`."""

Rule = Callable[[View], Allocation]
"""A way to share devices out, without reasons."""


@dataclass(frozen=True)
class Reason:
    """Reason for a job's allocation.

    text names the job, devices and seconds; rejected: alternatives, with their scores.
    """

    text: str
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """Decision of a policy: devices by job, and when it wants to decide again without an event (or
    infinity).

    choice: how it came about, for reasons. rejected: alternatives that were played, with their scores.
    """

    allocation: Allocation
    wake_seconds: float
    choice: str
    rejected: tuple[str, ...] = ()


class Policy(Protocol):
    """Allocates devices. One object serves one pool, and may keep state between decisions."""

    @property
    def name(self) -> str:
        """The policy's name in commands and settings."""
        ...

    def decide(self, view: View) -> Decision:
        """Return devices for each job of `view`, never more than offered. Changes nothing in `view`."""
        ...
