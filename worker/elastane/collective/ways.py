"""Transport of partial sums and vectors between hosts: around the ring, or straight to the chunks' owners.

Both overlap receiving, adding and sending by cutting messages into pieces: all receives are started at once,
and each piece is sent as soon as it is added. NCCL orders messages by streams instead: there each round is
one exchange (`run_in_rounds`), which gives the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from elastane.collective.additions import OrderedSum
from elastane.collective.order import Action, Ranges, RingOrder, Segment
from elastane.collective.transport import RingTransport, Transfer

#: Longest message on CPU, bytes: short enough that receiving, adding and sending overlap, long enough that a
#: message's fixed cost is comparatively small (measured: benchmarks/allreduce.py).
PIECE_BYTES: Final = 512 * 1024


def _piece_elements(out: Tensor) -> int:
    # If streams order the messages, cutting them gains nothing.
    piece_bytes = PIECE_BYTES if out.device.type == "cpu" else out.nbytes
    return max(1, piece_bytes // out.element_size())


@dataclass(frozen=True, slots=True)
class _Move:
    """An action of the ring on memory: receive into `elements`, add, send `leaving`."""

    round: int
    elements: Tensor
    receive: bool
    sums: list[OrderedSum]
    leaving: Tensor
    send: bool

    def add(self) -> None:
        """Add this host's vectors to the received partial sum."""
        for ordered in self.sums:
            ordered.run()


class Ring:
    """Runs a host's actions (see `order`); partial sums are received, added to and sent in `out`.

    When a final chunk arrives in `out`, the partial sum that was there has already been sent: the chunk could
    not have become final without it.
    """

    def __init__(self, slots: Sequence[Tensor], out: Tensor, ranges: Ranges, me: int) -> None:
        self._slots, self._out = slots, out
        self._first = ranges[me][0]
        self._hosts = hosts = len(ranges)
        self._left, self._right = (me - 1) % hosts, (me + 1) % hosts
        order = RingOrder(out.numel(), out.element_size(), ranges, _piece_elements(out))
        self._moves = [self._move(action) for action in order.actions(me)]

    def run(self, transport: RingTransport, tag: int) -> None:
        """Run on all hosts at once. Raises RingAborted or RingBroken."""
        if self._out.device.type == "cpu":
            self._run_pipelined(transport, tag)
        else:
            self.run_in_rounds(transport, tag)

    def _run_pipelined(self, transport: RingTransport, tag: int) -> None:
        """Start all receives at once, and send every piece as soon as it is added."""
        # All receives are posted before the first send, so that no message waits for its receiver.
        arriving = deque(
            transport.recv(move.elements, self._right, tag) for move in self._moves if move.receive
        )
        leaving: list[Transfer] = []
        for move in self._moves:
            if move.receive:
                arriving.popleft().wait()
            move.add()
            if move.send:
                leaving.append(transport.send(move.leaving, self._left, tag))
        for transfer in leaving:
            transfer.wait()

    def run_in_rounds(self, transport: RingTransport, tag: int) -> None:
        """Run one exchange a round, for NCCL, whose messages wait for one another unless started together."""
        leaving: list[tuple[Tensor, int]] = []
        for number in range(2 * self._hosts):
            moves = [move for move in self._moves if move.round == number]
            arriving = [(move.elements, self._right) for move in moves if move.receive]
            for transfer in transport.exchange(leaving, arriving, tag):
                transfer.wait()
            for move in moves:
                move.add()
            leaving = [(move.leaving, self._left) for move in moves if move.send]

    def _move(self, action: Action) -> _Move:
        """Bind an action to this host's memory."""
        elements = self._out[action.low : action.high]
        if not action.receive and len(action.segments) == 1 and len(action.segments[0].ranks) == 1:
            # A partial sum of one vector is sent from its slot, without a copy.
            slot = self._slots[action.segments[0].ranks[0] - self._first]
            return _Move(action.round, elements, False, [], slot[action.low : action.high], action.send)
        sums = [
            OrderedSum(
                [self._slots[rank - self._first][segment.low : segment.high] for rank in segment.ranks],
                self._out[segment.low : segment.high],
                started=action.receive,
            )
            for segment in action.segments
            if segment.ranks
        ]
        return _Move(action.round, elements, action.receive, sums, elements, action.send)


class Scatter:
    """Every host sends its vectors' parts to the hosts that own the chunks; these add them and send the sums.

    Two hops, whatever the number of hosts, for (k + 1) (P - 1) / P of the vector sent by each host. slots,
    out: as for `Ring`; inbox: memory for other hosts' parts, `inbox_elements` long.
    """

    def __init__(self, slots: Sequence[Tensor], out: Tensor, inbox: Tensor, ranges: Ranges, me: int) -> None:
        self._out = out
        self._slots = slots
        self._peers = [host for host in range(len(ranges)) if host != me]
        order = RingOrder(out.numel(), out.element_size(), ranges, _piece_elements(out))
        self._owned = [order.owned(host) for host in range(len(ranges))]
        self._mine = self._owned[me]
        self._low = self._mine[0].low if self._mine else 0
        first, last = ranges[me]
        width = self._mine[-1].high - self._low if self._mine else 0
        foreign = [rank for rank in range(order.ranks) if not first <= rank < last]
        rows = dict(zip(foreign, inbox.view(len(foreign), width), strict=True))
        #: For each of my pieces, the parts to receive: (destination, source host).
        self._parts = [
            [
                (rows[rank][piece.low - self._low : piece.high - self._low], host)
                for host in self._peers
                for rank in range(*ranges[host])
            ]
            for piece in self._mine
        ]
        vectors = {
            **rows,
            **{rank: slots[rank - first][self._low : self._low + width] for rank in range(first, last)},
        }
        #: My pieces of the sum, with the additions of each.
        self._sums = [
            (out[piece.low : piece.high], [self._sum(segment, vectors) for segment in piece.segments])
            for piece in self._mine
        ]
        self._leaving = self._leaving_parts()
        self._arriving = [
            (out[piece.low : piece.high], host) for host in self._peers for piece in self._owned[host]
        ]

    @staticmethod
    def inbox_elements(elements: int, element_size: int, ranges: Ranges, me: int) -> int:
        """Return the number of elements that parts of other hosts' vectors need."""
        order = RingOrder(elements, element_size, ranges, elements)
        width = sum(piece.high - piece.low for piece in order.owned(me))
        return width * (order.ranks - (ranges[me][1] - ranges[me][0]))

    def run(self, transport: RingTransport, tag: int) -> None:
        """Run on all hosts at once. Raises RingAborted or RingBroken."""
        if self._out.device.type == "cpu":
            self._run_pipelined(transport, tag)
        else:
            self.run_in_rounds(transport, tag)

    def _run_pipelined(self, transport: RingTransport, tag: int) -> None:
        arriving = [[transport.recv(part, host, tag) for part, host in parts] for parts in self._parts]
        transfers = [transport.recv(sums, host, tag) for sums, host in self._arriving]
        transfers += [transport.send(part, host, tag) for part, host in self._leaving]
        for (elements, sums), parts in zip(self._sums, arriving, strict=True):
            for transfer in parts:
                transfer.wait()
            for ordered in sums:
                ordered.run()
            transfers += [transport.send(elements, host, tag) for host in self._peers]
        for transfer in transfers:
            transfer.wait()

    def run_in_rounds(self, transport: RingTransport, tag: int) -> None:
        """Run one exchange of parts and one of sums."""
        parts = [part for parts in self._parts for part in parts]
        for transfer in transport.exchange(self._leaving, parts, tag):
            transfer.wait()
        for _, sums in self._sums:
            for ordered in sums:
                ordered.run()
        leaving = [(elements, host) for elements, _ in self._sums for host in self._peers]
        for transfer in transport.exchange(leaving, self._arriving, tag):
            transfer.wait()

    def _leaving_parts(self) -> list[tuple[Tensor, int]]:
        """Return my vectors' parts with their owners, piece by piece, so that all owners can begin to add."""
        longest = max(len(self._owned[host]) for host in self._peers)
        return [
            (slot[piece.low : piece.high], host)
            for number in range(longest)
            for host in self._peers
            for piece in self._owned[host][number : number + 1]
            for slot in self._slots
        ]

    def _sum(self, segment: Segment, vectors: Mapping[int, Tensor]) -> OrderedSum:
        """Return the additions of one of my segments; vectors: all hosts', from my first element on."""
        low, high = segment.low - self._low, segment.high - self._low
        return OrderedSum(
            [vectors[rank][low:high] for rank in segment.ranks],
            self._out[segment.low : segment.high],
            started=False,
        )
