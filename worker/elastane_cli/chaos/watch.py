"""Observations of a job from outside, with their times.

The job's own clock stops while its store does not answer, and disappears with its master, so recovery is
timed here: by a thread that watches the job, and reconnects within milliseconds when the master comes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from elastane_common.credentials import open_channel
from elastane_proto.v1 import job_pb2, job_pb2_grpc

_RETRY_SECONDS = 0.02
_CHANNEL_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 50),
]


@dataclass(frozen=True, slots=True)
class Seen:
    """The job at one moment.

    at: time.monotonic(); step: the next to commit; members: ids of the ring's workers.
    """

    at: float
    step: int
    generation: int
    phase: int
    reason: str
    members: tuple[str, ...]
    saved_step: int


class JobWatch:
    """Watches from `start` to `close`. Thread-safe."""

    def __init__(self, address: str, job: str) -> None:
        self._address = address
        self._job = job
        self._changed = threading.Condition()
        self._seen: list[Seen] = []
        self._closing = threading.Event()
        self._channel: grpc.Channel | None = None
        self._thread = threading.Thread(target=self._run, name="chaos-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closing.set()
        with self._changed:
            channel = self._channel
            self._changed.notify_all()
        if channel is not None:
            channel.close()

    @property
    def latest(self) -> Seen:
        """The newest observation; waits for the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._seen or self._closing.is_set())
            return self._seen[-1]

    def forget(self) -> None:
        """Drop all but the newest observation."""
        with self._changed:
            del self._seen[:-1]

    def since(self) -> list[Seen]:
        """Return all observations since `forget`."""
        with self._changed:
            return list(self._seen)

    def first(
        self,
        condition: Callable[[Seen], bool],
        timeout_seconds: float,
        unless: Callable[[], bool] | None = None,
    ) -> Seen | None:
        """Return the first observation that meets `condition`, since `forget` or later; None after a timeout.

        unless: gives up as soon as it returns True; checked at each observation, and every half second.
        """
        deadline = time.monotonic() + timeout_seconds
        looked = 0
        with self._changed:
            while True:
                for seen in self._seen[looked:]:
                    if condition(seen):
                        return seen
                looked = len(self._seen)
                left = deadline - time.monotonic()
                if left <= 0 or self._closing.is_set() or (unless is not None and unless()):
                    return None
                self._changed.wait(min(left, 0.5))

    def _run(self) -> None:
        request = job_pb2.JobServiceWatchRequest(name=self._job)
        while not self._closing.is_set():
            with open_channel(self._address, _CHANNEL_OPTIONS) as channel:
                with self._changed:
                    self._channel = channel
                try:
                    for response in job_pb2_grpc.JobServiceStub(channel).Watch(request):
                        self._note(response.job)
                except (grpc.RpcError, ValueError):
                    pass  # the master is down, or the channel was closed: the loop decides
            self._closing.wait(_RETRY_SECONDS)

    def _note(self, job: job_pb2.Job) -> None:
        members = tuple(w.worker_id for w in job.workers if w.state == job_pb2.WORKER_STATE_MEMBER)
        seen = Seen(
            time.monotonic(), job.step, job.generation, job.phase, job.reason, members, job.saved_step
        )
        with self._changed:
            self._seen.append(seen)
            self._changed.notify_all()
