"""The data that the screen shows, kept up to date by threads that watch the master.

The threads of a page share one client, and closing it ends them. If the master is unreachable the screen
says so while they retry; an error that leaves nothing to show (no such job, no right) ends the command.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastane_common.errors import ElastaneError, MasterUnreachableError

if TYPE_CHECKING:
    from elastane_common.client import MasterClient
    from elastane_proto.v1 import job_pb2, metric_pb2, ps_pb2, ring_pb2, shard_pb2

EVENTS_MAX = 2000
MEMBERS_MAX = 200_000
"""Limit for the members of all rings in the kept events."""
LIST_SECONDS = 1.0
CURVE_SECONDS = 1.0
SLOTS_SECONDS = 2.0
FIGURES_SECONDS = 2.0
RESOURCES_SECONDS = 5.0

HeldKey = tuple[str, int, int, int, int, str]


@dataclass
class JobNews:
    """The latest data of one job. held_since: time since the epoch when each leased task was first seen.

    slots: None for a job without parameter servers. figures: what workers have measured, by id.
    resources: what the worker that is looked at has used, oldest sample first, by its id.
    """

    name: str
    job: job_pb2.Job | None = None
    datasets: list[shard_pb2.Progress] = field(default_factory=list)
    events: deque[ring_pb2.Event] = field(default_factory=deque)
    series: list[metric_pb2.Series] = field(default_factory=list)
    held_since: dict[HeldKey, float] = field(default_factory=dict)
    slots: ps_pb2.GetSlotsResponse | None = None
    figures: Mapping[str, ring_pb2.WorkerFigures] = field(default_factory=dict)
    resources: Mapping[str, Sequence[ring_pb2.ResourceSample]] = field(default_factory=dict)
    _members: int = 0

    def take_event(self, event: ring_pb2.Event) -> None:
        """Add an event; drop the oldest ones beyond the limits for events and for members of rings."""
        self.events.append(event)
        self._members += len(event.ring_announced.members)
        while len(self.events) > EVENTS_MAX or (self._members > MEMBERS_MAX and len(self.events) > 1):
            self._members -= len(self.events.popleft().ring_announced.members)

    def take_progress(self, datasets: list[shard_pb2.Progress], now: float) -> None:
        """Store new progress. now: seconds since the Unix epoch."""
        before = self.held_since
        keys = [held_key(item.dataset, task) for item in datasets for task in item.holders]
        self.held_since = {key: before.get(key, now) for key in keys}
        self.datasets = datasets


@dataclass
class News:
    """All data for the screen. trouble: why it may be stale; error: a fatal error that ends the command."""

    jobs: list[job_pb2.Job] | None = None
    detail: JobNews | None = None
    trouble: str = ""
    error: ElastaneError | None = None


def held_key(dataset: str, task: shard_pb2.TaskInfo) -> HeldKey:
    """Return a key that identifies one attempt at a task, also among the N tasks of a step."""
    return dataset, task.epoch, task.index, task.range.start, task.attempt, task.worker_id


class Watching:
    """Watches the data of the page that is shown.

    connect: creates a client. changed: called after each update, from the watching threads.
    """

    def __init__(self, connect: Callable[[], MasterClient], changed: Callable[[], None]) -> None:
        self.news = News()
        self._connect = connect
        self._changed = changed
        self._client: MasterClient | None = None
        self._ended = threading.Event()
        self._shown: str | None = None
        self._worker = ""
        self._other_worker = threading.Event()

    def look_at(self, worker: str) -> None:
        """Have the resources of this worker watched, of which only one is at a time. Empty: of none."""
        if worker != self._worker:
            self._worker = worker
            self._other_worker.set()

    def show(self, job: str) -> None:
        """Watch this job instead of what was watched before; empty: the list of jobs. Idempotent."""
        if job == self._shown:
            return
        self.close()
        self._shown, self._ended, self._client = job, threading.Event(), self._connect()
        client, ended, news = self._client, self._ended, self.news
        news.detail = detail = JobNews(job) if job else None
        if detail is None:
            self._start(ended, lambda: self._lists(client, ended), lambda jobs: setattr(news, "jobs", jobs))
            return
        from elastane_common.logged import watch_series

        self._start(ended, lambda: client.watch_job(job), lambda item: setattr(detail, "job", item))
        self._start(
            ended, lambda: client.watch_progress(job), lambda item: detail.take_progress(item, time.time())
        )
        since = [0]

        def take_event(event: ring_pb2.Event) -> None:
            if event.sequence >= since[0]:  # after a reconnect, events may be sent again
                since[0] = event.sequence + 1
                detail.take_event(event)

        self._start(ended, lambda: client.events(job, since=since[0], follow=True), take_event)
        self._start(
            ended,
            lambda: watch_series(client, job, interval_seconds=CURVE_SECONDS),
            lambda answer: setattr(detail, "series", list(answer.series)),
        )

        self._start(
            ended, lambda: self._slots(client, detail, ended), lambda found: setattr(detail, "slots", found)
        )
        self._start(
            ended,
            lambda: self._figures(client, detail, ended),
            lambda found: setattr(detail, "figures", found),
        )

        self._start(
            ended,
            lambda: self._resources(client, detail, ended),
            lambda found: setattr(detail, "resources", found),
        )

    def close(self) -> None:
        """End the page's threads."""
        self._ended.set()
        self._other_worker.set()
        if self._client is not None:
            self._client.close()
            self._client = None
        self._shown = None

    @staticmethod
    def _lists(client: MasterClient, ended: threading.Event) -> Iterable[list[job_pb2.Job]]:
        while not ended.is_set():
            yield sorted(client.list_jobs(), key=lambda job: job.name)
            ended.wait(LIST_SECONDS)

    @staticmethod
    def _slots(
        client: MasterClient, detail: JobNews, ended: threading.Event
    ) -> Iterable[ps_pb2.GetSlotsResponse]:
        """Yield the slots of a job that leases tasks; nothing for other jobs."""
        while not ended.is_set():
            leases = any(item.dataset != "train" for item in detail.datasets)
            if leases and (found := client.find_slots(detail.name)) is not None:
                yield found
            ended.wait(SLOTS_SECONDS)

    @staticmethod
    def _figures(
        client: MasterClient, detail: JobNews, ended: threading.Event
    ) -> Iterable[Mapping[str, ring_pb2.WorkerFigures]]:
        """Yield what the job's workers have measured, once the job is known."""
        while not ended.is_set():
            workers = [worker.worker_id for worker in detail.job.workers] if detail.job is not None else []
            if workers:
                yield client.worker_figures(detail.name, workers)
            ended.wait(FIGURES_SECONDS if workers else LIST_SECONDS)

    def _resources(
        self, client: MasterClient, detail: JobNews, ended: threading.Event
    ) -> Iterable[Mapping[str, Sequence[ring_pb2.ResourceSample]]]:
        """Yield what the worker that is looked at has used: soon after it was chosen, then regularly."""
        while not ended.is_set():
            self._other_worker.clear()
            if self._worker:
                yield client.worker_resources(detail.name, [self._worker])
            self._other_worker.wait(RESOURCES_SECONDS)

    def _start(
        self, ended: threading.Event, items: Callable[[], Iterable[Any]], take: Callable[[Any], None]
    ) -> None:
        def run() -> None:
            while not ended.is_set():
                try:
                    for item in items():
                        if ended.is_set():
                            return
                        take(item)
                        self.news.trouble = ""
                        self._changed()
                    return
                except MasterUnreachableError as error:
                    # The command reached it at its start: it is being restarted, or another takes over.
                    self.news.trouble = f"no news: {error.args[0]}"
                    self._changed()
                    ended.wait(LIST_SECONDS)
                except ElastaneError as error:
                    if (
                        getattr(error, "reason", "") != "unimplemented"
                    ):  # a master from before there were curves
                        self._fail(ended, error)
                    return

        threading.Thread(target=run, name="elastane-top", daemon=True).start()

    def _fail(self, ended: threading.Event, error: ElastaneError) -> None:
        if not ended.is_set():
            self.news.error = error
            self._changed()
