"""Generator states on their way: a frame carries those that its receiver does not have already.

Both ends remember, by EST and kind of frame, what the last such frame between them brought. That holds for a
generation, in which no frame is lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastane.pipeline.frames import Frame, FrameKey, Kind
from elastane.rng import Parts

_Route = tuple[int, Kind, int]


class PartsOnLinks:
    """What a member has sent and received; begun anew with each generation."""

    def __init__(self) -> None:
        self._sent: dict[_Route, Parts] = {}
        self._received: dict[_Route, Parts] = {}

    def outgoing(self, key: FrameKey, peer: int, parts: Parts) -> Parts:
        """Return the states that the frame must carry."""
        route = peer, key.kind, key.est
        before: Mapping[str, bytes] = self._sent.get(route, {})
        self._sent[route] = parts
        return {name: state for name, state in parts.items() if before.get(name) != state}

    def incoming(self, frame: Frame, peer: int) -> Parts:
        """Return all states that a frame means."""
        route = peer, frame.key.kind, frame.key.est
        parts = {**self._received.get(route, {}), **frame.parts}
        self._received[route] = parts
        return parts
