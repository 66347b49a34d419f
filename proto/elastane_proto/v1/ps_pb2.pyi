import datetime

from elastane_proto.v1 import common_pb2 as _common_pb2
from elastane_proto.v1 import job_pb2 as _job_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DenseRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DENSE_RULE_UNSPECIFIED: _ClassVar[DenseRule]
    DENSE_RULE_SGD: _ClassVar[DenseRule]
    DENSE_RULE_ADAGRAD: _ClassVar[DenseRule]
    DENSE_RULE_ADAM: _ClassVar[DenseRule]
    DENSE_RULE_ADAMW: _ClassVar[DenseRule]

class RowRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_RULE_UNSPECIFIED: _ClassVar[RowRule]
    ROW_RULE_SGD: _ClassVar[RowRule]
    ROW_RULE_ROWWISE_ADAGRAD: _ClassVar[RowRule]
    ROW_RULE_LAZY_ADAM: _ClassVar[RowRule]

class RowDistribution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROW_DISTRIBUTION_UNSPECIFIED: _ClassVar[RowDistribution]
    ROW_DISTRIBUTION_UNIFORM: _ClassVar[RowDistribution]
    ROW_DISTRIBUTION_NORMAL: _ClassVar[RowDistribution]
    ROW_DISTRIBUTION_ZEROS: _ClassVar[RowDistribution]
DENSE_RULE_UNSPECIFIED: DenseRule
DENSE_RULE_SGD: DenseRule
DENSE_RULE_ADAGRAD: DenseRule
DENSE_RULE_ADAM: DenseRule
DENSE_RULE_ADAMW: DenseRule
ROW_RULE_UNSPECIFIED: RowRule
ROW_RULE_SGD: RowRule
ROW_RULE_ROWWISE_ADAGRAD: RowRule
ROW_RULE_LAZY_ADAM: RowRule
ROW_DISTRIBUTION_UNSPECIFIED: RowDistribution
ROW_DISTRIBUTION_UNIFORM: RowDistribution
ROW_DISTRIBUTION_NORMAL: RowDistribution
ROW_DISTRIBUTION_ZEROS: RowDistribution

class DenseTensor(_message.Message):
    __slots__ = ("name", "shape", "strides", "dtype", "rule", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    rule: DenseRule
    group: int
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., rule: _Optional[_Union[DenseRule, str]] = ..., group: _Optional[int] = ...) -> None: ...

class RowTable(_message.Message):
    __slots__ = ("name", "rows", "width", "dtype", "padding_row", "distribution", "scale", "rule", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PADDING_ROW_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    width: int
    dtype: str
    padding_row: int
    distribution: RowDistribution
    scale: float
    rule: RowRule
    group: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[str] = ..., padding_row: _Optional[int] = ..., distribution: _Optional[_Union[RowDistribution, str]] = ..., scale: _Optional[float] = ..., rule: _Optional[_Union[RowRule, str]] = ..., group: _Optional[int] = ...) -> None: ...

class SlotModel(_message.Message):
    __slots__ = ("slots", "seed", "tensors", "tables", "dense_digest", "environment", "absent")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    DENSE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    slots: int
    seed: int
    tensors: _containers.RepeatedCompositeFieldContainer[DenseTensor]
    tables: _containers.RepeatedCompositeFieldContainer[RowTable]
    dense_digest: bytes
    environment: _containers.ScalarMap[str, str]
    absent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, slots: _Optional[int] = ..., seed: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[DenseTensor, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[RowTable, _Mapping]]] = ..., dense_digest: _Optional[bytes] = ..., environment: _Optional[_Mapping[str, str]] = ..., absent: _Optional[_Iterable[str]] = ...) -> None: ...

class SlotPlace(_message.Message):
    __slots__ = ("owner", "backup", "target", "joining", "begun", "life", "fence", "since", "restoring", "source")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    RESTORING_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    owner: str
    backup: str
    target: str
    joining: str
    begun: int
    life: int
    fence: int
    since: int
    restoring: bool
    source: str
    def __init__(self, owner: _Optional[str] = ..., backup: _Optional[str] = ..., target: _Optional[str] = ..., joining: _Optional[str] = ..., begun: _Optional[int] = ..., life: _Optional[int] = ..., fence: _Optional[int] = ..., since: _Optional[int] = ..., restoring: _Optional[bool] = ..., source: _Optional[str] = ...) -> None: ...

class PsAddress(_message.Message):
    __slots__ = ("ps_id", "address", "draining", "secret")
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    ps_id: str
    address: str
    draining: bool
    secret: bytes
    def __init__(self, ps_id: _Optional[str] = ..., address: _Optional[str] = ..., draining: _Optional[bool] = ..., secret: _Optional[bytes] = ...) -> None: ...

class SlotMap(_message.Message):
    __slots__ = ("generation", "places", "processes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    places: _containers.RepeatedCompositeFieldContainer[SlotPlace]
    processes: _containers.RepeatedCompositeFieldContainer[PsAddress]
    def __init__(self, generation: _Optional[int] = ..., places: _Optional[_Iterable[_Union[SlotPlace, _Mapping]]] = ..., processes: _Optional[_Iterable[_Union[PsAddress, _Mapping]]] = ...) -> None: ...

class TaskRunName(_message.Message):
    __slots__ = ("dataset", "epoch", "start", "end")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    start: int
    end: int
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class HeldSlot(_message.Message):
    __slots__ = ("slot", "life", "version", "since", "backup", "frozen")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BACKUP_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    slot: int
    life: int
    version: int
    since: int
    backup: bool
    frozen: bool
    def __init__(self, slot: _Optional[int] = ..., life: _Optional[int] = ..., version: _Optional[int] = ..., since: _Optional[int] = ..., backup: _Optional[bool] = ..., frozen: _Optional[bool] = ...) -> None: ...

class PsHello(_message.Message):
    __slots__ = ("job", "ps_id", "host", "pid", "address", "key", "process", "process_started", "process_clock", "version", "capacity", "memory_bytes", "held", "generation", "lease_seen", "lives")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_STARTED_FIELD_NUMBER: _ClassVar[int]
    PROCESS_CLOCK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_SEEN_FIELD_NUMBER: _ClassVar[int]
    LIVES_FIELD_NUMBER: _ClassVar[int]
    job: str
    ps_id: str
    host: str
    pid: int
    address: str
    key: bytes
    process: bytes
    process_started: _duration_pb2.Duration
    process_clock: str
    version: str
    capacity: _common_pb2.CapacityType
    memory_bytes: int
    held: _containers.RepeatedCompositeFieldContainer[HeldSlot]
    generation: int
    lease_seen: int
    lives: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[str] = ..., ps_id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., address: _Optional[str] = ..., key: _Optional[bytes] = ..., process: _Optional[bytes] = ..., process_started: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., process_clock: _Optional[str] = ..., version: _Optional[str] = ..., capacity: _Optional[_Union[_common_pb2.CapacityType, str]] = ..., memory_bytes: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldSlot, _Mapping]]] = ..., generation: _Optional[int] = ..., lease_seen: _Optional[int] = ..., lives: _Optional[_Iterable[int]] = ...) -> None: ...

class SlotRestored(_message.Message):
    __slots__ = ("slot", "life", "version", "applied", "snapshot", "rejected", "since", "snapshot_life")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_LIFE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    life: int
    version: int
    applied: bytes
    snapshot: str
    rejected: _containers.RepeatedScalarFieldContainer[str]
    since: int
    snapshot_life: int
    def __init__(self, slot: _Optional[int] = ..., life: _Optional[int] = ..., version: _Optional[int] = ..., applied: _Optional[bytes] = ..., snapshot: _Optional[str] = ..., rejected: _Optional[_Iterable[str]] = ..., since: _Optional[int] = ..., snapshot_life: _Optional[int] = ...) -> None: ...

class SlotCopied(_message.Message):
    __slots__ = ("slot", "ps_id", "begun", "version")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    slot: int
    ps_id: str
    begun: int
    version: int
    def __init__(self, slot: _Optional[int] = ..., ps_id: _Optional[str] = ..., begun: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class CopyBroken(_message.Message):
    __slots__ = ("slot", "ps_id", "begun", "error")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    slot: int
    ps_id: str
    begun: int
    error: str
    def __init__(self, slot: _Optional[int] = ..., ps_id: _Optional[str] = ..., begun: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class BackupLost(_message.Message):
    __slots__ = ("slot", "ps_id", "generation", "error")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    slot: int
    ps_id: str
    generation: int
    error: str
    def __init__(self, slot: _Optional[int] = ..., ps_id: _Optional[str] = ..., generation: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class SavedSlot(_message.Message):
    __slots__ = ("slot", "life", "version", "folder", "bytes", "sha256", "applied")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    slot: int
    life: int
    version: int
    folder: str
    bytes: int
    sha256: bytes
    applied: bytes
    def __init__(self, slot: _Optional[int] = ..., life: _Optional[int] = ..., version: _Optional[int] = ..., folder: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., applied: _Optional[bytes] = ...) -> None: ...

class SlotsSaved(_message.Message):
    __slots__ = ("request", "slots", "error")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request: str
    slots: _containers.RepeatedCompositeFieldContainer[SavedSlot]
    error: str
    def __init__(self, request: _Optional[str] = ..., slots: _Optional[_Iterable[_Union[SavedSlot, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class TasksClosed(_message.Message):
    __slots__ = ("tasks", "slots", "generation")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskRunName]
    slots: _containers.RepeatedCompositeFieldContainer[ClosedSlot]
    generation: int
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskRunName, _Mapping]]] = ..., slots: _Optional[_Iterable[_Union[ClosedSlot, _Mapping]]] = ..., generation: _Optional[int] = ...) -> None: ...

class ClosedSlot(_message.Message):
    __slots__ = ("slot", "applied", "life")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    slot: int
    applied: _containers.RepeatedScalarFieldContainer[bool]
    life: int
    def __init__(self, slot: _Optional[int] = ..., applied: _Optional[_Iterable[bool]] = ..., life: _Optional[int] = ...) -> None: ...

class PsLeaving(_message.Message):
    __slots__ = ("reason", "notice")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    notice: _duration_pb2.Duration
    def __init__(self, reason: _Optional[str] = ..., notice: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PsBye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SlotFigures(_message.Message):
    __slots__ = ("slot", "version", "rows", "weight_bytes", "optimizer_bytes", "pushes", "pulls", "saved_version")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    SAVED_VERSION_FIELD_NUMBER: _ClassVar[int]
    slot: int
    version: int
    rows: int
    weight_bytes: int
    optimizer_bytes: int
    pushes: int
    pulls: int
    saved_version: int
    def __init__(self, slot: _Optional[int] = ..., version: _Optional[int] = ..., rows: _Optional[int] = ..., weight_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., pushes: _Optional[int] = ..., pulls: _Optional[int] = ..., saved_version: _Optional[int] = ...) -> None: ...

class PsFigures(_message.Message):
    __slots__ = ("slots", "verdicts", "staleness_counts", "pull_seconds", "pull_frames", "push_seconds", "push_frames", "bytes_received", "bytes_sent", "memory_bytes_used", "non_finite", "unsaved_since", "unsaved_error", "staleness_sum")
    class VerdictsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    VERDICTS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PULL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PULL_FRAMES_FIELD_NUMBER: _ClassVar[int]
    PUSH_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PUSH_FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_USED_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    UNSAVED_SINCE_FIELD_NUMBER: _ClassVar[int]
    UNSAVED_ERROR_FIELD_NUMBER: _ClassVar[int]
    STALENESS_SUM_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[SlotFigures]
    verdicts: _containers.ScalarMap[str, int]
    staleness_counts: _containers.RepeatedScalarFieldContainer[int]
    pull_seconds: float
    pull_frames: int
    push_seconds: float
    push_frames: int
    bytes_received: int
    bytes_sent: int
    memory_bytes_used: int
    non_finite: int
    unsaved_since: _timestamp_pb2.Timestamp
    unsaved_error: str
    staleness_sum: int
    def __init__(self, slots: _Optional[_Iterable[_Union[SlotFigures, _Mapping]]] = ..., verdicts: _Optional[_Mapping[str, int]] = ..., staleness_counts: _Optional[_Iterable[int]] = ..., pull_seconds: _Optional[float] = ..., pull_frames: _Optional[int] = ..., push_seconds: _Optional[float] = ..., push_frames: _Optional[int] = ..., bytes_received: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., memory_bytes_used: _Optional[int] = ..., non_finite: _Optional[int] = ..., unsaved_since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., unsaved_error: _Optional[str] = ..., staleness_sum: _Optional[int] = ...) -> None: ...

class PsHeartbeat(_message.Message):
    __slots__ = ("generation", "figures", "lease_seen")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    LEASE_SEEN_FIELD_NUMBER: _ClassVar[int]
    generation: int
    figures: PsFigures
    lease_seen: int
    def __init__(self, generation: _Optional[int] = ..., figures: _Optional[_Union[PsFigures, _Mapping]] = ..., lease_seen: _Optional[int] = ...) -> None: ...

class PsSettings(_message.Message):
    __slots__ = ("staleness", "replicas", "snapshot_url", "snapshot_seconds", "nonfinite", "wire", "scale_by_staleness", "journal")
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_URL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NONFINITE_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    SCALE_BY_STALENESS_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    staleness: int
    replicas: int
    snapshot_url: str
    snapshot_seconds: float
    nonfinite: _job_pb2.PsNonfinite
    wire: _job_pb2.PsWire
    scale_by_staleness: bool
    journal: bool
    def __init__(self, staleness: _Optional[int] = ..., replicas: _Optional[int] = ..., snapshot_url: _Optional[str] = ..., snapshot_seconds: _Optional[float] = ..., nonfinite: _Optional[_Union[_job_pb2.PsNonfinite, str]] = ..., wire: _Optional[_Union[_job_pb2.PsWire, str]] = ..., scale_by_staleness: _Optional[bool] = ..., journal: _Optional[bool] = ...) -> None: ...

class PsWelcome(_message.Message):
    __slots__ = ("map", "model", "settings", "heartbeat_seconds")
    MAP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    map: SlotMap
    model: SlotModel
    settings: PsSettings
    heartbeat_seconds: float
    def __init__(self, map: _Optional[_Union[SlotMap, _Mapping]] = ..., model: _Optional[_Union[SlotModel, _Mapping]] = ..., settings: _Optional[_Union[PsSettings, _Mapping]] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class SaveSlots(_message.Message):
    __slots__ = ("request", "folder")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    request: str
    folder: str
    def __init__(self, request: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class SaveManifest(_message.Message):
    __slots__ = ("request", "folder", "manifest")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    request: str
    folder: str
    manifest: bytes
    def __init__(self, request: _Optional[str] = ..., folder: _Optional[str] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class CloseTasks(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskRunName]
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskRunName, _Mapping]]] = ...) -> None: ...

class PsDrain(_message.Message):
    __slots__ = ("reason", "notice")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    notice: _duration_pb2.Duration
    def __init__(self, reason: _Optional[str] = ..., notice: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PsDone(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class AttendSlotsRequest(_message.Message):
    __slots__ = ("hello", "heartbeat", "restored", "copied", "copy_broken", "backup_lost", "saved", "closed", "leaving", "bye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    COPY_BROKEN_FIELD_NUMBER: _ClassVar[int]
    BACKUP_LOST_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    BYE_FIELD_NUMBER: _ClassVar[int]
    hello: PsHello
    heartbeat: PsHeartbeat
    restored: SlotRestored
    copied: SlotCopied
    copy_broken: CopyBroken
    backup_lost: BackupLost
    saved: SlotsSaved
    closed: TasksClosed
    leaving: PsLeaving
    bye: PsBye
    def __init__(self, hello: _Optional[_Union[PsHello, _Mapping]] = ..., heartbeat: _Optional[_Union[PsHeartbeat, _Mapping]] = ..., restored: _Optional[_Union[SlotRestored, _Mapping]] = ..., copied: _Optional[_Union[SlotCopied, _Mapping]] = ..., copy_broken: _Optional[_Union[CopyBroken, _Mapping]] = ..., backup_lost: _Optional[_Union[BackupLost, _Mapping]] = ..., saved: _Optional[_Union[SlotsSaved, _Mapping]] = ..., closed: _Optional[_Union[TasksClosed, _Mapping]] = ..., leaving: _Optional[_Union[PsLeaving, _Mapping]] = ..., bye: _Optional[_Union[PsBye, _Mapping]] = ...) -> None: ...

class AttendSlotsResponse(_message.Message):
    __slots__ = ("welcome", "map", "model", "save", "save_manifest", "close", "drain", "done")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    MAP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    SAVE_MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    welcome: PsWelcome
    map: SlotMap
    model: SlotModel
    save: SaveSlots
    save_manifest: SaveManifest
    close: CloseTasks
    drain: PsDrain
    done: PsDone
    def __init__(self, welcome: _Optional[_Union[PsWelcome, _Mapping]] = ..., map: _Optional[_Union[SlotMap, _Mapping]] = ..., model: _Optional[_Union[SlotModel, _Mapping]] = ..., save: _Optional[_Union[SaveSlots, _Mapping]] = ..., save_manifest: _Optional[_Union[SaveManifest, _Mapping]] = ..., close: _Optional[_Union[CloseTasks, _Mapping]] = ..., drain: _Optional[_Union[PsDrain, _Mapping]] = ..., done: _Optional[_Union[PsDone, _Mapping]] = ...) -> None: ...

class RegisterModelRequest(_message.Message):
    __slots__ = ("job", "worker_id", "model")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_id: str
    model: SlotModel
    def __init__(self, job: _Optional[str] = ..., worker_id: _Optional[str] = ..., model: _Optional[_Union[SlotModel, _Mapping]] = ...) -> None: ...

class RegisterModelResponse(_message.Message):
    __slots__ = ("map", "created", "settings")
    MAP_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    map: SlotMap
    created: bool
    settings: PsSettings
    def __init__(self, map: _Optional[_Union[SlotMap, _Mapping]] = ..., created: _Optional[bool] = ..., settings: _Optional[_Union[PsSettings, _Mapping]] = ...) -> None: ...

class WatchMapRequest(_message.Message):
    __slots__ = ("job", "worker_id", "generation")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_id: str
    generation: int
    def __init__(self, job: _Optional[str] = ..., worker_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class WatchMapResponse(_message.Message):
    __slots__ = ("map",)
    MAP_FIELD_NUMBER: _ClassVar[int]
    map: SlotMap
    def __init__(self, map: _Optional[_Union[SlotMap, _Mapping]] = ...) -> None: ...

class GetSlotsRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class PsState(_message.Message):
    __slots__ = ("ps_id", "host", "pid", "address", "state", "slots", "backups", "memory_bytes", "joined", "capacity", "figures")
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    BACKUPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    ps_id: str
    host: str
    pid: int
    address: str
    state: str
    slots: int
    backups: int
    memory_bytes: int
    joined: _timestamp_pb2.Timestamp
    capacity: _common_pb2.CapacityType
    figures: PsFigures
    def __init__(self, ps_id: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., slots: _Optional[int] = ..., backups: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., joined: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.CapacityType, str]] = ..., figures: _Optional[_Union[PsFigures, _Mapping]] = ...) -> None: ...

class LeaseGate(_message.Message):
    __slots__ = ("limit", "outstanding", "returned", "closing", "worst", "waiting", "leases")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    WORST_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    limit: int
    outstanding: int
    returned: int
    closing: int
    worst: int
    waiting: str
    leases: int
    def __init__(self, limit: _Optional[int] = ..., outstanding: _Optional[int] = ..., returned: _Optional[int] = ..., closing: _Optional[int] = ..., worst: _Optional[int] = ..., waiting: _Optional[str] = ..., leases: _Optional[int] = ...) -> None: ...

class TaskParts(_message.Message):
    __slots__ = ("dataset", "epoch", "task", "slots")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    task: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., task: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class SlotSnapshot(_message.Message):
    __slots__ = ("slot", "life", "version")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    slot: int
    life: int
    version: int
    def __init__(self, slot: _Optional[int] = ..., life: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class GetSlotsResponse(_message.Message):
    __slots__ = ("map", "model", "settings", "processes", "gate", "left", "snapshots", "reopened", "checkpoint", "datasets")
    MAP_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    map: SlotMap
    model: SlotModel
    settings: PsSettings
    processes: _containers.RepeatedCompositeFieldContainer[PsState]
    gate: LeaseGate
    left: _containers.RepeatedCompositeFieldContainer[TaskParts]
    snapshots: _containers.RepeatedCompositeFieldContainer[SlotSnapshot]
    reopened: int
    checkpoint: str
    datasets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, map: _Optional[_Union[SlotMap, _Mapping]] = ..., model: _Optional[_Union[SlotModel, _Mapping]] = ..., settings: _Optional[_Union[PsSettings, _Mapping]] = ..., processes: _Optional[_Iterable[_Union[PsState, _Mapping]]] = ..., gate: _Optional[_Union[LeaseGate, _Mapping]] = ..., left: _Optional[_Iterable[_Union[TaskParts, _Mapping]]] = ..., snapshots: _Optional[_Iterable[_Union[SlotSnapshot, _Mapping]]] = ..., reopened: _Optional[int] = ..., checkpoint: _Optional[str] = ..., datasets: _Optional[_Iterable[str]] = ...) -> None: ...

class CheckpointSlotsRequest(_message.Message):
    __slots__ = ("job", "in_flight", "request_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    in_flight: bool
    request_id: str
    def __init__(self, job: _Optional[str] = ..., in_flight: _Optional[bool] = ..., request_id: _Optional[str] = ...) -> None: ...

class SlotSurplus(_message.Message):
    __slots__ = ("slot", "tasks")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    tasks: _containers.RepeatedCompositeFieldContainer[TaskRunName]
    def __init__(self, slot: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[TaskRunName, _Mapping]]] = ...) -> None: ...

class CheckpointSlotsResponse(_message.Message):
    __slots__ = ("checkpoint", "url", "tasks", "surplus")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SURPLUS_FIELD_NUMBER: _ClassVar[int]
    checkpoint: str
    url: str
    tasks: int
    surplus: _containers.RepeatedCompositeFieldContainer[SlotSurplus]
    def __init__(self, checkpoint: _Optional[str] = ..., url: _Optional[str] = ..., tasks: _Optional[int] = ..., surplus: _Optional[_Iterable[_Union[SlotSurplus, _Mapping]]] = ...) -> None: ...

class RewindSlotsRequest(_message.Message):
    __slots__ = ("job", "checkpoint", "request_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    checkpoint: str
    request_id: str
    def __init__(self, job: _Optional[str] = ..., checkpoint: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class RewindSlotsResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class DrainPsRequest(_message.Message):
    __slots__ = ("job", "ps_id", "reason", "request_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PS_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    ps_id: str
    reason: str
    request_id: str
    def __init__(self, job: _Optional[str] = ..., ps_id: _Optional[str] = ..., reason: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class DrainPsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
