"""A worker's part in following: as the newcomer that follows the ring, or as the member that feeds one. Pure.

    newcomer: asked ─▶ begin ─▶ followed ─▶ end at the ring's last step, or give up
    source:   feed ─▶ digests are reported ─▶ the ring changes, or failed

`WorkerProtocol` owns this object and sends the reports that it returns; `feed_book` has the order of what is
sent from the one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastane_proto.v1 import ring_pb2


@dataclass
class FollowState:
    """What the master has asked this worker for, and what it is doing. A worker has at most one part."""

    #: Follow this ring; this worker has not begun to.
    asked: ring_pb2.Follow | None = None
    #: The ring that this worker follows; Ready waits until it has followed to the ring's end.
    followed: ring_pb2.Follow | None = None
    #: Send to a newcomer at the step that this names.
    feed: ring_pb2.Follow | None = None

    @property
    def is_following(self) -> bool:
        return self.followed is not None

    def begin(self) -> ring_pb2.Follow | None:
        """Begin to follow the ring that was asked for; None if that is not wanted any more."""
        self.followed, self.asked = self.asked, None
        return self.followed

    def report_digest(self, step: int, digest: int) -> list[ring_pb2.AttendRequest]:
        """Report the digest of the state after `step` steps, as the newcomer or as its source."""
        follow = self.followed or self.feed
        if follow is None:
            return []
        return _reported(ring_pb2.FollowReport(generation=follow.generation, step=step, digest=digest))

    def feed_failed(self, follow: ring_pb2.Follow, error: str) -> list[ring_pb2.AttendRequest]:
        """End the feed and report why; nothing if the ring has changed, or another newcomer follows."""
        if self.feed != follow:
            return []
        self.feed = None
        return _failed(follow, error)

    def end(self) -> ring_pb2.Follow:
        """End following; returns the ring that was followed."""
        follow, self.followed = self.followed, None
        assert follow is not None
        return follow

    def give_up(self, error: str) -> tuple[ring_pb2.Follow, list[ring_pb2.AttendRequest]]:
        """End following before the ring's end; returns the ring that was followed, and the report."""
        follow = self.end()
        return follow, _failed(follow, error)

    def leave(self) -> None:
        """Drop the master's requests. The script's thread ends what is followed (`end`, `give_up`)."""
        self.asked = self.feed = None


def _failed(follow: ring_pb2.Follow, error: str) -> list[ring_pb2.AttendRequest]:
    return _reported(ring_pb2.FollowReport(generation=follow.generation, error=error))


def _reported(report: ring_pb2.FollowReport) -> list[ring_pb2.AttendRequest]:
    return [ring_pb2.AttendRequest(follow_report=report)]
