"""Order of the gradient additions, and the host of each: pure arithmetic, no tensors.

gloo's ring all-reduce over N ranks cuts a vector of n elements into N chunks and adds chunk c in
the order x[c-1], x[c-2], .., x[c] (indices modulo N). Floating-point addition is not associative,
so to get those bits with P hosts, host h running the virtual ranks [a, b), the partial sums must
visit the virtual ranks in the same order. The ranks of a host are neighbours in it:

    chunk c starts on the host of rank c-1, which adds x[c-1] .. x[a];
    it travels to the preceding hosts, each of which adds all its ranks, descending;
    it ends at rank c. If rank c lives on the host where it started (c in a+1 .. b-1), one more hop
    brings it home, and that host adds its other ranks b-1 .. c.

So the chunks that start on one host (a+1 .. b) travel together, in P rounds after the first, and
afterwards host [a, b) owns the final chunks a .. b-1, which a ring all-gather spreads. In every
round host h sends to h-1 and receives from h+1 (modulo P).

Segment sizes (`chunk_elements`) follow gloo's `allreduce.cc` as ProcessGroupGloo calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

#: gloo's largest segment, bytes (`kMaxSegmentSize` in gloo/allreduce.cc).
SEGMENT_BYTES_MAX: Final = 1 << 20

#: Virtual ranks [start, end) of each host, in ring order.
Ranges = Sequence[tuple[int, int]]


def _ceil_to(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def chunk_elements(elements: int, element_size: int, ranks: int) -> int:
    """Return the elements of a chunk when `elements` of `element_size` bytes are all-reduced over `ranks`.

    The last chunks may be short or empty: see `chunk_bounds`.
    """
    assert elements > 0 and element_size > 0 and ranks > 0
    if ranks == 1:
        return elements
    payload_bytes = elements * element_size
    # Integer divisions and roundings exactly as in gloo's allreduce.cc: a different chunk bound changes the
    # order of additions. At least two segments per rank, so that gloo can overlap sending and receiving.
    segment_bytes_max = element_size * max(1, SEGMENT_BYTES_MAX // element_size)
    segments = _ceil_to(max(-(-payload_bytes // segment_bytes_max), 2 * ranks), ranks)
    segment_bytes = _ceil_to(-(-payload_bytes // segments), element_size)
    return (segments // ranks) * (segment_bytes // element_size)


def canonical_order(chunk: int, ranks: int) -> list[int]:
    """Return the virtual ranks in the order in which gloo's ring adds them to `chunk`."""
    return [(chunk - hop) % ranks for hop in range(1, ranks + 1)]


def check_ranges(ranges: Ranges) -> int:
    """Return the number of virtual ranks N; asserts that ranges are contiguous from 0 and none is empty."""
    expected = 0
    for start, end in ranges:
        assert start == expected < end, f"ranges of virtual ranks are not contiguous: {list(ranges)}"
        expected = end
    return expected


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements [low, high), to which the vectors of `ranks` are added in this order."""

    low: int
    high: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Action:
    """Work of a host on elements [low, high), one message of the ring.

    In this order: wait for the partial sum from the right neighbour (`receive`), add the vectors of
    `segments` (without `receive` their sum starts here; no ranks: the elements are final), send the elements
    to the left neighbour (`send`). A message sent in one round is received by the left neighbour in the next,
    in the same order.
    """

    round: int
    low: int
    high: int
    receive: bool
    segments: tuple[Segment, ...]
    send: bool


class RingOrder:
    """Rounds of each host for one vector.

    elements: length n of the vector; element_size: bytes; ranges: virtual ranks of each host in ring order;
    piece_elements: longest message. Pure; both ends of a link compute the same pieces.
    """

    def __init__(self, elements: int, element_size: int, ranges: Ranges, piece_elements: int) -> None:
        self.elements = elements
        self.ranges = tuple(ranges)
        self.ranks = check_ranges(ranges)
        self.hosts = len(self.ranges)
        self.chunk = chunk_elements(elements, element_size, self.ranks)
        self.piece_elements = piece_elements

    def chunk_bounds(self, chunk: int) -> tuple[int, int]:
        """Return the elements [low, high) of a chunk; empty if the vector ends before it."""
        return (
            min(chunk * self.chunk, self.elements),
            min((chunk + 1) * self.chunk, self.elements),
        )

    def local_segments(self) -> list[Segment]:
        """Return every chunk with its whole canonical order, for a host that has all vectors."""
        return list(
            self._segments((chunk, canonical_order(chunk, self.ranks)) for chunk in range(self.ranks))
        )

    def owned(self, host: int) -> list[Action]:
        """Return the final chunks of `host`, cut into messages, with the whole canonical order of each."""
        chunks = [(chunk, canonical_order(chunk, self.ranks)) for chunk in range(*self.ranges[host])]
        return self._act(0, chunks, receive=False)

    def actions(self, host: int) -> list[Action]:
        """Return all actions of `host`, in order.

        Round 0 starts sums, rounds 1 .. P-1 pass partial sums on, round P brings chunks home, and rounds P+1
        .. 2P-1 spread the final chunks.
        """
        assert self.hosts > 1
        first, last = self.ranges[host]
        left_over = range(first + 1, last)
        # Chunks that start and end here come home in round P; only chunk `last` ends on the neighbouring
        # host, one round earlier. They are separate messages, because they leave the ring in different
        # rounds.
        actions = self._act(0, [(c, range(c - 1, first - 1, -1)) for c in left_over], receive=False)
        actions += self._act(0, [(last, range(last - 1, first - 1, -1))], receive=False)
        mine = range(last - 1, first - 1, -1)
        for hop in range(1, self.hosts):
            start, end = self.ranges[(host + hop) % self.hosts]
            actions += self._act(hop, [(c, mine) for c in range(start + 1, end)])
            actions += self._act(hop, [(end, mine)], send=hop < self.hosts - 1)
        actions += self._act(self.hosts, [(first, ())], receive=False)
        actions += self._act(self.hosts, [(c, range(last - 1, c - 1, -1)) for c in left_over])
        for hop in range(1, self.hosts):
            start, end = self.ranges[(host + hop) % self.hosts]
            goes_on = hop < self.hosts - 1
            actions += self._act(self.hosts + hop, [(start, ())], send=goes_on)
            actions += self._act(self.hosts + hop, [(c, ()) for c in range(start + 1, end)], send=goes_on)
        return actions

    def _act(
        self,
        round_number: int,
        chunks: Sequence[tuple[int, Sequence[int]]],
        *,
        receive: bool = True,
        send: bool = True,
    ) -> list[Action]:
        """Return actions on neighbouring chunks, as messages whose bounds do not depend on the ranks."""
        segments = list(self._segments((chunk % self.ranks, ranks) for chunk, ranks in chunks))
        if not segments:
            return []
        actions = []
        low, end = segments[0].low, segments[-1].high
        while low < end:
            high = min(low + self.piece_elements, end)
            inside = tuple(
                Segment(max(low, segment.low), min(high, segment.high), segment.ranks)
                for segment in segments
                if segment.low < high and low < segment.high
            )
            actions.append(Action(round_number, low, high, receive, inside, send))
            low = high
        return actions

    def _segments(self, chunks: Iterable[tuple[int, Sequence[int]]]) -> Iterable[Segment]:
        for chunk, ranks in chunks:
            low, high = self.chunk_bounds(chunk)
            if low < high:
                yield Segment(low, high, tuple(ranks))
