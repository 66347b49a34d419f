import datetime

from elastane_proto.v1 import common_pb2 as _common_pb2
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

class JobPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_PHASE_UNSPECIFIED: _ClassVar[JobPhase]
    JOB_PHASE_WAITING: _ClassVar[JobPhase]
    JOB_PHASE_RUNNING: _ClassVar[JobPhase]
    JOB_PHASE_SUSPENDED: _ClassVar[JobPhase]
    JOB_PHASE_SUCCEEDED: _ClassVar[JobPhase]
    JOB_PHASE_FAILED: _ClassVar[JobPhase]
    JOB_PHASE_CANCELLED: _ClassVar[JobPhase]
    JOB_PHASE_MAX_WAIT_EXCEEDED: _ClassVar[JobPhase]
    JOB_PHASE_DAMAGED: _ClassVar[JobPhase]
    JOB_PHASE_TOO_NEW: _ClassVar[JobPhase]

class RecoveryPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECOVERY_POLICY_UNSPECIFIED: _ClassVar[RecoveryPolicy]
    RECOVERY_POLICY_ELASTIC: _ClassVar[RecoveryPolicy]
    RECOVERY_POLICY_FIXED: _ClassVar[RecoveryPolicy]

class OverBudget(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVER_BUDGET_UNSPECIFIED: _ClassVar[OverBudget]
    OVER_BUDGET_CHEAPEST: _ClassVar[OverBudget]
    OVER_BUDGET_SUSPEND: _ClassVar[OverBudget]

class SpotPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPOT_POLICY_UNSPECIFIED: _ClassVar[SpotPolicy]
    SPOT_POLICY_WIDE: _ClassVar[SpotPolicy]
    SPOT_POLICY_UNIFORM: _ClassVar[SpotPolicy]

class DeterminismLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DETERMINISM_LEVEL_UNSPECIFIED: _ClassVar[DeterminismLevel]
    DETERMINISM_LEVEL_D0: _ClassVar[DeterminismLevel]
    DETERMINISM_LEVEL_D1: _ClassVar[DeterminismLevel]
    DETERMINISM_LEVEL_D2: _ClassVar[DeterminismLevel]

class PsNonfinite(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PS_NONFINITE_UNSPECIFIED: _ClassVar[PsNonfinite]
    PS_NONFINITE_REFUSE: _ClassVar[PsNonfinite]
    PS_NONFINITE_SKIP: _ClassVar[PsNonfinite]
    PS_NONFINITE_FAIL: _ClassVar[PsNonfinite]

class PsWire(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PS_WIRE_UNSPECIFIED: _ClassVar[PsWire]
    PS_WIRE_FLOAT32: _ClassVar[PsWire]
    PS_WIRE_BFLOAT16: _ClassVar[PsWire]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_MEMBER: _ClassVar[WorkerState]
    WORKER_STATE_STANDBY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_TASKS_ONLY: _ClassVar[WorkerState]
    WORKER_STATE_AWAITED: _ClassVar[WorkerState]
JOB_PHASE_UNSPECIFIED: JobPhase
JOB_PHASE_WAITING: JobPhase
JOB_PHASE_RUNNING: JobPhase
JOB_PHASE_SUSPENDED: JobPhase
JOB_PHASE_SUCCEEDED: JobPhase
JOB_PHASE_FAILED: JobPhase
JOB_PHASE_CANCELLED: JobPhase
JOB_PHASE_MAX_WAIT_EXCEEDED: JobPhase
JOB_PHASE_DAMAGED: JobPhase
JOB_PHASE_TOO_NEW: JobPhase
RECOVERY_POLICY_UNSPECIFIED: RecoveryPolicy
RECOVERY_POLICY_ELASTIC: RecoveryPolicy
RECOVERY_POLICY_FIXED: RecoveryPolicy
OVER_BUDGET_UNSPECIFIED: OverBudget
OVER_BUDGET_CHEAPEST: OverBudget
OVER_BUDGET_SUSPEND: OverBudget
SPOT_POLICY_UNSPECIFIED: SpotPolicy
SPOT_POLICY_WIDE: SpotPolicy
SPOT_POLICY_UNIFORM: SpotPolicy
DETERMINISM_LEVEL_UNSPECIFIED: DeterminismLevel
DETERMINISM_LEVEL_D0: DeterminismLevel
DETERMINISM_LEVEL_D1: DeterminismLevel
DETERMINISM_LEVEL_D2: DeterminismLevel
PS_NONFINITE_UNSPECIFIED: PsNonfinite
PS_NONFINITE_REFUSE: PsNonfinite
PS_NONFINITE_SKIP: PsNonfinite
PS_NONFINITE_FAIL: PsNonfinite
PS_WIRE_UNSPECIFIED: PsWire
PS_WIRE_FLOAT32: PsWire
PS_WIRE_BFLOAT16: PsWire
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_MEMBER: WorkerState
WORKER_STATE_STANDBY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_TASKS_ONLY: WorkerState
WORKER_STATE_AWAITED: WorkerState

class JobSettings(_message.Message):
    __slots__ = ("ests", "workers_min", "workers_max", "seed", "checkpoint_url", "checkpoint_interval_steps", "checkpoint_keep", "heartbeat_timeout", "lease_min", "lease_factor", "join_window", "return_grace", "idle_max", "torch_threads", "audit_samples", "determinism", "max_wait", "recovery", "currency", "spot_price_micros", "on_demand_price_micros", "fingerprint_steps", "sentinel_steps", "scaling", "over_budget", "on_demand_workers", "spot_policy", "cold_start", "pipeline_stages_min", "pipeline_stages_max", "pipeline_shadows", "ps_staleness", "ps_slots", "ps_replicas", "ps_snapshot", "ps_nonfinite", "ps_wire", "ps_scale_by_staleness", "ps_journal", "ps_return")
    ESTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MIN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MAX_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_INTERVAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_KEEP_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    LEASE_MIN_FIELD_NUMBER: _ClassVar[int]
    LEASE_FACTOR_FIELD_NUMBER: _ClassVar[int]
    JOIN_WINDOW_FIELD_NUMBER: _ClassVar[int]
    RETURN_GRACE_FIELD_NUMBER: _ClassVar[int]
    IDLE_MAX_FIELD_NUMBER: _ClassVar[int]
    TORCH_THREADS_FIELD_NUMBER: _ClassVar[int]
    AUDIT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DETERMINISM_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    SPOT_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_STEPS_FIELD_NUMBER: _ClassVar[int]
    SENTINEL_STEPS_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    OVER_BUDGET_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SPOT_POLICY_FIELD_NUMBER: _ClassVar[int]
    COLD_START_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STAGES_MIN_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_SHADOWS_FIELD_NUMBER: _ClassVar[int]
    PS_STALENESS_FIELD_NUMBER: _ClassVar[int]
    PS_SLOTS_FIELD_NUMBER: _ClassVar[int]
    PS_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    PS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    PS_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    PS_WIRE_FIELD_NUMBER: _ClassVar[int]
    PS_SCALE_BY_STALENESS_FIELD_NUMBER: _ClassVar[int]
    PS_JOURNAL_FIELD_NUMBER: _ClassVar[int]
    PS_RETURN_FIELD_NUMBER: _ClassVar[int]
    ests: int
    workers_min: int
    workers_max: int
    seed: int
    checkpoint_url: str
    checkpoint_interval_steps: int
    checkpoint_keep: int
    heartbeat_timeout: _duration_pb2.Duration
    lease_min: _duration_pb2.Duration
    lease_factor: float
    join_window: _duration_pb2.Duration
    return_grace: _duration_pb2.Duration
    idle_max: _duration_pb2.Duration
    torch_threads: int
    audit_samples: bool
    determinism: DeterminismLevel
    max_wait: _duration_pb2.Duration
    recovery: RecoveryPolicy
    currency: str
    spot_price_micros: int
    on_demand_price_micros: int
    fingerprint_steps: int
    sentinel_steps: int
    scaling: str
    over_budget: OverBudget
    on_demand_workers: int
    spot_policy: SpotPolicy
    cold_start: _duration_pb2.Duration
    pipeline_stages_min: int
    pipeline_stages_max: int
    pipeline_shadows: int
    ps_staleness: int
    ps_slots: int
    ps_replicas: int
    ps_snapshot: _duration_pb2.Duration
    ps_nonfinite: PsNonfinite
    ps_wire: PsWire
    ps_scale_by_staleness: bool
    ps_journal: bool
    ps_return: _duration_pb2.Duration
    def __init__(self, ests: _Optional[int] = ..., workers_min: _Optional[int] = ..., workers_max: _Optional[int] = ..., seed: _Optional[int] = ..., checkpoint_url: _Optional[str] = ..., checkpoint_interval_steps: _Optional[int] = ..., checkpoint_keep: _Optional[int] = ..., heartbeat_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease_min: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease_factor: _Optional[float] = ..., join_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., return_grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., idle_max: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., torch_threads: _Optional[int] = ..., audit_samples: _Optional[bool] = ..., determinism: _Optional[_Union[DeterminismLevel, str]] = ..., max_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., recovery: _Optional[_Union[RecoveryPolicy, str]] = ..., currency: _Optional[str] = ..., spot_price_micros: _Optional[int] = ..., on_demand_price_micros: _Optional[int] = ..., fingerprint_steps: _Optional[int] = ..., sentinel_steps: _Optional[int] = ..., scaling: _Optional[str] = ..., over_budget: _Optional[_Union[OverBudget, str]] = ..., on_demand_workers: _Optional[int] = ..., spot_policy: _Optional[_Union[SpotPolicy, str]] = ..., cold_start: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pipeline_stages_min: _Optional[int] = ..., pipeline_stages_max: _Optional[int] = ..., pipeline_shadows: _Optional[int] = ..., ps_staleness: _Optional[int] = ..., ps_slots: _Optional[int] = ..., ps_replicas: _Optional[int] = ..., ps_snapshot: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ps_nonfinite: _Optional[_Union[PsNonfinite, str]] = ..., ps_wire: _Optional[_Union[PsWire, str]] = ..., ps_scale_by_staleness: _Optional[bool] = ..., ps_journal: _Optional[bool] = ..., ps_return: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Scaling(_message.Message):
    __slots__ = ("mode", "workers_target", "on_demand_target", "reason", "predicted_finish", "predicted_cost_micros", "changed", "deadline")
    MODE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_TARGET_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_TARGET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FINISH_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_COST_MICROS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    mode: str
    workers_target: int
    on_demand_target: int
    reason: str
    predicted_finish: _timestamp_pb2.Timestamp
    predicted_cost_micros: int
    changed: _timestamp_pb2.Timestamp
    deadline: _timestamp_pb2.Timestamp
    def __init__(self, mode: _Optional[str] = ..., workers_target: _Optional[int] = ..., on_demand_target: _Optional[int] = ..., reason: _Optional[str] = ..., predicted_finish: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., predicted_cost_micros: _Optional[int] = ..., changed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ScalingDecision(_message.Message):
    __slots__ = ("workers_target", "action", "reason", "predicted_finish", "predicted_cost_micros", "seconds_before", "seconds_after")
    WORKERS_TARGET_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_FINISH_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_COST_MICROS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_AFTER_FIELD_NUMBER: _ClassVar[int]
    workers_target: int
    action: str
    reason: str
    predicted_finish: _timestamp_pb2.Timestamp
    predicted_cost_micros: int
    seconds_before: float
    seconds_after: float
    def __init__(self, workers_target: _Optional[int] = ..., action: _Optional[str] = ..., reason: _Optional[str] = ..., predicted_finish: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., predicted_cost_micros: _Optional[int] = ..., seconds_before: _Optional[float] = ..., seconds_after: _Optional[float] = ...) -> None: ...

class StageState(_message.Message):
    __slots__ = ("first_unit", "end_unit", "replicas", "shadows", "memory", "load_seconds")
    FIRST_UNIT_FIELD_NUMBER: _ClassVar[int]
    END_UNIT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    first_unit: int
    end_unit: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    shadows: _containers.RepeatedScalarFieldContainer[str]
    memory: _pipeline_pb2.StageMemory
    load_seconds: float
    def __init__(self, first_unit: _Optional[int] = ..., end_unit: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., shadows: _Optional[_Iterable[str]] = ..., memory: _Optional[_Union[_pipeline_pb2.StageMemory, str]] = ..., load_seconds: _Optional[float] = ...) -> None: ...

class PipelineState(_message.Message):
    __slots__ = ("units", "stages", "step_seconds", "bubble", "reason", "slowest_stage", "slowest_reason", "risk", "devices", "links")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUBBLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_STAGE_FIELD_NUMBER: _ClassVar[int]
    SLOWEST_REASON_FIELD_NUMBER: _ClassVar[int]
    RISK_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    units: int
    stages: _containers.RepeatedCompositeFieldContainer[StageState]
    step_seconds: float
    bubble: float
    reason: str
    slowest_stage: int
    slowest_reason: str
    risk: str
    devices: _containers.RepeatedCompositeFieldContainer[PipelineDevice]
    links: _containers.RepeatedCompositeFieldContainer[LinkState]
    def __init__(self, units: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageState, _Mapping]]] = ..., step_seconds: _Optional[float] = ..., bubble: _Optional[float] = ..., reason: _Optional[str] = ..., slowest_stage: _Optional[int] = ..., slowest_reason: _Optional[str] = ..., risk: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[PipelineDevice, _Mapping]]] = ..., links: _Optional[_Iterable[_Union[LinkState, _Mapping]]] = ...) -> None: ...

class PipelineDevice(_message.Message):
    __slots__ = ("worker_id", "host", "speed", "memory_bytes")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    host: str
    speed: float
    memory_bytes: int
    def __init__(self, worker_id: _Optional[str] = ..., host: _Optional[str] = ..., speed: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class LinkState(_message.Message):
    __slots__ = ("source", "target", "bytes_per_second")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    bytes_per_second: float
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("currency", "spent_micros", "on_demand_micros", "saved_micros", "savings", "worker_seconds", "spot_worker_seconds", "on_demand_worker_seconds", "useful_seconds", "replayed_seconds", "idle_seconds", "replayed_micros", "idle_micros", "unpriced_seconds", "spot_price_micros", "on_demand_price_micros", "devices", "expires")
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    SPENT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_MICROS_FIELD_NUMBER: _ClassVar[int]
    SAVED_MICROS_FIELD_NUMBER: _ClassVar[int]
    SAVINGS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPOT_WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USEFUL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_MICROS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MICROS_FIELD_NUMBER: _ClassVar[int]
    UNPRICED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPOT_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    currency: str
    spent_micros: int
    on_demand_micros: int
    saved_micros: int
    savings: float
    worker_seconds: float
    spot_worker_seconds: float
    on_demand_worker_seconds: float
    useful_seconds: float
    replayed_seconds: float
    idle_seconds: float
    replayed_micros: int
    idle_micros: int
    unpriced_seconds: float
    spot_price_micros: int
    on_demand_price_micros: int
    devices: _containers.RepeatedCompositeFieldContainer[DeviceCost]
    expires: _timestamp_pb2.Timestamp
    def __init__(self, currency: _Optional[str] = ..., spent_micros: _Optional[int] = ..., on_demand_micros: _Optional[int] = ..., saved_micros: _Optional[int] = ..., savings: _Optional[float] = ..., worker_seconds: _Optional[float] = ..., spot_worker_seconds: _Optional[float] = ..., on_demand_worker_seconds: _Optional[float] = ..., useful_seconds: _Optional[float] = ..., replayed_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., replayed_micros: _Optional[int] = ..., idle_micros: _Optional[int] = ..., unpriced_seconds: _Optional[float] = ..., spot_price_micros: _Optional[int] = ..., on_demand_price_micros: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[DeviceCost, _Mapping]]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeviceCost(_message.Message):
    __slots__ = ("device_type", "spent_micros", "worker_seconds", "spot_worker_seconds", "on_demand_worker_seconds", "unpriced_seconds", "spot_price_micros", "on_demand_price_micros", "expires")
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SPENT_MICROS_FIELD_NUMBER: _ClassVar[int]
    WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPOT_WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_WORKER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNPRICED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPOT_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    device_type: str
    spent_micros: int
    worker_seconds: float
    spot_worker_seconds: float
    on_demand_worker_seconds: float
    unpriced_seconds: float
    spot_price_micros: int
    on_demand_price_micros: int
    expires: _timestamp_pb2.Timestamp
    def __init__(self, device_type: _Optional[str] = ..., spent_micros: _Optional[int] = ..., worker_seconds: _Optional[float] = ..., spot_worker_seconds: _Optional[float] = ..., on_demand_worker_seconds: _Optional[float] = ..., unpriced_seconds: _Optional[float] = ..., spot_price_micros: _Optional[int] = ..., on_demand_price_micros: _Optional[int] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "state", "ests", "applied_step", "joined", "last_heard", "reason", "host", "pid", "capacity")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ESTS_FIELD_NUMBER: _ClassVar[int]
    APPLIED_STEP_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    state: WorkerState
    ests: _common_pb2.Range
    applied_step: int
    joined: _timestamp_pb2.Timestamp
    last_heard: _timestamp_pb2.Timestamp
    reason: str
    host: str
    pid: int
    capacity: _common_pb2.CapacityType
    def __init__(self, worker_id: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., ests: _Optional[_Union[_common_pb2.Range, _Mapping]] = ..., applied_step: _Optional[int] = ..., joined: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., last_heard: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., capacity: _Optional[_Union[_common_pb2.CapacityType, str]] = ...) -> None: ...

class Damage(_message.Message):
    __slots__ = ("key", "sequence", "lost")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    key: str
    sequence: int
    lost: str
    def __init__(self, key: _Optional[str] = ..., sequence: _Optional[int] = ..., lost: _Optional[str] = ...) -> None: ...

class TaskCounts(_message.Message):
    __slots__ = ("done", "total", "over")
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    done: int
    total: int
    over: bool
    def __init__(self, done: _Optional[int] = ..., total: _Optional[int] = ..., over: _Optional[bool] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("name", "settings", "phase", "reason", "generation", "step", "epoch", "steps_per_epoch", "epochs", "environment", "saved_step", "created", "workers", "revision", "cost", "datasets", "tasks", "closed", "damages", "scaling", "pipeline")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    SAVED_STEP_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    DAMAGES_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: JobSettings
    phase: JobPhase
    reason: str
    generation: int
    step: int
    epoch: int
    steps_per_epoch: int
    epochs: int
    environment: _containers.ScalarMap[str, str]
    saved_step: int
    created: _timestamp_pb2.Timestamp
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    revision: int
    cost: Cost
    datasets: int
    tasks: TaskCounts
    closed: _timestamp_pb2.Timestamp
    damages: _containers.RepeatedCompositeFieldContainer[Damage]
    scaling: Scaling
    pipeline: PipelineState
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[JobSettings, _Mapping]] = ..., phase: _Optional[_Union[JobPhase, str]] = ..., reason: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., epoch: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., environment: _Optional[_Mapping[str, str]] = ..., saved_step: _Optional[int] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., revision: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., datasets: _Optional[int] = ..., tasks: _Optional[_Union[TaskCounts, _Mapping]] = ..., closed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., damages: _Optional[_Iterable[_Union[Damage, _Mapping]]] = ..., scaling: _Optional[_Union[Scaling, _Mapping]] = ..., pipeline: _Optional[_Union[PipelineState, _Mapping]] = ...) -> None: ...

class JobServiceCreateRequest(_message.Message):
    __slots__ = ("name", "settings", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: JobSettings
    request_id: str
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Union[JobSettings, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceCreateResponse(_message.Message):
    __slots__ = ("job", "created")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    job: Job
    created: bool
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class JobServiceGetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class JobServiceGetResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceListRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class JobServiceListResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class JobServiceWatchRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class JobServiceWatchResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceScaleRequest(_message.Message):
    __slots__ = ("name", "workers_min", "workers_max", "request_id", "scaling", "over_budget", "on_demand_workers", "spot_policy", "cold_start", "dry_run")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MIN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MAX_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SCALING_FIELD_NUMBER: _ClassVar[int]
    OVER_BUDGET_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SPOT_POLICY_FIELD_NUMBER: _ClassVar[int]
    COLD_START_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    workers_min: int
    workers_max: int
    request_id: str
    scaling: str
    over_budget: OverBudget
    on_demand_workers: int
    spot_policy: SpotPolicy
    cold_start: _duration_pb2.Duration
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., workers_min: _Optional[int] = ..., workers_max: _Optional[int] = ..., request_id: _Optional[str] = ..., scaling: _Optional[str] = ..., over_budget: _Optional[_Union[OverBudget, str]] = ..., on_demand_workers: _Optional[int] = ..., spot_policy: _Optional[_Union[SpotPolicy, str]] = ..., cold_start: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class JobServiceScaleResponse(_message.Message):
    __slots__ = ("job", "decisions")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    job: Job
    decisions: _containers.RepeatedCompositeFieldContainer[ScalingDecision]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., decisions: _Optional[_Iterable[_Union[ScalingDecision, _Mapping]]] = ...) -> None: ...

class JobServiceSuspendRequest(_message.Message):
    __slots__ = ("name", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceSuspendResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceResumeRequest(_message.Message):
    __slots__ = ("name", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceResumeResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceCancelRequest(_message.Message):
    __slots__ = ("name", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceCancelResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceDeleteRequest(_message.Message):
    __slots__ = ("name", "force", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    force: bool
    request_id: str
    def __init__(self, name: _Optional[str] = ..., force: _Optional[bool] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceDeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class JobServiceSetPricesRequest(_message.Message):
    __slots__ = ("name", "spot_price_micros", "on_demand_price_micros", "request_id", "currency", "devices", "expires")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPOT_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    name: str
    spot_price_micros: int
    on_demand_price_micros: int
    request_id: str
    currency: str
    devices: _containers.RepeatedCompositeFieldContainer[DevicePrice]
    expires: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., spot_price_micros: _Optional[int] = ..., on_demand_price_micros: _Optional[int] = ..., request_id: _Optional[str] = ..., currency: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DevicePrice, _Mapping]]] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DevicePrice(_message.Message):
    __slots__ = ("device_type", "spot_price_micros", "on_demand_price_micros", "expires")
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SPOT_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_PRICE_MICROS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    device_type: str
    spot_price_micros: int
    on_demand_price_micros: int
    expires: _timestamp_pb2.Timestamp
    def __init__(self, device_type: _Optional[str] = ..., spot_price_micros: _Optional[int] = ..., on_demand_price_micros: _Optional[int] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class JobServiceSetPricesResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceDrainWorkerRequest(_message.Message):
    __slots__ = ("name", "worker_id", "request_id", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    worker_id: str
    request_id: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., worker_id: _Optional[str] = ..., request_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class JobServiceDrainWorkerResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class JobServiceRepairRequest(_message.Message):
    __slots__ = ("name", "accept_loss", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LOSS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    accept_loss: bool
    request_id: str
    def __init__(self, name: _Optional[str] = ..., accept_loss: _Optional[bool] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceRepairResponse(_message.Message):
    __slots__ = ("job", "removed", "accepted")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    job: Job
    removed: bool
    accepted: _containers.RepeatedCompositeFieldContainer[Damage]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., removed: _Optional[bool] = ..., accepted: _Optional[_Iterable[_Union[Damage, _Mapping]]] = ...) -> None: ...

class JobServiceCheckpointRequest(_message.Message):
    __slots__ = ("name", "request_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    request_id: str
    def __init__(self, name: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class JobServiceCheckpointResponse(_message.Message):
    __slots__ = ("step", "url")
    STEP_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    step: int
    url: str
    def __init__(self, step: _Optional[int] = ..., url: _Optional[str] = ...) -> None: ...
