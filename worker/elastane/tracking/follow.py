"""Copies steps from the master, or from standard input, into one tracker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from elastane.tracking.tracker import Cursor, Feed, TrackedRun, Tracker, TrackerSpec
from elastane_common.errors import MasterUnreachableError
from elastane_common.logged import LoggedStep, StepStream, job_created

if TYPE_CHECKING:
    from elastane_common.client import MasterClient

#: Maximum delay until written values are durable and visible.
FLUSH_SECONDS = 2.0


class Following:
    """One tracker that follows a job at its master.

    worker_id: of the leader that started it; empty: it follows whichever worker leads. `finish_at` and `stop`
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
        """Write steps until the end of the history, or with `follow` until `finish_at` or `stop`.

        Returns the step after the last one written. Raises RequestRefusedError ("stale") if the worker no
        longer leads, MasterUnreachableError, and errors of the tracker's library.
        """
        from elastane_common.client_errors import ClientClosedError

        pages = Pages(self._tracker, self._client.close)
        stream = StepStream(self._client, self._job, token=pages.cursor.token, worker_id=self._worker_id)
        try:
            self._wrote(pages.cursor.next_step)
            for batch in stream.batches(follow=follow):
                self._wrote(pages.take(batch, stream.token))
        except (MasterUnreachableError, ClientClosedError):
            if not self._over and pages.failure is None:
                raise
        finally:
            pages.close(finished=lambda: self._there or not follow)
        return pages.cursor.next_step

    def finish_at(self, step: int) -> None:
        """End once the steps before this one are written, because the job is over."""
        with self._lock:
            self._target = step
            there = self._there
        if there:
            self._client.close()

    def stop(self) -> None:
        """End now; another leader's tracker continues."""
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


class Pages:
    """A tracker flushed by a background thread, because the next step may be minutes away.

    failed: called on that thread when a flush fails. `close` raises the error.
    """

    def __init__(self, tracker: Tracker, failed: Callable[[], None] = lambda: None) -> None:
        self._tracker = tracker
        self._failed = failed
        self.cursor = tracker.open()
        self.failure: Exception | None = None
        self._feed = Feed(tracker, self.cursor)
        self._lock = threading.Lock()
        self._is_new = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastane-flush", daemon=True)
        self._thread.start()

    def take(self, steps: Iterable[LoggedStep], token: str = "") -> int:
        """Write steps and return the next step's number.

        token: history position after them, stored once all are written.
        """
        with self._lock:
            for step in steps:
                self._feed.take(step)
                self._is_new = True
            self.cursor = Cursor(self._feed.next_step, token)
        return self.cursor.next_step

    def close(self, *, finished: Callable[[], bool]) -> None:
        """Flush and end. finished: returns True if the job is over."""
        self._closing.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        self.cursor = Cursor(self._feed.next_step, self.cursor.token)
        self._tracker.flush(self.cursor)
        self._tracker.close(finished=finished())

    def _run(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            with self._lock:
                if not self._is_new:
                    continue
                try:
                    self._tracker.flush(self.cursor)
                except Exception as error:  # noqa: BLE001 - any error of its library ends this tracker
                    self.failure = error
                    break
                self._is_new = False
        if self.failure is not None:
            self._failed()


def write_steps(lines: Iterable[str], job: str, created: float, spec: TrackerSpec) -> int:
    """Write steps from JSON lines, one each, until the input ends or a line says "stop" or "finish".

    Returns the step after the last one written.
    """
    pages = Pages(tracker_of(spec, TrackedRun(job, created)))
    finished = False
    try:
        for step in _steps(lines):
            if step is None or pages.failure is not None:
                finished = True
                break
            pages.take([step])
    finally:
        pages.close(finished=lambda: finished)
    return pages.cursor.next_step


def _steps(lines: Iterable[str]) -> Iterator[LoggedStep | None]:
    for line in lines:
        said = json.loads(line)
        if "stop" in said:
            return
        yield None if "finish" in said else LoggedStep(**said)


def tracker_of(spec: TrackerSpec, run: TrackedRun) -> Tracker:
    """Create the tracker; imports its library."""
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: _tensorboard(spec.where or "runs", run),
        "mlflow": lambda: _mlflow(spec.where or run.job, run),
        "wandb": lambda: _wandb(spec.where or run.job, run),
    }
    return makers[spec.kind]()


def _tensorboard(where: str, run: TrackedRun) -> Tracker:
    from elastane.tracking.tensorboard import TensorBoard

    return TensorBoard(where, run)


def _mlflow(where: str, run: TrackedRun) -> Tracker:
    from elastane.tracking.mlflow_runs import MlflowRun

    return MlflowRun(where, run)


def _wandb(where: str, run: TrackedRun) -> Tracker:
    from elastane.tracking.wandb_runs import WandbRun

    return WandbRun(where, run)
