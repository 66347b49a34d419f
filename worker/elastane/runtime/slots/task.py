"""A leased task whose gradients are pushed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TaskEnd:
    """What is reported of a task. closed: nothing, it is FAILED already.

    lives_sum, map_generations: of a done one, as of `PushOutcome`. error: of a failed one, and why one is
    given back. staleness: the highest of any slot; versions: by slot, after the push.
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
    #: Of the oldest slot map that will do.
    generation: int = field(default=0, repr=False)
