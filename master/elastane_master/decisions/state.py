"""State of one job, as plain values.

The whole state is these structs and the task queues; a snapshot is their MessagePack form. This module
decides nothing: the modules named in the comments do.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Literal

import msgspec

from elastane_master.decisions.amounts import CostBook
from elastane_master.decisions.contexts import ContextTable
from elastane_master.decisions.effects import Doubt, ManifestEntry, Member
from elastane_master.decisions.events import Capacity, Signature, StateDetail, UnitRange
from elastane_master.decisions.lease_answers import DatasetBook
from elastane_master.decisions.ring_state import RingState
from elastane_master.decisions.slot_book import SlotBook
from elastane_master.decisions.stages import StagePlan
from elastane_master.decisions.steps import StepBook
from elastane_proto.job_settings import JobSettings
from elastane_scheduler.autoscaling.autoscaler import AutoscalerState
from elastane_scheduler.autoscaling.spot_deadline import SpotMemory, SpotRung

Phase = Literal["waiting", "running", "suspended", "max_wait_exceeded", "succeeded", "failed", "cancelled"]
OVER: frozenset[Phase] = frozenset({"succeeded", "failed", "cancelled"})
"""Final phases, in which no worker is wanted any more."""
HALTED: frozenset[Phase] = frozenset({"suspended", "max_wait_exceeded"})
"""Phases in which no worker is wanted until Resume."""


class WorkerRecord(msgspec.Struct):
    """A worker with a session, or awaited after a restart of the master.

    joined_order: increases with each join. joined_generation: of the ring at that time. applied_step,
    holds_state: its weights, as far as held_state.py accepts them. asked_generation, ready_generation: newest
    generation for which it was sent Prepare, and answered. unanswered_since: when it was sent the first
    Prepare after its last answer; None if it owes none. trainer_at: last sign of life of its trainer; None
    before its first ring. between_since: when it entered user code between two steps; None inside a step.
    held_until: end of its quarantine, infinite if permanent (quarantine.py). leave_by: shortly before its
    node is taken away, if known. device_type; est_seconds: of an EST's part of a step on it, 0.0: not known;
    after_est_seconds: of the script's code that follows it; ests_max: ESTs that fit into its memory, 0: not
    known; measured_at: when these last changed; step_seconds: of a step in the ring of step_generation
    (balance.py). straggler: why it is slower than others on its device type, "compute", "data", "network" or
    empty; rate_ratio: its rate divided by theirs; straggler_at: when these last changed (stragglers.py). In a
    pipeline: units: held after applied_step steps, with holds_state (unit_holders.py); speed: of its device,
    0.0: not known; memory_bytes: limit of its stage, 0: not known; units_at: when these last changed
    (unit_seconds.py); links: bandwidth from other workers as last reported, in bytes per second; links_at:
    time of that report (link_speeds.py); finishes: it has returned with a reported step that was prepared,
    which it applies before its Ready; exited: its agent has reported the end of its process
    (absent_holders.py). follows: it can follow a ring, or be followed (following.py).
    """

    worker: str
    session: str
    role: Literal["ring", "tasks"]
    joined_at: float
    joined_order: int
    host: str = ""
    pid: int = 0
    store_address: str = ""
    applied_step: int = 0
    holds_state: bool = False
    asked_generation: int = 0
    ready_generation: int = 0
    trainer_at: float | None = None
    between_since: float | None = None
    draining: bool = False
    drain_reason: str = ""
    drain_sent: bool = False
    awaited: bool = False
    reason: str = ""
    held_until: float | None = None
    capacity: Capacity = "spot"
    leave_by: float | None = None
    rendezvous_key: bytes = b""
    unanswered_since: float | None = None
    device_type: str = ""
    est_seconds: float = 0.0
    measured_at: float = 0.0
    step_seconds: float = 0.0
    step_generation: int = 0
    ests_max: int = 0
    straggler: str = ""
    rate_ratio: float = 1.0
    straggler_at: float = 0.0
    units: tuple[UnitRange, ...] = ()
    speed: float = 0.0
    memory_bytes: int = 0
    units_at: float = 0.0
    links: dict[str, float] = {}
    links_at: float = 0.0
    follows: bool = False
    joined_generation: int = 0
    after_est_seconds: float = 0.0
    finishes: bool = False
    exited: bool = False

    @property
    def added_seconds(self) -> float:
        """Seconds that each EST that it hosts adds to a step; 0.0: not known."""
        return self.est_seconds + self.after_est_seconds

    def asked(self, now: float) -> None:
        """Note a Prepare; further ones do not extend the time for an answer."""
        if self.unanswered_since is None:
            self.unanswered_since = now


class EarlyEnd(msgspec.Struct, frozen=True):
    """Position at which a worker's script left its loop over epochs, and the digest of its state."""

    step: int
    epoch: int
    place: str
    state_digest: int | None = None


class Drift(msgspec.Struct):
    """A difference of state between members that report `step`. details: by worker."""

    generation: int
    step: int
    since: float
    details: dict[str, tuple[StateDetail, ...]] = {}


class CheckpointInFlight(msgspec.Struct):
    """A checkpoint being written. workers: writers of shard 0, 1, ...; the first also writes the manifest.

    closing: the ring ends once it is saved.
    """

    checkpoint: str
    step: int
    workers: tuple[str, ...]
    since: float
    requests: tuple[str, ...] = ()
    closing: bool = False
    files: dict[int, ManifestEntry] = {}


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint. step: first step not included. requests: ids of the requests it fulfils."""

    checkpoint: str
    step: int
    url: str
    saved_at: float
    requests: tuple[str, ...] = ()


class FailedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that could not be saved."""

    checkpoint: str
    step: int
    error: str
    requests: tuple[str, ...] = ()


class CheckpointBook(msgspec.Struct):
    """Checkpoints requested, being written, saved, failed.

    wanted: ids of requests not begun yet. saved: newest last; saved_step: step of the newest, -1 without any.
    rejected: checkpoints that a Load found unusable. not_before: time of the next attempt after a failed
    closing checkpoint.
    """

    wanted: tuple[str, ...] = ()
    in_flight: CheckpointInFlight | None = None
    saved: tuple[SavedCheckpoint, ...] = ()
    failed: tuple[FailedCheckpoint, ...] = ()
    rejected: tuple[str, ...] = ()
    saved_step: int = -1
    not_before: float = 0.0


class Following(msgspec.Struct):
    """A newcomer that follows the ring of `generation` from `step` on, by what `source` sends (following.py).

    session: of the newcomer. digests: step and digest by worker, as reported; proven: they are equal.
    """

    newcomer: str
    session: str
    source: str
    generation: int
    step: int
    since: float
    digests: dict[str, tuple[int, int]] = {}
    proven: bool = False


class Check(msgspec.Struct):
    """One EST's turn of one step, run by several workers.

    workers: those that must report a digest. votes: digests by worker, in hexadecimal; in a dispute they are
    kept while the step is run again. disputed: the digests differ.
    """

    step: int
    rank: int
    workers: tuple[str, ...]
    votes: dict[str, str] = {}
    disputed: bool = False

    @property
    def open(self) -> bool:
        """True if a digest is still missing."""
        return any(worker not in self.votes for worker in self.workers)


class SentinelBook(msgspec.Struct):
    """The sentinel's results about workers.

    check: check in the step being reported. hosted, clean: last step in which a worker's own EST, or anything
    it computed, was found right. faulty: workers found faulty, with the step; they never train again. doubts:
    checkpoints that may be corrupted. anew_generation: processes that were in a ring before this generation
    are ahead of the history, and must be restarted.
    """

    check: Check | None = None
    hosted: dict[str, int] = {}
    clean: dict[str, int] = {}
    #: Stored under its former name, so that older snapshots can be read.
    faulty: dict[str, int] = msgspec.field(name="liars", default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    anew_generation: int = 0


class BalanceBook(msgspec.Struct):
    """Changes of only the ranges (balance.py).

    changed_at: time of the last one; changes: number since the workers of the ring last changed.
    change_seconds: duration of the last planned change of the ring. tried: members before a change that has
    not been judged; tried_generation: of the resulting ring; tried_seconds: of a step before it. reverts: it
    made steps longer. backoff_until: no further change before that; backoff_seconds: length of the last
    backoff. ests_max: for device types on which workers ran out of memory.
    """

    changed_at: float | None = None
    changes: int = 0
    change_seconds: float = 1.0
    tried: tuple[Member, ...] = ()
    tried_generation: int = 0
    tried_seconds: float = 0.0
    reverts: bool = False
    backoff_until: float = 0.0
    backoff_seconds: float = 0.0
    ests_max: dict[str, int] = {}


class SpotBook(msgspec.Struct):
    """State of a deadline with spot and on-demand workers (deadline_on_spot.py).

    memory: of the policy. rungs: useful numbers of workers, with their last measured step seconds. rests:
    last measured seconds of a step without EST computation, by number of workers. look_at: latest time of the
    next decision. seen: spot and on-demand workers at the last decision.
    """

    memory: SpotMemory = SpotMemory()
    rungs: tuple[SpotRung, ...] = ()
    rests: dict[int, float] = {}
    look_at: float | None = None
    seen: tuple[int, int] = (0, 0)


class ScalingBook(msgspec.Struct):
    """Autoscaling state of a job (autoscaling.py).

    target: workers; 0: undecided, so the maximum. on_demand_target: of these, on demand. reason: of the
    targets; changed_at: their last change. predicted_finish_at, predicted_cost_micros: of the whole job.
    suspends: the budget is spent, and the job will be suspended. autoscaler: its memory. generation: of the
    ring being measured; disturbed: it has a straggler; settling: its first steps that are still to be
    skipped; steps: number counted; times: of the newest of these, in seconds. look_at: step count of the next
    decision. spot: for a deadline with on-demand workers. budget_spent: detected (budget.py).
    """

    target: int = 0
    on_demand_target: int = 0
    reason: str = ""
    changed_at: float | None = None
    predicted_finish_at: float | None = None
    predicted_cost_micros: int | None = None
    suspends: bool = False
    autoscaler: AutoscalerState = AutoscalerState()
    generation: int = 0
    steps: int = 0
    times: tuple[float, ...] = ()
    look_at: int = 0
    settling: int = 0
    disturbed: bool = False
    budget_spent: bool = False
    spot: SpotBook = msgspec.field(default_factory=SpotBook)


class Replacement(msgspec.Struct, frozen=True):
    """A straggler that is replaced in the ring of `generation`, which has not formed yet.

    cause, ratio: as in its record. rate_before, rate_after: steps per second, measured and expected.
    """

    worker: str
    newcomer: str
    host: str
    cause: str
    ratio: float
    generation: int
    rate_before: float
    rate_after: float


class StragglerBook(msgspec.Struct):
    """Replacements of stragglers (stragglers.py).

    changed_at: time of the last decision. replaced: times of replacements, by host. barred: time until which
    a host gets no worker. tried_generation: of a ring with an unjudged replacement, 0: none; tried_seconds:
    of a step before it. backoff_until: no further replacement before that; backoff_seconds: length of the
    last backoff.
    """

    changed_at: float | None = None
    replacing: Replacement | None = None
    replaced: dict[str, tuple[float, ...]] = {}
    barred: dict[str, float] = {}
    tried_generation: int = 0
    tried_seconds: float = 0.0
    backoff_until: float = 0.0
    backoff_seconds: float = 0.0


class UnitSeconds(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of one micro-batch in a unit on a device of speed 1; 0.0: not measured."""

    forward: float = 0.0
    backward: float = 0.0


class AbsentHolder(msgspec.Struct):
    """A worker whose stream has broken, and which held units after `step` steps (absent_holders.py).

    until: when it is no longer awaited. announced: an event says that it is awaited.
    """

    step: int
    units: tuple[UnitRange, ...]
    until: float
    announced: bool = False


class PipelineBook(msgspec.Struct):
    """State of a pipeline job.

    plan: of the newest ring that trained, kept while there is none (stage_plans.py). proposed: a better one
    for the current ring, to be adopted at a step boundary (replanning.py); changed_at: time of the last
    adoption; changes: adoptions since the workers last changed. measured: by unit; overhead: per micro-batch
    of a stage (unit_seconds.py); measurements: number of changes of these. links: last reported bandwidths by
    source and target host, in bytes per second (link_speeds.py). finished_units: of workers whose scripts
    have ended. workers_least: smallest number of workers whose memory holds the model; 0: not known
    (stage_memory.py). absent: holders that may return, by worker (absent_holders.py).
    """

    plan: StagePlan | None = None
    proposed: StagePlan | None = None
    changed_at: float | None = None
    changes: int = 0
    measured: tuple[UnitSeconds, ...] = ()
    measurements: int = 0
    links: dict[str, dict[str, tuple[float, ...]]] = {}
    finished_units: dict[str, tuple[UnitRange, ...]] = {}
    workers_least: int = 0
    overhead: UnitSeconds = UnitSeconds()
    absent: dict[str, AbsentHolder] = {}


class JobState(msgspec.Struct):
    """State of one job.

    original: the settings as created; `settings` may differ after a Scale. revision: counter of changes.
    decided_at: time of the last one; the next master's clock continues from there. join_due: end of the
    window in which joins are collected. grace_until: time until which members of the ring may return after a
    restart of the master. history_generation, fenced_claims: see held_state. finished: applied step at which
    each member's script ended; final_digests: of their state then. early_ends: members of the ring whose
    scripts left their loop over epochs; ended_step: step with which the training ended, once all had
    (endings.py). drift: a difference between members, under investigation (fingerprints.py). failures,
    failed_step, failed_generation: script errors in a row at one step. requests: operators' request ids that
    took effect, oldest first. deaths: when ring workers died, by worker id (quarantine.py). cost: cost of
    workers (cost.py). waiting_since: since when there have been too few workers, if the wait is limited;
    wait_until: when the present ones are released (waiting.py). sentinel: see sentinel.py. balance:
    see balance.py. stragglers: see stragglers.py. processes: of each worker id, in the order they came;
    process_starts: start of the newest of them as (clock, seconds), if reported (processes.py).
    pipeline: of a pipeline job. slots: of a model at parameter servers. following: the newcomer that follows
    the ring.
    """

    name: str
    original: JobSettings
    settings: JobSettings
    created_at: float
    phase: Phase = "waiting"
    reason: str = "no worker has joined yet"
    revision: int = 0
    decided_at: float = 0.0
    signature: Signature | None = None
    workers: dict[str, WorkerRecord] = {}
    joined_count: int = 0
    ring: RingState = msgspec.field(default_factory=RingState)
    steps: StepBook = msgspec.field(default_factory=StepBook)
    contexts: ContextTable = msgspec.field(default_factory=ContextTable)
    checkpoints: CheckpointBook = msgspec.field(default_factory=CheckpointBook)
    datasets: DatasetBook = msgspec.field(default_factory=DatasetBook)
    join_due: float | None = None
    grace_until: float | None = None
    suspending: bool = False
    history_generation: int = 0
    fenced_claims: dict[str, int] = {}
    finished: dict[str, int] = {}
    final_digests: dict[str, int] = {}
    early_ends: dict[str, EarlyEnd] = {}
    ended_step: int | None = None
    drift: Drift | None = None
    failures: int = 0
    failed_step: int = -1
    failed_generation: int = -1
    requests: dict[str, str] = {}
    deaths: dict[str, tuple[float, ...]] = {}
    cost: CostBook = msgspec.field(default_factory=CostBook)
    waiting_since: float | None = None
    wait_until: float | None = None
    sentinel: SentinelBook = msgspec.field(default_factory=SentinelBook)
    balance: BalanceBook = msgspec.field(default_factory=BalanceBook)
    stragglers: StragglerBook = msgspec.field(default_factory=StragglerBook)
    processes: dict[str, tuple[bytes, ...]] = {}
    process_starts: dict[str, tuple[str, float]] = {}
    scaling: ScalingBook = msgspec.field(default_factory=ScalingBook)
    pipeline: PipelineBook = msgspec.field(default_factory=PipelineBook)
    slots: SlotBook = msgspec.field(default_factory=SlotBook)
    following: Following | None = None

    @property
    def unit_count(self) -> int:
        """Number of units of a pipeline job's model; 0 for other jobs."""
        model = self.signature.pipeline if self.signature else None
        return len(model.units) if model else 0

    @property
    def workers_needed(self) -> int:
        """Minimum number of workers for a ring; all of them if recovery is fixed."""
        settings = self.settings
        if (
            self.finished
        ):  # members whose scripts ended are not missing: the rest may finish in a smaller ring
            return 1
        if settings.recovery == "fixed":
            return settings.workers_most
        return min(max(settings.workers_min, self.pipeline.workers_least), settings.workers_most)

    @property
    def total_steps(self) -> int:
        """Steps of the whole training; 0 while the script has not given them."""
        if self.ended_step is not None:
            return self.ended_step
        return self.signature.steps if self.signature else 0

    def begins_epoch(self, step: int) -> bool:
        """True if `step` is the first of one of several epochs; False while the script has not given them."""
        return (
            self.signature is not None
            and self.signature.steps_per_epoch > 1
            and (step % self.signature.steps_per_epoch == 0)
        )

    @property
    def steps_unsaved(self) -> int:
        """Committed steps in no checkpoint: they are repeated if no worker holds the state any more."""
        return max(0, self.steps.committed - max(self.checkpoints.saved_step, 0))

    @property
    def all_committed(self) -> bool:
        """True if every step of the training is committed: the members only have to finish."""
        return 0 < self.total_steps <= self.steps.committed

    def ring_workers(self) -> list[WorkerRecord]:
        """Workers with a session that train, in the order they joined."""
        return [record for record in self.workers.values() if record.role == "ring" and not record.awaited]

    def awaited(self) -> list[WorkerRecord]:
        """Workers of the ring that may still return after the master's restart."""
        if self.grace_until is None:  # called at every Ready: without a grace no worker can be awaited
            return []
        return [record for record in self.workers.values() if record.awaited and record.role == "ring"]

    def active_members(self) -> list[WorkerRecord]:
        """The ring's members that have not ended, in the ring's order."""
        return [self.workers[name] for name in self.ring.names()]

    def lagging(self, lags: Callable[[WorkerRecord], bool]) -> bool:
        """True if `lags` holds for an active member.

        Called at every message of a step, each of which clears one member: the search continues where it
        found a member the last time, and so visits each member once per step instead of N times.
        """
        ring, count = self.ring, len(self.ring.members)
        first = ring.__dict__.get("lagging", 0)
        for place in chain(range(first, count), range(min(first, count))):
            worker = ring.members[place].worker
            if worker not in ring.gone and lags(self.workers[worker]):
                ring.__dict__["lagging"] = place
                return True
        return False
