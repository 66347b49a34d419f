"""Broadcast of one member's message through shared memory: EST 0's buffers, once a step."""

from __future__ import annotations

import torch
from torch import Tensor

from elastane.collective.shared_members import Kind, MemberLeft, SharedMembers
from elastane.collective.transport import RingTransport


class SharedSpread:
    """Broadcast of messages of `size_bytes`; member 0 is the sender. Built by every member for one ring."""

    def __init__(self, members: SharedMembers, size_bytes: int, me: int) -> None:
        self._members, self._me = members, me
        self._room: Tensor | None = members.own.empty(size_bytes, torch.uint8) if me == 0 else None
        self._senders_room: Tensor | None = None

    def run(self, transport: RingTransport, message: Tensor, tag: int) -> None:
        """Send `message`, or receive into it. Raises RingAborted or RingBroken."""
        transport.check()
        try:
            if self._room is None:
                self._receive(message, tag)
            else:
                self._room.copy_(message)
                self._members.tell(Kind.READY, tag, self._members.own.place_of(self._room))
                self._members.hear(Kind.COPIED, tag)
        except MemberLeft as left:
            raise transport.broken(str(left)) from left

    def _receive(self, message: Tensor, tag: int) -> None:
        sender = self._members.peers[0]
        offset = self._members.hear(Kind.READY, tag, [0])[0]
        if self._senders_room is None:
            self._senders_room = sender.view(offset, message.numel(), torch.uint8)
        message.copy_(self._senders_room)
        # Only the sender: other members may have finished the step and left.
        if not self._members.all_present([0]):
            raise MemberLeft("member 0 left while its memory was read")
        self._members.tell(Kind.COPIED, tag, hosts=[0])
