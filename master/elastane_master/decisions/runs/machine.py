"""The state machine of the training service: `(state, now, event) -> (state, effects)`.

`handle` is pure: no I/O, no clock, no randomness. A refused event raises `Rejection` before anything is
changed; an event that changes nothing need not be stored. Replaying the stored events with their times yields
the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from elastane_master.decisions.events import RefusedLate, Rejection
from elastane_master.decisions.runs import (
    allocating,
    deadlines,
    launch,
    life,
    ranks,
    requests,
    runners,
    scheduling,
)
from elastane_master.decisions.runs.context import RunsContext
from elastane_master.decisions.runs.effects import (
    CancelElasticJob,
    CreateElasticJob,
    RunChanged,
    RunsDecision,
    WriteRecord,
)
from elastane_master.decisions.runs.events import (
    AllocationDecided,
    AnyRunsEvent,
    AttemptStopped,
    DataResolved,
    ElasticJobEnded,
    ElasticJobScaled,
    LaunchFailed,
    LaunchPrepared,
    MasterStarted,
    PriorityChanged,
    RankChanged,
    RecordWritten,
    RunCancelRequested,
    RunDeleted,
    RunnerJoined,
    RunnerLeft,
    RunnerStreamLost,
    RunRetryRequested,
    RunSubmitted,
    Tick,
)
from elastane_master.decisions.runs.index import Index
from elastane_master.decisions.runs.queue import QueuePolicy, SlotsOrder
from elastane_master.decisions.runs.state import RunsState, ServiceSettings
from elastane_master.decisions.snapshot_version import version_of

VERSION = 1
"""Version of the snapshot."""


class StoredRuns(msgspec.Struct, array_like=True):
    """Snapshot of the service."""

    version: int
    state: RunsState


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredRuns)


class RunsMachine:
    """All runs and runners. state: for views and tests to read; only `handle` changes it."""

    __slots__ = ("index", "policy", "state")

    def __init__(self, state: RunsState, policy: QueuePolicy | None = None) -> None:
        self.state = state
        self.index = Index(state)
        self.policy: QueuePolicy = policy or SlotsOrder()
        ctx = RunsContext(state, self.index, state.decided_at)
        for run in state.runs.values():
            self.index.deadlines.set(("run", run.run_id), deadlines.deadline(ctx, run))
        for runner in state.runners.values():
            self.index.deadlines.set(("runner", runner.runner_id), runners.deadline(runner))

    @classmethod
    def create(
        cls, settings: ServiceSettings | None = None, policy: QueuePolicy | None = None
    ) -> RunsMachine:
        """Create a service without runs."""
        return cls(RunsState(settings=settings or ServiceSettings()), policy)

    @property
    def facts(self) -> dict[str, object]:
        """For log lines."""
        return {"runs": len(self.state.runs), "revision": self.state.revision}

    def handle(self, event: AnyRunsEvent, now: float) -> RunsDecision:
        """Decide on one event at time `now`, seconds since the Unix epoch.

        Time never goes back: one before the last event's counts as that one's. Raises Rejection, with
        the state unchanged; after any other exception the machine must not be used.
        """
        ctx = RunsContext(self.state, self.index, now)
        try:
            _HANDLERS[type(event)](ctx, event)
        except Rejection as refusal:
            if ctx.changed:
                raise RefusedLate(refusal) from refusal
            raise
        self._index(ctx)
        if scheduling.settle(ctx, self.policy, always=isinstance(event, Tick)):
            self._index(ctx)
        if isinstance(event, Tick):
            self.index.ticked_at = ctx.now
        self._report(ctx)
        return ctx.decision()

    def require_acceptable(self, events: Sequence[RunSubmitted]) -> None:
        """Raise Rejection if one of these submissions, handled one after the other now, would be refused."""
        requests.check_many(RunsContext(self.state, self.index, self.state.decided_at), events)

    def _index(self, ctx: RunsContext) -> None:
        """Bring the index up to date with the runs and runners that changed."""
        for run_id in ctx.runs_changed:
            run = self.state.runs.get(run_id)
            if run is not None:
                self.index.update(run)
                self.index.deadlines.set(("run", run_id), deadlines.deadline(ctx, run))
        for runner_id in ctx.runners_changed:
            runner = self.state.runners.get(runner_id)
            at = runners.deadline(runner) if runner is not None else None
            self.index.deadlines.set(("runner", runner_id), at)

    def _report(self, ctx: RunsContext) -> None:
        """Count and report changes of runs."""
        for run_id in ctx.runs_changed:
            run = self.state.runs.get(run_id)
            if run is not None:
                run.revision += 1
                ctx.emit(RunChanged(run_id))

    def next_deadline(self) -> float | None:
        """Time at which the next Tick is needed; None while there is no deadline."""
        times = [self.index.deadlines.next()]
        if len(self.index.waiting):
            seconds = self.state.settings.starvation_seconds
            times.append(self.index.waiting.next_starving(self.index.ticked_at, seconds))
        return min((at for at in times if at is not None), default=None)

    def snapshot(self) -> bytes:
        """Serialise the full state."""
        return _encoder.encode(StoredRuns(VERSION, self.state))

    @classmethod
    def restore(cls, snapshot: bytes, policy: QueuePolicy | None = None) -> RunsMachine:
        """Rebuild the service from `snapshot`. Raises ValueError for an unknown version."""
        version = version_of(snapshot)
        if version != VERSION:
            raise ValueError(f"the snapshot of the runs has version {version}; this master reads {VERSION}")
        return cls(_decoder.decode(snapshot).state, policy)


def _tick(ctx: RunsContext, event: Tick) -> None:
    for kind, name in ctx.index.deadlines.due(ctx.now):
        if kind == "run" and (run := ctx.state.runs.get(int(name))) is not None:
            deadlines.expire(ctx, run)
            ctx.index.deadlines.set((kind, name), deadlines.deadline(ctx, run))
        elif kind == "runner" and (runner := ctx.state.runners.get(str(name))) is not None:
            runners.expire(ctx, runner)
            ctx.index.deadlines.set((kind, name), runners.deadline(runner))


def _master_started(ctx: RunsContext, event: MasterStarted) -> None:
    ctx.touch()
    ctx.state.settings = event.settings
    allocating.master_started(ctx)
    runners.master_started(ctx)
    for run_id in sorted(ctx.index.active):
        launch.master_started(ctx, ctx.state.runs[run_id])
    for run_id in sorted(ctx.index.active):
        run = ctx.state.runs[run_id]
        if run.job and not run.job_over and run.job not in ctx.state.jobs_to_cancel:
            ctx.emit(CreateElasticJob(run_id, run.job))
    for job, run_id in ctx.state.jobs_to_cancel.items():
        ctx.emit(CancelElasticJob(run_id, job))
    for run_id in ctx.state.records_due:
        ctx.emit(WriteRecord(run_id))


def _record_written(ctx: RunsContext, event: RecordWritten) -> None:
    life.forget_record(ctx, event.run_id)


_HANDLERS: dict[type[AnyRunsEvent], Callable[[RunsContext, Any], None]] = {
    RunSubmitted: requests.submit,
    DataResolved: requests.data_resolved,
    RunCancelRequested: requests.cancel,
    RunRetryRequested: requests.retry,
    PriorityChanged: requests.set_priority,
    RunDeleted: requests.delete,
    RunnerJoined: runners.joined,
    RunnerStreamLost: runners.stream_lost,
    RunnerLeft: runners.left,
    LaunchPrepared: launch.prepared,
    LaunchFailed: launch.failed,
    RankChanged: ranks.changed,
    AttemptStopped: ranks.stopped,
    ElasticJobEnded: ranks.job_ended,
    ElasticJobScaled: ranks.job_scaled,
    RecordWritten: _record_written,
    AllocationDecided: allocating.decided,
    MasterStarted: _master_started,
    Tick: _tick,
}
