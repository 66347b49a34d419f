"""Sums a stage's gradients over all ESTs, in gloo's order, for all members that hold the stage.

With r replicas, replica j has the gradients of ESTs j, j + r, ...; each replica owns a part of the vectors,
divided into pieces. For each piece the owner receives the other ESTs' gradients, adds all N in the order of
each element's chunk, and sends the sums to the other holders: replicas and shadows. A replica sends an EST's
gradients right after that EST's last backward, so that the transfer overlaps with other ESTs' computation. An
owner's receive buffers hold two pieces per EST.

Sums overwrite the first local EST's gradients. That is safe: an owner sends sums only after it has added the
piece, and so has already received the gradients that are overwritten here.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from elastane.collective.additions import OrderedSum
from elastane.collective.order import canonical_order
from elastane.pipeline.gradient_memory import GradientMemory, Stretch
from elastane.pipeline.links import Links

#: Elements of a piece; each EST's part of it is one message.
PIECE_ELEMENTS: Final = 1 << 18
#: Owners' parts begin at multiples of this many elements.
PART_ELEMENTS: Final = 64
#: First tag. Gradients: plus the EST's number. Sums: plus N and the owner's number.
ROWS_TAG: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [low, high) of group `group`."""

    group: int
    low: int
    high: int


def pieces_of(elements: Sequence[int], owners: int, owner: int) -> list[Piece]:
    """Return the pieces that an owner adds, in order. elements: number in each group."""
    pieces = []
    for group, count in enumerate(elements):
        share = -(-count // (owners * PART_ELEMENTS)) * PART_ELEMENTS
        low, end = min(count, owner * share), min(count, (owner + 1) * share)
        while low < end:
            high = min(end, low + PIECE_ELEMENTS)
            pieces.append(Piece(group, low, high))
            low = high
    return pieces


def stretches_in(stretches: Sequence[Stretch], piece: Piece) -> list[Stretch]:
    """Return the stretches within a piece, clipped to it."""
    return [
        Stretch(max(one.low, piece.low), min(one.high, piece.high), one.chunk)
        for one in stretches
        if one.low < piece.high and piece.low < one.high
    ]


@dataclass(frozen=True, slots=True)
class Holders:
    """Members that hold a stage. replicas, shadows: indices into the ring; num_ests: N."""

    replicas: tuple[int, ...]
    shadows: tuple[int, ...]
    num_ests: int

    def replica_of(self, est: int) -> int:
        return est % len(self.replicas)


class StageSums:
    """A member's part in the sums of one held stage; built for each generation and layout."""

    def __init__(self, holders: Holders, me: int, memory: GradientMemory, links: Links) -> None:
        self._holders, self._me, self._memory, self._links = holders, me, memory, links
        elements = [group.elements for group in memory.groups]
        owners = len(holders.replicas)
        self._pieces = [pieces_of(elements, owners, owner) for owner in range(owners)]
        self._mine = self._pieces[holders.replicas.index(me)] if me in holders.replicas else []
        self._elsewhere = [est for est in range(holders.num_ests) if est not in memory.slot_of]
        widest = max((piece.high - piece.low for piece in self._mine), default=0)
        dtypes = {memory.groups[piece.group].dtype for piece in self._mine}
        #: Receive buffers by dtype, two of each: one piece is added while the next one arrives.
        self._inboxes = {
            dtype: [torch.empty(len(self._elsewhere), widest, dtype=dtype) for _ in range(2)]
            for dtype in (dtypes if self._elsewhere else ())
        }
        device = memory.sums[0].device if memory.sums else None
        #: Scratch memory for adding a piece, because the memory that it replaces is one of the addends.
        self._scratch = {dtype: torch.empty(widest, dtype=dtype, device=device) for dtype in dtypes}
        self._kept: dict[int, list[OrderedSum]] = {}
        self._posted: dict[int, list[int]] = {}
        self._results: list[int] = []

    def send_gradients(self, est: int) -> None:
        """Start to send a local EST's complete gradients to the owners."""
        slot = self._memory.slot_of[est]
        for owner, pieces in enumerate(self._pieces):
            member = self._holders.replicas[owner]
            if member != self._me:
                for piece in pieces:
                    row = self._memory.rows[piece.group][slot][piece.low : piece.high]
                    self._links.send_rows(row, member, ROWS_TAG + est)

    def begin(self) -> None:
        """Start to receive; called at the start of the step's last wave."""
        self._posted.clear()
        for number in range(min(2, len(self._mine))):
            self._post(number)
        self._results = [
            self._links.post_rows(
                self._memory.sums[piece.group][piece.low : piece.high],
                self._holders.replicas[owner],
                ROWS_TAG + self._holders.num_ests + owner,
            )
            for owner, pieces in enumerate(self._pieces)
            if self._holders.replicas[owner] != self._me
            for piece in pieces
        ]

    def finish(self) -> Generator[int, None, None]:
        """Add this member's part once it has arrived, and receive the other sums; yields its waits."""
        others = [
            member for member in (*self._holders.replicas, *self._holders.shadows) if member != self._me
        ]
        for number, piece in enumerate(self._mine):
            for posted in self._posted.pop(number):
                yield posted
            for ordered in self._sums(number):
                ordered.run()
            sums = self._memory.sums[piece.group][piece.low : piece.high]
            sums.copy_(self._scratch[sums.dtype][: piece.high - piece.low])
            if number + 2 < len(self._mine):
                self._post(number + 2)
            tag = ROWS_TAG + self._holders.num_ests + self._holders.replicas.index(self._me)
            for member in others:
                self._links.send_rows(sums, member, tag)
        for posted in self._results:
            yield posted
        self._results = []

    def _post(self, number: int) -> None:
        piece = self._mine[number]
        self._posted[number] = [
            self._links.post_rows(
                self._inbox(number, place)[: piece.high - piece.low],
                self._holders.replicas[self._holders.replica_of(est)],
                ROWS_TAG + est,
            )
            for place, est in enumerate(self._elsewhere)
        ]

    def _inbox(self, number: int, place: int) -> Tensor:
        dtype = self._memory.groups[self._mine[number].group].dtype
        return self._inboxes[dtype][number % 2][place]

    def _sums(self, number: int) -> list[OrderedSum]:
        """Return the additions of a piece; caches their views while they are few."""
        if number in self._kept:
            return self._kept[number]
        piece = self._mine[number]
        group = self._memory.groups[piece.group]
        vectors: list[Tensor] = []
        for est in range(self._holders.num_ests):
            slot = self._memory.slot_of.get(est)
            if slot is not None:
                vectors.append(self._memory.rows[piece.group][slot][piece.low : piece.high])
            else:
                inbox = self._inbox(number, self._elsewhere.index(est))
                vectors.append(inbox[: piece.high - piece.low].to(self._memory.sums[piece.group].device))
        sums = []
        for stretch in stretches_in(group.stretches, piece):
            low, high = stretch.low - piece.low, stretch.high - piece.low
            order = canonical_order(stretch.chunk, self._holders.num_ests)
            out = self._scratch[group.dtype][low:high]
            sums.append(OrderedSum([vectors[est][low:high] for est in order], out, started=False))
        if self._memory.sums[piece.group].device.type == "cpu" and len(self._mine) <= 64:
            self._kept[number] = sums
        return sums
