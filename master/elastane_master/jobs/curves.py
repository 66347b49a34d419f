"""Curves of a job's logged values in bounded memory; each committed step counts once.

    history (order of commits) --> add(step) --> per name: buckets of `stride` steps --> points

Pure. A curve has at most `POINTS_MAX` buckets: beyond that, neighbours are merged and the stride doubles.
Buckets are aligned to the stride, so a curve does not depend on when it was read.

History can go back (all workers lost, a checkpoint loaded): a commit then repeats an earlier step in a newer
generation. Buckets after that step are dropped. If it lies inside a bucket, the values of earlier steps
cannot be separated from superseded ones; `add` then requests the history from its beginning, skipping
superseded commits, whose generation is older than that of the commit that went back. If it is not older (a
store that lost writes got some of them twice) the bucket is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from elastane_master.jobs.records import LoggedStep

POINTS_MAX = 512
"""Maximum number of points in a curve."""

NAMES_MAX = 64
"""Curves of one job; later names are counted and left out."""


class Bucket(msgspec.Struct, gc=False):
    """Steps [start, start + stride) of one curve. end: the step after the last one in it."""

    start: int
    end: int
    count: int
    total: float
    low: float
    high: float
    last: float

    @property
    def mean(self) -> float:
        return self.total / self.count

    def take(self, other: Bucket) -> None:
        """Merge the following bucket into this one."""
        self.end, self.last = other.end, other.last
        self.count += other.count
        self.total += other.total
        self.low, self.high = _least(self.low, other.low), _most(self.high, other.high)


class Rewind(msgspec.Struct, frozen=True):
    """A rewind of the history to `step`; from that step on only commits of `generation` or later count."""

    step: int
    generation: int


class Curves:
    """The curves of one job. step: the next to be committed. left_out: names beyond `NAMES_MAX`."""

    def __init__(self, rewinds: Sequence[Rewind] = ()) -> None:
        self.step = 0
        self.stride = 1
        self.series: dict[str, list[Bucket]] = {}
        self.rewinds = list(rewinds)
        self._left_out: set[str] = set()

    @property
    def left_out(self) -> int:
        return len(self._left_out)

    def stands(self, step: int, generation: int) -> bool:
        """True unless a known later commit supersedes this one."""
        return all(step < back.step or generation >= back.generation for back in self.rewinds)

    def add(self, logged: LoggedStep) -> bool:
        """Count a committed step. False: start again with `Curves(self.rewinds)` from the first commit."""
        if not self.stands(logged.step, logged.generation):
            return True
        if logged.step < self.step:
            back = Rewind(logged.step, logged.generation)
            known = back in self.rewinds
            if not known:
                self.rewinds.append(back)
            if not self._drop(logged.step) and not known:
                return False
        self.step = logged.step + 1
        for name, value in step_values(logged).items():
            self._count(name, logged.step, value)
        return True

    def points(self, name: str, points_max: int = POINTS_MAX) -> list[Bucket]:
        """Return the curve of a name in at most `points_max` buckets; empty for an unknown name."""
        buckets, stride = self.series.get(name, []), self.stride
        while len(buckets) > points_max:
            stride *= 2
            buckets = _joined(buckets, stride)
        return buckets

    def _drop(self, step: int) -> bool:
        """Drop `step` and later steps; False if earlier steps were dropped with them."""
        exact = True
        for name, buckets in list(self.series.items()):
            while buckets and buckets[-1].end > step:
                exact = exact and buckets[-1].start >= step
                buckets.pop()
            if not buckets:
                del self.series[name]
        return exact

    def _count(self, name: str, step: int, value: float) -> None:
        buckets = self.series.get(name)
        if buckets is None:
            if len(self.series) >= NAMES_MAX:
                if len(self._left_out) < NAMES_MAX:  # the number of further names does not matter
                    self._left_out.add(name)
                return
            buckets = self.series[name] = []
        bucket = Bucket(step, step + 1, 1, value, value, value, value)
        if buckets and buckets[-1].start // self.stride == step // self.stride:
            buckets[-1].take(bucket)
            return
        buckets.append(bucket)
        if len(buckets) > POINTS_MAX:
            self.stride *= 2
            for known, parts in self.series.items():
                self.series[known] = _joined(parts, self.stride)


def step_values(logged: LoggedStep) -> dict[str, float]:
    """The mean of each value over the ESTs that logged it, added in the order of virtual ranks."""
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for _, task in logged.tasks:
        for name, value in task.metrics.items():
            totals[name] = totals.get(name, 0.0) + value
            counts[name] = counts.get(name, 0) + 1
    return {name: total / counts[name] for name, total in totals.items()}


def _joined(buckets: Iterable[Bucket], stride: int) -> list[Bucket]:
    """Return copies of the buckets, merged by `stride`."""
    joined: list[Bucket] = []
    for bucket in buckets:
        if joined and joined[-1].start // stride == bucket.start // stride:
            joined[-1].take(bucket)
        else:
            joined.append(msgspec.structs.replace(bucket))
    return joined


def _least(one: float, other: float) -> float:
    """Return the smaller value; if one is None, the other."""
    return other if math.isnan(one) else one if math.isnan(other) else min(one, other)


def _most(one: float, other: float) -> float:
    return other if math.isnan(one) else one if math.isnan(other) else max(one, other)
