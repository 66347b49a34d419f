"""What a page shows of a job that is served: read from its state, its events and its history.

Memory is bounded: events of the jobs that were looked at last, the newest of each, and curves that the metric
service keeps anyway. A store that does not answer leaves out what only it knows, and says so.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from elastane_master.dashboard.drawing import CurvePicture, TimelinePicture, draw_curve, draw_timeline
from elastane_master.dashboard.timeline import timeline
from elastane_master.decisions.contexts import parts_bytes
from elastane_master.decisions.datasets import LOCKSTEP_DATASET
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.views import JobView, ProgressView, job_view, list_tasks, progress_views
from elastane_master.jobs import records
from elastane_master.jobs.curves import Curves
from elastane_master.jobs.host import JobHost
from elastane_master.jobs.hosts import JobHosts
from elastane_master.jobs.recent_notes import RecentNotes
from elastane_master.jobs.records import StoredNote
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.metric_service import MetricServicer
from elastane_proto import contexts
from elastane_proto.event_filter import EVERYTHING, EventFilter
from elastane_proto.folding import fold_words, folded
from elastane_shards.tasks import TaskState

T = TypeVar("T")

EVENTS_MAX: Final = 2000
EVENTS_SHOWN: Final = 150
EVENTS_AT_ONCE: Final = 500
JOBS_KEPT: Final = 16
WORKERS_SHOWN: Final = 200
HOLDERS_SHOWN: Final = 100
FAILED_SHOWN: Final = 20
CONTEXTS_SHOWN: Final = 64
CURVES_SHOWN: Final = 8
STORE_SECONDS: Final = 2.0
"""How long a page waits for the store."""


@dataclass(frozen=True, slots=True)
class Held:
    """A task in DOING, or FAILED. seconds: how long it is held; left: until its lease ends; None: none."""

    dataset: str
    epoch: int
    index: int
    start: int
    end: int
    attempt: int
    worker: str
    seconds: float | None
    left: float | None
    errors: str


@dataclass(frozen=True, slots=True)
class Queue:
    view: ProgressView
    held: tuple[Held, ...]
    failed: tuple[Held, ...]
    #: Tasks in DOING that `held` leaves out, and those of a ring's steps that are reported and not committed.
    more: int
    reported: int


@dataclass(frozen=True, slots=True)
class ContextRow:
    """The newest kept context of an EST. epoch, batch: of its loader; None: it has none."""

    rank: int
    step: int
    worker: str
    epoch: int | None
    batch: int | None
    bytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event, or routine ones that follow each other, on the row of their last. words: what they were."""

    stored: StoredNote
    count: int = 1
    words: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """All of a page. heard: seconds since each worker was heard of; None: not by this master yet."""

    view: JobView
    now: float
    heard: dict[str, float | None]
    workers_left_out: int
    queues: tuple[Queue, ...]
    contexts: tuple[ContextRow, ...]
    contexts_bytes: int
    contexts_left_out: int
    #: The newest that are kept, in order; `event_rows` makes rows of them.
    notes: tuple[StoredNote, ...]
    picture: TimelinePicture | None
    curves: tuple[CurvePicture, ...]
    curves_left_out: int
    #: What could not be read, and why.
    missing: tuple[str, ...] = field(default=())


class Gatherer:
    """Gathers facts. Used from one event loop."""

    def __init__(self, hosts: JobHosts) -> None:
        self._hosts = hosts
        self._metrics = MetricServicer(hosts)
        self._kept: OrderedDict[str, _Notes] = OrderedDict()

    async def facts(self, host: JobHost) -> JobFacts:
        """The facts of a job as of now. Raises nothing of the store's."""
        missing: list[str] = []
        kept = self._kept_notes(host)
        drawn_curves: tuple[tuple[CurvePicture, ...], int] = ((), 0)
        if await self._read(_settled(host), "what is shown may not be stored yet", missing):
            await self._read(kept.catch_up(self._hosts), "older events are left out", missing)
            if curves := await self._read(self._metrics.curves(host), "no logged values", missing):
                drawn_curves = _drawn(curves[0])
        notes = kept.all()
        machine, now = host.machine, host.clock()
        view = job_view(machine, now)
        workers = {worker.worker: worker.session for worker in view.workers[:WORKERS_SHOWN]}
        heard = {name: host.liveness.last_heard(name, session) for name, session in workers.items()}
        rows, total, left_out = _contexts(host)
        drawn = timeline(notes, now)
        return JobFacts(
            view=view,
            now=now,
            heard={name: None if at is None else max(now - at, 0.0) for name, at in heard.items()},
            workers_left_out=max(len(view.workers) - WORKERS_SHOWN, 0),
            queues=tuple(_queue(host, one, now) for one in progress_views(machine, now)),
            contexts=rows,
            contexts_bytes=total,
            contexts_left_out=left_out,
            notes=tuple(notes),
            picture=draw_timeline(drawn) if drawn is not None else None,
            curves=drawn_curves[0],
            curves_left_out=drawn_curves[1],
            missing=tuple(missing),
        )

    def _kept_notes(self, host: JobHost) -> _Notes:
        kept = self._kept.get(host.name)
        if kept is None or kept.host is not host:
            kept = self._kept[host.name] = _Notes(host)
        self._kept.move_to_end(host.name)
        while len(self._kept) > JOBS_KEPT:
            self._kept.popitem(last=False)
        return kept

    async def _read(self, reading: Awaitable[T], without: str, missing: list[str]) -> tuple[T] | None:
        """What the store says; None where it does not, with what the page has to say of that."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return (await reading,)
        except TimeoutError:
            why = f"the store did not answer within {STORE_SECONDS:g} s"
        except REFUSALS as error:
            why = str(as_rejection(error))
        missing.append(f"{without}: {why}")
        return None


async def _settled(host: JobHost) -> None:
    """Returns once what was decided is stored. Raises Rejection when the store does not answer."""
    await host.log.settled()
    if not host.log.reachable:
        raise Rejection("store_unavailable", "the store does not answer")


class _Notes:
    """The newest events of one job: those the host has in memory, and older ones out of the store."""

    def __init__(self, host: JobHost) -> None:
        self.host = host
        self.lock = asyncio.Lock()
        self._notes = RecentNotes(EVENTS_MAX)

    def all(self) -> list[StoredNote]:
        """Without a gap: what is newer than the kept ones is taken as it is."""
        newest = self._notes[-1].sequence if self._notes else 0
        return [*self._notes, *(one for one in self.host.recent_notes if one.sequence > newest)][-EVENTS_MAX:]

    async def catch_up(self, hosts: JobHosts) -> None:
        """Raises REFUSALS."""
        async with self.lock:
            await self._catch_up(hosts)

    async def _catch_up(self, hosts: JobHosts) -> None:
        recent = self.host.recent_notes
        if not recent:
            return
        first = self._notes[-1].sequence + 1 if self._notes else max(1, recent[-1].sequence - EVENTS_MAX + 1)
        while first < recent[0].sequence:
            stored = await hosts.history(self.host).events(first, EVENTS_AT_ONCE)
            notes = [records.decode_note(payload) for _, payload in stored]
            self._notes.extend(one for one in notes if one.sequence >= first)
            if not notes or notes[-1].sequence < first:
                break  # the store keeps no more of them
            first = notes[-1].sequence + 1
        self._notes.extend([one for one in recent if one.sequence >= first])


def event_rows(notes: Sequence[StoredNote], wanted: EventFilter = EVERYTHING) -> list[EventRow]:
    """The newest rows of the events that are wanted, newest first; routine ones folded, unless asked for."""
    shown = [one for one in notes if wanted.wants(one.told)] if wanted != EVERYTHING else notes
    rows = []
    for run in folded(shown, lambda stored: "" if wanted.kinds else stored.note.kind):
        words = fold_words([stored.told for stored in run]) if len(run) > 1 else ""
        rows.append(EventRow(run[-1], len(run), words))
    return rows[: -EVENTS_SHOWN - 1 : -1]


def _queue(host: JobHost, view: ProgressView, now: float) -> Queue:
    machine = host.machine
    failed: Sequence[Any] = ()
    lease_seconds = 0.0
    lockstep = view.dataset == LOCKSTEP_DATASET
    if not lockstep:
        lease_seconds = machine.queues.dynamic[view.dataset].settings.lease_seconds
        if view.progress.failed:
            failed = list_tasks(machine, view.dataset, TaskState.FAILED, limit=FAILED_SHOWN)

    def held(task: Any) -> Held:
        seconds = None
        if task.state is TaskState.DOING:
            # A step's tasks are all leased when the step before it is prepared.
            since = (
                task.deadline - lease_seconds
                if task.deadline is not None
                else machine.state.steps.prepared_at
            )
            seconds = max(now - since, 0.0)
        return Held(
            view.dataset,
            task.epoch,
            task.index,
            task.start,
            task.end,
            task.attempt,
            task.worker,
            seconds,
            max(task.deadline - now, 0.0) if task.deadline is not None else None,
            "; ".join(f"attempt {one.attempt} by {one.worker}: {one.error}" for one in task.errors),
        )

    shown = view.holders[:HOLDERS_SHOWN]
    return Queue(
        view,
        tuple(held(task) for task in shown),
        tuple(held(task) for task in failed),
        len(view.holders) - len(shown) if lockstep else max(view.progress.doing - len(shown), 0),
        max(view.progress.doing - len(view.holders), 0) if lockstep else 0,
    )


def _contexts(host: JobHost) -> tuple[tuple[ContextRow, ...], int, int]:
    """The newest contexts, the bytes of all that are kept, and how many ESTs are left out.

    Not `context_views`: that hashes all of them, which takes a second for large ones.
    """
    state = host.machine.state
    kept = state.contexts.steps
    total = sum(parts_bytes(parts) for all_parts in kept.values() for parts in all_parts)
    if not kept:
        return (), total, 0
    step = max(kept)
    hosted = {
        rank: member.worker for member in state.ring.members for rank in range(member.start, member.end)
    }
    rows = []
    for rank, parts in enumerate(kept[step][:CONTEXTS_SHOWN]):
        epoch, batch, _ = (
            contexts.unpack_loader(parts["loader"]) if parts.get("loader") else (None, None, None)
        )
        rows.append(
            ContextRow(rank, step, hosted.get(rank, ""), epoch, batch, parts_bytes(parts), len(parts))
        )
    return tuple(rows), total, max(len(kept[step]) - CONTEXTS_SHOWN, 0)


def _drawn(curves: Curves) -> tuple[tuple[CurvePicture, ...], int]:
    """The first curves by name, and how many are left out."""
    names = sorted(curves.series)
    drawn = tuple(draw_curve(name, curves.points(name)) for name in names[:CURVES_SHOWN])
    return drawn, max(len(names) - CURVES_SHOWN, 0) + curves.left_out
