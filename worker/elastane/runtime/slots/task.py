"""A leased task whose gradients are pushed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TaskEnd:
    """Outcome of a task, from which its report is made. closed: no report, as the task is already FAILED.

    lives_sum, map_generations: of a done task, as in `PushOutcome`. error: of a failed task, or the reason
    for giving one back. staleness: maximum over slots. versions: by slot, after the push.
    """

    kind: Literal["done", "returned", "closed", "failed"]
    lives_sum: int = 0
    error: str = ""
    staleness: int = 0
    versions: dict[int, int] = field(default_factory=dict)
    map_generations: tuple[int, ...] = ()


@dataclass
class PushTask:
    """Positions `indices` of epoch `epoch`. attempt: 1, or more if the task failed before."""

    epoch: int
    index: int
    indices: range
    attempt: int = 1
    dataset: str = field(default="", repr=False)
    lease: int = field(default=0, repr=False)
    #: Generation of the oldest slot map that may be used.
    generation: int = field(default=0, repr=False)
