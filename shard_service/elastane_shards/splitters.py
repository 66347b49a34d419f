"""Sources of a dataset, split into tasks: task t is positions [t * task_size, (t + 1) * task_size).

A task is computed from its index and never stored, so a source takes only the memory of its own data: two
integers for a range or a growing stream, eight bytes per entry for a list. The last task of a dataset may be
shorter; in a stream it is leased only after the stream is closed, because until then it may still fill up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import msgspec

from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSettings, InvalidSource

POSITION_MAX = 2**62
"""Largest size. Positions must fit in signed 64 bits, even after rounding up to whole batches."""


class RangeSource(msgspec.Struct, frozen=True, tag="range"):
    """Positions 0..size-1 of a dataset addressed by position: a table, a map-style dataset."""

    size: int


class ListSource(msgspec.Struct, frozen=True, tag="list"):
    """An explicit list. Position p stands for entries[p]: a record index, or the start of a record.

    packed: the entries as signed 64-bit integers in native byte order, as in `array("q")`.
    """

    packed: bytes


class StreamSource(msgspec.Struct, frozen=True, tag="stream"):
    """A dataset that grows: positions below the watermark exist; once it is closed no more will follow."""

    watermark: int
    closed: bool


Source = RangeSource | ListSource | StreamSource


def range_source(size: int) -> RangeSource:
    """Build a range source of `size` positions. Raises InvalidSource unless 0 < size <= POSITION_MAX."""
    if not 0 < size <= POSITION_MAX:
        raise InvalidSource(f"a dataset of {size} samples cannot be cut into tasks", size=size)
    return RangeSource(size)


def list_source(entries: Iterable[int]) -> ListSource:
    """Build a list source of non-negative entries in the given order. Raises InvalidSource."""
    packed = _pack(entries)
    if not packed:
        raise InvalidSource("a list source needs at least one entry", entries=0)
    return ListSource(packed.tobytes())


def stream_source(watermark: int, closed: bool) -> StreamSource:
    """Build a growing stream; an open one may start empty. Raises InvalidSource."""
    if not 0 <= watermark <= POSITION_MAX:
        raise InvalidSource(f"watermark {watermark} is out of range", watermark=watermark)
    return StreamSource(watermark, closed)


def extended(source: Source, watermark: int, closed: bool) -> StreamSource:
    """Return the stream after it grew to `watermark` and was closed if `closed`.

    Repeating the current state is allowed, so a retried request does no harm. Raises InvalidSource when the
    watermark decreases, IllegalTransition when `source` is not a stream, or is closed and would change.
    """
    if not isinstance(source, StreamSource):
        raise IllegalTransition(
            "only a stream can be extended", hint="create the dataset with a stream source"
        )
    if source.closed and (watermark, closed) != (source.watermark, True):
        raise IllegalTransition(
            f"the stream was closed at {source.watermark}", watermark=watermark, closed_at=source.watermark
        )
    if watermark < source.watermark:
        raise InvalidSource(
            f"the watermark goes backwards, from {source.watermark} to {watermark}",
            hint="a watermark counts all samples since the beginning",
            watermark=watermark,
            before=source.watermark,
        )
    return stream_source(watermark, closed)


class Splitter:
    """A source cut into tasks of `task_size` positions.

    Immutable; a grown stream gets a new one. size: number of positions that exist. num_tasks: number of tasks
    that can be leased now. closed: True if both numbers are final.
    """

    __slots__ = ("_entries", "closed", "num_tasks", "size", "source", "task_size")

    def __init__(self, source: Source, task_size: int) -> None:
        if not 0 < task_size <= POSITION_MAX:
            raise InvalidSettings(f"tasks of {task_size} samples are not possible", task_size=task_size)
        self.source = source
        self.task_size = task_size
        self.closed = source.closed if isinstance(source, StreamSource) else True
        self._entries: Sequence[int] = ()
        match source:
            case RangeSource(size):
                self.size = size
            case StreamSource(watermark):
                self.size = watermark
            case ListSource(packed):
                self._entries = _unpack(packed)
                self.size = len(self._entries)
        whole, rest = divmod(self.size, task_size)
        self.num_tasks = whole + (1 if rest and self.closed else 0)

    def bounds(self, index: int) -> tuple[int, int]:
        """Positions [start, end) of a task. Raises InvalidRequest when there is no such task."""
        if not 0 <= index < self.num_tasks:
            raise InvalidRequest(f"no task {index} of {self.num_tasks}", index=index, tasks=self.num_tasks)
        start = index * self.task_size
        return start, min(start + self.task_size, self.size)

    def entries(self, positions: Sequence[int]) -> tuple[int, ...]:
        """Return the listed entries of ascending or permuted positions; empty for sources without a list."""
        if isinstance(self.source, ListSource):
            if isinstance(positions, range) and positions.step == 1:
                return tuple(self._entries[positions.start : positions.stop])
            return tuple(self._entries[position] for position in positions)
        return ()

    def all_entries(self) -> tuple[int, ...]:
        """All entries of the source, as given."""
        return tuple(self._entries)


def _pack(entries: Iterable[int]) -> array[int]:
    try:
        packed = array("q", entries)
    except (OverflowError, TypeError) as error:
        raise InvalidSource(f"entries must be integers of at most 63 bits: {error}") from error
    if packed and min(packed) < 0:
        raise InvalidSource(f"entry {min(packed)} is negative", entry=min(packed))
    return packed


def _unpack(packed: bytes) -> array[int]:
    try:
        return array("q", packed)
    except ValueError as error:
        raise InvalidSource(
            f"{len(packed)} bytes are no list of 64-bit entries", bytes=len(packed)
        ) from error
