from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RingPlace(_message.Message):
    __slots__ = ("worker", "start", "end")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    worker: str
    start: int
    end: int
    def __init__(self, worker: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class GradientVote(_message.Message):
    __slots__ = ("worker", "digest")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    worker: str
    digest: str
    def __init__(self, worker: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class HourPrices(_message.Message):
    __slots__ = ("spot_micros", "on_demand_micros", "currency", "devices")
    SPOT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_MICROS_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    spot_micros: int
    on_demand_micros: int
    currency: str
    devices: _containers.RepeatedCompositeFieldContainer[DeviceHourPrices]
    def __init__(self, spot_micros: _Optional[int] = ..., on_demand_micros: _Optional[int] = ..., currency: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[DeviceHourPrices, _Mapping]]] = ...) -> None: ...

class DeviceHourPrices(_message.Message):
    __slots__ = ("device_type", "spot_micros", "on_demand_micros")
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SPOT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_MICROS_FIELD_NUMBER: _ClassVar[int]
    device_type: str
    spot_micros: int
    on_demand_micros: int
    def __init__(self, device_type: _Optional[str] = ..., spot_micros: _Optional[int] = ..., on_demand_micros: _Optional[int] = ...) -> None: ...

class JobSpent(_message.Message):
    __slots__ = ("currency", "spent_micros", "on_demand_micros", "saved_micros", "savings", "worker_nanos", "useful_nanos", "replayed_nanos", "idle_nanos", "unpriced_nanos", "priced")
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    SPENT_MICROS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_MICROS_FIELD_NUMBER: _ClassVar[int]
    SAVED_MICROS_FIELD_NUMBER: _ClassVar[int]
    SAVINGS_FIELD_NUMBER: _ClassVar[int]
    WORKER_NANOS_FIELD_NUMBER: _ClassVar[int]
    USEFUL_NANOS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_NANOS_FIELD_NUMBER: _ClassVar[int]
    IDLE_NANOS_FIELD_NUMBER: _ClassVar[int]
    UNPRICED_NANOS_FIELD_NUMBER: _ClassVar[int]
    PRICED_FIELD_NUMBER: _ClassVar[int]
    currency: str
    spent_micros: int
    on_demand_micros: int
    saved_micros: int
    savings: float
    worker_nanos: int
    useful_nanos: int
    replayed_nanos: int
    idle_nanos: int
    unpriced_nanos: int
    priced: bool
    def __init__(self, currency: _Optional[str] = ..., spent_micros: _Optional[int] = ..., on_demand_micros: _Optional[int] = ..., saved_micros: _Optional[int] = ..., savings: _Optional[float] = ..., worker_nanos: _Optional[int] = ..., useful_nanos: _Optional[int] = ..., replayed_nanos: _Optional[int] = ..., idle_nanos: _Optional[int] = ..., unpriced_nanos: _Optional[int] = ..., priced: _Optional[bool] = ...) -> None: ...

class JobCreated(_message.Message):
    __slots__ = ("ests", "workers_min", "workers_max")
    ESTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MIN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MAX_FIELD_NUMBER: _ClassVar[int]
    ests: int
    workers_min: int
    workers_max: int
    def __init__(self, ests: _Optional[int] = ..., workers_min: _Optional[int] = ..., workers_max: _Optional[int] = ...) -> None: ...

class JobRepaired(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: str
    def __init__(self, lost: _Optional[str] = ...) -> None: ...

class JobWaiting(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class JobRunning(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class JobSuspended(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class JobMaxWaitExceeded(_message.Message):
    __slots__ = ("why", "there", "needed", "max_wait_seconds", "lost")
    WHY_FIELD_NUMBER: _ClassVar[int]
    THERE_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    why: str
    there: int
    needed: int
    max_wait_seconds: float
    lost: int
    def __init__(self, why: _Optional[str] = ..., there: _Optional[int] = ..., needed: _Optional[int] = ..., max_wait_seconds: _Optional[float] = ..., lost: _Optional[int] = ...) -> None: ...

class JobSucceeded(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class JobFailed(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class JobCancelled(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class JobResumed(_message.Message):
    __slots__ = ("phase", "why")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    phase: str
    why: str
    def __init__(self, phase: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class SuspensionCalledOff(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SuspensionGivenUp(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StepsUnsaved(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: int
    def __init__(self, lost: _Optional[int] = ...) -> None: ...

class EndedEarly(_message.Message):
    __slots__ = ("epoch", "at_step", "place")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    at_step: int
    place: str
    def __init__(self, epoch: _Optional[int] = ..., at_step: _Optional[int] = ..., place: _Optional[str] = ...) -> None: ...

class JobCost(_message.Message):
    __slots__ = ("phase", "spent")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    phase: str
    spent: JobSpent
    def __init__(self, phase: _Optional[str] = ..., spent: _Optional[_Union[JobSpent, _Mapping]] = ...) -> None: ...

class PricesChanged(_message.Message):
    __slots__ = ("now", "before", "spent")
    NOW_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    now: HourPrices
    before: HourPrices
    spent: JobSpent
    def __init__(self, now: _Optional[_Union[HourPrices, _Mapping]] = ..., before: _Optional[_Union[HourPrices, _Mapping]] = ..., spent: _Optional[_Union[JobSpent, _Mapping]] = ...) -> None: ...

class MasterStarted(_message.Message):
    __slots__ = ("master",)
    MASTER_FIELD_NUMBER: _ClassVar[int]
    master: str
    def __init__(self, master: _Optional[str] = ...) -> None: ...

class MasterRecovered(_message.Message):
    __slots__ = ("master", "awaited", "grace_seconds")
    MASTER_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    master: str
    awaited: int
    grace_seconds: float
    def __init__(self, master: _Optional[str] = ..., awaited: _Optional[int] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class WorkerJoined(_message.Message):
    __slots__ = ("worker", "role", "host")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    worker: str
    role: str
    host: str
    def __init__(self, worker: _Optional[str] = ..., role: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class WorkerReturned(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class WorkerStandby(_message.Message):
    __slots__ = ("worker", "ring_workers")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RING_WORKERS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    ring_workers: int
    def __init__(self, worker: _Optional[str] = ..., ring_workers: _Optional[int] = ...) -> None: ...

class WorkerExited(_message.Message):
    __slots__ = ("worker", "how", "out_of_memory", "last_words")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LAST_WORDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    how: str
    out_of_memory: str
    last_words: str
    def __init__(self, worker: _Optional[str] = ..., how: _Optional[str] = ..., out_of_memory: _Optional[str] = ..., last_words: _Optional[str] = ...) -> None: ...

class LogFilesIncomplete(_message.Message):
    __slots__ = ("host", "location", "why")
    HOST_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    host: str
    location: str
    why: str
    def __init__(self, host: _Optional[str] = ..., location: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class WorkerLost(_message.Message):
    __slots__ = ("worker", "how", "why", "grace_seconds")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    how: str
    why: str
    grace_seconds: float
    def __init__(self, worker: _Optional[str] = ..., how: _Optional[str] = ..., why: _Optional[str] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class WorkerEvicted(_message.Message):
    __slots__ = ("worker", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class WorkerLeft(_message.Message):
    __slots__ = ("worker", "finished", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    finished: bool
    why: str
    def __init__(self, worker: _Optional[str] = ..., finished: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

class WorkerDraining(_message.Message):
    __slots__ = ("worker", "why", "by")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    by: str
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class WorkerQuarantined(_message.Message):
    __slots__ = ("worker", "deaths", "delay_seconds", "window_seconds")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DEATHS_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    deaths: int
    delay_seconds: float
    window_seconds: float
    def __init__(self, worker: _Optional[str] = ..., deaths: _Optional[int] = ..., delay_seconds: _Optional[float] = ..., window_seconds: _Optional[float] = ...) -> None: ...

class WorkerBarred(_message.Message):
    __slots__ = ("worker", "at_step")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    worker: str
    at_step: int
    def __init__(self, worker: _Optional[str] = ..., at_step: _Optional[int] = ...) -> None: ...

class HostBarred(_message.Message):
    __slots__ = ("worker", "host", "delay_seconds")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    host: str
    delay_seconds: float
    def __init__(self, worker: _Optional[str] = ..., host: _Optional[str] = ..., delay_seconds: _Optional[float] = ...) -> None: ...

class StragglerReweighted(_message.Message):
    __slots__ = ("worker", "cause", "ratio", "ests_before", "ests", "rate_before", "rate_after")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    ESTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ESTS_FIELD_NUMBER: _ClassVar[int]
    RATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    cause: str
    ratio: float
    ests_before: int
    ests: int
    rate_before: float
    rate_after: float
    def __init__(self, worker: _Optional[str] = ..., cause: _Optional[str] = ..., ratio: _Optional[float] = ..., ests_before: _Optional[int] = ..., ests: _Optional[int] = ..., rate_before: _Optional[float] = ..., rate_after: _Optional[float] = ...) -> None: ...

class StragglerReplaced(_message.Message):
    __slots__ = ("worker", "newcomer", "cause", "ratio", "host", "barred_seconds", "rate_before", "rate_after")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NEWCOMER_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    BARRED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    newcomer: str
    cause: str
    ratio: float
    host: str
    barred_seconds: float
    rate_before: float
    rate_after: float
    def __init__(self, worker: _Optional[str] = ..., newcomer: _Optional[str] = ..., cause: _Optional[str] = ..., ratio: _Optional[float] = ..., host: _Optional[str] = ..., barred_seconds: _Optional[float] = ..., rate_before: _Optional[float] = ..., rate_after: _Optional[float] = ...) -> None: ...

class WorkerReleased(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class NoticeOver(_message.Message):
    __slots__ = ("worker", "in_ring")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IN_RING_FIELD_NUMBER: _ClassVar[int]
    worker: str
    in_ring: bool
    def __init__(self, worker: _Optional[str] = ..., in_ring: _Optional[bool] = ...) -> None: ...

class NoticeOverUnsaved(_message.Message):
    __slots__ = ("worker", "checkpoint", "at_step", "waited_seconds", "lost")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WAITED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    worker: str
    checkpoint: str
    at_step: int
    waited_seconds: float
    lost: int
    def __init__(self, worker: _Optional[str] = ..., checkpoint: _Optional[str] = ..., at_step: _Optional[int] = ..., waited_seconds: _Optional[float] = ..., lost: _Optional[int] = ...) -> None: ...

class RingAnnounced(_message.Message):
    __slots__ = ("members", "planned", "why", "whole", "cause")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[RingPlace]
    planned: bool
    why: str
    whole: bool
    cause: str
    def __init__(self, members: _Optional[_Iterable[_Union[RingPlace, _Mapping]]] = ..., planned: _Optional[bool] = ..., why: _Optional[str] = ..., whole: _Optional[bool] = ..., cause: _Optional[str] = ...) -> None: ...

class RingScaled(_message.Message):
    __slots__ = ("workers_min", "workers_max")
    WORKERS_MIN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MAX_FIELD_NUMBER: _ClassVar[int]
    workers_min: int
    workers_max: int
    def __init__(self, workers_min: _Optional[int] = ..., workers_max: _Optional[int] = ...) -> None: ...

class ScalingSet(_message.Message):
    __slots__ = ("mode", "workers_min", "workers_max")
    MODE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MIN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_MAX_FIELD_NUMBER: _ClassVar[int]
    mode: str
    workers_min: int
    workers_max: int
    def __init__(self, mode: _Optional[str] = ..., workers_min: _Optional[int] = ..., workers_max: _Optional[int] = ...) -> None: ...

class JobAutoscaled(_message.Message):
    __slots__ = ("workers_before", "workers", "on_demand", "mode", "why", "rate_before", "rate_predicted")
    WORKERS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    ON_DEMAND_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RATE_PREDICTED_FIELD_NUMBER: _ClassVar[int]
    workers_before: int
    workers: int
    on_demand: int
    mode: str
    why: str
    rate_before: float
    rate_predicted: float
    def __init__(self, workers_before: _Optional[int] = ..., workers: _Optional[int] = ..., on_demand: _Optional[int] = ..., mode: _Optional[str] = ..., why: _Optional[str] = ..., rate_before: _Optional[float] = ..., rate_predicted: _Optional[float] = ...) -> None: ...

class ScaleRolledBack(_message.Message):
    __slots__ = ("workers_tried", "workers", "mode", "why", "rate_before", "rate_after", "barred_seconds")
    WORKERS_TRIED_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RATE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    RATE_AFTER_FIELD_NUMBER: _ClassVar[int]
    BARRED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    workers_tried: int
    workers: int
    mode: str
    why: str
    rate_before: float
    rate_after: float
    barred_seconds: float
    def __init__(self, workers_tried: _Optional[int] = ..., workers: _Optional[int] = ..., mode: _Optional[str] = ..., why: _Optional[str] = ..., rate_before: _Optional[float] = ..., rate_after: _Optional[float] = ..., barred_seconds: _Optional[float] = ...) -> None: ...

class StagePlace(_message.Message):
    __slots__ = ("first_unit", "end_unit", "replicas", "shadows", "memory")
    FIRST_UNIT_FIELD_NUMBER: _ClassVar[int]
    END_UNIT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    first_unit: int
    end_unit: int
    replicas: _containers.RepeatedScalarFieldContainer[str]
    shadows: _containers.RepeatedScalarFieldContainer[str]
    memory: str
    def __init__(self, first_unit: _Optional[int] = ..., end_unit: _Optional[int] = ..., replicas: _Optional[_Iterable[str]] = ..., shadows: _Optional[_Iterable[str]] = ..., memory: _Optional[str] = ...) -> None: ...

class StagesPlanned(_message.Message):
    __slots__ = ("stages", "replanned", "why", "step_seconds", "step_seconds_before")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    REPLANNED_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[StagePlace]
    replanned: bool
    why: str
    step_seconds: float
    step_seconds_before: float
    def __init__(self, stages: _Optional[_Iterable[_Union[StagePlace, _Mapping]]] = ..., replanned: _Optional[bool] = ..., why: _Optional[str] = ..., step_seconds: _Optional[float] = ..., step_seconds_before: _Optional[float] = ...) -> None: ...

class UnitsLost(_message.Message):
    __slots__ = ("units", "at_step")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    units: str
    at_step: int
    def __init__(self, units: _Optional[str] = ..., at_step: _Optional[int] = ...) -> None: ...

class UnitsAwaited(_message.Message):
    __slots__ = ("units", "at_step", "workers", "seconds")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    units: str
    at_step: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    seconds: float
    def __init__(self, units: _Optional[str] = ..., at_step: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., seconds: _Optional[float] = ...) -> None: ...

class PipelineWithout(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: str
    def __init__(self, options: _Optional[str] = ...) -> None: ...

class RingFormed(_message.Message):
    __slots__ = ("workers", "receivers", "resume_step", "donors")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    RECEIVERS_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    workers: int
    receivers: int
    resume_step: int
    donors: int
    def __init__(self, workers: _Optional[int] = ..., receivers: _Optional[int] = ..., resume_step: _Optional[int] = ..., donors: _Optional[int] = ...) -> None: ...

class CheckpointLoaded(_message.Message):
    __slots__ = ("worker", "checkpoint", "at_step", "begins")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    BEGINS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    checkpoint: str
    at_step: int
    begins: bool
    def __init__(self, worker: _Optional[str] = ..., checkpoint: _Optional[str] = ..., at_step: _Optional[int] = ..., begins: _Optional[bool] = ...) -> None: ...

class HistoryRewound(_message.Message):
    __slots__ = ("worker", "checkpoint", "from_step", "to_step")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    worker: str
    checkpoint: str
    from_step: int
    to_step: int
    def __init__(self, worker: _Optional[str] = ..., checkpoint: _Optional[str] = ..., from_step: _Optional[int] = ..., to_step: _Optional[int] = ...) -> None: ...

class StoreBehind(_message.Message):
    __slots__ = ("worker", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class HistoryRestored(_message.Message):
    __slots__ = ("from_step", "to_step", "workers")
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    from_step: int
    to_step: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ...) -> None: ...

class HistoryForgotten(_message.Message):
    __slots__ = ("from_step", "to_step", "missing")
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    TO_STEP_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    from_step: int
    to_step: int
    missing: str
    def __init__(self, from_step: _Optional[int] = ..., to_step: _Optional[int] = ..., missing: _Optional[str] = ...) -> None: ...

class IntervalLost(_message.Message):
    __slots__ = ("at_step", "why")
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    at_step: int
    why: str
    def __init__(self, at_step: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class StateDiffers(_message.Message):
    __slots__ = ("workers", "at_step")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    at_step: int
    def __init__(self, workers: _Optional[_Iterable[str]] = ..., at_step: _Optional[int] = ...) -> None: ...

class CheckpointRequested(_message.Message):
    __slots__ = ("checkpoint", "at_step", "shards", "why")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    at_step: int
    shards: int
    why: str
    def __init__(self, checkpoint: _Optional[str] = ..., at_step: _Optional[int] = ..., shards: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class CheckpointFailed(_message.Message):
    __slots__ = ("checkpoint", "at_step", "again", "why")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    at_step: int
    again: bool
    why: str
    def __init__(self, checkpoint: _Optional[str] = ..., at_step: _Optional[int] = ..., again: _Optional[bool] = ..., why: _Optional[str] = ...) -> None: ...

class CheckpointRejected(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class CheckpointSaved(_message.Message):
    __slots__ = ("checkpoint", "at_step", "bytes", "sha256", "shards")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    at_step: int
    bytes: int
    sha256: str
    shards: int
    def __init__(self, checkpoint: _Optional[str] = ..., at_step: _Optional[int] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., shards: _Optional[int] = ...) -> None: ...

class SentinelDifference(_message.Message):
    __slots__ = ("workers", "virtual_rank", "at_step", "votes")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    virtual_rank: int
    at_step: int
    votes: _containers.RepeatedCompositeFieldContainer[GradientVote]
    def __init__(self, workers: _Optional[_Iterable[str]] = ..., virtual_rank: _Optional[int] = ..., at_step: _Optional[int] = ..., votes: _Optional[_Iterable[_Union[GradientVote, _Mapping]]] = ...) -> None: ...

class SentinelFaulty(_message.Message):
    __slots__ = ("faulty", "right", "virtual_rank", "at_step", "doubtful_from")
    FAULTY_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_FROM_FIELD_NUMBER: _ClassVar[int]
    faulty: _containers.RepeatedScalarFieldContainer[str]
    right: _containers.RepeatedScalarFieldContainer[str]
    virtual_rank: int
    at_step: int
    doubtful_from: int
    def __init__(self, faulty: _Optional[_Iterable[str]] = ..., right: _Optional[_Iterable[str]] = ..., virtual_rank: _Optional[int] = ..., at_step: _Optional[int] = ..., doubtful_from: _Optional[int] = ...) -> None: ...

class SentinelUndecided(_message.Message):
    __slots__ = ("workers", "third_missing", "at_step", "virtual_rank", "doubtful_from")
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    THIRD_MISSING_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    DOUBTFUL_FROM_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    third_missing: bool
    at_step: int
    virtual_rank: int
    doubtful_from: int
    def __init__(self, workers: _Optional[_Iterable[str]] = ..., third_missing: _Optional[bool] = ..., at_step: _Optional[int] = ..., virtual_rank: _Optional[int] = ..., doubtful_from: _Optional[int] = ...) -> None: ...

class DatasetCreated(_message.Message):
    __slots__ = ("dataset", "task_size", "epochs")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    TASK_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    task_size: int
    epochs: int
    def __init__(self, dataset: _Optional[str] = ..., task_size: _Optional[int] = ..., epochs: _Optional[int] = ...) -> None: ...

class TaskFailed(_message.Message):
    __slots__ = ("worker", "dataset", "epoch", "index", "attempt", "parked", "error")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    worker: str
    dataset: str
    epoch: int
    index: int
    attempt: int
    parked: bool
    error: str
    def __init__(self, worker: _Optional[str] = ..., dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., parked: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class TaskTimedOut(_message.Message):
    __slots__ = ("worker", "dataset", "epoch", "index", "attempt", "parked", "error")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARKED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    worker: str
    dataset: str
    epoch: int
    index: int
    attempt: int
    parked: bool
    error: str
    def __init__(self, worker: _Optional[str] = ..., dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., parked: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class MoreTasksFailed(_message.Message):
    __slots__ = ("dataset", "count")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    count: int
    def __init__(self, dataset: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class MoreTasksTimedOut(_message.Message):
    __slots__ = ("dataset", "count")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    count: int
    def __init__(self, dataset: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ModelRegistered(_message.Message):
    __slots__ = ("worker", "slots", "tensors", "tables")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    slots: int
    tensors: int
    tables: int
    def __init__(self, worker: _Optional[str] = ..., slots: _Optional[int] = ..., tensors: _Optional[int] = ..., tables: _Optional[int] = ...) -> None: ...

class PsJoined(_message.Message):
    __slots__ = ("worker", "host", "returned")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    host: str
    returned: bool
    def __init__(self, worker: _Optional[str] = ..., host: _Optional[str] = ..., returned: _Optional[bool] = ...) -> None: ...

class PsLost(_message.Message):
    __slots__ = ("worker", "why", "restored", "promoted")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    restored: int
    promoted: int
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ..., restored: _Optional[int] = ..., promoted: _Optional[int] = ...) -> None: ...

class PsDraining(_message.Message):
    __slots__ = ("worker", "why", "slots")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    slots: int
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ..., slots: _Optional[int] = ...) -> None: ...

class PsLeft(_message.Message):
    __slots__ = ("worker", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class SlotsMoved(_message.Message):
    __slots__ = ("moved", "copied", "seconds")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    moved: int
    copied: int
    seconds: float
    def __init__(self, moved: _Optional[int] = ..., copied: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class SlotsRestored(_message.Message):
    __slots__ = ("worker", "slots", "fresh", "rejected")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    slots: str
    fresh: bool
    rejected: str
    def __init__(self, worker: _Optional[str] = ..., slots: _Optional[str] = ..., fresh: _Optional[bool] = ..., rejected: _Optional[str] = ...) -> None: ...

class SlotsUnrestored(_message.Message):
    __slots__ = ("worker", "slot", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    slot: int
    why: str
    def __init__(self, worker: _Optional[str] = ..., slot: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class SlotsRewound(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    def __init__(self, checkpoint: _Optional[str] = ...) -> None: ...

class SlotsUnsaved(_message.Message):
    __slots__ = ("worker", "why")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    worker: str
    why: str
    def __init__(self, worker: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class SlotsCheckpointed(_message.Message):
    __slots__ = ("checkpoint", "tasks", "surplus", "bytes")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SURPLUS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    tasks: int
    surplus: int
    bytes: int
    def __init__(self, checkpoint: _Optional[str] = ..., tasks: _Optional[int] = ..., surplus: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class TasksReopened(_message.Message):
    __slots__ = ("dataset", "epoch", "first", "count", "slot")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    first: int
    count: int
    slot: int
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., count: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class TaskLeftParts(_message.Message):
    __slots__ = ("dataset", "epoch", "index", "slots")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    index: int
    slots: int
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., slots: _Optional[int] = ...) -> None: ...

class NonFiniteGradient(_message.Message):
    __slots__ = ("worker", "dataset", "epoch", "index", "error")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    worker: str
    dataset: str
    epoch: int
    index: int
    error: str
    def __init__(self, worker: _Optional[str] = ..., dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...
