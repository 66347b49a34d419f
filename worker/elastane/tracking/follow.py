"""Reads steps from the master, or from the standard input, into one tracker."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from elastane.errors import MasterUnreachableError
from elastane.logged import LoggedStep, StepStream, job_created
from elastane.tracking.tracker import Cursor, Feed, TrackedRun, Tracker, TrackerSpec, tracker_of

if TYPE_CHECKING:
    from elastane.client import MasterClient

#: What was written is made durable, and shows, after so long at the latest.
FLUSH_SECONDS = 2.0


class Following:
    """One tracker that follows a job at its master.

    worker_id: of the leader whose tracker this is; empty: it follows whoever leads. `finish_at` and `stop`
    may be called from any thread; both close the client.
    """

    def __init__(self, client: MasterClient, job: str, spec: TrackerSpec, *, worker_id: str = "") -> None:
        self._client = client
        self._job = job
        self._worker_id = worker_id
        self._tracker: Tracker = tracker_of(spec, TrackedRun(job, job_created(client, job)))
        self._lock = threading.Lock()
        self._next_step = 0
        self._target: int | None = None
        self._stopped = False

    def run(self, *, follow: bool) -> int:
        """Write until the end: of what is there, without `follow`; else until `finish_at` or `stop`.

        Returns the step after the last one written. Raises RequestRefusedError ("stale") when the worker does
        not lead any more, MasterUnreachableError, and what the tracker's library raises.
        """
        from elastane.client import ClientClosedError

        cursor = self._tracker.open()
        feed = Feed(self._tracker, cursor)
        stream = StepStream(self._client, self._job, token=cursor.token, worker_id=self._worker_id)
        try:
            flushed_at = time.monotonic()
            self._wrote(feed.next_step)
            for batch in stream.batches(follow=follow):
                for step in batch:
                    feed.take(step)
                if time.monotonic() - flushed_at > FLUSH_SECONDS:
                    # The batch before this one is behind the token; what is in both is written once.
                    self._tracker.flush(Cursor(feed.next_step, stream.token))
                    flushed_at = time.monotonic()
                self._wrote(feed.next_step)
        except (MasterUnreachableError, ClientClosedError):
            if not self._over:
                raise
        finally:
            self._tracker.flush(Cursor(feed.next_step, stream.token))
            self._tracker.close(finished=self._there or not follow)
        return feed.next_step

    def finish_at(self, step: int) -> None:
        """End once the steps before this one are written: the job is over."""
        with self._lock:
            self._target = step
            there = self._there
        if there:
            self._client.close()

    def stop(self) -> None:
        """End now; another one goes on."""
        self._stopped = True
        self._client.close()

    @property
    def _there(self) -> bool:
        return self._target is not None and self._next_step >= self._target

    @property
    def _over(self) -> bool:
        return self._stopped or self._there

    def _wrote(self, next_step: int) -> None:
        with self._lock:
            self._next_step = next_step
            there = self._there
        if there:
            self._client.close()


def write_steps(lines: Iterable[str], job: str, created: float, spec: TrackerSpec) -> int:
    """Write what comes as JSON lines, one step each, until there is no more or one says {"finish": true}."""
    tracker = tracker_of(spec, TrackedRun(job, created))
    cursor = tracker.open()
    feed = Feed(tracker, cursor)
    finished = False
    try:
        flushed_at = time.monotonic()
        for step in _steps(lines):
            if step is None:
                finished = True
                break
            feed.take(step)
            if time.monotonic() - flushed_at > FLUSH_SECONDS:
                tracker.flush(Cursor(feed.next_step))
                flushed_at = time.monotonic()
    finally:
        tracker.flush(Cursor(feed.next_step))
        tracker.close(finished=finished)
    return feed.next_step


def _steps(lines: Iterable[str]) -> Iterator[LoggedStep | None]:
    for line in lines:
        said = json.loads(line)
        yield None if "finish" in said else LoggedStep(**said)
