"""The state machine of one job: `(state, now, event) -> (state, effects, reason)`.

`handle` is pure: no I/O, no clock, no randomness, so that replaying the stored events with their times yields
the same state after a restart, and the simulation runs this very code. A refused event raises `Rejection`
before anything is changed; an event that changes nothing need not be stored. A handler that refuses an event
after `touch` raises `RefusedLate` here: the machine must then be restored, as `transactions.py` does.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from elastane_master.decisions import (
    autoscaling,
    budget,
    cost,
    datasets,
    deadline_on_spot,
    deadlines,
    endings,
    fingerprints,
    following,
    intervals,
    life,
    operators,
    replanning,
    ring,
    sessions,
    step_boundary,
    verdicts,
    waiting,
)
from elastane_master.decisions import slot_events as slot_events
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import Decision, Note
from elastane_master.decisions.events import (
    AnyEvent,
    AppliedReported,
    ByeReported,
    CheckReported,
    DatasetCreated,
    DatasetExtended,
    EndEarlyReported,
    ExitReported,
    FilesIncomplete,
    FollowReported,
    IntervalReported,
    LeavingReported,
    LoadedReported,
    MasterStarted,
    PipelinePlanned,
    ReadyReported,
    RefusedLate,
    Rejection,
    RingBrokenReported,
    SavedReported,
    StateDetailed,
    StepReported,
    StreamLost,
    TasksRequested,
    Tick,
    WorkerJoined,
)
from elastane_master.decisions.queues import Queues, StoredQueues
from elastane_master.decisions.slots import checkpoints as slot_checkpoints
from elastane_master.decisions.slots import closing, copies, model, processes, restoring, returning, settling
from elastane_master.decisions.state import JobState
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings

VERSION = 4
"""Version of the snapshot.

Version 2: tasks leased as a run are one entry of a queue's snapshot. Version 3: cost, and a limit on the wait
for workers. Version 4: reports of steps have positions of generators, which an older master would leave out.
"""
VERSIONS_READ = (1, 2, 3, VERSION)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Stored(msgspec.Struct, array_like=True):
    """Snapshot of a job."""

    version: int
    state: JobState
    queues: StoredQueues


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Stored)


class JobMachine:
    """One job's state machine. Created by `create` or `restore`.

    state, queues: for views and tests to read; only `handle` changes them.
    """

    __slots__ = ("queues", "state")

    def __init__(self, state: JobState, queues: Queues) -> None:
        self.state = state
        self.queues = queues

    @classmethod
    def create(cls, name: str, settings: JobSettings, now: float) -> JobMachine:
        """Create a job that waits for workers. Raises Rejection("invalid_argument") for invalid settings."""
        if not _NAME.fullmatch(name):
            raise Rejection(
                "invalid_argument",
                f"invalid job name {name!r}",
                hint="1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit",
                field="name",
            )
        life.check_settings(settings)
        settings = autoscaling.checked(settings, now)
        state = JobState(name=name, original=settings, settings=settings, created_at=now, decided_at=now)
        waiting.begin(state, now)
        return cls(state, Queues())

    @property
    def facts(self) -> dict[str, object]:
        """Name, generation and step, for log lines."""
        return {
            "job": self.state.name,
            "generation": self.state.ring.generation,
            "step": self.state.steps.committed,
        }

    def creation_note(self) -> Note:
        """Return the event that reports the creation of the job."""
        settings = self.state.settings
        limit = settings.workers_max or settings.ests
        return Note.of(history.JobCreated(settings.ests, settings.workers_min, limit))

    def handle(self, event: AnyEvent, now: float) -> Decision:
        """Decide on one event at time `now`, seconds since the Unix epoch.

        Raises Rejection, with the state unchanged; after any other exception the machine must not be used.
        """
        ctx = DecisionContext(self.state, self.queues, now)
        members = cost.ring_key(self.state)
        slot_map = self.state.slots.map
        try:
            _HANDLERS.get(type(event), operators.request)(ctx, event)
            slots = self.state.slots
            if type(event) in _ABOUT_SLOTS or slots.map is not slot_map or slots.checkpoint is not None:
                settling.settle(ctx, slot_map, joined=isinstance(event, slot_events.PsJoined))
            step_boundary.release(ctx)
            deadline_on_spot.settle(ctx)
            budget.settle(ctx)
            if ctx.changed:
                cost.settle(self.state, members, now)
                waiting.settle(ctx)
        except Rejection as refusal:
            if ctx.changed:
                raise RefusedLate(refusal) from refusal
            raise
        return ctx.decision()

    def next_deadline(self) -> float | None:
        """Time at which the next Tick is needed; None while there is no deadline."""
        return deadlines.next_deadline(DecisionContext(self.state, self.queues, 0.0))

    def snapshot(self) -> bytes:
        """Serialise the full state."""
        return _encoder.encode(Stored(VERSION, self.state, self.queues.stored()))

    @classmethod
    def restore(cls, snapshot: bytes) -> JobMachine:
        """Rebuild the job from `snapshot`. Raises ValueError for an unknown version."""
        stored = _decoder.decode(snapshot)
        if stored.version not in VERSIONS_READ:
            raise ValueError(
                f"the job's snapshot has version {stored.version}; this master reads version {VERSION}"
            )
        return cls(stored.state, Queues.restore(stored.queues))


_HANDLERS: dict[type[AnyEvent], Callable[[DecisionContext, Any], None]] = {
    StepReported: step_boundary.report_step,
    AppliedReported: step_boundary.applied,
    IntervalReported: intervals.reported,
    Tick: lambda ctx, event: deadlines.tick(ctx),
    ReadyReported: ring.ready,
    CheckReported: verdicts.reported,
    FollowReported: following.reported,
    LoadedReported: ring.loaded,
    RingBrokenReported: ring.broken,
    SavedReported: step_boundary.saved,
    WorkerJoined: sessions.joined,
    StreamLost: sessions.stream_lost,
    ExitReported: sessions.exit_reported,
    FilesIncomplete: sessions.files_incomplete,
    LeavingReported: sessions.leaving,
    ByeReported: sessions.bye,
    EndEarlyReported: endings.end_early,
    StateDetailed: fingerprints.detailed,
    MasterStarted: sessions.master_started,
    PipelinePlanned: replanning.planned,
    TasksRequested: datasets.lease,
    DatasetCreated: datasets.create,
    DatasetExtended: datasets.extend,
    slot_events.PsJoined: processes.joined,
    slot_events.PsStreamLost: processes.stream_lost,
    slot_events.SlotRestored: restoring.restored,
    slot_events.SlotCopied: copies.copied,
    slot_events.CopyBroken: copies.broken,
    slot_events.BackupLost: copies.backup_lost,
    slot_events.SlotsSaved: slot_checkpoints.saved,
    slot_events.TasksClosed: closing.answered,
    slot_events.PsLeaving: processes.leaving,
    slot_events.PsLeft: processes.left,
    slot_events.ModelRegistered: model.register,
    slot_events.MapSeen: returning.map_seen,
    slot_events.PsDrainRequested: processes.drain_requested,
    slot_events.SlotsCheckpointRequested: slot_checkpoints.requested,
    slot_events.SlotsRewindRequested: slot_checkpoints.rewind,
}
"""Handler of each event; operators' requests have a common one."""
_ABOUT_SLOTS = frozenset({*typing.get_args(slot_events.AnySlotEvent), Tick, MasterStarted})
"""Events after which slots may have to be given to others."""
