"""Every kind of event in a job's history, as a struct with typed fields. Pure.

The master's `decisions` create them, one `note` each; they are stored and served as structs, with the text
of `describe`. Programs read the fields, never the prose.

    kind     what people filter by (`elastane events --kind`); some kinds have several structs
    facts    the fields that the text form has too, beside its sentence
    about    the worker that the event is about; empty: the whole job

Long text fields are truncated (`clipped`), since workers and scripts write into them; other fields are
complete. All events are counted by kind (`elastane_events_total`), shown by `elastane events`, `top` and the
dashboard, and logged by the master; docstrings name only who else reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, TypeVar

import msgspec


def _tag(name: str) -> str:
    """ "ring_announced" of RingAnnounced: also the name of the field in `Event` of ring.proto."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class HistoryEvent(msgspec.Struct, frozen=True, tag=_tag):
    """Base of all events."""

    kind: ClassVar[str] = ""
    facts: ClassVar[tuple[str, ...]] = ()

    @property
    def about(self) -> str:
        """The worker that this is about; empty: the whole job."""
        return str(getattr(self, "worker", ""))


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker's place in a ring: it hosts virtual ranks [start, end)."""

    worker: str
    start: int
    end: int


class StagePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Units [first_unit, end_unit) of a pipeline: replicas run them, shadows hold them too."""

    first_unit: int
    end_unit: int
    replicas: tuple[str, ...]
    shadows: tuple[str, ...] = ()
    memory: str = "plain"


class Vote(msgspec.Struct, frozen=True):
    """A worker's result in a comparison with others."""

    worker: str
    digest: str


class DevicePrices(msgspec.Struct, frozen=True):
    """Price of a worker of one device type per hour; None: as of all device types."""

    device_type: str
    spot_micros: int | None = None
    on_demand_micros: int | None = None


class Prices(msgspec.Struct, frozen=True):
    """Price of a worker per hour, in millionths of the currency; 0: unknown. devices: those of their own."""

    spot_micros: int
    on_demand_micros: int
    currency: str
    devices: tuple[DevicePrices, ...] = ()


class Spent(msgspec.Struct, frozen=True):
    """Cost of a job so far. savings: share of the price on demand; None: there is no baseline.

    *_nanos: worker-time in nanoseconds; *_micros: millionths of the currency.
    """

    currency: str
    spent_micros: int
    on_demand_micros: int
    saved_micros: int
    savings: float | None
    worker_nanos: int
    useful_nanos: int
    replayed_nanos: int
    idle_nanos: int
    unpriced_nanos: int
    priced: bool


Event = TypeVar("Event", bound=HistoryEvent)


def clipped(event: Event, clip: Callable[[str], str]) -> Event:
    """Return the event with `clip` applied to each of its texts."""
    changed = {
        name: short
        for name in event.__struct_fields__
        if isinstance(text := getattr(event, name), str) and (short := clip(text)) is not text
    }
    return msgspec.structs.replace(event, **changed) if changed else event


# ------------------------------------------------------------------ the life of a job


class JobCreated(HistoryEvent, frozen=True):
    """A job was created. Written by `machine` when a master begins to serve it."""

    kind = "job_created"
    ests: int
    workers_min: int
    workers_max: int


class JobRepaired(HistoryEvent, frozen=True):
    """A damaged job is served again. lost: what an operator accepted to lose. Written by `hosts`."""

    kind = "job_repaired"
    lost: str


class JobWaiting(HistoryEvent, frozen=True):
    """No ring can be formed, or the job was resumed. Written by `life`."""

    kind = "job_waiting"
    why: str


class JobRunning(HistoryEvent, frozen=True):
    """A ring is formed where there was none. Written by `life`."""

    kind = "job_running"
    why: str


class JobSuspended(HistoryEvent, frozen=True):
    """Training stopped until Resume. Written by `life`; ends a ring (`fold`), an incident of reports."""

    kind = "job_suspended"
    why: str


class JobMaxWaitExceeded(HistoryEvent, frozen=True):
    """Too few workers joined in time, and those present were released. lost: steps after the checkpoint.

    Written by `waiting`.
    """

    kind = "job_max_wait_exceeded"
    facts = ("there", "needed", "max_wait_seconds", "lost")
    why: str
    there: int
    needed: int
    max_wait_seconds: float
    lost: int


class JobSucceeded(HistoryEvent, frozen=True):
    """The job is over. Written by `life`; ends a ring and the timeline."""

    kind = "job_succeeded"
    why: str


class JobFailed(HistoryEvent, frozen=True):
    """The job is over. Written by `life`; ends a ring and the timeline, an incident of reports."""

    kind = "job_failed"
    why: str


class JobCancelled(HistoryEvent, frozen=True):
    """The job is over. Written by `life`; ends a ring and the timeline."""

    kind = "job_cancelled"
    why: str


class JobResumed(HistoryEvent, frozen=True):
    """An operator resumed a job that was suspended, failed or had waited too long. phase, why: before that.

    Written by `operators`; an agent waits for it after `SentinelUndecided`.
    """

    kind = "job_resumed"
    phase: str
    why: str


class SuspensionCalledOff(HistoryEvent, frozen=True):
    """The job was resumed before the suspension took effect. Written by `operators`."""

    kind = "job_resumed"


class SuspensionGivenUp(HistoryEvent, frozen=True):
    """The checkpoint before a suspension could not be saved. Written by `boundary`."""

    kind = "job_running"


class StepsUnsaved(HistoryEvent, frozen=True):
    """The job was suspended. lost: steps that are in no checkpoint. Written by `life`."""

    kind = "job_suspended"
    facts = ("lost",)
    lost: int


class EndedEarly(HistoryEvent, frozen=True):
    """Every worker's script left its loop at the same place. Written by `endings`."""

    kind = "ended_early"
    facts = ("epoch", "at_step")
    epoch: int
    at_step: int
    place: str


class JobCost(HistoryEvent, frozen=True):
    """Cost of the job when it entered a phase without training. Written by `life`."""

    kind = "job_cost"
    phase: str
    spent: Spent


class PricesChanged(HistoryEvent, frozen=True):
    """An operator changed the prices. spent: until now. Written by `operators`."""

    kind = "prices_changed"
    now: Prices
    before: Prices
    spent: Spent


# ------------------------------------------------------------------ masters


class MasterStarted(HistoryEvent, frozen=True):
    """A master leads a job without workers. Written by `sessions`; a mark of the timeline."""

    kind = "master_started"
    facts = ("master",)
    master: str


class MasterRecovered(HistoryEvent, frozen=True):
    """A master took over. awaited: workers that may return within grace_seconds. Written by `sessions`.

    A mark of the timeline, an incident of reports.
    """

    kind = "master_recovered"
    facts = ("master",)
    master: str
    awaited: int
    grace_seconds: float


# ------------------------------------------------------------------ workers


class WorkerJoined(HistoryEvent, frozen=True):
    """A newcomer. role: "ring" or "tasks". Written by `sessions`; a mark of `fold`; agents (`sent_away`)."""

    kind = "worker_joined"
    facts = ("host",)
    worker: str
    role: str
    host: str


class WorkerReturned(HistoryEvent, frozen=True):
    """A member came back to a restarted master. Written by `sessions`; read as `WorkerJoined`."""

    kind = "worker_joined"
    worker: str


class WorkerStandby(HistoryEvent, frozen=True):
    """A newcomer stands by: the ring is full. Written by `sessions`; ends the mark of its joining."""

    kind = "worker_standby"
    worker: str
    ring_workers: int


class WorkerLost(HistoryEvent, frozen=True):
    """A worker is dead. Written by `sessions`; a mark of `fold`, counted as a death.

    how: "stream" (it broke, or heartbeats were missed: why), "raised" (the script did: why), "new_session",
    "started_anew", "not_returned" (within grace_seconds of a master's restart), "replaced" (another process
    joined with its id, why: which); "": not known.
    """

    kind = "worker_lost"
    worker: str
    how: str
    why: str = ""
    grace_seconds: float = 0.0


class WorkerExited(HistoryEvent, frozen=True):
    """A worker's process ended other than it should have, as its agent saw. Written by `sessions`.

    how: "ended by SIGKILL", "exit code 1". out_of_memory: evidence that the kernel killed it because memory
    was short; "": there is none. last_words: the end of its output.
    """

    kind = "worker_exited"
    worker: str
    how: str
    out_of_memory: str = ""
    last_words: str = ""


class LogFilesIncomplete(HistoryEvent, frozen=True):
    """Output of workers is missing in the files of `--log-dir`, as their agent says. Written by `sessions`.

    host: of the agent. location: folder or URL. why: the first write that failed, in the storage's words.
    """

    kind = "log_files_incomplete"
    host: str
    location: str
    why: str


class WorkerEvicted(HistoryEvent, frozen=True):
    """A worker was evicted: it hung, or computed wrongly. Written by `sessions`; a mark, counted."""

    kind = "worker_evicted"
    worker: str
    why: str


class WorkerLeft(HistoryEvent, frozen=True):
    """A worker ended as it should. finished: its script came to its end; else it was drained.

    Written by `sessions`; a mark of `fold`.
    """

    kind = "worker_left"
    worker: str
    finished: bool
    why: str


class WorkerDraining(HistoryEvent, frozen=True):
    """A worker leaves at the next step boundary. Written by `sessions`; a mark of `fold`, counted by `by`.

    by: "operator", "agent" (of a worker on another host), "signal", "reclaim" (its node's end was announced),
    "straggler" (another replaced it); "": not known. An agent does not restart a worker that an operator
    drained.
    """

    kind = "worker_draining"
    worker: str
    why: str
    by: str


class WorkerQuarantined(HistoryEvent, frozen=True):
    """A worker died too often within the window and stands by for a while. Written by `quarantine`."""

    kind = "worker_quarantined"
    facts = ("deaths", "delay_seconds")
    worker: str
    deaths: int
    delay_seconds: float
    window_seconds: float


class WorkerBarred(HistoryEvent, frozen=True):
    """A worker that computed wrongly in a step stands by for good. Written by `quarantine`."""

    kind = "worker_quarantined"
    facts = ("at_step",)
    worker: str
    at_step: int


class HostBarred(HistoryEvent, frozen=True):
    """A worker stands by because stragglers on its host were replaced. Written by `quarantine`."""

    kind = "host_barred"
    facts = ("host", "delay_seconds")
    worker: str
    host: str
    delay_seconds: float


class StragglerReweighted(HistoryEvent, frozen=True):
    """A worker slower than others on its device type will host fewer ESTs. Written by `stragglers`.

    cause: "compute", "data" or "network". ratio: its rate divided by theirs. rate_before, rate_after:
    steps per second, as measured and as expected; 0: not known.
    """

    kind = "straggler_reweighted"
    facts = ("cause", "ratio", "ests_before", "ests", "rate_before", "rate_after")
    worker: str
    cause: str
    ratio: float
    ests_before: int
    ests: int
    rate_before: float
    rate_after: float


class StragglerReplaced(HistoryEvent, frozen=True):
    """Another worker has replaced a straggler in the ring. Written by `stragglers`; read by agents.

    cause, ratio, rate_before, rate_after: as of `StragglerReweighted`. host: the straggler's; barred_seconds:
    for how long it gets no worker, 0: it is not barred.
    """

    kind = "straggler_replaced"
    facts = ("newcomer", "cause", "ratio", "rate_before", "rate_after", "host", "barred_seconds")
    worker: str
    newcomer: str
    cause: str
    ratio: float
    host: str
    barred_seconds: float
    rate_before: float
    rate_after: float


class WorkerReleased(HistoryEvent, frozen=True):
    """A worker has stood by long enough. Written by `quarantine`; a mark of `fold`, as of a join."""

    kind = "worker_released"
    worker: str


class NoticeOver(HistoryEvent, frozen=True):
    """A worker is still running when its node's notice is over. in_ring: it hosts ESTs.

    Written by `notices`.
    """

    kind = "notice_over"
    worker: str
    in_ring: bool


class NoticeOverUnsaved(HistoryEvent, frozen=True):
    """A notice is over, and the checkpoint waited for is not saved. lost: steps that will be done again.

    Written by `notices`.
    """

    kind = "notice_over"
    facts = ("checkpoint", "lost")
    worker: str
    checkpoint: str
    at_step: int
    waited_seconds: float
    lost: int


# ------------------------------------------------------------------ the ring


class RingAnnounced(HistoryEvent, frozen=True):
    """The next ring was decided; without members: there is none. Written by `ring`.

    members: all of them, in the ring's order. planned: at a step boundary, so that nothing is dropped.
    whole: False where an older master has stored the first members only. cause: label of the metric
    `elastane_ring_changes_total`; empty: not known. Read by `fold`, and by it in metrics, spans, the
    timeline, `explain`, `report`; by the filter of events, for which it is about all its members.
    """

    kind = "ring_change"
    facts = ("members", "planned")
    members: tuple[Place, ...]
    planned: bool
    why: str
    whole: bool = True
    cause: str = ""


class RingScaled(HistoryEvent, frozen=True):
    """An operator changed the number of workers, from the next step boundary on. Written by `operators`.

    A mark of `fold`.
    """

    kind = "ring_change"
    facts = ("workers_min", "workers_max")
    workers_min: int
    workers_max: int


class ScalingSet(HistoryEvent, frozen=True):
    """An operator set how the master chooses the number of workers. Written by `operators`.

    mode: "": back to workers_max. A mark of `fold`.
    """

    kind = "scaling_set"
    facts = ("mode", "workers_min", "workers_max")
    mode: str
    workers_min: int
    workers_max: int


class JobAutoscaled(HistoryEvent, frozen=True):
    """The master asks for another number of workers. Written by `autoscaling`; a mark of `fold`, explained.

    on_demand: of the workers, on demand. rate_before: steps a second as measured; rate_predicted: with the
    new number. 0: unknown.
    """

    kind = "scaled"
    facts = ("workers_before", "workers", "on_demand", "mode", "rate_before", "rate_predicted")
    workers_before: int
    workers: int
    on_demand: int
    mode: str
    why: str
    rate_before: float = 0.0
    rate_predicted: float = 0.0


class ScaleRolledBack(HistoryEvent, frozen=True):
    """A new number of workers missed its predicted speed. Written by `autoscaling`; a mark of `fold`.

    rate_before, rate_after: steps a second as measured with `workers` and with `workers_tried`.
    """

    kind = "scale_rolled_back"
    facts = ("workers_tried", "workers", "mode", "rate_before", "rate_after")
    workers_tried: int
    workers: int
    mode: str
    why: str
    rate_before: float
    rate_after: float
    barred_seconds: float


class RingFormed(HistoryEvent, frozen=True):
    """Every member is ready: Go is out. Written by `ring`; read by `fold`, metrics and spans.

    receivers: members that get the state from the donors.
    """

    kind = "ring_formed"
    facts = ("resume_step", "donors")
    workers: int
    receivers: int
    resume_step: int
    donors: int


class StagesPlanned(HistoryEvent, frozen=True):
    """A pipeline's units were assigned to workers. Written by `pipelines` with a Go; shown on the timeline.

    replanned: among the same workers, at a step boundary. step_seconds, step_seconds_before: of a step with
    these stages and with those before, as predicted; 0: not known.
    """

    kind = "stages_planned"
    facts = ("replanned", "step_seconds", "step_seconds_before")
    stages: tuple[StagePlace, ...]
    replanned: bool
    why: str
    step_seconds: float = 0.0
    step_seconds_before: float = 0.0


class UnitsLost(HistoryEvent, frozen=True):
    """No worker holds some units of a pipeline any more. Written by `ring` before a Load; an incident.

    units: in words. at_step: steps after which the others hold theirs.
    """

    kind = "units_lost"
    facts = ("units", "at_step")
    units: str
    at_step: int


class UnitsAwaited(HistoryEvent, frozen=True):
    """Some units of a pipeline have no connected holder, and may come back. Written by `absent_holders`.

    units: in words. at_step: as of UnitsLost. workers: held them until their streams broke. seconds: the time
    they have to return.
    """

    kind = "units_awaited"
    facts = ("units", "at_step", "workers", "seconds")
    units: str
    at_step: int
    workers: tuple[str, ...]
    seconds: float


class PipelineWithout(HistoryEvent, frozen=True):
    """Options of a job that do not apply to its pipeline were turned off. Written by `pipelines`."""

    kind = "pipeline_without"
    facts = ("options",)
    options: str


# ------------------------------------------------------------------ the history of steps


class CheckpointLoaded(HistoryEvent, frozen=True):
    """Training continues from a checkpoint. begins: the job's history begins with it. Written by `ring`."""

    kind = "checkpoint_loaded"
    facts = ("at_step",)
    worker: str
    checkpoint: str
    at_step: int
    begins: bool


class HistoryRewound(HistoryEvent, frozen=True):
    """No worker held the state: steps are repeated from a checkpoint; empty: the script's initial state.

    Written by `ring`; a mark of the timeline, an incident of reports.
    """

    kind = "history_rewound"
    facts = ("from_step", "to_step")
    worker: str
    checkpoint: str
    from_step: int
    to_step: int


class StoreBehind(HistoryEvent, frozen=True):
    """The store has lost acknowledged writes. worker: the one whose message shows it. Written by `forgotten`.

    An incident of reports.
    """

    kind = "store_behind"
    worker: str
    why: str


class HistoryRestored(HistoryEvent, frozen=True):
    """Steps [from_step, to_step) that the store lost were resent by workers. Written by `forgotten`."""

    kind = "history_restored"
    facts = ("from_step", "to_step")
    from_step: int
    to_step: int
    workers: tuple[str, ...]


class HistoryForgotten(HistoryEvent, frozen=True):
    """Steps [to_step, from_step) are repeated: the store lost them. missing: workers that resent no part.

    Written by `forgotten`; a mark of the timeline, an incident of reports.
    """

    kind = "history_forgotten"
    facts = ("from_step", "to_step")
    from_step: int
    to_step: int
    missing: str


class IntervalLost(HistoryEvent, frozen=True):
    """The code before a step must run again: the workers that ran it are gone. Written by `intervals`."""

    kind = "interval_lost"
    facts = ("at_step",)
    at_step: int
    why: str


class StateDiffers(HistoryEvent, frozen=True):
    """These workers hold different state at the start of a step. Written by `fingerprints`."""

    kind = "state_differs"
    workers: tuple[str, ...]
    at_step: int


# ------------------------------------------------------------------ checkpoints


class CheckpointRequested(HistoryEvent, frozen=True):
    """The members save a checkpoint. Written by `checkpoints`; metrics time it.

    Folded into one line with its like, as `CheckpointSaved`.
    """

    kind = "checkpoint_requested"
    facts = ("checkpoint", "at_step", "shards")
    checkpoint: str
    at_step: int
    shards: int
    why: str


class CheckpointFailed(HistoryEvent, frozen=True):
    """A checkpoint was abandoned. again: its requests pass to the next one.

    Written by `checkpoints`; counted.
    """

    kind = "checkpoint_failed"
    facts = ("checkpoint", "at_step", "again")
    checkpoint: str
    at_step: int
    again: bool
    why: str


class CheckpointRejected(HistoryEvent, frozen=True):
    """A checkpoint could not be used. Written by `checkpoints` when a leader has loaded another."""

    kind = "checkpoint_rejected"
    why: str


class CheckpointSaved(HistoryEvent, frozen=True):
    """A checkpoint is complete. sha256: of the lines "FILE SHA256" of its shards, in order; bytes: of all.

    Written by `checkpoints`; read by metrics, the timeline, reports and `folding`.
    """

    kind = "checkpoint_saved"
    facts = ("checkpoint", "at_step", "bytes", "sha256")
    checkpoint: str
    at_step: int
    bytes: int
    sha256: str
    shards: int


# ------------------------------------------------------------------ broken hardware


class SentinelDifference(HistoryEvent, frozen=True):
    """Two workers computed different gradients for an EST. Written by `verdicts`."""

    kind = "sentinel_difference"
    facts = ("virtual_rank", "at_step", "votes")
    workers: tuple[str, ...]
    virtual_rank: int
    at_step: int
    votes: tuple[Vote, ...]


class SentinelFaulty(HistoryEvent, frozen=True):
    """These workers computed wrongly; results from a step on are in doubt. Written by `verdicts`."""

    kind = "sentinel_faulty"
    facts = ("virtual_rank", "at_step", "doubtful_from")
    faulty: tuple[str, ...]
    right: tuple[str, ...]
    virtual_rank: int
    at_step: int
    doubtful_from: int

    @property
    def about(self) -> str:
        """The first of them."""
        return self.faulty[0] if self.faulty else ""


class SentinelUndecided(HistoryEvent, frozen=True):
    """Workers differ, and it cannot be decided which is right: the job is suspended. Written by `ring`.

    third_missing: there was no third worker to decide; otherwise no two of them agree. Until `JobResumed` an
    agent ends with a special exit code.
    """

    kind = "sentinel_undecided"
    facts = ("at_step", "virtual_rank", "doubtful_from")
    workers: tuple[str, ...]
    third_missing: bool
    at_step: int
    virtual_rank: int
    doubtful_from: int


# ------------------------------------------------------------------ dynamic tasks


class DatasetCreated(HistoryEvent, frozen=True):
    """A dynamic dataset was created. Written by `datasets`."""

    kind = "dataset_created"
    facts = ("dataset",)
    dataset: str
    task_size: int
    epochs: int


class TaskFailed(HistoryEvent, frozen=True):
    """An attempt at a task failed. parked: it was the last one. Written by `datasets`."""

    kind = "task_failed"
    facts = ("dataset", "epoch", "index", "attempt", "parked")
    worker: str
    dataset: str
    epoch: int
    index: int
    attempt: int
    parked: bool
    error: str


class TaskTimedOut(HistoryEvent, frozen=True):
    """The lease of a task ran out. parked: it was the last attempt. Written by `datasets`."""

    kind = "task_timed_out"
    facts = ("dataset", "epoch", "index", "attempt", "parked")
    worker: str
    dataset: str
    epoch: int
    index: int
    attempt: int
    parked: bool
    error: str


class MoreTasksFailed(HistoryEvent, frozen=True):
    """count: tasks that failed together with those that have events of their own. Written by `datasets`."""

    kind = "task_failed"
    facts = ("dataset",)
    dataset: str
    count: int


class MoreTasksTimedOut(HistoryEvent, frozen=True):
    """count: leases that ran out together with those that have events of their own. Written by `datasets`."""

    kind = "task_timed_out"
    facts = ("dataset",)
    dataset: str
    count: int


# ------------------------------------------------------------------ parameter servers


class ModelRegistered(HistoryEvent, frozen=True):
    """The first worker has registered the job's model. Written by `slots.model`."""

    kind = "model_registered"
    facts = ("slots", "tensors", "tables")
    worker: str
    slots: int
    tensors: int
    tables: int


class PsJoined(HistoryEvent, frozen=True):
    """A parameter server joined. returned: it still has its slots. Written by `slots.processes`."""

    kind = "ps_joined"
    facts = ("host", "returned")
    worker: str
    host: str
    returned: bool


class PsLost(HistoryEvent, frozen=True):
    """A parameter server was lost. Written by `slots.processes`.

    restored: number of its slots that go back to a snapshot. promoted: of those that their backup took over.
    """

    kind = "ps_lost"
    facts = ("restored", "promoted")
    worker: str
    why: str
    restored: int
    promoted: int


class PsDraining(HistoryEvent, frozen=True):
    """A parameter server is being drained; its slots move first. Written by `slots.processes`."""

    kind = "ps_draining"
    facts = ("slots",)
    worker: str
    why: str
    slots: int


class PsLeft(HistoryEvent, frozen=True):
    """A parameter server has left, after its slots had moved. Written by `slots.processes`."""

    kind = "ps_left"
    worker: str
    why: str


class SlotsMoved(HistoryEvent, frozen=True):
    """Slots have moved to their highest-ranked processes. Written by `slots.copies`.

    moved: number of slots with a new owner. copied: with a new backup. seconds: since the first began.
    """

    kind = "slots_moved"
    facts = ("moved", "copied")
    moved: int
    copied: int
    seconds: float


class SlotsRestored(HistoryEvent, frozen=True):
    """Slots were read from snapshots at their owner. Written by `slots.restoring`.

    slots: in words. fresh: they start from the initial values. rejected: a snapshot that could not be used.
    """

    kind = "slots_restored"
    facts = ("slots", "fresh")
    worker: str
    slots: str
    fresh: bool
    rejected: str = ""


class SlotsUnrestored(HistoryEvent, frozen=True):
    """No snapshot of a slot can be used, though tasks are DONE: it waits. Written by `slots.restoring`."""

    kind = "slots_unrestored"
    facts = ("slot",)
    worker: str
    slot: int
    why: str


class SlotsRewound(HistoryEvent, frozen=True):
    """An operator took all slots back to a checkpoint. Written by `slots.checkpoints`."""

    kind = "slots_rewound"
    facts = ("checkpoint",)
    checkpoint: str


class SlotsUnsaved(HistoryEvent, frozen=True):
    """Snapshots of a parameter server cannot be written. Written by `slots.checkpoints`, once."""

    kind = "slots_unsaved"
    worker: str
    why: str


class SlotsCheckpointed(HistoryEvent, frozen=True):
    """A checkpoint of all slots is complete. Written by `slots.checkpoints`.

    tasks: number of DONE tasks in it. surplus: number of further tasks that some of its slots contain: in
    flight, or FAILED.
    """

    kind = "slots_checkpointed"
    facts = ("checkpoint", "tasks", "surplus")
    checkpoint: str
    tasks: int
    surplus: int
    bytes: int


class TasksReopened(HistoryEvent, frozen=True):
    """DONE tasks are done again, as a slot has lost them. Written by `slots.restoring`.

    first: index of the first of them.
    """

    kind = "tasks_reopened"
    facts = ("dataset", "epoch", "first", "count", "slot")
    dataset: str
    epoch: int
    first: int
    count: int
    slot: int


class TaskLeftParts(HistoryEvent, frozen=True):
    """A FAILED task was closed in every slot. Written by `slots.closing`.

    slots: number of slots that keep its gradients.
    """

    kind = "task_left_parts"
    facts = ("dataset", "epoch", "index", "slots")
    dataset: str
    epoch: int
    index: int
    slots: int


class NonFiniteGradient(HistoryEvent, frozen=True):
    """A task's gradients have a NaN or an infinity, so the job fails. Written by `slots.leasing`."""

    kind = "non_finite_gradient"
    facts = ("dataset", "epoch", "index")
    worker: str
    dataset: str
    epoch: int
    index: int
    error: str


class UnknownEvent(HistoryEvent, frozen=True):
    """An event of a kind that only a newer release knows; only its text can be read."""


AnyHistoryEvent = (
    JobCreated
    | JobRepaired
    | JobWaiting
    | JobRunning
    | JobSuspended
    | JobMaxWaitExceeded
    | JobSucceeded
    | JobFailed
    | JobCancelled
    | JobResumed
    | SuspensionCalledOff
    | SuspensionGivenUp
    | StepsUnsaved
    | EndedEarly
    | JobCost
    | PricesChanged
    | MasterStarted
    | MasterRecovered
    | WorkerJoined
    | WorkerReturned
    | WorkerStandby
    | WorkerLost
    | WorkerExited
    | LogFilesIncomplete
    | WorkerEvicted
    | WorkerLeft
    | WorkerDraining
    | WorkerQuarantined
    | WorkerBarred
    | HostBarred
    | StragglerReweighted
    | StragglerReplaced
    | WorkerReleased
    | NoticeOver
    | NoticeOverUnsaved
    | RingAnnounced
    | RingScaled
    | ScalingSet
    | JobAutoscaled
    | ScaleRolledBack
    | RingFormed
    | StagesPlanned
    | UnitsLost
    | UnitsAwaited
    | PipelineWithout
    | CheckpointLoaded
    | HistoryRewound
    | StoreBehind
    | HistoryRestored
    | HistoryForgotten
    | IntervalLost
    | StateDiffers
    | CheckpointRequested
    | CheckpointFailed
    | CheckpointRejected
    | CheckpointSaved
    | SentinelDifference
    | SentinelFaulty
    | SentinelUndecided
    | DatasetCreated
    | TaskFailed
    | TaskTimedOut
    | MoreTasksFailed
    | MoreTasksTimedOut
    | ModelRegistered
    | PsJoined
    | PsLost
    | PsDraining
    | PsLeft
    | SlotsMoved
    | SlotsRestored
    | SlotsUnrestored
    | SlotsRewound
    | SlotsUnsaved
    | SlotsCheckpointed
    | TasksReopened
    | TaskLeftParts
    | NonFiniteGradient
)
