"""Sends and receives the frames of one member's steps in one generation.

A frame carries only generator states that its receiver does not have yet: both ends remember the states of
the last frame between them, by EST and kind. This is safe because no frame is lost within a generation.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from elastane.pipeline.frames import Frame, FrameError, FrameKey, Kind, frame_of
from elastane.pipeline.links import Links
from elastane.pipeline.ring_plan import RingPlan
from elastane.pipeline.waits import FrameWait, Wait
from elastane.rng import Parts

#: A step as a generator: types of what it yields, receives and returns.
Step = Generator[Wait, Any, Any]
_Route = tuple[int, Kind, int]


class Messages:
    """Member `me`'s frames over the links of one generation. step: current step; -1 before the first."""

    def __init__(self, ring: RingPlan, me: int, links: Links, generation: int) -> None:
        self.ring, self.me, self.links, self.generation = ring, me, links, generation
        self.step = -1
        self._numbers = 0
        self._sent: dict[_Route, Parts] = {}
        self._received: dict[_Route, Parts] = {}

    def send(
        self,
        key: FrameKey,
        peer: int,
        value: Any,
        parts: Parts | None = None,
        owned: frozenset[int] = frozenset(),
    ) -> None:
        """Start to send a value with its generator states. owned: as for `frame_of`.

        Raises RingAborted, RingBroken, and what `frame_of` raises.
        """
        carried: Parts = {}
        if parts is not None:
            route = peer, key.kind, key.est
            before = self._sent.get(route, {})
            carried = {name: state for name, state in parts.items() if before.get(name) != state}
            self._sent[route] = parts
        self.links.send(frame_of(key, self.generation, self.step, value, carried, owned), peer)

    def expect(self, key: FrameKey, peer: int) -> None:
        """Announce that this frame will be received, so that it can arrive early."""
        self.links.expect(key, peer)

    def receive(self, key: FrameKey, peer: int) -> Generator[Wait, Any, Frame]:
        """Wait for a frame. Raises FrameError for one of another step or generation."""
        frame: Frame = yield FrameWait(key, peer)
        if (frame.generation, frame.step) != (self.generation, self.step):
            raise FrameError(
                f"a {frame.key.kind.name} frame of step {frame.step}, generation {frame.generation} came in"
                f" step {self.step}, generation {self.generation}",
                hint="this is a bug: report it with the log",
            )
        return frame

    def parts(self, frame: Frame, peer: int) -> Parts:
        """Return all generator states of a received frame, including those that it omits as unchanged."""
        route = peer, frame.key.kind, frame.key.est
        parts = {**self._received.get(route, {}), **frame.parts}
        self._received[route] = parts
        return parts

    def number(self) -> int:
        """Return the number of the next collective outside of steps; the same on every member."""
        self._numbers += 1
        return self._numbers

    def tell_all(self, kind: Kind, value: Any) -> Step:
        """Send a value to every member; returns all members' values."""
        number = self.number()
        members = range(self.ring.members)
        for member in members:
            self.expect(FrameKey(kind, 0, member, number), member)
            self.send(FrameKey(kind, 0, self.me, number), member, value)
        values = []
        for member in members:
            frame = yield from self.receive(FrameKey(kind, 0, member, number), member)
            values.append(frame.value)
        return values
