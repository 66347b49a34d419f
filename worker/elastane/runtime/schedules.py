"""Warns of schedules computed from the length of a loader that was not yet prepared.

`CosineAnnealingLR(optimizer, T_max=epochs * len(loader))` before `prepare` counts the batches of one process.
With N ESTs an epoch has 1/N of the steps, as under stock DDP: the schedule would cover 1/N of its course in
both. The bits are the same, but it is seldom what was meant. All that is known of a schedule are its numbers
of steps; whether they were counted this way is inferred from what they are multiples of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

_FIGURES: Final = ("T_max", "total_steps", "total_iters", "T_0", "step_size")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of steps that a scheduler holds. scheduler, name: whose, and what it is called there."""

    scheduler: str
    name: str
    steps: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Steps of an epoch: before `prepare`, len(loader) of one process; after it, global steps."""

    before: int
    after: int
    epochs: int

    @property
    def total(self) -> int:
        return self.after * self.epochs


def schedule_warnings(schedulers: Iterable[Any], lengths: Lengths) -> list[str]:
    """One warning for each scheduler that seems to be counted with the unprepared loader."""
    if lengths.before <= lengths.after:
        return []
    texts = []
    for scheduler in schedulers:
        figures = list(_figures(scheduler))
        if figures and _counted_before([figure.steps for figure in figures], lengths):
            texts.append(_text(figures, lengths))
    return texts


def _counted_before(steps: list[int], lengths: Lengths) -> bool:
    """Whether all are multiples of the length before, and none is what it would be if counted after.

    A figure up to the number of epochs counts epochs. One beyond the job's steps may be off by less than
    an epoch: schedules are often given a step more or less.
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
        f"{figures[0].scheduler}({named}) seems to count with the loader as it was before prepare, "
        f"{lengths.before} batches an epoch; an epoch has {lengths.after} global steps, the job "
        f"{lengths.total}, as under DDP. If so, count with steps = job.steps_per_epoch(loader) before prepare"
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
