"""Sum of N gradients in gloo's order, by P hosts that hold a few of them each.

Five ways to the same bits, chosen by `way_for` from facts that all hosts share:

    local     one host: nothing is sent
    shared    all hosts are workers of one machine: each adds a part of the vector, reading from the
              others' memory; no vector is sent
    direct    small vectors: every host sends all of its vectors to every other and adds the N
              vectors itself; one hop
    scatter   medium vectors: their parts go straight to the owners of the chunks, which add them and
              send the sums to all; two hops
    ring      large vectors: partial sums travel as `order` says; 2 P - 1 hops, the least traffic
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from elastane.collective.additions import LocalSum
from elastane.collective.order import Ranges, check_ranges, chunk_elements
from elastane.collective.shared_members import SharedMembers
from elastane.collective.shared_sum import SharedSum, part
from elastane.collective.transport import RingTransport
from elastane.collective.ways import Ring, Scatter

#: Limit of the bytes a host receives when vectors are exchanged directly. Measured, like the next limit, with
#: `benchmarks/allreduce.py --ways direct,scatter,ring` on 2 cores, P = 2 to 4, 1 to 4 ESTs each.
DIRECT_BYTES_MAX: Final = 1 << 20
#: Limit of the bytes a host sends and receives, vectors and sums, when parts go straight to the chunks'
#: owners; beyond it, the ring's smaller traffic outweighs its hops.
SCATTER_BYTES_MAX: Final = 4 << 20

Way = Literal["local", "shared", "direct", "scatter", "ring"]


def way_for(elements: int, element_size: int, ranges: Ranges, shared: bool = False) -> Way:
    """Choose the way of an all-reduce; a pure function, so every host chooses the same.

    shared: the hosts share memory.
    """
    if len(ranges) == 1:
        return "local"
    if shared:
        return "shared"
    vector_bytes = elements * element_size
    ests = [end - start for start, end in ranges]
    if (sum(ests) - min(ests)) * vector_bytes <= DIRECT_BYTES_MAX:
        return "direct"
    return "scatter" if (max(ests) + 1) * vector_bytes <= SCATTER_BYTES_MAX else "ring"


class Memory(Protocol):
    """Allocator of flat vectors."""

    def __call__(self, elements: int, *, shared: bool = False) -> Tensor:
        """Return a 1-d tensor of that many elements, contents undefined; shared: in this process's arena."""
        ...


class CanonicalAllreduce:
    """All-reduce of one vector in one generation, with the memory it works on; run once a step.

    elements: length of the vector; ranges: virtual ranks of each host in ring order; me: index of this host
    in it. `slots[i]` holds the scaled vector of this host's i-th virtual rank before `run`, `out` the sum
    after it; all have shape (elements,). members: given if the hosts share memory. sums: memory of a former
    sum, taken for this one if its length fits. Every host builds it with equal arguments but `me`, `memory`
    and `sums`.
    """

    def __init__(
        self,
        elements: int,
        dtype: torch.dtype,
        ranges: Ranges,
        me: int,
        memory: Memory,
        way: Way | None = None,
        members: SharedMembers | None = None,
        sums: Tensor | None = None,
    ) -> None:
        self.ranks = check_ranges(ranges)
        self.ranges = tuple(ranges)
        self.me = me
        self.way = way or way_for(elements, dtype.itemsize, ranges, members is not None)
        first, last = self.ranges[me]

        def memory_of_sum(length: int) -> Tensor:
            return sums if sums is not None and sums.numel() == length else memory(length)

        #: The memory blocks; the last one holds the sum.
        self.blocks: list[Tensor] = []
        self._travel: Ring | Scatter | SharedSum | None = None
        if self.way == "shared":
            assert members is not None
            low, high = part(elements, len(self.ranges), me)
            mine = memory(max(1, high - low), shared=True)
            self.slots = [memory(elements, shared=True) for _ in range(first, last)]
            self.out = memory_of_sum(elements)
            self.blocks = [mine, *self.slots, self.out]
            self._travel = SharedSum(self.slots, mine, self.out, self.ranges, me, members)
        elif self.way == "ring":
            self.slots = [memory(elements) for _ in range(first, last)]
            self.out = memory_of_sum(elements)
            self.blocks = [*self.slots, self.out]
            self._travel = Ring(self.slots, self.out, self.ranges, me)
        elif self.way == "scatter":
            inbox = memory(Scatter.inbox_elements(elements, dtype.itemsize, ranges, me))
            self.slots = [memory(elements) for _ in range(first, last)]
            self.out = memory_of_sum(elements)
            self.blocks = [inbox, *self.slots, self.out]
            self._travel = Scatter(self.slots, self.out, inbox, self.ranges, me)
        else:
            chunk = chunk_elements(elements, dtype.itemsize, self.ranks)
            width = chunk * self.ranks
            self.blocks = [memory(self.ranks * width), memory_of_sum(width)]
            self._matrix = self.blocks[0].view(self.ranks, width)
            self._matrix[:, elements:].zero_()
            self.slots = [self._matrix[rank, :elements] for rank in range(first, last)]
            self.out = self.blocks[1][:elements]
            self._sum = LocalSum(self._matrix, self.blocks[1], elements, chunk)

    def run(self, transport: RingTransport, tag: int) -> None:
        """All-reduce the slots into `out`; called by all hosts, in the same order of tags.

        Raises RingAborted or RingBroken; `out` is then undefined, the slots are unchanged.
        """
        if self._travel is not None:
            self._travel.run(transport, tag)
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

    def settle(self) -> None:
        """Wait until the slots may be written to again; `run` returns as soon as `out` is complete.

        Raises RingAborted or RingBroken.
        """
        if isinstance(self._travel, SharedSum):
            self._travel.settle()

    def _rows(self, host: int) -> Tensor:
        first, last = self.ranges[host]
        return self._matrix[first:last]
