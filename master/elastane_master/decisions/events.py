"""Every event that the decision code handles, and its refusal.

Events are values. The edge (gRPC, timers) makes them, `JobMachine.handle` decides on
them, and the write-ahead stream stores those that changed the state; replaying the
stored ones gives the state back. Therefore an event carries everything the decision
depends on, and times are seconds since the Unix epoch handed in as `now`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elastane_master.decisions.event import Event as Event
from elastane_master.decisions.slot_events import AnySlotEvent
from elastane_master.decisions.stages import StagePlan
from elastane_proto.generator_positions import GeneratorPosition
from elastane_proto.job_settings import OverBudget, SpotPolicy
from elastane_shards.settings import QueueSettings

Parts = dict[str, bytes]
"""An EST context, flat: "rng/python", "stream/0/rng/numpy", "loader", "item/NAME" -> raw bytes."""


Change = int | bytes
"""Change of a part of a context between two epochs: raw draws of a generator, or the part itself."""


#: How a worker's machine is paid for; workers of jobs stored before there were costs count as spot.
Capacity = Literal["spot", "on_demand"]


class TensorSpec(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str


class PipelineUnit(msgspec.Struct, frozen=True):
    """A consecutive, indivisible part of a model, as in pipeline.proto. Times of 0: not measured."""

    name: str
    parameter_bytes: int = 0
    buffer_bytes: int = 0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    boundary_bytes: int = 0
    activation_bytes: int = 0
    optimizer_bytes: int = 0
    tie: int = 0
    workspace_bytes: int = 0


class PipelineModel(msgspec.Struct, frozen=True):
    """The model of a pipeline job. waves: micro-batches of each EST in a step. Overheads: of one micro-batch
    on a stage, beside its units; 0: not measured."""

    units: tuple[PipelineUnit, ...]
    waves: int = 1
    forward_overhead_seconds: float = 0.0
    backward_overhead_seconds: float = 0.0


class UnitRange(msgspec.Struct, frozen=True, array_like=True):
    """Units [first_unit, end_unit)."""

    first_unit: int
    end_unit: int


class Signature(msgspec.Struct, frozen=True):
    """Properties that must be equal in all workers of a job. pipeline: None: the model is not cut."""

    tensors: tuple[TensorSpec, ...] = ()
    dataset_size: int = 0
    batch_size: int = 0
    steps_per_epoch: int = 0
    epochs: int = 0
    environment: dict[str, str] = {}
    pipeline: PipelineModel | None = None

    @property
    def steps(self) -> int:
        """Steps of the whole training; 0 while that is not known."""
        all_steps = self.epochs * self.steps_per_epoch
        limit = self.environment.get("max_steps", "")
        return min(all_steps, int(limit)) if limit.isdecimal() and int(limit) else all_steps


class ContextDelta(msgspec.Struct, frozen=True):
    """Parts of one EST's context that changed in a step (or all of them: `delta` False).

    positions: only in the delta of a step report: generators whose words are those of the context before.
    """

    virtual_rank: int
    parts: Parts
    delta: bool = True
    positions: dict[str, GeneratorPosition] = {}


class StepTask(msgspec.Struct, frozen=True):
    """A lockstep task as it was done; start/end are positions in the epoch's order."""

    virtual_rank: int
    start: int
    end: int
    samples: tuple[int, ...] = ()
    metrics: dict[str, float] = {}


# ------------------------------------------------------------------ sessions


class WorkerJoined(Event, frozen=True, tag=True):
    """Hello. `generation`/`applied_step`/`holds_state` count on a reconnect.

    history_generation: the history that its weights belong to (held_state.py); 0: not known. process,
    process_started_seconds, process_clock: identify the process among those of its worker id, and their order
    (processes.py). memory_bytes: of a pipeline: memory limit of its stage; 0: not known. follows: it can
    follow a ring, and be followed (following.py).
    """

    worker: str
    session: str  # unique per stream: a message of an older stream of the same worker is ignored
    role: Literal["ring", "tasks"]
    signature: Signature
    host: str = ""
    pid: int = 0
    store_address: str = ""
    generation: int = 0
    applied_step: int = 0
    holds_state: bool = False
    capacity: Capacity = "spot"
    history_generation: int = 0
    rendezvous_key: bytes = b""  # of its store, for which the master makes the generations' secrets
    process: bytes = b""
    process_started_seconds: float = 0.0
    process_clock: str = ""
    memory_bytes: int = 0
    follows: bool = False


class StreamLost(Event, frozen=True, tag=True):
    """The stream ended without Bye, or no heartbeat came for too long."""

    worker: str
    session: str
    reason: str


class FilesIncomplete(Event, frozen=True, tag=True):
    """An agent could not write all output of its workers to files. Fields as in `LogFilesIncomplete`."""

    host: str
    location: str
    why: str


class ExitReported(Event, frozen=True, tag=True):
    """An agent has seen a worker's process end other than it should have. Fields as in `WorkerExited`."""

    worker: str
    how: str
    out_of_memory: str = ""
    last_words: str = ""


class ReadyReported(Event, frozen=True, tag=True):
    """Ready. units: of a pipeline, those that it holds."""

    worker: str
    session: str
    generation: int
    applied_step: int
    holds_state: bool
    units: tuple[UnitRange, ...] = ()


class LoadedReported(Event, frozen=True, tag=True):
    worker: str
    session: str
    generation: int
    step: int
    contexts: tuple[ContextDelta, ...]  # all N, complete
    ready_order: tuple[int, ...] = ()
    checkpoint: str = ""
    rejected: tuple[str, ...] = ()


class StepReported(Event, frozen=True, tag=True):
    worker: str
    session: str
    generation: int
    step: int
    epoch: int
    contexts: tuple[ContextDelta, ...]
    tasks: tuple[StepTask, ...]
    ready_order: tuple[int, ...] = ()
    settings_digest: int | None = None
    state_digest: int | None = None
    goes_ahead: bool = False


class AppliedReported(Event, frozen=True, tag=True):
    """From a Heartbeat.

    device_type, est_seconds, after_est_seconds, est_steps, ring_generation, ring_step_seconds, ring_steps,
    ests_max: as in WorkerFigures, whose generation may be older than the heartbeat's (balance.py). straggler,
    rate_ratio: what follows from the rates in these and earlier figures (stragglers.py). first_unit,
    unit_forward_seconds, unit_backward_seconds, overheads, memory_bytes: of a pipeline, as in WorkerFigures
    (unit_seconds.py), as are link_workers and link_bytes_per_second (link_speeds.py).
    """

    worker: str
    session: str
    generation: int
    applied_step: int
    between_steps: bool = False
    device_type: str = ""
    est_seconds: float = 0.0
    est_steps: int = 0
    ring_generation: int = 0
    ring_step_seconds: float = 0.0
    ring_steps: int = 0
    ests_max: int = 0
    straggler: str = ""
    rate_ratio: float = 1.0
    first_unit: int = 0
    unit_forward_seconds: tuple[float, ...] = ()
    unit_backward_seconds: tuple[float, ...] = ()
    memory_bytes: int = 0
    link_workers: tuple[str, ...] = ()
    link_bytes_per_second: tuple[float, ...] = ()
    forward_overhead_seconds: float = 0.0
    backward_overhead_seconds: float = 0.0
    after_est_seconds: float = 0.0


class CheckReported(Event, frozen=True, tag=True):
    """A worker's result for an EST whose step is checked. digest: hexadecimal."""

    worker: str
    session: str
    generation: int
    step: int
    rank: int
    digest: str


class FollowReported(Event, frozen=True, tag=True):
    """How far a newcomer that follows the ring is, or its source. error: why it has given up, if it has."""

    worker: str
    session: str
    generation: int
    step: int
    digest: int = 0
    error: str = ""


class IntervalReported(Event, frozen=True, tag=True):
    """A member has reached the first step of an epoch (see IntervalReport in ring.proto)."""

    worker: str
    session: str
    generation: int
    step: int
    passed: bool = False
    as_leader: bool = False
    asked: bool = False
    changes: dict[str, Change] = msgspec.field(default_factory=dict)
    uncertain: str = ""
    fault: str = ""
    contexts: tuple[ContextDelta, ...] = ()
    each_rank: bool = False


class RingBrokenReported(Event, frozen=True, tag=True):
    worker: str
    session: str
    generation: int
    step: int
    error: str


class SavedReported(Event, frozen=True, tag=True):
    worker: str
    session: str
    checkpoint: str
    step: int
    shard: int
    file: str = ""
    sha256: str = ""
    bytes: int = 0
    error: str = ""
    complete: bool = False


class LeavingReported(Event, frozen=True, tag=True):
    """The worker asks to be drained (spot notice, SIGTERM)."""

    worker: str
    session: str
    reason: str
    notice_seconds: float = 0.0


class ByeReported(Event, frozen=True, tag=True):
    worker: str
    session: str
    reason: Literal["finished", "drained", "failed"]
    message: str = ""
    applied_step: int = 0
    state_digest: int | None = None
    out_of_memory: bool = False
    device_type: str = ""


class EndEarlyReported(Event, frozen=True, tag=True):
    """The script left its loop over epochs before all were trained; `place` says where."""

    worker: str
    session: str
    generation: int
    step: int
    epoch: int
    place: str = ""
    state_digest: int | None = None


class StateDetail(msgspec.Struct, frozen=True, array_like=True):
    """One tensor or value of a worker's state; value: in words, empty for tensors."""

    name: str
    digest: int
    value: str = ""


class StateDetailed(Event, frozen=True, tag=True):
    """Answer to Explain: all that the state consists of."""

    worker: str
    session: str
    generation: int
    step: int
    details: tuple[StateDetail, ...]


# ------------------------------------------------------------------ operators


class ScaleRequested(Event, frozen=True, tag=True):
    """workers_min: 0: unchanged, or workers_max if that is less. workers_max: 0: unchanged.

    scaling: "off": the job no longer scales by itself. None: unchanged.
    """

    request_id: str
    workers_min: int
    workers_max: int
    scaling: str | None = None
    over_budget: OverBudget | None = None
    on_demand_workers: int | None = None
    spot_policy: SpotPolicy | None = None
    cold_start_seconds: float | None = None


class SuspendRequested(Event, frozen=True, tag=True):
    request_id: str


class ResumeRequested(Event, frozen=True, tag=True):
    request_id: str


class CancelRequested(Event, frozen=True, tag=True):
    """reason: who asks, and why; empty: an operator."""

    request_id: str
    reason: str = ""


class DrainRequested(Event, frozen=True, tag=True):
    """reason: who asks, and why; empty: an operator."""

    request_id: str
    worker: str
    reason: str = ""


class CheckpointRequested(Event, frozen=True, tag=True):
    request_id: str


class DevicePriceRequested(msgspec.Struct, frozen=True):
    """New prices of the workers of one device type. None: unchanged. expires_at: None: not known."""

    device_type: str
    spot_price_micros: int | None = None
    on_demand_price_micros: int | None = None
    expires_at: float | None = None


class PricesRequested(Event, frozen=True, tag=True):
    """New prices of workers. None, or an empty currency: unchanged. expires_at: see `CostBook`."""

    request_id: str
    spot_price_micros: int | None = None
    on_demand_price_micros: int | None = None
    currency: str = ""
    devices: tuple[DevicePriceRequested, ...] = ()
    expires_at: float | None = None


# ------------------------------------------------------------------ dynamic datasets


class DatasetCreated(Event, frozen=True, tag=True):
    request_id: str
    dataset: str
    settings: QueueSettings


class TaskReport(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """lives_sum: of a task that pushes, the slots' lives in its answers; None: it has not pushed.

    map_generations: generations of the slot maps of these answers. returned: the task is given back, for the
    reason in `error`. non_finite: its gradients have a NaN or an infinity.
    """

    epoch: int
    index: int
    attempt: int
    error: str = ""
    count: int = 1
    lives_sum: int | None = None
    returned: bool = False
    non_finite: bool = False
    map_generations: tuple[int, ...] = ()


class TasksRequested(Event, frozen=True, tag=True, gc=False):
    """LeaseTasks: reports first, then leases. The result is a `LeaseResult`.

    runs: consecutive tasks may be leased as one. unanswered: number of earlier requests that may be repeated;
    63 if later ones may have been decided on. leaves: its leases end after the reports.
    """

    request_id: str
    dataset: str
    worker: str
    completed: tuple[TaskReport, ...] = ()
    max_tasks: int = 1
    rng: Parts = msgspec.field(default_factory=dict)
    runs: bool = False
    unanswered: int = 0
    leaves: bool = False


class DatasetExtended(Event, frozen=True, tag=True):
    request_id: str
    dataset: str
    watermark: int
    closed: bool


# ------------------------------------------------------------------ the master itself


class MasterStarted(Event, frozen=True, tag=True):
    """A master took the job over from the store: all sessions are gone, members may return."""

    master: str


class PipelinePlanned(Event, frozen=True, tag=True):
    """The planner thread has made a plan for the ring of `generation` (replanning.py).

    step_seconds_now: predicted step time of the current plan, from the same measurements.
    """

    generation: int
    plan: StagePlan
    step_seconds_now: float


class Tick(Event, frozen=True, tag=True):
    """Time has passed, to `now`. Stored only if it changed something."""


AnyEvent = (
    WorkerJoined
    | StreamLost
    | ExitReported
    | FilesIncomplete
    | ReadyReported
    | LoadedReported
    | StepReported
    | AppliedReported
    | IntervalReported
    | CheckReported
    | FollowReported
    | RingBrokenReported
    | SavedReported
    | LeavingReported
    | ByeReported
    | EndEarlyReported
    | StateDetailed
    | ScaleRequested
    | SuspendRequested
    | ResumeRequested
    | CancelRequested
    | DrainRequested
    | CheckpointRequested
    | PricesRequested
    | DatasetCreated
    | TasksRequested
    | DatasetExtended
    | MasterStarted
    | PipelinePlanned
    | Tick
    | AnySlotEvent
)


class Rejection(Exception):  # noqa: N818 - the field's word for a refused event
    """An event that is refused; the state is as before.

    Attributes: reason (an ErrorReason name in lower case: "invalid_argument", "not_found",
    "already_exists", "stale", "mismatch", "wrong_phase", "evicted"), facts (names and values),
    hint (what the caller can do).
    """

    def __init__(self, reason: str, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.hint = hint
        self.facts = {k: str(v) for k, v in facts.items()}


class RefusedLate(Exception):  # noqa: N818 - says what happened
    """An event was refused after it had changed the state: a bug in a decision. refusal: the raised error."""

    def __init__(self, refusal: Rejection) -> None:
        super().__init__(f"refused after a change of the state: {refusal}")
        self.refusal = refusal
