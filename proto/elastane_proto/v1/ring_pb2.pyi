import datetime

from elastane_proto.v1 import common_pb2 as _common_pb2
from elastane_proto.v1 import history_pb2 as _history_pb2
from elastane_proto.v1 import pipeline_pb2 as _pipeline_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_RING: _ClassVar[WorkerRole]
    WORKER_ROLE_TASKS: _ClassVar[WorkerRole]

class TrainerPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINER_PHASE_UNSPECIFIED: _ClassVar[TrainerPhase]
    TRAINER_PHASE_STEP: _ClassVar[TrainerPhase]
    TRAINER_PHASE_BETWEEN: _ClassVar[TrainerPhase]

class ByeReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BYE_REASON_UNSPECIFIED: _ClassVar[ByeReason]
    BYE_REASON_FINISHED: _ClassVar[ByeReason]
    BYE_REASON_DRAINED: _ClassVar[ByeReason]
    BYE_REASON_FAILED: _ClassVar[ByeReason]

class RelayedEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RELAYED_END_UNSPECIFIED: _ClassVar[RelayedEnd]
    RELAYED_END_REQUESTS_OVER: _ClassVar[RelayedEnd]
    RELAYED_END_CANCELLED: _ClassVar[RelayedEnd]
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_RING: WorkerRole
WORKER_ROLE_TASKS: WorkerRole
TRAINER_PHASE_UNSPECIFIED: TrainerPhase
TRAINER_PHASE_STEP: TrainerPhase
TRAINER_PHASE_BETWEEN: TrainerPhase
BYE_REASON_UNSPECIFIED: ByeReason
BYE_REASON_FINISHED: ByeReason
BYE_REASON_DRAINED: ByeReason
BYE_REASON_FAILED: ByeReason
RELAYED_END_UNSPECIFIED: RelayedEnd
RELAYED_END_REQUESTS_OVER: RelayedEnd
RELAYED_END_CANCELLED: RelayedEnd

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class ScriptSignature(_message.Message):
    __slots__ = ("tensors", "dataset_size", "batch_size", "steps_per_epoch", "epochs", "environment", "pipeline")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    DATASET_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    dataset_size: int
    batch_size: int
    steps_per_epoch: int
    epochs: int
    environment: _containers.ScalarMap[str, str]
    pipeline: _pipeline_pb2.PipelineModel
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., dataset_size: _Optional[int] = ..., batch_size: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ..., pipeline: _Optional[_Union[_pipeline_pb2.PipelineModel, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("job", "worker_id", "role", "signature", "host", "pid", "store_address", "generation", "applied_step", "holds_state", "version", "capacity", "history_generation", "rendezvous_key", "process", "process_started", "process_clock", "memory_bytes", "follows")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    HOLDS_STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    HISTORY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_STARTED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_CLOCK_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_id: str
    role: WorkerRole
    signature: ScriptSignature
    host: str
    pid: int
    store_address: str
    generation: int
    applied_step: int
    holds_state: bool
    version: str
    capacity: _common_pb2.CapacityType
    history_generation: int
    rendezvous_key: bytes
    process: bytes
    process_started: _duration_pb2.Duration
    process_clock: str
    memory_bytes: int
    follows: bool
    def __init__(self, job: _Optional[str] = ..., worker_id: _Optional[str] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., signature: _Optional[_Union[ScriptSignature, _Mapping]] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., store_address: _Optional[str] = ..., generation: _Optional[int] = ..., applied_step: _Optional[int] = ..., holds_state: _Optional[bool] = ..., version: _Optional[str] = ..., capacity: _Optional[_Union[_common_pb2.CapacityType, str]] = ..., history_generation: _Optional[int] = ..., rendezvous_key: _Optional[bytes] = ..., process: _Optional[bytes] = ..., process_started: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., process_clock: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., follows: _Optional[bool] = ...) -> None: ...

class WorkerFigures(_message.Message):
    __slots__ = ("step", "generation", "ests", "step_seconds", "step_counts", "steps_replayed", "replay_seconds", "data_wait_seconds", "all_reduce_wait_seconds", "prepared_wait_seconds", "rings_formed", "ring_change_seconds", "handover_seconds", "handover_bytes_sent", "handover_bytes_received", "device_type", "ring_workers", "est_seconds", "est_seconds_spread", "est_steps", "ring_step_seconds", "ring_steps", "ests_max", "est_rates", "est_rate_steps", "usual_steps", "usual_ests_seconds", "usual_data_wait_seconds", "usual_all_reduce_wait_seconds", "usual_between_seconds", "first_unit", "unit_forward_seconds", "unit_backward_seconds", "memory_bytes", "link_workers", "link_bytes_per_second", "blocks_step", "blocks_began", "block_seconds", "forward_overhead_seconds", "backward_overhead_seconds", "cpu_seconds", "resident_bytes", "gpu_use", "gpu_bytes", "after_est_seconds", "usual_after_seconds", "steps_ahead", "steps_undone")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ESTS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_REPLAYED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DATA_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ALL_REDUCE_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PREPARED_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RINGS_FORMED_FIELD_NUMBER: _ClassVar[int]
    RING_CHANGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    HANDOVER_BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    RING_WORKERS_FIELD_NUMBER: _ClassVar[int]
    EST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EST_SECONDS_SPREAD_FIELD_NUMBER: _ClassVar[int]
    EST_STEPS_FIELD_NUMBER: _ClassVar[int]
    RING_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RING_STEPS_FIELD_NUMBER: _ClassVar[int]
    ESTS_MAX_FIELD_NUMBER: _ClassVar[int]
    EST_RATES_FIELD_NUMBER: _ClassVar[int]
    EST_RATE_STEPS_FIELD_NUMBER: _ClassVar[int]
    USUAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    USUAL_ESTS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USUAL_DATA_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USUAL_ALL_REDUCE_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USUAL_BETWEEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNIT_BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINK_WORKERS_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_STEP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_BEGAN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_FIELD_NUMBER: _ClassVar[int]
    GPU_BYTES_FIELD_NUMBER: _ClassVar[int]
    AFTER_EST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USUAL_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    STEPS_UNDONE_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    ests: int
    step_seconds: float
    step_counts: _containers.RepeatedScalarFieldContainer[int]
    steps_replayed: int
    replay_seconds: float
    data_wait_seconds: float
    all_reduce_wait_seconds: float
    prepared_wait_seconds: float
    rings_formed: int
    ring_change_seconds: float
    handover_seconds: float
    handover_bytes_sent: int
    handover_bytes_received: int
    device_type: str
    ring_workers: int
    est_seconds: float
    est_seconds_spread: float
    est_steps: int
    ring_step_seconds: float
    ring_steps: int
    ests_max: int
    est_rates: float
    est_rate_steps: int
    usual_steps: int
    usual_ests_seconds: float
    usual_data_wait_seconds: float
    usual_all_reduce_wait_seconds: float
    usual_between_seconds: float
    first_unit: int
    unit_forward_seconds: _containers.RepeatedScalarFieldContainer[float]
    unit_backward_seconds: _containers.RepeatedScalarFieldContainer[float]
    memory_bytes: int
    link_workers: _containers.RepeatedScalarFieldContainer[str]
    link_bytes_per_second: _containers.RepeatedScalarFieldContainer[float]
    blocks_step: int
    blocks_began: float
    block_seconds: _containers.RepeatedScalarFieldContainer[float]
    forward_overhead_seconds: float
    backward_overhead_seconds: float
    cpu_seconds: float
    resident_bytes: int
    gpu_use: float
    gpu_bytes: int
    after_est_seconds: float
    usual_after_seconds: float
    steps_ahead: int
    steps_undone: int
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ..., ests: _Optional[int] = ..., step_seconds: _Optional[float] = ..., step_counts: _Optional[_Iterable[int]] = ..., steps_replayed: _Optional[int] = ..., replay_seconds: _Optional[float] = ..., data_wait_seconds: _Optional[float] = ..., all_reduce_wait_seconds: _Optional[float] = ..., prepared_wait_seconds: _Optional[float] = ..., rings_formed: _Optional[int] = ..., ring_change_seconds: _Optional[float] = ..., handover_seconds: _Optional[float] = ..., handover_bytes_sent: _Optional[int] = ..., handover_bytes_received: _Optional[int] = ..., device_type: _Optional[str] = ..., ring_workers: _Optional[int] = ..., est_seconds: _Optional[float] = ..., est_seconds_spread: _Optional[float] = ..., est_steps: _Optional[int] = ..., ring_step_seconds: _Optional[float] = ..., ring_steps: _Optional[int] = ..., ests_max: _Optional[int] = ..., est_rates: _Optional[float] = ..., est_rate_steps: _Optional[int] = ..., usual_steps: _Optional[int] = ..., usual_ests_seconds: _Optional[float] = ..., usual_data_wait_seconds: _Optional[float] = ..., usual_all_reduce_wait_seconds: _Optional[float] = ..., usual_between_seconds: _Optional[float] = ..., first_unit: _Optional[int] = ..., unit_forward_seconds: _Optional[_Iterable[float]] = ..., unit_backward_seconds: _Optional[_Iterable[float]] = ..., memory_bytes: _Optional[int] = ..., link_workers: _Optional[_Iterable[str]] = ..., link_bytes_per_second: _Optional[_Iterable[float]] = ..., blocks_step: _Optional[int] = ..., blocks_began: _Optional[float] = ..., block_seconds: _Optional[_Iterable[float]] = ..., forward_overhead_seconds: _Optional[float] = ..., backward_overhead_seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ..., resident_bytes: _Optional[int] = ..., gpu_use: _Optional[float] = ..., gpu_bytes: _Optional[int] = ..., after_est_seconds: _Optional[float] = ..., usual_after_seconds: _Optional[float] = ..., steps_ahead: _Optional[int] = ..., steps_undone: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("generation", "applied_step", "phase", "figures")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    applied_step: int
    phase: TrainerPhase
    figures: WorkerFigures
    def __init__(self, generation: _Optional[int] = ..., applied_step: _Optional[int] = ..., phase: _Optional[_Union[TrainerPhase, str]] = ..., figures: _Optional[_Union[WorkerFigures, _Mapping]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("generation", "applied_step", "holds_state", "units")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    HOLDS_STATE_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    applied_step: int
    holds_state: bool
    units: _containers.RepeatedCompositeFieldContainer[_pipeline_pb2.UnitRange]
    def __init__(self, generation: _Optional[int] = ..., applied_step: _Optional[int] = ..., holds_state: _Optional[bool] = ..., units: _Optional[_Iterable[_Union[_pipeline_pb2.UnitRange, _Mapping]]] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("generation", "step", "contexts", "extra", "checkpoint", "rejected")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    contexts: _containers.RepeatedCompositeFieldContainer[_common_pb2.EstContext]
    extra: _common_pb2.ExtraState
    checkpoint: str
    rejected: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., contexts: _Optional[_Iterable[_Union[_common_pb2.EstContext, _Mapping]]] = ..., extra: _Optional[_Union[_common_pb2.ExtraState, _Mapping]] = ..., checkpoint: _Optional[str] = ..., rejected: _Optional[_Iterable[str]] = ...) -> None: ...

class StepTask(_message.Message):
    __slots__ = ("virtual_rank", "range", "samples", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    virtual_rank: int
    range: _common_pb2.Range
    samples: _containers.RepeatedScalarFieldContainer[int]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, virtual_rank: _Optional[int] = ..., range: _Optional[_Union[_common_pb2.Range, _Mapping]] = ..., samples: _Optional[_Iterable[int]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("generation", "step", "epoch", "contexts", "tasks", "extra", "settings_digest", "state_digest", "goes_ahead")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    GOES_AHEAD_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    epoch: int
    contexts: _containers.RepeatedCompositeFieldContainer[_common_pb2.EstContext]
    tasks: _containers.RepeatedCompositeFieldContainer[StepTask]
    extra: _common_pb2.ExtraState
    settings_digest: int
    state_digest: int
    goes_ahead: bool
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., contexts: _Optional[_Iterable[_Union[_common_pb2.EstContext, _Mapping]]] = ..., tasks: _Optional[_Iterable[_Union[StepTask, _Mapping]]] = ..., extra: _Optional[_Union[_common_pb2.ExtraState, _Mapping]] = ..., settings_digest: _Optional[int] = ..., state_digest: _Optional[int] = ..., goes_ahead: _Optional[bool] = ...) -> None: ...

class EndEarly(_message.Message):
    __slots__ = ("generation", "step", "epoch", "place", "state_digest")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    epoch: int
    place: str
    state_digest: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., place: _Optional[str] = ..., state_digest: _Optional[int] = ...) -> None: ...

class StateDetail(_message.Message):
    __slots__ = ("name", "digest", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: int
    value: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...

class StateDetails(_message.Message):
    __slots__ = ("generation", "step", "details")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    details: _containers.RepeatedCompositeFieldContainer[StateDetail]
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., details: _Optional[_Iterable[_Union[StateDetail, _Mapping]]] = ...) -> None: ...

class Comparison(_message.Message):
    __slots__ = ("end_early", "details")
    END_EARLY_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    end_early: EndEarly
    details: StateDetails
    def __init__(self, end_early: _Optional[_Union[EndEarly, _Mapping]] = ..., details: _Optional[_Union[StateDetails, _Mapping]] = ...) -> None: ...

class PartChange(_message.Message):
    __slots__ = ("name", "draws", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    draws: int
    state: bytes
    def __init__(self, name: _Optional[str] = ..., draws: _Optional[int] = ..., state: _Optional[bytes] = ...) -> None: ...

class IntervalReport(_message.Message):
    __slots__ = ("generation", "step", "passed", "as_leader", "asked", "changes", "uncertain", "fault", "contexts", "each_rank")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    AS_LEADER_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    EACH_RANK_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    passed: bool
    as_leader: bool
    asked: bool
    changes: _containers.RepeatedCompositeFieldContainer[PartChange]
    uncertain: str
    fault: str
    contexts: _containers.RepeatedCompositeFieldContainer[_common_pb2.EstContext]
    each_rank: bool
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., passed: _Optional[bool] = ..., as_leader: _Optional[bool] = ..., asked: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[PartChange, _Mapping]]] = ..., uncertain: _Optional[str] = ..., fault: _Optional[str] = ..., contexts: _Optional[_Iterable[_Union[_common_pb2.EstContext, _Mapping]]] = ..., each_rank: _Optional[bool] = ...) -> None: ...

class RingBroken(_message.Message):
    __slots__ = ("generation", "step", "error")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    error: str
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("checkpoint", "step", "shard", "file", "sha256", "bytes", "error", "complete")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    step: int
    shard: int
    file: str
    sha256: str
    bytes: int
    error: str
    complete: bool
    def __init__(self, checkpoint: _Optional[str] = ..., step: _Optional[int] = ..., shard: _Optional[int] = ..., file: _Optional[str] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ..., error: _Optional[str] = ..., complete: _Optional[bool] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("reason", "notice")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    notice: _duration_pb2.Duration
    def __init__(self, reason: _Optional[str] = ..., notice: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Bye(_message.Message):
    __slots__ = ("reason", "message", "applied_step", "state_digest", "figures", "out_of_memory")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    STATE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    reason: ByeReason
    message: str
    applied_step: int
    state_digest: int
    figures: WorkerFigures
    out_of_memory: bool
    def __init__(self, reason: _Optional[_Union[ByeReason, str]] = ..., message: _Optional[str] = ..., applied_step: _Optional[int] = ..., state_digest: _Optional[int] = ..., figures: _Optional[_Union[WorkerFigures, _Mapping]] = ..., out_of_memory: _Optional[bool] = ...) -> None: ...

class CheckReport(_message.Message):
    __slots__ = ("generation", "step", "virtual_rank", "digest")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    virtual_rank: int
    digest: bytes
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., virtual_rank: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class FollowReport(_message.Message):
    __slots__ = ("generation", "step", "digest", "error")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    digest: int
    error: str
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., digest: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("hello", "heartbeat", "ready", "loaded", "step_report", "ring_broken", "saved", "leaving", "bye", "interval_report", "comparison", "check_report", "follow_report")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    STEP_REPORT_FIELD_NUMBER: _ClassVar[int]
    RING_BROKEN_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_REPORT_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    CHECK_REPORT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_REPORT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    ready: Ready
    loaded: Loaded
    step_report: StepReport
    ring_broken: RingBroken
    saved: Saved
    leaving: Leaving
    bye: Bye
    interval_report: IntervalReport
    comparison: Comparison
    check_report: CheckReport
    follow_report: FollowReport
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ..., step_report: _Optional[_Union[StepReport, _Mapping]] = ..., ring_broken: _Optional[_Union[RingBroken, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., bye: _Optional[_Union[Bye, _Mapping]] = ..., interval_report: _Optional[_Union[IntervalReport, _Mapping]] = ..., comparison: _Optional[_Union[Comparison, _Mapping]] = ..., check_report: _Optional[_Union[CheckReport, _Mapping]] = ..., follow_report: _Optional[_Union[FollowReport, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("generation", "resumed", "ests", "seed", "checkpoint_url", "checkpoint_keep", "heartbeat_interval", "audit_samples", "version", "reports_from", "generator_positions", "prepared_until", "planned_changes_wait")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    ESTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_KEEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    AUDIT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FROM_FIELD_NUMBER: _ClassVar[int]
    GENERATOR_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PREPARED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    PLANNED_CHANGES_WAIT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    resumed: bool
    ests: int
    seed: int
    checkpoint_url: str
    checkpoint_keep: int
    heartbeat_interval: _duration_pb2.Duration
    audit_samples: bool
    version: str
    reports_from: int
    generator_positions: bool
    prepared_until: int
    planned_changes_wait: bool
    def __init__(self, generation: _Optional[int] = ..., resumed: _Optional[bool] = ..., ests: _Optional[int] = ..., seed: _Optional[int] = ..., checkpoint_url: _Optional[str] = ..., checkpoint_keep: _Optional[int] = ..., heartbeat_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., audit_samples: _Optional[bool] = ..., version: _Optional[str] = ..., reports_from: _Optional[int] = ..., generator_positions: _Optional[bool] = ..., prepared_until: _Optional[int] = ..., planned_changes_wait: _Optional[bool] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("worker_id", "ests", "store_address")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ESTS_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    ests: _common_pb2.Range
    store_address: str
    def __init__(self, worker_id: _Optional[str] = ..., ests: _Optional[_Union[_common_pb2.Range, _Mapping]] = ..., store_address: _Optional[str] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("generation", "members", "reason", "traceparent", "prepared_until", "followed", "rendezvous_secret")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_SECRET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    reason: str
    traceparent: str
    prepared_until: int
    followed: bool
    rendezvous_secret: bytes
    def __init__(self, generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., reason: _Optional[str] = ..., traceparent: _Optional[str] = ..., prepared_until: _Optional[int] = ..., followed: _Optional[bool] = ..., rendezvous_secret: _Optional[bytes] = ...) -> None: ...

class Follow(_message.Message):
    __slots__ = ("generation", "step", "newcomer", "source", "store_address", "history_generation", "extra", "ests", "rendezvous_secret")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NEWCOMER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    ESTS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_SECRET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    newcomer: str
    source: str
    store_address: str
    history_generation: int
    extra: _common_pb2.ExtraState
    ests: int
    rendezvous_secret: bytes
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., newcomer: _Optional[str] = ..., source: _Optional[str] = ..., store_address: _Optional[str] = ..., history_generation: _Optional[int] = ..., extra: _Optional[_Union[_common_pb2.ExtraState, _Mapping]] = ..., ests: _Optional[int] = ..., rendezvous_secret: _Optional[bytes] = ...) -> None: ...

class Doubt(_message.Message):
    __slots__ = ("step_max", "generation_max")
    STEP_MAX_FIELD_NUMBER: _ClassVar[int]
    GENERATION_MAX_FIELD_NUMBER: _ClassVar[int]
    step_max: int
    generation_max: int
    def __init__(self, step_max: _Optional[int] = ..., generation_max: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("generation", "checkpoint_url", "step_max", "doubts")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    STEP_MAX_FIELD_NUMBER: _ClassVar[int]
    DOUBTS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    checkpoint_url: str
    step_max: int
    doubts: _containers.RepeatedCompositeFieldContainer[Doubt]
    def __init__(self, generation: _Optional[int] = ..., checkpoint_url: _Optional[str] = ..., step_max: _Optional[int] = ..., doubts: _Optional[_Iterable[_Union[Doubt, _Mapping]]] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("step", "virtual_rank", "context")
    STEP_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    step: int
    virtual_rank: int
    context: _common_pb2.EstContext
    def __init__(self, step: _Optional[int] = ..., virtual_rank: _Optional[int] = ..., context: _Optional[_Union[_common_pb2.EstContext, _Mapping]] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("generation", "resume_step", "members", "donors", "receivers", "contexts", "extra", "traceparent", "interval", "history_generation", "check", "pipeline", "rendezvous_secret")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    HISTORY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_SECRET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    resume_step: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    donors: _containers.RepeatedScalarFieldContainer[int]
    receivers: _containers.RepeatedScalarFieldContainer[int]
    contexts: _containers.RepeatedCompositeFieldContainer[_common_pb2.EstContext]
    extra: _common_pb2.ExtraState
    traceparent: str
    interval: IntervalDecided
    history_generation: int
    check: Check
    pipeline: _pipeline_pb2.PipelinePlan
    rendezvous_secret: bytes
    def __init__(self, generation: _Optional[int] = ..., resume_step: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., donors: _Optional[_Iterable[int]] = ..., receivers: _Optional[_Iterable[int]] = ..., contexts: _Optional[_Iterable[_Union[_common_pb2.EstContext, _Mapping]]] = ..., extra: _Optional[_Union[_common_pb2.ExtraState, _Mapping]] = ..., traceparent: _Optional[str] = ..., interval: _Optional[_Union[IntervalDecided, _Mapping]] = ..., history_generation: _Optional[int] = ..., check: _Optional[_Union[Check, _Mapping]] = ..., pipeline: _Optional[_Union[_pipeline_pb2.PipelinePlan, _Mapping]] = ..., rendezvous_secret: _Optional[bytes] = ...) -> None: ...

class IntervalDecided(_message.Message):
    __slots__ = ("generation", "step", "changes", "contexts", "refusal")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    changes: _containers.RepeatedCompositeFieldContainer[PartChange]
    contexts: _containers.RepeatedCompositeFieldContainer[_common_pb2.EstContext]
    refusal: str
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[PartChange, _Mapping]]] = ..., contexts: _Optional[_Iterable[_Union[_common_pb2.EstContext, _Mapping]]] = ..., refusal: _Optional[str] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("generation", "step", "extra", "then_prepare", "then_checkpoint", "check", "follow", "next_waits")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    THEN_PREPARE_FIELD_NUMBER: _ClassVar[int]
    THEN_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    NEXT_WAITS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    extra: _common_pb2.ExtraState
    then_prepare: Prepare
    then_checkpoint: Checkpoint
    check: Check
    follow: Follow
    next_waits: bool
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., extra: _Optional[_Union[_common_pb2.ExtraState, _Mapping]] = ..., then_prepare: _Optional[_Union[Prepare, _Mapping]] = ..., then_checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., check: _Optional[_Union[Check, _Mapping]] = ..., follow: _Optional[_Union[Follow, _Mapping]] = ..., next_waits: _Optional[bool] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("checkpoint", "url", "step", "shard", "shards", "manifest", "keep")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    url: str
    step: int
    shard: int
    shards: int
    manifest: _containers.RepeatedCompositeFieldContainer[Saved]
    keep: int
    def __init__(self, checkpoint: _Optional[str] = ..., url: _Optional[str] = ..., step: _Optional[int] = ..., shard: _Optional[int] = ..., shards: _Optional[int] = ..., manifest: _Optional[_Iterable[_Union[Saved, _Mapping]]] = ..., keep: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("phase", "reason")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    phase: str
    reason: str
    def __init__(self, phase: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Explain(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class AllEnd(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Compare(_message.Message):
    __slots__ = ("all_end", "explain")
    ALL_END_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    all_end: AllEnd
    explain: Explain
    def __init__(self, all_end: _Optional[_Union[AllEnd, _Mapping]] = ..., explain: _Optional[_Union[Explain, _Mapping]] = ...) -> None: ...

class CaptureOrder(_message.Message):
    __slots__ = ("capture", "first_step", "trace_steps", "end")
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    TRACE_STEPS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    capture: str
    first_step: int
    trace_steps: int
    end: bool
    def __init__(self, capture: _Optional[str] = ..., first_step: _Optional[int] = ..., trace_steps: _Optional[int] = ..., end: _Optional[bool] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("welcome", "prepare", "load", "go", "prepared", "drain", "checkpoint", "done", "interval_decided", "compare", "capture", "follow")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_DECIDED_FIELD_NUMBER: _ClassVar[int]
    COMPARE_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    prepare: Prepare
    load: Load
    go: Go
    prepared: Prepared
    drain: Drain
    checkpoint: Checkpoint
    done: Done
    interval_decided: IntervalDecided
    compare: Compare
    capture: CaptureOrder
    follow: Follow
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., interval_decided: _Optional[_Union[IntervalDecided, _Mapping]] = ..., compare: _Optional[_Union[Compare, _Mapping]] = ..., capture: _Optional[_Union[CaptureOrder, _Mapping]] = ..., follow: _Optional[_Union[Follow, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "time", "kind", "worker_id", "reason", "generation", "step", "facts", "job_created", "job_repaired", "job_waiting", "job_running", "job_suspended", "job_max_wait_exceeded", "job_succeeded", "job_failed", "job_cancelled", "job_resumed", "suspension_called_off", "suspension_given_up", "steps_unsaved", "ended_early", "job_cost", "prices_changed", "master_started", "master_recovered", "worker_joined", "worker_returned", "worker_standby", "worker_lost", "worker_evicted", "worker_left", "worker_draining", "worker_quarantined", "worker_barred", "worker_released", "notice_over", "notice_over_unsaved", "ring_announced", "ring_scaled", "ring_formed", "checkpoint_loaded", "history_rewound", "store_behind", "history_restored", "history_forgotten", "interval_lost", "state_differs", "checkpoint_requested", "checkpoint_failed", "checkpoint_rejected", "checkpoint_saved", "sentinel_difference", "sentinel_faulty", "sentinel_undecided", "dataset_created", "task_failed", "task_timed_out", "more_tasks_failed", "more_tasks_timed_out", "scaling_set", "job_autoscaled", "scale_rolled_back", "host_barred", "worker_exited", "straggler_reweighted", "straggler_replaced", "stages_planned", "units_lost", "pipeline_without", "log_files_incomplete", "units_awaited", "model_registered", "ps_joined", "ps_lost", "ps_draining", "ps_left", "slots_moved", "slots_restored", "slots_unrestored", "slots_rewound", "slots_unsaved", "slots_checkpointed", "tasks_reopened", "task_left_parts", "non_finite_gradient")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    JOB_CREATED_FIELD_NUMBER: _ClassVar[int]
    JOB_REPAIRED_FIELD_NUMBER: _ClassVar[int]
    JOB_WAITING_FIELD_NUMBER: _ClassVar[int]
    JOB_RUNNING_FIELD_NUMBER: _ClassVar[int]
    JOB_SUSPENDED_FIELD_NUMBER: _ClassVar[int]
    JOB_MAX_WAIT_EXCEEDED_FIELD_NUMBER: _ClassVar[int]
    JOB_SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    JOB_FAILED_FIELD_NUMBER: _ClassVar[int]
    JOB_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    JOB_RESUMED_FIELD_NUMBER: _ClassVar[int]
    SUSPENSION_CALLED_OFF_FIELD_NUMBER: _ClassVar[int]
    SUSPENSION_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    STEPS_UNSAVED_FIELD_NUMBER: _ClassVar[int]
    ENDED_EARLY_FIELD_NUMBER: _ClassVar[int]
    JOB_COST_FIELD_NUMBER: _ClassVar[int]
    PRICES_CHANGED_FIELD_NUMBER: _ClassVar[int]
    MASTER_STARTED_FIELD_NUMBER: _ClassVar[int]
    MASTER_RECOVERED_FIELD_NUMBER: _ClassVar[int]
    WORKER_JOINED_FIELD_NUMBER: _ClassVar[int]
    WORKER_RETURNED_FIELD_NUMBER: _ClassVar[int]
    WORKER_STANDBY_FIELD_NUMBER: _ClassVar[int]
    WORKER_LOST_FIELD_NUMBER: _ClassVar[int]
    WORKER_EVICTED_FIELD_NUMBER: _ClassVar[int]
    WORKER_LEFT_FIELD_NUMBER: _ClassVar[int]
    WORKER_DRAINING_FIELD_NUMBER: _ClassVar[int]
    WORKER_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    WORKER_BARRED_FIELD_NUMBER: _ClassVar[int]
    WORKER_RELEASED_FIELD_NUMBER: _ClassVar[int]
    NOTICE_OVER_FIELD_NUMBER: _ClassVar[int]
    NOTICE_OVER_UNSAVED_FIELD_NUMBER: _ClassVar[int]
    RING_ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    RING_SCALED_FIELD_NUMBER: _ClassVar[int]
    RING_FORMED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_LOADED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_REWOUND_FIELD_NUMBER: _ClassVar[int]
    STORE_BEHIND_FIELD_NUMBER: _ClassVar[int]
    HISTORY_RESTORED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_LOST_FIELD_NUMBER: _ClassVar[int]
    STATE_DIFFERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FAILED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_REJECTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_SAVED_FIELD_NUMBER: _ClassVar[int]
    SENTINEL_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    SENTINEL_FAULTY_FIELD_NUMBER: _ClassVar[int]
    SENTINEL_UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    DATASET_CREATED_FIELD_NUMBER: _ClassVar[int]
    TASK_FAILED_FIELD_NUMBER: _ClassVar[int]
    TASK_TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    MORE_TASKS_FAILED_FIELD_NUMBER: _ClassVar[int]
    MORE_TASKS_TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    SCALING_SET_FIELD_NUMBER: _ClassVar[int]
    JOB_AUTOSCALED_FIELD_NUMBER: _ClassVar[int]
    SCALE_ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    HOST_BARRED_FIELD_NUMBER: _ClassVar[int]
    WORKER_EXITED_FIELD_NUMBER: _ClassVar[int]
    STRAGGLER_REWEIGHTED_FIELD_NUMBER: _ClassVar[int]
    STRAGGLER_REPLACED_FIELD_NUMBER: _ClassVar[int]
    STAGES_PLANNED_FIELD_NUMBER: _ClassVar[int]
    UNITS_LOST_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_WITHOUT_FIELD_NUMBER: _ClassVar[int]
    LOG_FILES_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    UNITS_AWAITED_FIELD_NUMBER: _ClassVar[int]
    MODEL_REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PS_JOINED_FIELD_NUMBER: _ClassVar[int]
    PS_LOST_FIELD_NUMBER: _ClassVar[int]
    PS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    PS_LEFT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_MOVED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_RESTORED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_UNRESTORED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_REWOUND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_UNSAVED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_CHECKPOINTED_FIELD_NUMBER: _ClassVar[int]
    TASKS_REOPENED_FIELD_NUMBER: _ClassVar[int]
    TASK_LEFT_PARTS_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_GRADIENT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    kind: str
    worker_id: str
    reason: str
    generation: int
    step: int
    facts: _containers.ScalarMap[str, str]
    job_created: _history_pb2.JobCreated
    job_repaired: _history_pb2.JobRepaired
    job_waiting: _history_pb2.JobWaiting
    job_running: _history_pb2.JobRunning
    job_suspended: _history_pb2.JobSuspended
    job_max_wait_exceeded: _history_pb2.JobMaxWaitExceeded
    job_succeeded: _history_pb2.JobSucceeded
    job_failed: _history_pb2.JobFailed
    job_cancelled: _history_pb2.JobCancelled
    job_resumed: _history_pb2.JobResumed
    suspension_called_off: _history_pb2.SuspensionCalledOff
    suspension_given_up: _history_pb2.SuspensionGivenUp
    steps_unsaved: _history_pb2.StepsUnsaved
    ended_early: _history_pb2.EndedEarly
    job_cost: _history_pb2.JobCost
    prices_changed: _history_pb2.PricesChanged
    master_started: _history_pb2.MasterStarted
    master_recovered: _history_pb2.MasterRecovered
    worker_joined: _history_pb2.WorkerJoined
    worker_returned: _history_pb2.WorkerReturned
    worker_standby: _history_pb2.WorkerStandby
    worker_lost: _history_pb2.WorkerLost
    worker_evicted: _history_pb2.WorkerEvicted
    worker_left: _history_pb2.WorkerLeft
    worker_draining: _history_pb2.WorkerDraining
    worker_quarantined: _history_pb2.WorkerQuarantined
    worker_barred: _history_pb2.WorkerBarred
    worker_released: _history_pb2.WorkerReleased
    notice_over: _history_pb2.NoticeOver
    notice_over_unsaved: _history_pb2.NoticeOverUnsaved
    ring_announced: _history_pb2.RingAnnounced
    ring_scaled: _history_pb2.RingScaled
    ring_formed: _history_pb2.RingFormed
    checkpoint_loaded: _history_pb2.CheckpointLoaded
    history_rewound: _history_pb2.HistoryRewound
    store_behind: _history_pb2.StoreBehind
    history_restored: _history_pb2.HistoryRestored
    history_forgotten: _history_pb2.HistoryForgotten
    interval_lost: _history_pb2.IntervalLost
    state_differs: _history_pb2.StateDiffers
    checkpoint_requested: _history_pb2.CheckpointRequested
    checkpoint_failed: _history_pb2.CheckpointFailed
    checkpoint_rejected: _history_pb2.CheckpointRejected
    checkpoint_saved: _history_pb2.CheckpointSaved
    sentinel_difference: _history_pb2.SentinelDifference
    sentinel_faulty: _history_pb2.SentinelFaulty
    sentinel_undecided: _history_pb2.SentinelUndecided
    dataset_created: _history_pb2.DatasetCreated
    task_failed: _history_pb2.TaskFailed
    task_timed_out: _history_pb2.TaskTimedOut
    more_tasks_failed: _history_pb2.MoreTasksFailed
    more_tasks_timed_out: _history_pb2.MoreTasksTimedOut
    scaling_set: _history_pb2.ScalingSet
    job_autoscaled: _history_pb2.JobAutoscaled
    scale_rolled_back: _history_pb2.ScaleRolledBack
    host_barred: _history_pb2.HostBarred
    worker_exited: _history_pb2.WorkerExited
    straggler_reweighted: _history_pb2.StragglerReweighted
    straggler_replaced: _history_pb2.StragglerReplaced
    stages_planned: _history_pb2.StagesPlanned
    units_lost: _history_pb2.UnitsLost
    pipeline_without: _history_pb2.PipelineWithout
    log_files_incomplete: _history_pb2.LogFilesIncomplete
    units_awaited: _history_pb2.UnitsAwaited
    model_registered: _history_pb2.ModelRegistered
    ps_joined: _history_pb2.PsJoined
    ps_lost: _history_pb2.PsLost
    ps_draining: _history_pb2.PsDraining
    ps_left: _history_pb2.PsLeft
    slots_moved: _history_pb2.SlotsMoved
    slots_restored: _history_pb2.SlotsRestored
    slots_unrestored: _history_pb2.SlotsUnrestored
    slots_rewound: _history_pb2.SlotsRewound
    slots_unsaved: _history_pb2.SlotsUnsaved
    slots_checkpointed: _history_pb2.SlotsCheckpointed
    tasks_reopened: _history_pb2.TasksReopened
    task_left_parts: _history_pb2.TaskLeftParts
    non_finite_gradient: _history_pb2.NonFiniteGradient
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., worker_id: _Optional[str] = ..., reason: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., facts: _Optional[_Mapping[str, str]] = ..., job_created: _Optional[_Union[_history_pb2.JobCreated, _Mapping]] = ..., job_repaired: _Optional[_Union[_history_pb2.JobRepaired, _Mapping]] = ..., job_waiting: _Optional[_Union[_history_pb2.JobWaiting, _Mapping]] = ..., job_running: _Optional[_Union[_history_pb2.JobRunning, _Mapping]] = ..., job_suspended: _Optional[_Union[_history_pb2.JobSuspended, _Mapping]] = ..., job_max_wait_exceeded: _Optional[_Union[_history_pb2.JobMaxWaitExceeded, _Mapping]] = ..., job_succeeded: _Optional[_Union[_history_pb2.JobSucceeded, _Mapping]] = ..., job_failed: _Optional[_Union[_history_pb2.JobFailed, _Mapping]] = ..., job_cancelled: _Optional[_Union[_history_pb2.JobCancelled, _Mapping]] = ..., job_resumed: _Optional[_Union[_history_pb2.JobResumed, _Mapping]] = ..., suspension_called_off: _Optional[_Union[_history_pb2.SuspensionCalledOff, _Mapping]] = ..., suspension_given_up: _Optional[_Union[_history_pb2.SuspensionGivenUp, _Mapping]] = ..., steps_unsaved: _Optional[_Union[_history_pb2.StepsUnsaved, _Mapping]] = ..., ended_early: _Optional[_Union[_history_pb2.EndedEarly, _Mapping]] = ..., job_cost: _Optional[_Union[_history_pb2.JobCost, _Mapping]] = ..., prices_changed: _Optional[_Union[_history_pb2.PricesChanged, _Mapping]] = ..., master_started: _Optional[_Union[_history_pb2.MasterStarted, _Mapping]] = ..., master_recovered: _Optional[_Union[_history_pb2.MasterRecovered, _Mapping]] = ..., worker_joined: _Optional[_Union[_history_pb2.WorkerJoined, _Mapping]] = ..., worker_returned: _Optional[_Union[_history_pb2.WorkerReturned, _Mapping]] = ..., worker_standby: _Optional[_Union[_history_pb2.WorkerStandby, _Mapping]] = ..., worker_lost: _Optional[_Union[_history_pb2.WorkerLost, _Mapping]] = ..., worker_evicted: _Optional[_Union[_history_pb2.WorkerEvicted, _Mapping]] = ..., worker_left: _Optional[_Union[_history_pb2.WorkerLeft, _Mapping]] = ..., worker_draining: _Optional[_Union[_history_pb2.WorkerDraining, _Mapping]] = ..., worker_quarantined: _Optional[_Union[_history_pb2.WorkerQuarantined, _Mapping]] = ..., worker_barred: _Optional[_Union[_history_pb2.WorkerBarred, _Mapping]] = ..., worker_released: _Optional[_Union[_history_pb2.WorkerReleased, _Mapping]] = ..., notice_over: _Optional[_Union[_history_pb2.NoticeOver, _Mapping]] = ..., notice_over_unsaved: _Optional[_Union[_history_pb2.NoticeOverUnsaved, _Mapping]] = ..., ring_announced: _Optional[_Union[_history_pb2.RingAnnounced, _Mapping]] = ..., ring_scaled: _Optional[_Union[_history_pb2.RingScaled, _Mapping]] = ..., ring_formed: _Optional[_Union[_history_pb2.RingFormed, _Mapping]] = ..., checkpoint_loaded: _Optional[_Union[_history_pb2.CheckpointLoaded, _Mapping]] = ..., history_rewound: _Optional[_Union[_history_pb2.HistoryRewound, _Mapping]] = ..., store_behind: _Optional[_Union[_history_pb2.StoreBehind, _Mapping]] = ..., history_restored: _Optional[_Union[_history_pb2.HistoryRestored, _Mapping]] = ..., history_forgotten: _Optional[_Union[_history_pb2.HistoryForgotten, _Mapping]] = ..., interval_lost: _Optional[_Union[_history_pb2.IntervalLost, _Mapping]] = ..., state_differs: _Optional[_Union[_history_pb2.StateDiffers, _Mapping]] = ..., checkpoint_requested: _Optional[_Union[_history_pb2.CheckpointRequested, _Mapping]] = ..., checkpoint_failed: _Optional[_Union[_history_pb2.CheckpointFailed, _Mapping]] = ..., checkpoint_rejected: _Optional[_Union[_history_pb2.CheckpointRejected, _Mapping]] = ..., checkpoint_saved: _Optional[_Union[_history_pb2.CheckpointSaved, _Mapping]] = ..., sentinel_difference: _Optional[_Union[_history_pb2.SentinelDifference, _Mapping]] = ..., sentinel_faulty: _Optional[_Union[_history_pb2.SentinelFaulty, _Mapping]] = ..., sentinel_undecided: _Optional[_Union[_history_pb2.SentinelUndecided, _Mapping]] = ..., dataset_created: _Optional[_Union[_history_pb2.DatasetCreated, _Mapping]] = ..., task_failed: _Optional[_Union[_history_pb2.TaskFailed, _Mapping]] = ..., task_timed_out: _Optional[_Union[_history_pb2.TaskTimedOut, _Mapping]] = ..., more_tasks_failed: _Optional[_Union[_history_pb2.MoreTasksFailed, _Mapping]] = ..., more_tasks_timed_out: _Optional[_Union[_history_pb2.MoreTasksTimedOut, _Mapping]] = ..., scaling_set: _Optional[_Union[_history_pb2.ScalingSet, _Mapping]] = ..., job_autoscaled: _Optional[_Union[_history_pb2.JobAutoscaled, _Mapping]] = ..., scale_rolled_back: _Optional[_Union[_history_pb2.ScaleRolledBack, _Mapping]] = ..., host_barred: _Optional[_Union[_history_pb2.HostBarred, _Mapping]] = ..., worker_exited: _Optional[_Union[_history_pb2.WorkerExited, _Mapping]] = ..., straggler_reweighted: _Optional[_Union[_history_pb2.StragglerReweighted, _Mapping]] = ..., straggler_replaced: _Optional[_Union[_history_pb2.StragglerReplaced, _Mapping]] = ..., stages_planned: _Optional[_Union[_history_pb2.StagesPlanned, _Mapping]] = ..., units_lost: _Optional[_Union[_history_pb2.UnitsLost, _Mapping]] = ..., pipeline_without: _Optional[_Union[_history_pb2.PipelineWithout, _Mapping]] = ..., log_files_incomplete: _Optional[_Union[_history_pb2.LogFilesIncomplete, _Mapping]] = ..., units_awaited: _Optional[_Union[_history_pb2.UnitsAwaited, _Mapping]] = ..., model_registered: _Optional[_Union[_history_pb2.ModelRegistered, _Mapping]] = ..., ps_joined: _Optional[_Union[_history_pb2.PsJoined, _Mapping]] = ..., ps_lost: _Optional[_Union[_history_pb2.PsLost, _Mapping]] = ..., ps_draining: _Optional[_Union[_history_pb2.PsDraining, _Mapping]] = ..., ps_left: _Optional[_Union[_history_pb2.PsLeft, _Mapping]] = ..., slots_moved: _Optional[_Union[_history_pb2.SlotsMoved, _Mapping]] = ..., slots_restored: _Optional[_Union[_history_pb2.SlotsRestored, _Mapping]] = ..., slots_unrestored: _Optional[_Union[_history_pb2.SlotsUnrestored, _Mapping]] = ..., slots_rewound: _Optional[_Union[_history_pb2.SlotsRewound, _Mapping]] = ..., slots_unsaved: _Optional[_Union[_history_pb2.SlotsUnsaved, _Mapping]] = ..., slots_checkpointed: _Optional[_Union[_history_pb2.SlotsCheckpointed, _Mapping]] = ..., tasks_reopened: _Optional[_Union[_history_pb2.TasksReopened, _Mapping]] = ..., task_left_parts: _Optional[_Union[_history_pb2.TaskLeftParts, _Mapping]] = ..., non_finite_gradient: _Optional[_Union[_history_pb2.NonFiniteGradient, _Mapping]] = ...) -> None: ...

class RelayedMetadatum(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class RelayedCall(_message.Message):
    __slots__ = ("metadata",)
    METADATA_FIELD_NUMBER: _ClassVar[int]
    metadata: _containers.RepeatedCompositeFieldContainer[RelayedMetadatum]
    def __init__(self, metadata: _Optional[_Iterable[_Union[RelayedMetadatum, _Mapping]]] = ...) -> None: ...

class RelayFrame(_message.Message):
    __slots__ = ("session", "open", "request", "end", "held_milliseconds")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    HELD_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    session: int
    open: RelayedCall
    request: bytes
    end: RelayedEnd
    held_milliseconds: int
    def __init__(self, session: _Optional[int] = ..., open: _Optional[_Union[RelayedCall, _Mapping]] = ..., request: _Optional[bytes] = ..., end: _Optional[_Union[RelayedEnd, str]] = ..., held_milliseconds: _Optional[int] = ...) -> None: ...

class RelayRequest(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[RelayFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[RelayFrame, _Mapping]]] = ...) -> None: ...

class RelayedStatus(_message.Message):
    __slots__ = ("code", "message", "trailing_metadata")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRAILING_METADATA_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    trailing_metadata: _containers.RepeatedCompositeFieldContainer[RelayedMetadatum]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., trailing_metadata: _Optional[_Iterable[_Union[RelayedMetadatum, _Mapping]]] = ...) -> None: ...

class RelayAnswer(_message.Message):
    __slots__ = ("sessions", "response", "status", "tail")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[int]
    response: bytes
    status: RelayedStatus
    tail: int
    def __init__(self, sessions: _Optional[_Iterable[int]] = ..., response: _Optional[bytes] = ..., status: _Optional[_Union[RelayedStatus, _Mapping]] = ..., tail: _Optional[int] = ...) -> None: ...

class RelayResponse(_message.Message):
    __slots__ = ("answers", "tails")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    TAILS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[RelayAnswer]
    tails: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, answers: _Optional[_Iterable[_Union[RelayAnswer, _Mapping]]] = ..., tails: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetRingRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class GetRingResponse(_message.Message):
    __slots__ = ("generation", "step", "members")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class GetWorkerFiguresRequest(_message.Message):
    __slots__ = ("job", "worker_ids")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., worker_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetWorkerFiguresResponse(_message.Message):
    __slots__ = ("figures",)
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: WorkerFigures
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[WorkerFigures, _Mapping]] = ...) -> None: ...
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    figures: _containers.MessageMap[str, WorkerFigures]
    def __init__(self, figures: _Optional[_Mapping[str, WorkerFigures]] = ...) -> None: ...

class GetWorkerResourcesRequest(_message.Message):
    __slots__ = ("job", "worker_ids")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., worker_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ResourceSample(_message.Message):
    __slots__ = ("time", "cpu_cores", "resident_bytes", "gpu_use", "gpu_bytes", "steps_per_second", "data_wait", "all_reduce_wait")
    TIME_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPU_USE_FIELD_NUMBER: _ClassVar[int]
    GPU_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DATA_WAIT_FIELD_NUMBER: _ClassVar[int]
    ALL_REDUCE_WAIT_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    cpu_cores: float
    resident_bytes: int
    gpu_use: float
    gpu_bytes: int
    steps_per_second: float
    data_wait: float
    all_reduce_wait: float
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cpu_cores: _Optional[float] = ..., resident_bytes: _Optional[int] = ..., gpu_use: _Optional[float] = ..., gpu_bytes: _Optional[int] = ..., steps_per_second: _Optional[float] = ..., data_wait: _Optional[float] = ..., all_reduce_wait: _Optional[float] = ...) -> None: ...

class WorkerResources(_message.Message):
    __slots__ = ("worker_id", "samples")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    samples: _containers.RepeatedCompositeFieldContainer[ResourceSample]
    def __init__(self, worker_id: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[ResourceSample, _Mapping]]] = ...) -> None: ...

class GetWorkerResourcesResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerResources]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerResources, _Mapping]]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("job", "since", "follow")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    job: str
    since: int
    follow: bool
    def __init__(self, job: _Optional[str] = ..., since: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("event",)
    EVENT_FIELD_NUMBER: _ClassVar[int]
    event: Event
    def __init__(self, event: _Optional[_Union[Event, _Mapping]] = ...) -> None: ...
