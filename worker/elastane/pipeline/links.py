"""Interface of the messages between members of a pipeline within a step."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from elastane.pipeline.frames import Frame, FrameKey


class Links(Protocol):
    """Messages of one generation between a member and all members, itself included.

    `RingLinks` carries them over a ring's transport, `LocalLinks` in memory. Called by the script's thread.
    """

    @property
    def me(self) -> int:
        """This member's index in the ring."""
        ...

    @property
    def receiving_seconds(self) -> float:
        """Seconds spent in `receive` so far, excluding those spent waiting for frames."""
        ...

    def send(self, frame: Frame, peer: int) -> None:
        """Start to send a frame, without waiting for the receiver. The frame may be changed afterwards.

        Raises RingAborted or RingBroken.
        """
        ...

    def expect(self, key: FrameKey, peer: int) -> None:
        """Announce that this frame will be received from `peer` in this step, so that it can arrive early."""
        ...

    def receive(self, key: FrameKey, peer: int) -> Frame:
        """Wait for a frame. Raises RingAborted or RingBroken as soon as the ring ends."""
        ...

    def send_rows(self, row: Tensor, peer: int, tag: int) -> None:
        """Start to send a contiguous tensor whose size and dtype the receiver knows.

        It must not change until `settle`. Tensors with the same tag arrive in sending order.
        """
        ...

    def post_rows(self, row: Tensor, peer: int, tag: int) -> int:
        """Start to receive into a contiguous tensor; returns a number for `wait_rows`."""
        ...

    def wait_rows(self, number: int) -> None:
        """Wait for a posted tensor. Raises RingAborted or RingBroken as soon as the ring ends."""
        ...

    def settle(self) -> None:
        """Wait until all sends are complete. Raises RingAborted or RingBroken."""
        ...

    def abandon(self) -> None:
        """Abandon the messages in flight, and with them the generation; also called after an error."""
        ...
