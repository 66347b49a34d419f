"""Names of tasks, which identify pushes."""

from __future__ import annotations

from typing import NamedTuple


class TaskName(NamedTuple):
    """A task of a dataset. Its attempts share the name: in each slot the first push is applied."""

    dataset: str
    epoch: int
    task: int


class TaskRun(NamedTuple):
    """Tasks [start, end) of one epoch of a dataset."""

    dataset: str
    epoch: int
    start: int
    end: int
