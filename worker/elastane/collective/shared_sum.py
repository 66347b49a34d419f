"""The sum where all hosts are workers of one machine: each reads what it needs from the others' memory.

Every host adds an equal part of the vector, all N vectors in canonical order, and the others copy the
result. A vector is read once by one host and never travels; the messages only say how far everyone is:

    ready    my vectors are in their slots (and where those lie)
    summed   my part of the sum is there
    copied   I need nothing of yours any more

Messages go over the ring's own connections, so that what ends its waits ends these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from elastane.collective.additions import BLOCK_ELEMENTS, OrderedSum
from elastane.collective.order import Ranges, RingOrder
from elastane.collective.shared_memory import SharedMembers
from elastane.collective.transport import RingTransport, Transfer

#: Bounds of parts are multiples of this: no two hosts write to one cache line.
_PART_ELEMENTS: Final = 64
#: After so many blocks a host looks whether the ring still stands.
_BLOCKS_PER_CHECK: Final = 16


def part(elements: int, hosts: int, host: int) -> tuple[int, int]:
    """Elements [low, high) that a host adds; may be empty."""
    bounds = [elements * number // hosts // _PART_ELEMENTS * _PART_ELEMENTS for number in (host, host + 1)]
    return bounds[0], elements if host == hosts - 1 else bounds[1]


class SharedSum:
    """One vector's; slots, out: as for `Ring`; mine: where this host's part of the sum goes, for the others.

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
        offsets = [members.own.offset_of(tensor) for tensor in (*slots, mine)]
        assert None not in offsets, "slots and part must lie in shared memory"
        self._offsets = torch.tensor(offsets, dtype=torch.int64)
        #: The peers' offsets.
        self._theirs = {
            host: torch.zeros(ranges[host][1] - ranges[host][0] + 1, dtype=torch.int64) for host in self._peers
        }
        self._flag = torch.zeros(1, dtype=torch.uint8)
        self._flags = {host: torch.zeros(1, dtype=torch.uint8) for host in self._peers}
        #: For each block of my part: its additions, and (sum, where it goes).
        self._blocks: list[tuple[OrderedSum, Tensor, Tensor]] = []
        #: (the others' parts, where they go), block by block.
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._copied: list[Transfer] = []

    def run(self, transport: RingTransport, tag: int) -> None:
        """All hosts at once. Raises RingAborted or RingBroken, also when a member left meanwhile."""
        self.settle()
        for transfer in transport.exchange(
            [(self._offsets, host) for host in self._peers], list(self._pairs(self._theirs)), tag
        ):
            transfer.wait()
        if not self._copies:
            self._map()
        for number, (ordered, summed, target) in enumerate(self._blocks):
            if number % _BLOCKS_PER_CHECK == 0:
                transport.check()
            ordered.run()
            target.copy_(summed)
        for transfer in self._tell(transport, tag):
            transfer.wait()
        for number, (source, target) in enumerate(self._copies):
            if number % _BLOCKS_PER_CHECK == 0:
                transport.check()
            target.copy_(source)
        if not self._members.all_present():
            raise transport.broken("a member left while its memory was read")
        self._copied = self._tell(transport, tag)

    def settle(self) -> None:
        """Wait until the others need nothing of this host's memory any more; before it is used anew."""
        copied, self._copied = self._copied, []
        for transfer in copied:
            transfer.wait()

    def _tell(self, transport: RingTransport, tag: int) -> list[Transfer]:
        return transport.exchange(
            [(self._flag, host) for host in self._peers], list(self._pairs(self._flags)), tag
        )

    def _pairs(self, tensors: dict[int, Tensor]) -> list[tuple[Tensor, int]]:
        return [(tensor, host) for host, tensor in tensors.items()]

    def _map(self) -> None:
        """Find the others' memory; their slots are filled, so the pages are there."""
        elements, dtype, hosts = self._out.numel(), self._out.dtype, len(self._ranges)
        first, last = self._ranges[self._me]
        vectors = dict(zip(range(first, last), self._slots, strict=True))
        for host in self._peers:
            peer = self._members.peers[host]
            *slots, summed = self._theirs[host].tolist()
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
