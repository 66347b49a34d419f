"""The sum of N gradients in gloo's order, by P hosts that hold a few of them each.

Three ways to the same bits, chosen by `way_for` from facts that all hosts share:

    local    one host: nothing is sent
    direct   small vectors: every host sends all of its vectors to every other and adds the N
             vectors itself; the latency of one message
    ring     large vectors: partial sums travel as `order` says; the traffic of a ring of P hosts

Additions are sequential in the canonical order, in blocks that stay in the cache; bfloat16 and
float16 round at every one, as in gloo. Results do not depend on the number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from elastane.collective.order import Action, Ranges, RingOrder, check_ranges, chunk_elements
from elastane.collective.transport import RingTransport, Transfer

#: Elements of an addition: three blocks of float32 fit a common L2 cache, and torch does not split
#: an operation of this size among threads (`at::internal::GRAIN_SIZE`), which the backward needs.
BLOCK_ELEMENTS: Final = 32768
#: Longest message of the ring on CPU, bytes: short enough that receiving, adding and sending overlap,
#: long enough that a message's fixed cost is small beside it (measured: benchmarks/allreduce.py).
PIECE_BYTES: Final = 512 * 1024
#: Up to so many bytes that a host would receive, vectors are exchanged directly (measured there too).
DIRECT_BYTES_MAX: Final = 1 << 20

Way = Literal["local", "direct", "ring"]


def way_for(elements: int, element_size: int, ranges: Ranges) -> Way:
    """How a vector is all-reduced; every host comes to the same answer."""
    if len(ranges) == 1:
        return "local"
    smallest = min(end - start for start, end in ranges)
    received_bytes = (ranges[-1][1] - smallest) * elements * element_size
    return "direct" if received_bytes <= DIRECT_BYTES_MAX else "ring"


class Memory(Protocol):
    """Where flat vectors come from."""

    def __call__(self, elements: int) -> Tensor:
        """A 1-d tensor of that many elements, contents undefined."""
        ...


class CanonicalAllreduce:
    """The all-reduce of one vector in one generation, with the memory it works on; run once a step.

    elements: length of the vector; ranges: virtual ranks of each host in ring order; me: index of this
    host in it. `slots[i]` is where the i-th virtual rank of this host puts its scaled vector before
    `run`, `out` where the sum is after it; all of shape (elements,). Every host builds it alike.
    """

    def __init__(
        self,
        elements: int,
        dtype: torch.dtype,
        ranges: Ranges,
        me: int,
        memory: Memory,
        way: Way | None = None,
    ) -> None:
        self.ranks = check_ranges(ranges)
        self.ranges = tuple(ranges)
        self.me = me
        self.way = way or way_for(elements, dtype.itemsize, ranges)
        first, last = self.ranges[me]
        self.blocks: list[Tensor] = []
        if self.way == "ring":
            self.blocks = [memory(elements) for _ in range(first, last + 1)]
            self.slots, self.out = self.blocks[:-1], self.blocks[-1]
            self._ring = _Ring(self.slots, self.out, self.ranges, me)
        else:
            chunk = chunk_elements(elements, dtype.itemsize, self.ranks)
            width = chunk * self.ranks
            self.blocks = [memory(self.ranks * width), memory(width)]
            self._matrix = self.blocks[0].view(self.ranks, width)
            self._matrix[:, elements:].zero_()
            self.slots = [self._matrix[rank, :elements] for rank in range(first, last)]
            self.out = self.blocks[1][:elements]
            self._sum = _LocalSum(self._matrix, self.blocks[1], elements, chunk)

    def run(self, transport: RingTransport, tag: int) -> None:
        """All-reduce what is in the slots into `out`; called by all hosts, in the same order per tag.

        Raises RingAborted or RingBroken; `out` is then undefined, the slots are as they were.
        """
        if self.way == "ring":
            self._ring.run(transport, tag)
            return
        if self.way == "local":
            transport.check()
            self._sum.run()
            return
        peers = [host for host in range(len(self.ranges)) if host != self.me]
        mine = self._rows(self.me)
        transfers = transport.exchange(
            [(mine, host) for host in peers], [(self._rows(host), host) for host in peers], tag
        )
        for transfer in transfers:
            transfer.wait()
        self._sum.run()

    def _rows(self, host: int) -> Tensor:
        first, last = self.ranges[host]
        return self._matrix[first:last]


def canonical_allreduce(
    slots: Sequence[Tensor],
    out: Tensor,
    ranges: Ranges,
    transport: RingTransport,
    tag: int,
    way: Way | None = None,
) -> None:
    """One all-reduce of vectors in anybody's memory: `CanonicalAllreduce` with a copy in and a copy out.

    slots: this host's scaled vectors in rank order, 1-d, of one length and dtype; out: the same shape.
    """

    def memory(elements: int) -> Tensor:
        return torch.empty(elements, dtype=out.dtype, device=out.device)

    plan = CanonicalAllreduce(out.numel(), out.dtype, ranges, transport.rank, memory, way)
    for mine, slot in zip(plan.slots, slots, strict=True):
        mine.copy_(slot)
    plan.run(transport, tag)
    out.copy_(plan.out)


def _add_in_order(vectors: Sequence[Tensor], out: Tensor, *, started: bool) -> None:
    """out = v_last + (.. + (v1 + (v0 [+ out if started]))), block by block; 1-d, of one length."""
    if not vectors:
        return
    block_elements = BLOCK_ELEMENTS if out.device.type == "cpu" else out.numel()
    columns = [vector.split(block_elements) for vector in vectors]
    for number, block in enumerate(out.split(block_elements)):
        rest = iter(columns)
        partial = block
        if not started:
            partial = next(rest)[number]
            if len(columns) == 1:
                block.copy_(partial)
        for column in rest:
            torch.add(column[number], partial, out=block)
            partial = block


class _LocalSum:
    """The canonical sum of the rows of a matrix (N, N * chunk) into a vector of N * chunk elements.

    A short one is done for all chunks at once: what the k-th addition adds to chunk c lies in row
    c - k, so that for neighbouring chunks it lies on a diagonal of the matrix, a strided view. What
    is added beyond `elements` is never looked at.
    """

    def __init__(self, matrix: Tensor, out: Tensor, elements: int, chunk: int) -> None:
        self._matrix, self._out = matrix, out
        ranks, width = matrix.shape
        self._segments = RingOrder(elements, matrix.element_size(), [(0, ranks)], elements).local_segments()
        self._diagonals: list[tuple[Tensor, Tensor]] = []
        if width > BLOCK_ELEMENTS and out.device.type == "cpu":
            return
        chunks = out.view(ranks, chunk)
        for hop in range(1, ranks + 1):
            wrapped = min(hop, ranks)
            for start, end, row in ((0, wrapped, ranks - hop), (wrapped, ranks, 0)):
                if start < end:
                    offset = matrix.storage_offset() + row * width + start * chunk
                    added = matrix.as_strided((end - start, chunk), (width + chunk, 1), offset)
                    self._diagonals.append((added, chunks[start:end]))

    def run(self) -> None:
        """Add."""
        if not self._diagonals:
            for segment in self._segments:
                vectors = [self._matrix[rank, segment.low : segment.high] for rank in segment.ranks]
                _add_in_order(vectors, self._out[segment.low : segment.high], started=False)
            return
        starts = 1 if len(self._matrix) == 1 else 2
        for added, chunks in self._diagonals[:starts]:
            chunks.copy_(added)
        for added, chunks in self._diagonals[starts:]:
            torch.add(added, chunks, out=chunks)


class _Ring:
    """Runs a host's actions (see `order`) on its slots; partial sums are received, added to and sent in `out`.

    Where a final chunk arrives in `out`, the partial sum that was there has left: the chunk could not
    have become final without it.
    """

    def __init__(self, slots: Sequence[Tensor], out: Tensor, ranges: Ranges, me: int) -> None:
        self._slots, self._out = slots, out
        self._first = ranges[me][0]
        self._hosts = hosts = len(ranges)
        self._left, self._right = (me - 1) % hosts, (me + 1) % hosts
        # Where copies are ordered by streams, messages are as long as they can be.
        piece_bytes = PIECE_BYTES if out.device.type == "cpu" else out.nbytes
        order = RingOrder(out.numel(), out.element_size(), ranges, max(1, piece_bytes // out.element_size()))
        self._actions = order.actions(me)

    def run(self, transport: RingTransport, tag: int) -> None:
        """All hosts at once."""
        if self._out.device.type == "cpu":
            self._run_pipelined(transport, tag)
        else:
            self.run_in_rounds(transport, tag)

    def _run_pipelined(self, transport: RingTransport, tag: int) -> None:
        """Everything is received as it comes, every piece is sent as soon as it is added."""
        arriving = deque(
            transport.recv(self._out[action.low : action.high], self._right, tag)
            for action in self._actions
            if action.receive
        )
        leaving: list[Transfer] = []
        for action in self._actions:
            if action.receive:
                arriving.popleft().wait()
            elements = self._act(action)
            if action.send:
                leaving.append(transport.send(elements, self._left, tag))
        for transfer in leaving:
            transfer.wait()

    def run_in_rounds(self, transport: RingTransport, tag: int) -> None:
        """One exchange a round: for NCCL, whose messages wait for one another unless started together."""
        leaving: list[tuple[Tensor, int]] = []
        for number in range(2 * self._hosts):
            actions = [action for action in self._actions if action.round == number]
            arriving = [
                (self._out[action.low : action.high], self._right) for action in actions if action.receive
            ]
            for transfer in transport.exchange(leaving, arriving, tag):
                transfer.wait()
            leaving = [(self._act(action), self._left) for action in actions if action.send]
            for action in actions:
                if not action.send:
                    self._act(action)

    def _act(self, action: Action) -> Tensor:
        """Add what the action adds; returns the elements as they are now."""
        if not action.receive and len(action.segments) == 1 and len(action.segments[0].ranks) == 1:
            # A partial sum of one vector: it is sent from where it lies.
            return self._slots[action.segments[0].ranks[0] - self._first][action.low : action.high]
        for segment in action.segments:
            vectors = [self._slots[rank - self._first][segment.low : segment.high] for rank in segment.ranks]
            _add_in_order(vectors, self._out[segment.low : segment.high], started=action.receive)
        return self._out[action.low : action.high]
