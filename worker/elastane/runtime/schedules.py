"""Warn of schedules computed from the length of a loader before it was prepared.

`CosineAnnealingLR(optimizer, T_max=epochs * len(loader))` before `prepare` counts the batches of one process.
With N ESTs an epoch has 1/N of the steps, and the schedule covers 1/N of its course, as under stock DDP. The
bits are the same, but it is seldom intended. A scheduler only holds numbers of steps; whether they were
computed this way is inferred from what they are multiples of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_FIGURES: Final = ("T_max", "total_steps", "total_iters", "T_0", "step_size")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of steps that a scheduler holds. scheduler: its class; name: of its attribute."""

    scheduler: str
    name: str
    steps: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Steps of an epoch. before: len(loader) of one process before `prepare`; after: global steps."""

    before: int
    after: int
    epochs: int

    @property
    def total(self) -> int:
        return self.after * self.epochs


def schedule_warnings(schedulers: Iterable[Any], lengths: Lengths) -> list[str]:
    """Return a warning for each scheduler that seems to be computed from the unprepared loader."""
    if lengths.before <= lengths.after:
        return []
    texts = []
    for scheduler in schedulers:
        figures = list(_figures(scheduler))
        if figures and _counted_before([figure.steps for figure in figures], lengths):
            texts.append(_text(figures, lengths))
    return texts


def _counted_before(steps: list[int], lengths: Lengths) -> bool:
    """True if all are multiples of the length before, and none equals the job's steps.

    A number up to the number of epochs counts epochs. One beyond the job's steps may be off by less than an
    epoch: schedules often have one step more or less.
    """
    if min(steps) <= lengths.epochs or lengths.total in steps:
        return False
    whole = lengths.before * lengths.epochs
    return all(
        one % lengths.before == 0 or (one > lengths.total and abs(one - whole) < lengths.before)
        for one in steps
    )


def _text(figures: list[Figure], lengths: Lengths) -> str:
    named = ", ".join(f"{figure.name}={figure.steps}" for figure in figures[:4])
    return (
        f"{figures[0].scheduler}({named}) seems to use the length of the loader before prepare, "
        f"{lengths.before} batches per epoch; an epoch has {lengths.after} global steps, the job "
        f"{lengths.total}, as under DDP. If so, use steps = job.steps_per_epoch(loader) before prepare"
    )


def _figures(scheduler: Any) -> Iterator[Figure]:
    name = type(scheduler).__name__
    for attribute in _FIGURES:
        value = getattr(scheduler, attribute, None)
        if type(value) is int and value > 0:
            yield Figure(name, attribute, value)
    for attribute in ("milestones", "_milestones"):
        for value in sorted(getattr(scheduler, attribute, None) or ()):
            if type(value) is int and value > 0:
                yield Figure(name, "milestones", value)
    for part in getattr(scheduler, "_schedulers", None) or ():
        yield from _figures(part)
