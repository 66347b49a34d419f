"""Order of the messages from a ring member to the newcomer that follows it.

    at_boundary: the state is copied ─▶ sent ─▶ what each optimizer step was given ─▶ ... ─▶ end: the rest
                                                     └─ nothing is left to send: level, the digest is reported

While the state is copied, or its digest taken, it must not change: the optimizer waits (`may_change`). Both
are done beside forward and backward, which change no parameter and no optimizer state.

Decides, and knows no thread, socket or tensor: `state_feed` carries it out in a worker, and the simulation in
virtual time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Item = TypeVar("Item")
Reading = Literal["", "state", "digest"]


class FollowError(Exception):
    """A newcomer cannot follow the ring; it joins without having followed. Caught in the step boundary."""


@dataclass
class Given(Generic[Item]):
    """The inputs of one optimizer step. call: number of such steps since the copy of the state."""

    step: int
    call: int
    item: Item
    bytes: int


@dataclass
class FeedBook(Generic[Item]):
    """State of one feed. bytes_max: most that may wait to be sent; more, and the newcomer cannot keep up."""

    bytes_max: int
    #: What is being read of the state in place, as of `read_step`.
    reading: Reading = ""
    read_step: int = -1
    is_copied: bool = False
    is_level: bool = False
    #: Step at which the ring has changed: the last that is sent.
    end_step: int | None = None
    calls: int = 0
    waiting: deque[Given[Item]] = field(default_factory=deque)
    waiting_bytes: int = 0
    #: The newest is being sent.
    sending: bool = False
    failure: str = ""

    @property
    def may_change(self) -> bool:
        """True if an optimizer may change the state in place."""
        return not self.reading or bool(self.failure)

    @property
    def is_behind(self) -> bool:
        """True if the newcomer has not yet been sent all there is."""
        return not self.failure and bool(self.waiting or self.sending)

    @property
    def is_over(self) -> bool:
        """True if there is nothing to be done any more but to send what waits."""
        return bool(self.failure) or self.end_step is not None

    def at_boundary(self, step: int) -> Reading:
        """Return what is to be read of the state, which is that after `step` steps."""
        if self.is_over or self.reading:
            return ""
        if not self.is_copied:
            self.reading = "state"
        elif not self.is_level and not self.is_behind:
            self.reading = "digest"
        self.read_step = step
        return self.reading

    def read(self) -> None:
        """Note that what was being read of the state has been read."""
        self.is_copied = True
        self.is_level = self.is_level or self.reading == "digest"
        self.sending = self.reading == "state"
        self.reading = ""

    def given(self, step: int, item: Item, size_bytes: int) -> None:
        """Note what an optimizer step was given; called before the step changes the state."""
        if self.is_over:
            return
        self.calls += 1
        self.waiting.append(Given(step, self.calls, item, size_bytes))
        self.waiting_bytes += size_bytes
        if self.waiting_bytes > self.bytes_max:
            self.fail(f"it is behind by {len(self.waiting)} steps, of {self.waiting_bytes} bytes")

    def next(self) -> Given[Item] | None:
        """Return what is to be sent next; None if nothing waits. What was returned before has been sent."""
        self.sending = bool(self.waiting)
        if not self.waiting:
            return None
        given = self.waiting.popleft()
        self.waiting_bytes -= given.bytes
        return given

    def end(self, step: int) -> bool:
        """End the feed with the state after `step` steps; False if it has ended already."""
        if self.is_over:
            return False
        if not self.is_copied:
            self.fail("the ring changed before its state was copied")
            return False
        self.end_step = step
        return True

    def fail(self, why: str) -> None:
        """Give the feed up."""
        self.failure = self.failure or why
        self.waiting.clear()
        self.waiting_bytes = 0


@dataclass
class FollowBook:
    """How far a newcomer has followed. step: of its state; calls: optimizer steps since the copy."""

    step: int
    calls: int = 0

    def given(self, step: int, call: int) -> None:
        """Note an optimizer step that is made here next. Raises FollowError if one is missing before it."""
        if call != self.calls + 1 or step < self.step - 1:
            raise FollowError(f"optimizer step {call} of step {step} came after {self.calls} of {self.step}")
        self.calls, self.step = call, step + 1

    def reach(self, step: int, calls: int) -> None:
        """Check that this worker has reached the source's `step` with the same number of optimizer steps.

        A step may have none: a GradScaler skips it if gradients are not finite. Raises FollowError if the
        two differ.
        """
        if calls != self.calls or step < self.step:
            raise FollowError(
                f"{self.calls} optimizer steps to step {self.step}, the source made {calls} to {step}"
            )
        self.step = step
