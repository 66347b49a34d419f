"""Sets of non-negative integers stored as runs; used for the tasks that are DONE.

Tasks become DONE nearly in order, so the set has few runs however large the dataset is: 10^9 samples take
kilobytes. Runs are stored as one sorted list of boundaries, start, end, start, end, ...; bisecting for a
position gives an odd index if it is inside a run and an even index if it is outside. The list is split into
blocks, because an insertion into one list of millions would move all of it: `add` costs O(1) in order and
O(log runs + block) anywhere else.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, pairwise

from elastane_shards.errors import InvalidRequest, InvariantViolated

_BLOCK_BOUNDARIES = 512
"""Boundaries per block after a split. Blocks split at twice this length. Even, so that no run is cut."""


class IntervalSet:
    """A set of non-negative integers, stored as half-open runs [start, end).

    Not a msgspec type itself: `to_gaps` is its compact form, `from_gaps` reads it back.
    """

    __slots__ = ("_blocks", "_count", "_firsts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._blocks: list[list[int]] = []  # each non-empty, of even length, all ascending
        self._firsts: list[int] = []  # first boundary of each block
        self._count = 0
        for start, end in intervals:
            self.add(start, end)

    def add(self, start: int, end: int) -> int:
        """Add [start, end) and return how many of its integers were new. Raises InvalidRequest."""
        if not 0 <= start <= end:
            raise InvalidRequest(
                f"[{start}, {end}) is no range of non-negative integers", start=start, end=end
            )
        if start == end:
            return 0
        if not self._blocks:
            self._blocks.append([start, end])
            self._firsts.append(start)
            self._count = end - start
            return end - start
        tail = self._blocks[-1]
        if start == tail[-1]:  # the common case: in order
            tail[-1] = end
            self._count += end - start
            return end - start
        return self._splice(start, end)

    def remove(self, start: int, end: int) -> int:
        """Remove [start, end) and return how many of its integers were in the set. Raises InvalidRequest."""
        if not 0 <= start <= end:
            raise InvalidRequest(
                f"[{start}, {end}) is no range of non-negative integers", start=start, end=end
            )
        first = max(self._block_of(start), 0)
        last = self._block_of(end - 1)
        if start == end or last < first:
            return 0
        flat = list(chain.from_iterable(self._blocks[first : last + 1]))
        low, high = bisect_left(flat, start), bisect_right(flat, end)
        # An odd index is inside a run or at its end: what is left of the run ends, or begins, at the cut.
        left = [*flat[:low], *([start] if low % 2 else []), *([end] if high % 2 else []), *flat[high:]]
        removed = sum(flat[1::2]) - sum(flat[::2]) - sum(left[1::2]) + sum(left[::2])
        parts = _cut(left) if left else []
        self._blocks[first : last + 1] = parts
        self._firsts[first : last + 1] = [part[0] for part in parts]
        self._count -= removed
        return removed

    def __contains__(self, position: int) -> bool:
        block = self._block_of(position)
        return block >= 0 and bisect_right(self._blocks[block], position) % 2 == 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """All members, ascending."""
        return chain.from_iterable(range(start, end) for start, end in self.intervals())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._count == other._count and list(self.intervals()) == list(other.intervals())

    __hash__ = None  # type: ignore[assignment] # mutable

    def __repr__(self) -> str:
        return f"IntervalSet({list(self.intervals())})"

    @property
    def count(self) -> int:
        """Number of members."""
        return self._count

    @property
    def runs(self) -> int:
        """Number of runs. Memory use is proportional to it."""
        return sum(len(block) for block in self._blocks) // 2

    def intervals(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the runs in ascending order, clipped to [start, inf). Do not `add` while iterating."""
        first = max(self._block_of(start), 0)
        for number in range(first, len(self._blocks)):
            block = self._blocks[number]
            place = bisect_right(block, start) & ~1 if number == first else 0
            for i in range(place, len(block), 2):
                if block[i + 1] > start:
                    yield max(block[i], start), block[i + 1]

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of [start, end) that are not in the set, in ascending order."""
        position = start
        for first, last in self.intervals(start):
            if first >= end:
                break
            if first > position:
                yield position, first
            position = last
        if position < end:
            yield position, end

    def first(self) -> int:
        """The least member. Raises InvalidRequest if the set is empty."""
        if not self._blocks:
            raise InvalidRequest("an empty set has no least member")
        return self._firsts[0]

    def first_missing(self, start: int = 0) -> int:
        """The least integer >= start that is not in the set."""
        number = self._block_of(start)
        if number < 0:
            return start
        block = self._blocks[number]
        place = bisect_right(block, start)
        return block[place] if place % 2 else start  # runs never touch, so one look is enough

    def covers(self, start: int, end: int) -> bool:
        """True if all of [start, end) is in the set."""
        return start >= end or self.first_missing(start) >= end

    def to_gaps(self) -> list[int]:
        """Return the boundaries as differences, small numbers: [first start, length, gap, length, ...]."""
        gaps, last = [], 0
        for boundary in chain.from_iterable(self._blocks):
            gaps.append(boundary - last)
            last = boundary
        return gaps

    @classmethod
    def from_gaps(cls, gaps: Iterable[int]) -> IntervalSet:
        """Inverse of `to_gaps`. Raises InvariantViolated for input that `to_gaps` cannot produce."""
        result = cls()
        flat = list(accumulate(gaps))
        result._blocks = _cut(flat) if flat else []
        result._firsts = [block[0] for block in result._blocks]
        result._count = sum(flat[1::2]) - sum(flat[::2])
        result.validate()
        return result

    def validate(self) -> None:
        """Check that runs are non-empty, ascending, apart and counted right. Raises InvariantViolated."""
        flat = list(chain.from_iterable(self._blocks))
        ascending = all(a < b for a, b in pairwise(flat))
        if not ascending or len(flat) % 2 or (flat and flat[0] < 0):
            raise InvariantViolated("the runs of an IntervalSet are not ascending", runs=len(flat) // 2)
        if sum(flat[1::2]) - sum(flat[::2]) != self._count:
            raise InvariantViolated("an IntervalSet counts wrong", count=self._count)
        if self._firsts != [block[0] for block in self._blocks] or any(len(b) % 2 for b in self._blocks):
            raise InvariantViolated("the blocks of an IntervalSet are cut wrong", blocks=len(self._blocks))

    def _block_of(self, position: int) -> int:
        """Index of the last block that begins at or before `position`; -1 if there is none."""
        return bisect_right(self._firsts, position) - 1

    def _splice(self, start: int, end: int) -> int:
        """Insert [start, end), merging the runs it overlaps or touches; return how many integers were new."""
        first = max(self._block_of(start), 0)
        last = max(self._block_of(end), first)
        head, tail = self._blocks[first], self._blocks[last]
        low, high = bisect_left(head, start), bisect_right(tail, end)
        # An odd index is inside a run or at its end: the run keeps its own boundary there.
        new = ([] if low % 2 else [start]) + ([] if high % 2 else [end])
        if first == last:
            touched = head[low & ~1 : high + high % 2]
            before = sum(touched[1::2]) - sum(touched[::2])
            head[low:high] = new
            block = head
        else:
            between = chain.from_iterable(self._blocks[first + 1 : last])
            touched = [*head[low & ~1 :], *between, *tail[: high + high % 2]]
            before = sum(touched[1::2]) - sum(touched[::2])
            block = [*head[:low], *new, *tail[high:]]
        # Only the touched runs and the new one change the count, so the rest is not summed again.
        after = max(end, touched[-1]) - min(start, touched[0]) if touched else end - start
        self._put(first, last, block)
        self._count += after - before
        return after - before

    def _put(self, first: int, last: int, block: list[int]) -> None:
        """Replace blocks first..last by `block`, splitting it if it is too long."""
        if first == last and len(block) <= 2 * _BLOCK_BOUNDARIES:
            self._blocks[first] = block
            self._firsts[first] = block[0]
            return
        parts = _cut(block)
        self._blocks[first : last + 1] = parts
        self._firsts[first : last + 1] = [part[0] for part in parts]


def _cut(flat: list[int]) -> list[list[int]]:
    if len(flat) <= 2 * _BLOCK_BOUNDARIES:
        return [flat]
    return [flat[i : i + _BLOCK_BOUNDARIES] for i in range(0, len(flat), _BLOCK_BOUNDARIES)]
