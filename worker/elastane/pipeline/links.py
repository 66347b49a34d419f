"""What the members of a pipeline send one another within a step."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from elastane.pipeline.frames import Frame, FrameKey


class Links(Protocol):
    """Messages of one generation between a member and the others, and to itself.

    `RingLinks` carries them over a ring's transport, `LocalLinks` in memory. Called by the script's thread.
    """

    @property
    def me(self) -> int:
        """This member's index in the ring."""
        ...

    @property
    def receiving_seconds(self) -> float:
        """Seconds that `receive` has taken so far, without those in which a frame was not there yet."""
        ...

    def send(self, frame: Frame, peer: int) -> None:
        """Start to send a frame, which may be changed at once; never waits for the receiver.

        Raises RingAborted or RingBroken.
        """
        ...

    def expect(self, key: FrameKey, peer: int) -> None:
        """Announce that this frame will be received from `peer` in this step, so that it may come early."""
        ...

    def receive(self, key: FrameKey, peer: int) -> Frame:
        """Wait for a frame. RingAborted or RingBroken end the wait at once."""
        ...

    def send_rows(self, row: Tensor, peer: int, tag: int) -> None:
        """Start to send a contiguous tensor whose size and dtype the receiver knows; it must not change until
        `settle`. Those of one tag arrive in the order of sending."""
        ...

    def post_rows(self, row: Tensor, peer: int, tag: int) -> int:
        """Start to receive into a contiguous tensor; returns a number for `wait_rows`."""
        ...

    def wait_rows(self, number: int) -> None:
        """Wait for what was posted. RingAborted or RingBroken end the wait at once."""
        ...

    def settle(self) -> None:
        """Wait until all that was sent is out. Raises RingAborted or RingBroken."""
        ...

    def abandon(self) -> None:
        """Give up what is in flight, and with it the generation; also after an error."""
        ...
