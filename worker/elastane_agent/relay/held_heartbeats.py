"""Heartbeats that are held back: those of workers that beat at different times go in one message. Pure.

A heartbeat is sent with the next message of any session, or when it has waited for long enough. It says for
how long it was held, so the master misses a worker as soon as without a relay.
"""

from __future__ import annotations

from typing import Final

from elastane_proto.v1 import ring_pb2

HELD_SECONDS_MAX: Final = 0.5

_HEARTBEAT: Final = bytes((ring_pb2.AttendRequest.HEARTBEAT_FIELD_NUMBER << 3 | 2,))


def is_heartbeat(request: bytes) -> bool:
    """True if a serialized AttendRequest is a heartbeat. Its first byte is the tag of its only field."""
    return request.startswith(_HEARTBEAT)


class HeldHeartbeats:
    """The heartbeats of one stream. Times are in seconds, of any origin.

    due: when they must be sent, None if there are none. A heartbeat is held for at most half of the time
    since the one before it, so that it arrives long before it is missed; a session's first one is not held.
    """

    __slots__ = ("_frames", "_last", "due")

    def __init__(self) -> None:
        self._frames: list[tuple[float, ring_pb2.RelayFrame]] = []
        self._last: dict[int, float] = {}
        self.due: float | None = None

    def hold(self, session: int, request: bytes, now: float, held_seconds: float = 0.0) -> None:
        """Add a heartbeat. held_seconds: for which another relay has held it before."""
        began = now - held_seconds
        gap_seconds = began - self._last.get(session, began)
        self._last[session] = began
        due = max(now, began + min(HELD_SECONDS_MAX, gap_seconds / 2))
        self.due = due if self.due is None else min(self.due, due)
        self._frames.append((began, ring_pb2.RelayFrame(session=session, request=request)))

    def take(self, now: float) -> list[ring_pb2.RelayFrame]:
        """Remove and return all, in the order in which they came."""
        frames = []
        for began, frame in self._frames:
            frame.held_milliseconds = round(1000 * (now - began))
            frames.append(frame)
        self._frames, self.due = [], None
        return frames

    def forget(self, session: int) -> None:
        """Forget when a session that is over last beat."""
        self._last.pop(session, None)
