"""Gathers the contents of a served job's page from its state, events and history.

Memory is bounded: only the newest events of the jobs viewed last are kept; the curves are those of the metric
service. If the store does not answer, the page lacks what only the store has, and says so.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from elastane_master.dashboard.curve_drawing import POINTS_DRAWN
from elastane_master.dashboard.output_facts import workers_with_output
from elastane_master.dashboard.resource_facts import ResourceRow, resource_rows
from elastane_master.dashboard.slot_facts import SlotFacts, slot_facts
from elastane_master.dashboard.stage_facts import StageFacts, stage_facts
from elastane_master.dashboard.step_times import StepTimes, step_times
from elastane_master.dashboard.timeline import affordable, mark_kind
from elastane_master.decisions.contexts import parts_bytes
from elastane_master.decisions.datasets import LOCKSTEP_DATASET
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.views import JobView, ProgressView, job_view, list_tasks, progress_views
from elastane_master.jobs import records
from elastane_master.jobs.commit_gaps import CommitGaps, Cost
from elastane_master.jobs.curves import Bucket, Curves
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.recent_notes import RecentNotes
from elastane_master.jobs.records import StoredNote
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.metric_service import MetricServicer
from elastane_proto import contexts
from elastane_proto.event_filter import EVERYTHING, EventFilter
from elastane_proto.folding import fold_words, folded
from elastane_proto.history.incidents import Incident, IncidentFold
from elastane_shards.tasks import TaskState

T = TypeVar("T")

EVENTS_MAX: Final = 2000
EVENTS_SHOWN: Final = 150
EVENTS_AT_ONCE: Final = 500
JOBS_KEPT: Final = 16
WORKERS_SHOWN: Final = 50
"""Of one page of them."""

HOLDERS_SHOWN: Final = 100
FAILED_SHOWN: Final = 20
CONTEXTS_SHOWN: Final = 64
CURVES_SHOWN: Final = 8
INCIDENTS_SHOWN: Final = 20
STORE_SECONDS: Final = 2.0
"""Time limit of each read from the store."""


@dataclass(frozen=True, slots=True)
class Held:
    """A task that is leased (DOING) or FAILED.

    seconds: time since it was leased; None if FAILED. left: seconds until its lease expires; None: no lease.
    """

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
    #: Number of leased tasks omitted from `held`; number of tasks reported by the ring but not yet committed.
    more: int
    reported: int


@dataclass(frozen=True, slots=True)
class ContextRow:
    """The newest context of an EST. epoch, batch: position of its loader; None if it has none."""

    rank: int
    step: int
    worker: str
    epoch: int | None
    batch: int | None
    bytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event, or a run of `count` routine events shown as one row with the last of them.

    words: summary of the run. mark: its kind of mark on the timeline; empty: it has none there.
    """

    stored: StoredNote
    count: int = 1
    words: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Contents of a job's page.

    heard: seconds since this master last heard from each worker; None: it has not yet.
    """

    view: JobView
    now: float
    heard: dict[str, float | None]
    queues: tuple[Queue, ...]
    contexts: tuple[ContextRow, ...]
    contexts_bytes: int
    contexts_left_out: int
    #: The newest events, oldest first; see `event_rows`.
    notes: tuple[StoredNote, ...]
    #: Newest first, and restarts of the master after all others; the number of further ones in `notes`.
    incidents: tuple[Incident, ...]
    incidents_left_out: int
    #: Costs of incidents by the number of their event; only where steps were committed before and after.
    costs: dict[int, Cost]
    #: None until two consecutive steps have been committed.
    step_times: StepTimes | None
    #: The first ones by name.
    curves: dict[str, list[Bucket]]
    curves_left_out: int
    #: Of a pipeline.
    stages: StageFacts | None
    #: Of a model at parameter servers.
    slots: SlotFacts | None
    #: What the workers used of their machines.
    resources: tuple[ResourceRow, ...]
    #: Workers whose last lines are known.
    with_output: tuple[str, ...]
    #: Messages about parts that could not be read.
    missing: tuple[str, ...] = field(default=())


class Gatherer:
    """Gathers the contents of pages. Used from one event loop."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs
        self._metrics = MetricServicer(jobs)
        self._kept: OrderedDict[str, _Notes] = OrderedDict()

    async def facts(self, server: JobServer) -> JobFacts:
        """Return the current contents of a job's page; errors of the store are listed in `missing`."""
        missing: list[str] = []
        kept = self._kept_notes(server)
        logged: tuple[dict[str, list[Bucket]], int] = ({}, 0)
        gaps: tuple[CommitGaps] | None = None
        if await self._read(_settled(server), "what is shown may not be stored yet", missing):
            await self._read(kept.catch_up(self._jobs), "older events are left out", missing)
            if curves := await self._read(self._metrics.curves(server), "no logged values", missing):
                logged = _shown(curves[0])
                gaps = await self._read(self._metrics.gaps(server), "no costs of incidents", missing)
        notes = kept.all()
        machine, now = server.machine, server.clock()
        view = job_view(machine, now)
        workers = {worker.worker: worker.session for worker in view.workers}
        heard = {name: server.liveness.last_heard(name, session) for name, session in workers.items()}
        rows, total, left_out = _contexts(server)
        incidents = _incidents(affordable(notes))
        return JobFacts(
            view=view,
            now=now,
            heard={name: None if at is None else max(now - at, 0.0) for name, at in heard.items()},
            queues=tuple(_queue(server, one, now) for one in progress_views(machine, now)),
            contexts=rows,
            contexts_bytes=total,
            contexts_left_out=left_out,
            notes=tuple(notes),
            incidents=tuple(incidents[:INCIDENTS_SHOWN]),
            incidents_left_out=max(len(incidents) - INCIDENTS_SHOWN, 0),
            costs=gaps[0].costs(sorted(incidents, key=lambda one: one.sequence)) if gaps else {},
            step_times=step_times(server.counters.step_seconds.distribution()),
            curves=logged[0],
            curves_left_out=logged[1],
            stages=stage_facts(server, view.pipeline),
            slots=slot_facts(server),
            resources=resource_rows(list(workers)[:WORKERS_SHOWN], server.resources.samples),
            with_output=workers_with_output(server.outputs),
            missing=tuple(missing),
        )

    def _kept_notes(self, server: JobServer) -> _Notes:
        kept = self._kept.get(server.name)
        if kept is None or kept.server is not server:
            kept = self._kept[server.name] = _Notes(server)
        self._kept.move_to_end(server.name)
        while len(self._kept) > JOBS_KEPT:
            self._kept.popitem(last=False)
        return kept

    async def _read(self, reading: Awaitable[T], without: str, missing: list[str]) -> tuple[T] | None:
        """Return the result of a read in a tuple; None if the store fails, with a message in `missing`.

        without: consequence for the page, the message's beginning.
        """
        try:
            async with asyncio.timeout(STORE_SECONDS):
                return (await reading,)
        except TimeoutError:
            why = f"the store did not answer within {STORE_SECONDS:g} s"
        except REFUSALS as error:
            why = str(as_rejection(error))
        missing.append(f"{without}: {why}")
        return None


async def _settled(server: JobServer) -> None:
    """Wait until all decisions so far are stored. Raises Rejection if the store does not answer."""
    await server.log.settled()
    if not server.log.reachable:
        raise Rejection("store_unavailable", "the store does not answer")


class _Notes:
    """The newest events of one job: those that its server has in memory, and older ones from the store."""

    def __init__(self, server: JobServer) -> None:
        self.server = server
        self.lock = asyncio.Lock()
        self._notes = RecentNotes(EVENTS_MAX)

    def all(self) -> list[StoredNote]:
        """Return the newest events, including those that the server has added since `catch_up`."""
        newest = self._notes[-1].sequence if self._notes else 0
        return [*self._notes, *(one for one in self.server.recent_notes if one.sequence > newest)][
            -EVENTS_MAX:
        ]

    async def catch_up(self, jobs: JobServers) -> None:
        """Fetch events from the store that the server no longer has in memory. Raises REFUSALS."""
        async with self.lock:
            await self._catch_up(jobs)

    async def _catch_up(self, jobs: JobServers) -> None:
        recent = self.server.recent_notes
        if not recent:
            return
        first = self._notes[-1].sequence + 1 if self._notes else max(1, recent[-1].sequence - EVENTS_MAX + 1)
        while first < recent[0].sequence:
            stored = await jobs.history(self.server).events(first, EVENTS_AT_ONCE)
            notes = [records.decode_note(payload) for _, payload in stored]
            self._notes.extend(one for one in notes if one.sequence >= first)
            if not notes or notes[-1].sequence < first:
                break  # the store does not keep any others
            first = notes[-1].sequence + 1
        self._notes.extend([one for one in recent if one.sequence >= first])


def event_rows(
    notes: Sequence[StoredNote], wanted: EventFilter = EVERYTHING, *, each: bool = False
) -> list[EventRow]:
    """Return rows for the events that a filter selects, newest first.

    Runs of routine events are folded into one row, unless `each`, or the filter names kinds of events.
    """
    each = each or bool(wanted.kinds)
    shown = [one for one in notes if wanted.wants(one.dated)] if wanted != EVERYTHING else notes
    rows = []
    for run in folded(shown, lambda stored: "" if each else stored.note.kind):
        words = fold_words([stored.dated for stored in run]) if len(run) > 1 else ""
        rows.append(EventRow(run[-1], len(run), words, mark_kind(run[-1].note.event)))
    return rows[::-1]


def _incidents(notes: Sequence[StoredNote]) -> list[Incident]:
    """Return incidents, newest first; restarts of the master, which cost little, after all others."""
    fold = IncidentFold()
    for stored in notes:
        fold.take(stored.dated)
    return sorted(fold.incidents, key=lambda one: (one.kind == "master", -one.at))


def _queue(server: JobServer, view: ProgressView, now: float) -> Queue:
    machine = server.machine
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
            # Lockstep tasks have no deadline: they are all leased when the previous step is prepared.
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


def _contexts(server: JobServer) -> tuple[tuple[ContextRow, ...], int, int]:
    """Return the newest contexts, the total bytes of all stored ones, and the number of omitted ESTs.

    `context_views` would also hash all of them, which takes a second if they are large.
    """
    state = server.machine.state
    kept = state.contexts.steps
    total = state.contexts.bytes()
    if not kept:
        return (), total, 0
    step = max(kept)
    hosted = {
        rank: member.worker for member in state.ring.members for rank in range(member.start, member.end)
    }
    rows = []
    for rank, parts in enumerate(kept[step][:CONTEXTS_SHOWN]):
        loader = parts.get("loader")
        epoch, batch, _ = contexts.unpack_loader(loader) if loader else (None, None, None)
        worker = hosted.get(rank, "")
        rows.append(ContextRow(rank, step, worker, epoch, batch, parts_bytes(parts), len(parts)))
    return tuple(rows), total, max(len(kept[step]) - CONTEXTS_SHOWN, 0)


def _shown(curves: Curves) -> tuple[dict[str, list[Bucket]], int]:
    """Return the first curves by name, and the number of omitted ones."""
    names = sorted(curves.series)
    shown = {name: list(curves.points(name, POINTS_DRAWN)) for name in names[:CURVES_SHOWN]}
    return shown, max(len(names) - CURVES_SHOWN, 0) + curves.left_out
