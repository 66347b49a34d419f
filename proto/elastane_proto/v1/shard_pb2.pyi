import datetime

from elastane_proto.v1 import common_pb2 as _common_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_TODO: _ClassVar[TaskState]
    TASK_STATE_DOING: _ClassVar[TaskState]
    TASK_STATE_DONE: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]

class ReportOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPORT_OUTCOME_UNSPECIFIED: _ClassVar[ReportOutcome]
    REPORT_OUTCOME_ACCEPTED: _ClassVar[ReportOutcome]
    REPORT_OUTCOME_STALE: _ClassVar[ReportOutcome]
    REPORT_OUTCOME_RETURNED: _ClassVar[ReportOutcome]
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_TODO: TaskState
TASK_STATE_DOING: TaskState
TASK_STATE_DONE: TaskState
TASK_STATE_FAILED: TaskState
REPORT_OUTCOME_UNSPECIFIED: ReportOutcome
REPORT_OUTCOME_ACCEPTED: ReportOutcome
REPORT_OUTCOME_STALE: ReportOutcome
REPORT_OUTCOME_RETURNED: ReportOutcome

class RangeSource(_message.Message):
    __slots__ = ("size",)
    SIZE_FIELD_NUMBER: _ClassVar[int]
    size: int
    def __init__(self, size: _Optional[int] = ...) -> None: ...

class ListSource(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, entries: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamSource(_message.Message):
    __slots__ = ("watermark", "closed")
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    watermark: int
    closed: bool
    def __init__(self, watermark: _Optional[int] = ..., closed: _Optional[bool] = ...) -> None: ...

class DatasetSettings(_message.Message):
    __slots__ = ("range", "list", "stream", "task_size", "epochs", "lease", "max_attempts", "shuffle", "seed", "pushes")
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TASK_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    range: RangeSource
    list: ListSource
    stream: StreamSource
    task_size: int
    epochs: int
    lease: _duration_pb2.Duration
    max_attempts: int
    shuffle: bool
    seed: int
    pushes: bool
    def __init__(self, range: _Optional[_Union[RangeSource, _Mapping]] = ..., list: _Optional[_Union[ListSource, _Mapping]] = ..., stream: _Optional[_Union[StreamSource, _Mapping]] = ..., task_size: _Optional[int] = ..., epochs: _Optional[int] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_attempts: _Optional[int] = ..., shuffle: _Optional[bool] = ..., seed: _Optional[int] = ..., pushes: _Optional[bool] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("dataset", "epoch", "index", "range", "entries", "attempt", "deadline", "rng", "count", "lease", "map_generation")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MAP_GENERATION_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    index: int
    range: _common_pb2.Range
    entries: _containers.RepeatedScalarFieldContainer[int]
    attempt: int
    deadline: _timestamp_pb2.Timestamp
    rng: _common_pb2.RngStates
    count: int
    lease: int
    map_generation: int
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., index: _Optional[int] = ..., range: _Optional[_Union[_common_pb2.Range, _Mapping]] = ..., entries: _Optional[_Iterable[int]] = ..., attempt: _Optional[int] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rng: _Optional[_Union[_common_pb2.RngStates, _Mapping]] = ..., count: _Optional[int] = ..., lease: _Optional[int] = ..., map_generation: _Optional[int] = ...) -> None: ...

class TaskReport(_message.Message):
    __slots__ = ("epoch", "index", "attempt", "error", "count", "lives_sum", "returned", "non_finite", "map_generations")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LIVES_SUM_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    NON_FINITE_FIELD_NUMBER: _ClassVar[int]
    MAP_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    index: int
    attempt: int
    error: str
    count: int
    lives_sum: int
    returned: bool
    non_finite: bool
    map_generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, epoch: _Optional[int] = ..., index: _Optional[int] = ..., attempt: _Optional[int] = ..., error: _Optional[str] = ..., count: _Optional[int] = ..., lives_sum: _Optional[int] = ..., returned: _Optional[bool] = ..., non_finite: _Optional[bool] = ..., map_generations: _Optional[_Iterable[int]] = ...) -> None: ...

class TaskOutcome(_message.Message):
    __slots__ = ("epoch", "index", "outcome", "count")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    index: int
    outcome: ReportOutcome
    count: int
    def __init__(self, epoch: _Optional[int] = ..., index: _Optional[int] = ..., outcome: _Optional[_Union[ReportOutcome, str]] = ..., count: _Optional[int] = ...) -> None: ...

class ErrorOfAttempt(_message.Message):
    __slots__ = ("attempt", "worker_id", "error")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    worker_id: str
    error: str
    def __init__(self, attempt: _Optional[int] = ..., worker_id: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class TaskInfo(_message.Message):
    __slots__ = ("epoch", "index", "range", "state", "attempt", "worker_id", "deadline", "errors")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    index: int
    range: _common_pb2.Range
    state: TaskState
    attempt: int
    worker_id: str
    deadline: _timestamp_pb2.Timestamp
    errors: _containers.RepeatedCompositeFieldContainer[ErrorOfAttempt]
    def __init__(self, epoch: _Optional[int] = ..., index: _Optional[int] = ..., range: _Optional[_Union[_common_pb2.Range, _Mapping]] = ..., state: _Optional[_Union[TaskState, str]] = ..., attempt: _Optional[int] = ..., worker_id: _Optional[str] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., errors: _Optional[_Iterable[_Union[ErrorOfAttempt, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("dataset", "epoch", "epochs", "todo", "doing", "done", "failed", "total", "requeued", "timed_out", "samples_done", "samples_per_second", "eta", "complete", "holders", "reopened")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    TODO_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    REQUEUED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_DONE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ETA_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    epochs: int
    todo: int
    doing: int
    done: int
    failed: int
    total: int
    requeued: int
    timed_out: int
    samples_done: int
    samples_per_second: float
    eta: _duration_pb2.Duration
    complete: bool
    holders: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    reopened: int
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., epochs: _Optional[int] = ..., todo: _Optional[int] = ..., doing: _Optional[int] = ..., done: _Optional[int] = ..., failed: _Optional[int] = ..., total: _Optional[int] = ..., requeued: _Optional[int] = ..., timed_out: _Optional[int] = ..., samples_done: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., eta: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., complete: _Optional[bool] = ..., holders: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., reopened: _Optional[int] = ...) -> None: ...

class CreateDatasetRequest(_message.Message):
    __slots__ = ("job", "dataset", "settings", "request_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    settings: DatasetSettings
    request_id: str
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ..., settings: _Optional[_Union[DatasetSettings, _Mapping]] = ..., request_id: _Optional[str] = ...) -> None: ...

class CreateDatasetResponse(_message.Message):
    __slots__ = ("progress", "created")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    created: bool
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class LeaseTasksRequest(_message.Message):
    __slots__ = ("job", "dataset", "worker_id", "completed", "max_tasks", "wait", "request_id", "rng", "runs", "unanswered", "leaves")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    worker_id: str
    completed: _containers.RepeatedCompositeFieldContainer[TaskReport]
    max_tasks: int
    wait: _duration_pb2.Duration
    request_id: str
    rng: _common_pb2.RngStates
    runs: bool
    unanswered: int
    leaves: bool
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ..., worker_id: _Optional[str] = ..., completed: _Optional[_Iterable[_Union[TaskReport, _Mapping]]] = ..., max_tasks: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., request_id: _Optional[str] = ..., rng: _Optional[_Union[_common_pb2.RngStates, _Mapping]] = ..., runs: _Optional[bool] = ..., unanswered: _Optional[int] = ..., leaves: _Optional[bool] = ...) -> None: ...

class LeaseTasksResponse(_message.Message):
    __slots__ = ("tasks", "outcomes", "complete")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    outcomes: _containers.RepeatedCompositeFieldContainer[TaskOutcome]
    complete: bool
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., outcomes: _Optional[_Iterable[_Union[TaskOutcome, _Mapping]]] = ..., complete: _Optional[bool] = ...) -> None: ...

class StreamTasksRequest(_message.Message):
    __slots__ = ("request", "reads_more", "more")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    READS_MORE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request: LeaseTasksRequest
    reads_more: bool
    more: _containers.RepeatedCompositeFieldContainer[LeaseTasksRequest]
    def __init__(self, request: _Optional[_Union[LeaseTasksRequest, _Mapping]] = ..., reads_more: _Optional[bool] = ..., more: _Optional[_Iterable[_Union[LeaseTasksRequest, _Mapping]]] = ...) -> None: ...

class StreamTasksResponse(_message.Message):
    __slots__ = ("response", "more", "reads_more")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    READS_MORE_FIELD_NUMBER: _ClassVar[int]
    response: LeaseTasksResponse
    more: _containers.RepeatedCompositeFieldContainer[LeaseTasksResponse]
    reads_more: bool
    def __init__(self, response: _Optional[_Union[LeaseTasksResponse, _Mapping]] = ..., more: _Optional[_Iterable[_Union[LeaseTasksResponse, _Mapping]]] = ..., reads_more: _Optional[bool] = ...) -> None: ...

class GetProgressRequest(_message.Message):
    __slots__ = ("job", "dataset")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ...) -> None: ...

class GetProgressResponse(_message.Message):
    __slots__ = ("datasets",)
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, datasets: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class WatchProgressRequest(_message.Message):
    __slots__ = ("job", "dataset", "interval")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    interval: _duration_pb2.Duration
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchProgressResponse(_message.Message):
    __slots__ = ("datasets",)
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, datasets: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ("job", "dataset", "state", "page_size", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    state: TaskState
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks", "next_page_token")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    next_page_token: str
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("dataset", "epoch", "step", "virtual_rank", "worker_id", "generation", "attempt", "range", "samples", "metrics", "committed", "reopened")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REOPENED_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    epoch: int
    step: int
    virtual_rank: int
    worker_id: str
    generation: int
    attempt: int
    range: _common_pb2.Range
    samples: _containers.RepeatedScalarFieldContainer[int]
    metrics: _containers.ScalarMap[str, float]
    committed: _timestamp_pb2.Timestamp
    reopened: int
    def __init__(self, dataset: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., virtual_rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., generation: _Optional[int] = ..., attempt: _Optional[int] = ..., range: _Optional[_Union[_common_pb2.Range, _Mapping]] = ..., samples: _Optional[_Iterable[int]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., committed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reopened: _Optional[int] = ...) -> None: ...

class GetAuditLogRequest(_message.Message):
    __slots__ = ("job", "dataset", "page_size", "page_token")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    page_size: int
    page_token: str
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetAuditLogResponse(_message.Message):
    __slots__ = ("entries", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExtendDatasetRequest(_message.Message):
    __slots__ = ("job", "dataset", "watermark", "closed", "request_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    dataset: str
    watermark: int
    closed: bool
    request_id: str
    def __init__(self, job: _Optional[str] = ..., dataset: _Optional[str] = ..., watermark: _Optional[int] = ..., closed: _Optional[bool] = ..., request_id: _Optional[str] = ...) -> None: ...

class ExtendDatasetResponse(_message.Message):
    __slots__ = ("progress",)
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...
