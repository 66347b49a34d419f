"""Names of tasks, by which pushes are told apart."""

from __future__ import annotations

from typing import NamedTuple


class TaskName(NamedTuple):
    """A task of a dataset. Its attempts share the name: whichever pushes to a slot first is applied there."""

    dataset: str
    epoch: int
    task: int


class TaskRun(NamedTuple):
    """Tasks [start, end) of one epoch of a dataset."""

    dataset: str
    epoch: int
    start: int
    end: int
