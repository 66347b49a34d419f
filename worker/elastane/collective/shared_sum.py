"""All-reduce of hosts that are workers of one machine: each reads what it needs from the others' memory.

Every host adds an equal part of the vector, all N vectors in canonical order, and the others copy the
result. A vector is read once by one host and never sent; messages only report progress:

    ready     my vectors are in their slots (and the slots' offsets)
    summed    my part of the sum is complete
    copied    I need nothing of your memory any more

Waits end when the ring does (`shared_members`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from elastane.collective.additions import BLOCK_ELEMENTS, OrderedSum
from elastane.collective.order import Ranges, RingOrder
from elastane.collective.shared_members import Kind, MemberLeft, SharedMembers
from elastane.collective.transport import RingTransport

#: Bounds of parts are multiples of this, so that no two hosts write to one cache line.
_PART_ELEMENTS: Final = 64
#: Number of blocks after which a host checks whether the ring has ended.
_BLOCKS_PER_CHECK: Final = 16


def part(elements: int, hosts: int, host: int) -> tuple[int, int]:
    """Return the elements [low, high) that a host adds; may be empty."""
    bounds = [elements * number // hosts // _PART_ELEMENTS * _PART_ELEMENTS for number in (host, host + 1)]
    return bounds[0], elements if host == hosts - 1 else bounds[1]


class SharedSum:
    """All-reduce of one vector. slots, out: as for `Ring`; mine: this host's part of the sum, read by the
    others.

    Slots and `mine` are memory of `members.own`.
    """

    def __init__(
        self,
        slots: Sequence[Tensor],
        mine: Tensor,
        out: Tensor,
        ranges: Ranges,
        me: int,
        members: SharedMembers,
    ) -> None:
        self._slots, self._mine, self._out = slots, mine, out
        self._ranges, self._me, self._members = ranges, me, members
        self._peers = [host for host in range(len(ranges)) if host != me]
        self._order = RingOrder(out.numel(), out.element_size(), ranges, out.numel())
        offsets = [members.own.place_of(tensor) for tensor in (*slots, mine)]
        #: Their file offsets, for the others.
        self._offsets = members.own.empty(len(offsets), torch.int64)
        self._offsets.copy_(torch.tensor(offsets, dtype=torch.int64))
        #: For each block of my part: its additions, the sum, and its destination in `out`.
        self._blocks: list[tuple[OrderedSum, Tensor, Tensor]] = []
        #: The others' parts and their destinations in `out`, block by block.
        self._copies: list[tuple[Tensor, Tensor]] = []
        #: The run for which not all others have sent COPIED.
        self._unsettled: tuple[RingTransport, int] | None = None

    def run(self, transport: RingTransport, tag: int) -> None:
        """Run on all hosts at once. Raises RingAborted or RingBroken, also if a member left meanwhile."""
        self.settle()
        transport.check()
        try:
            self._run(transport, tag)
        except MemberLeft as left:
            raise transport.broken(str(left)) from left

    def settle(self) -> None:
        """Wait until the others need nothing of this host's memory, before it is written to again."""
        if self._unsettled is None:
            return
        (transport, tag), self._unsettled = self._unsettled, None
        try:
            self._members.hear(Kind.COPIED, tag)
        except MemberLeft as left:
            raise transport.broken(str(left)) from left

    def _run(self, transport: RingTransport, tag: int) -> None:
        members = self._members
        members.tell(Kind.READY, tag, members.own.place_of(self._offsets))
        theirs = members.hear(Kind.READY, tag)
        if not self._copies:
            self._map(theirs)
        for number, (ordered, summed, target) in enumerate(self._blocks):
            if number % _BLOCKS_PER_CHECK == 0:
                transport.check()
            ordered.run()
            target.copy_(summed)
        members.tell(Kind.SUMMED, tag)
        members.hear(Kind.SUMMED, tag)
        for number, (source, target) in enumerate(self._copies):
            if number % _BLOCKS_PER_CHECK == 0:
                transport.check()
            target.copy_(source)
        # Checked after the last read: marks cleared before then mean that some of the data may be invalid.
        if not members.all_present():
            raise MemberLeft("a member left while its memory was read")
        members.tell(Kind.COPIED, tag)
        self._unsettled = transport, tag

    def _map(self, theirs: Mapping[int, int]) -> None:
        """Map the others' memory, once their slots are filled and the pages therefore exist."""
        elements, dtype, hosts = self._out.numel(), self._out.dtype, len(self._ranges)
        first, last = self._ranges[self._me]
        vectors = dict(zip(range(first, last), self._slots, strict=True))
        for host in self._peers:
            peer = self._members.peers[host]
            count = self._ranges[host][1] - self._ranges[host][0]
            *slots, summed = peer.view(theirs[host], count + 1, torch.int64).tolist()
            for rank, offset in zip(range(*self._ranges[host]), slots, strict=True):
                vectors[rank] = peer.view(offset, elements, dtype)
            low, high = part(elements, hosts, host)
            self._copies += zip(
                peer.view(summed, high - low, dtype).split(BLOCK_ELEMENTS),
                self._out[low:high].split(BLOCK_ELEMENTS),
                strict=True,
            )
        low, high = part(elements, hosts, self._me)
        for segment in self._order.local_segments():
            start, end = max(low, segment.low), min(high, segment.high)
            for begin in range(start, end, BLOCK_ELEMENTS):
                stop = min(begin + BLOCK_ELEMENTS, end)
                summed_block = self._mine[begin - low : stop - low]
                added = [vectors[rank][begin:stop] for rank in segment.ranks]
                ordered = OrderedSum(added, summed_block, started=False)
                self._blocks.append((ordered, summed_block, self._out[begin:stop]))
