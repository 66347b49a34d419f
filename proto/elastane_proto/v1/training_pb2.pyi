import datetime

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

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_WAITING_DATA: _ClassVar[RunState]
    RUN_STATE_QUEUED: _ClassVar[RunState]
    RUN_STATE_LAUNCHING: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_SUSPENDED: _ClassVar[RunState]
    RUN_STATE_SUCCEEDED: _ClassVar[RunState]
    RUN_STATE_FAILED: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]

class Framework(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FRAMEWORK_UNSPECIFIED: _ClassVar[Framework]
    FRAMEWORK_ELASTANE: _ClassVar[Framework]
    FRAMEWORK_PYTORCH: _ClassVar[Framework]
    FRAMEWORK_TENSORFLOW: _ClassVar[Framework]
    FRAMEWORK_HOROVOD: _ClassVar[Framework]
    FRAMEWORK_PLAIN: _ClassVar[Framework]
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_WAITING_DATA: RunState
RUN_STATE_QUEUED: RunState
RUN_STATE_LAUNCHING: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_SUSPENDED: RunState
RUN_STATE_SUCCEEDED: RunState
RUN_STATE_FAILED: RunState
RUN_STATE_CANCELLED: RunState
FRAMEWORK_UNSPECIFIED: Framework
FRAMEWORK_ELASTANE: Framework
FRAMEWORK_PYTORCH: Framework
FRAMEWORK_TENSORFLOW: Framework
FRAMEWORK_HOROVOD: Framework
FRAMEWORK_PLAIN: Framework

class DatasetRef(_message.Message):
    __slots__ = ("id", "version_hash", "url", "verify_files")
    ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_HASH_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FILES_FIELD_NUMBER: _ClassVar[int]
    id: str
    version_hash: str
    url: str
    verify_files: bool
    def __init__(self, id: _Optional[str] = ..., version_hash: _Optional[str] = ..., url: _Optional[str] = ..., verify_files: _Optional[bool] = ...) -> None: ...

class GitCommit(_message.Message):
    __slots__ = ("url", "commit")
    URL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    url: str
    commit: str
    def __init__(self, url: _Optional[str] = ..., commit: _Optional[str] = ...) -> None: ...

class CodeRef(_message.Message):
    __slots__ = ("archive_sha256", "git", "installed", "image")
    ARCHIVE_SHA256_FIELD_NUMBER: _ClassVar[int]
    GIT_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    archive_sha256: str
    git: GitCommit
    installed: bool
    image: str
    def __init__(self, archive_sha256: _Optional[str] = ..., git: _Optional[_Union[GitCommit, _Mapping]] = ..., installed: _Optional[bool] = ..., image: _Optional[str] = ...) -> None: ...

class SecretRef(_message.Message):
    __slots__ = ("variable", "file", "kubernetes")
    VARIABLE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    KUBERNETES_FIELD_NUMBER: _ClassVar[int]
    variable: str
    file: str
    kubernetes: str
    def __init__(self, variable: _Optional[str] = ..., file: _Optional[str] = ..., kubernetes: _Optional[str] = ...) -> None: ...

class RunSpec(_message.Message):
    __slots__ = ("algorithm", "name", "output_model_name", "dataset", "parameters", "framework", "instances", "instances_min", "code", "command", "slots_per_instance", "runner_labels", "labels", "priority", "retries_max", "run_time_max", "grace", "secrets", "job", "owner", "chief", "parameter_servers")
    class ParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class RunnerLabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_MIN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_PER_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    RUNNER_LABELS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RETRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_MAX_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    CHIEF_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    algorithm: str
    name: str
    output_model_name: str
    dataset: DatasetRef
    parameters: _containers.ScalarMap[str, str]
    framework: Framework
    instances: int
    instances_min: int
    code: CodeRef
    command: _containers.RepeatedScalarFieldContainer[str]
    slots_per_instance: int
    runner_labels: _containers.ScalarMap[str, str]
    labels: _containers.ScalarMap[str, str]
    priority: int
    retries_max: int
    run_time_max: _duration_pb2.Duration
    grace: _duration_pb2.Duration
    secrets: _containers.RepeatedCompositeFieldContainer[SecretRef]
    job: _job_pb2.JobSettings
    owner: str
    chief: bool
    parameter_servers: int
    def __init__(self, algorithm: _Optional[str] = ..., name: _Optional[str] = ..., output_model_name: _Optional[str] = ..., dataset: _Optional[_Union[DatasetRef, _Mapping]] = ..., parameters: _Optional[_Mapping[str, str]] = ..., framework: _Optional[_Union[Framework, str]] = ..., instances: _Optional[int] = ..., instances_min: _Optional[int] = ..., code: _Optional[_Union[CodeRef, _Mapping]] = ..., command: _Optional[_Iterable[str]] = ..., slots_per_instance: _Optional[int] = ..., runner_labels: _Optional[_Mapping[str, str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., priority: _Optional[int] = ..., retries_max: _Optional[int] = ..., run_time_max: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., secrets: _Optional[_Iterable[_Union[SecretRef, _Mapping]]] = ..., job: _Optional[_Union[_job_pb2.JobSettings, _Mapping]] = ..., owner: _Optional[str] = ..., chief: _Optional[bool] = ..., parameter_servers: _Optional[int] = ...) -> None: ...

class RankStatus(_message.Message):
    __slots__ = ("rank", "state", "runner_id", "host", "exit_code", "last_line", "started", "ended", "reason")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RankStatus.State]
        STATE_PENDING: _ClassVar[RankStatus.State]
        STATE_PREPARED: _ClassVar[RankStatus.State]
        STATE_RUNNING: _ClassVar[RankStatus.State]
        STATE_EXITED: _ClassVar[RankStatus.State]
        STATE_LOST: _ClassVar[RankStatus.State]
    STATE_UNSPECIFIED: RankStatus.State
    STATE_PENDING: RankStatus.State
    STATE_PREPARED: RankStatus.State
    STATE_RUNNING: RankStatus.State
    STATE_EXITED: RankStatus.State
    STATE_LOST: RankStatus.State
    RANK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RUNNER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    LAST_LINE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rank: int
    state: RankStatus.State
    runner_id: str
    host: str
    exit_code: int
    last_line: str
    started: _timestamp_pb2.Timestamp
    ended: _timestamp_pb2.Timestamp
    reason: str
    def __init__(self, rank: _Optional[int] = ..., state: _Optional[_Union[RankStatus.State, str]] = ..., runner_id: _Optional[str] = ..., host: _Optional[str] = ..., exit_code: _Optional[int] = ..., last_line: _Optional[str] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class RunTransition(_message.Message):
    __slots__ = ("time", "state", "reason", "attempt")
    TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    state: RunState
    reason: str
    attempt: int
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., reason: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("run_id", "spec", "state", "reason", "position", "queue_length", "attempt", "ranks", "created", "started", "ended", "history", "job", "artifact_url", "next_attempt", "cancelling", "revision", "priority", "slot_seconds", "earliest_start", "holders", "queue")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_URL_FIELD_NUMBER: _ClassVar[int]
    NEXT_ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CANCELLING_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SLOT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_START_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    spec: RunSpec
    state: RunState
    reason: str
    position: int
    queue_length: int
    attempt: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    created: _timestamp_pb2.Timestamp
    started: _timestamp_pb2.Timestamp
    ended: _timestamp_pb2.Timestamp
    history: _containers.RepeatedCompositeFieldContainer[RunTransition]
    job: str
    artifact_url: str
    next_attempt: _timestamp_pb2.Timestamp
    cancelling: bool
    revision: int
    priority: int
    slot_seconds: float
    earliest_start: _timestamp_pb2.Timestamp
    holders: _containers.RepeatedCompositeFieldContainer[SlotHolder]
    queue: str
    def __init__(self, run_id: _Optional[int] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ..., state: _Optional[_Union[RunState, str]] = ..., reason: _Optional[str] = ..., position: _Optional[int] = ..., queue_length: _Optional[int] = ..., attempt: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., history: _Optional[_Iterable[_Union[RunTransition, _Mapping]]] = ..., job: _Optional[str] = ..., artifact_url: _Optional[str] = ..., next_attempt: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cancelling: _Optional[bool] = ..., revision: _Optional[int] = ..., priority: _Optional[int] = ..., slot_seconds: _Optional[float] = ..., earliest_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., holders: _Optional[_Iterable[_Union[SlotHolder, _Mapping]]] = ..., queue: _Optional[str] = ...) -> None: ...

class SlotHolder(_message.Message):
    __slots__ = ("run_id", "slots", "until")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    slots: int
    until: _timestamp_pb2.Timestamp
    def __init__(self, run_id: _Optional[int] = ..., slots: _Optional[int] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SchedulingDecision(_message.Message):
    __slots__ = ("time", "policy", "choice", "rejected", "run_id", "kind", "slots_before", "slots_after", "reason")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[SchedulingDecision.Kind]
        KIND_GRANTED: _ClassVar[SchedulingDecision.Kind]
        KIND_TAKEN: _ClassVar[SchedulingDecision.Kind]
        KIND_KEPT: _ClassVar[SchedulingDecision.Kind]
        KIND_DECLINED: _ClassVar[SchedulingDecision.Kind]
        KIND_WAITS: _ClassVar[SchedulingDecision.Kind]
    KIND_UNSPECIFIED: SchedulingDecision.Kind
    KIND_GRANTED: SchedulingDecision.Kind
    KIND_TAKEN: SchedulingDecision.Kind
    KIND_KEPT: SchedulingDecision.Kind
    KIND_DECLINED: SchedulingDecision.Kind
    KIND_WAITS: SchedulingDecision.Kind
    TIME_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_BEFORE_FIELD_NUMBER: _ClassVar[int]
    SLOTS_AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    policy: str
    choice: str
    rejected: _containers.RepeatedScalarFieldContainer[str]
    run_id: int
    kind: SchedulingDecision.Kind
    slots_before: int
    slots_after: int
    reason: str
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., policy: _Optional[str] = ..., choice: _Optional[str] = ..., rejected: _Optional[_Iterable[str]] = ..., run_id: _Optional[int] = ..., kind: _Optional[_Union[SchedulingDecision.Kind, str]] = ..., slots_before: _Optional[int] = ..., slots_after: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("path", "size_bytes", "sha256", "kind")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    sha256: str
    kind: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class TrainingServiceTrainRequest(_message.Message):
    __slots__ = ("spec", "request_id", "client_key")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_KEY_FIELD_NUMBER: _ClassVar[int]
    spec: RunSpec
    request_id: str
    client_key: str
    def __init__(self, spec: _Optional[_Union[RunSpec, _Mapping]] = ..., request_id: _Optional[str] = ..., client_key: _Optional[str] = ...) -> None: ...

class TrainingServiceTrainResponse(_message.Message):
    __slots__ = ("run", "created")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    run: Run
    created: bool
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class TrainingServiceTrainManyRequest(_message.Message):
    __slots__ = ("specs", "request_id")
    SPECS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    specs: _containers.RepeatedCompositeFieldContainer[RunSpec]
    request_id: str
    def __init__(self, specs: _Optional[_Iterable[_Union[RunSpec, _Mapping]]] = ..., request_id: _Optional[str] = ...) -> None: ...

class TrainingServiceTrainManyResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class TrainingServiceTrainEachRequest(_message.Message):
    __slots__ = ("request", "more")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request: TrainingServiceTrainRequest
    more: _containers.RepeatedCompositeFieldContainer[TrainingServiceTrainRequest]
    def __init__(self, request: _Optional[_Union[TrainingServiceTrainRequest, _Mapping]] = ..., more: _Optional[_Iterable[_Union[TrainingServiceTrainRequest, _Mapping]]] = ...) -> None: ...

class TrainingServiceTrainEachResponse(_message.Message):
    __slots__ = ("outcomes", "reads_more")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    READS_MORE_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[TrainOutcome]
    reads_more: bool
    def __init__(self, outcomes: _Optional[_Iterable[_Union[TrainOutcome, _Mapping]]] = ..., reads_more: _Optional[bool] = ...) -> None: ...

class TrainOutcome(_message.Message):
    __slots__ = ("response", "refusal")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    response: TrainingServiceTrainResponse
    refusal: bytes
    def __init__(self, response: _Optional[_Union[TrainingServiceTrainResponse, _Mapping]] = ..., refusal: _Optional[bytes] = ...) -> None: ...

class TrainingServiceGetRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    def __init__(self, run_id: _Optional[int] = ...) -> None: ...

class TrainingServiceGetResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class TrainingServiceListRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "states", "owner", "labels")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[RunState]
    owner: str
    labels: _containers.ScalarMap[str, str]
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., states: _Optional[_Iterable[_Union[RunState, str]]] = ..., owner: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TrainingServiceListResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TrainingServiceWatchRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    def __init__(self, run_id: _Optional[int] = ...) -> None: ...

class TrainingServiceWatchResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class TrainingServiceCancelRequest(_message.Message):
    __slots__ = ("run_id", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    request_id: str
    def __init__(self, run_id: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class TrainingServiceCancelResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class TrainingServiceRetryRequest(_message.Message):
    __slots__ = ("run_id", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    request_id: str
    def __init__(self, run_id: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class TrainingServiceRetryResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class TrainingServiceSetPriorityRequest(_message.Message):
    __slots__ = ("run_id", "priority", "request_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    priority: int
    request_id: str
    def __init__(self, run_id: _Optional[int] = ..., priority: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class TrainingServiceSetPriorityResponse(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Run
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class TrainingServiceDeleteRequest(_message.Message):
    __slots__ = ("run_id", "request_id", "keep_artifacts")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    request_id: str
    keep_artifacts: bool
    def __init__(self, run_id: _Optional[int] = ..., request_id: _Optional[str] = ..., keep_artifacts: _Optional[bool] = ...) -> None: ...

class TrainingServiceDeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrainingServiceStreamLogsRequest(_message.Message):
    __slots__ = ("run_id", "rank", "attempt", "offset", "follow")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    rank: int
    attempt: int
    offset: int
    follow: bool
    def __init__(self, run_id: _Optional[int] = ..., rank: _Optional[int] = ..., attempt: _Optional[int] = ..., offset: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class TrainingServiceStreamLogsResponse(_message.Message):
    __slots__ = ("offset", "data", "dropped_bytes")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    dropped_bytes: int
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., dropped_bytes: _Optional[int] = ...) -> None: ...

class TrainingServiceListArtifactsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    def __init__(self, run_id: _Optional[int] = ...) -> None: ...

class TrainingServiceListArtifactsResponse(_message.Message):
    __slots__ = ("artifacts",)
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    def __init__(self, artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ...) -> None: ...

class TrainingServiceGetServiceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrainingServiceGetServiceResponse(_message.Message):
    __slots__ = ("artifact_url", "runners", "runs_waiting", "slots_used", "slots", "archive_bytes_max", "queues")
    ARTIFACT_URL_FIELD_NUMBER: _ClassVar[int]
    RUNNERS_FIELD_NUMBER: _ClassVar[int]
    RUNS_WAITING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    artifact_url: str
    runners: _containers.RepeatedCompositeFieldContainer[Runner]
    runs_waiting: int
    slots_used: int
    slots: int
    archive_bytes_max: int
    queues: _containers.RepeatedCompositeFieldContainer[QueueUse]
    def __init__(self, artifact_url: _Optional[str] = ..., runners: _Optional[_Iterable[_Union[Runner, _Mapping]]] = ..., runs_waiting: _Optional[int] = ..., slots_used: _Optional[int] = ..., slots: _Optional[int] = ..., archive_bytes_max: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[QueueUse, _Mapping]]] = ...) -> None: ...

class QueueUse(_message.Message):
    __slots__ = ("name", "weight", "guaranteed", "slots_used", "runs_running", "runs_waiting")
    class GuaranteedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SlotsUsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    RUNS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    RUNS_WAITING_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    guaranteed: _containers.ScalarMap[str, int]
    slots_used: _containers.ScalarMap[str, int]
    runs_running: int
    runs_waiting: int
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., guaranteed: _Optional[_Mapping[str, int]] = ..., slots_used: _Optional[_Mapping[str, int]] = ..., runs_running: _Optional[int] = ..., runs_waiting: _Optional[int] = ...) -> None: ...

class TrainingServiceGetSchedulingRequest(_message.Message):
    __slots__ = ("run_id", "limit")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    limit: int
    def __init__(self, run_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class TrainingServiceGetSchedulingResponse(_message.Message):
    __slots__ = ("policy", "decisions")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    decisions: _containers.RepeatedCompositeFieldContainer[SchedulingDecision]
    def __init__(self, policy: _Optional[str] = ..., decisions: _Optional[_Iterable[_Union[SchedulingDecision, _Mapping]]] = ...) -> None: ...

class Runner(_message.Message):
    __slots__ = ("runner_id", "host", "kind", "slots", "slots_used", "labels", "owners", "attends", "last_heard", "paused", "reason", "algorithms", "device_type", "memory_bytes")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUNNER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    ATTENDS_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALGORITHMS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    runner_id: str
    host: str
    kind: str
    slots: int
    slots_used: int
    labels: _containers.ScalarMap[str, str]
    owners: _containers.RepeatedScalarFieldContainer[str]
    attends: bool
    last_heard: _timestamp_pb2.Timestamp
    paused: bool
    reason: str
    algorithms: _containers.RepeatedScalarFieldContainer[str]
    device_type: str
    memory_bytes: int
    def __init__(self, runner_id: _Optional[str] = ..., host: _Optional[str] = ..., kind: _Optional[str] = ..., slots: _Optional[int] = ..., slots_used: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., owners: _Optional[_Iterable[str]] = ..., attends: _Optional[bool] = ..., last_heard: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., paused: _Optional[bool] = ..., reason: _Optional[str] = ..., algorithms: _Optional[_Iterable[str]] = ..., device_type: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class AttemptKey(_message.Message):
    __slots__ = ("run_id", "attempt", "fence")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    attempt: int
    fence: int
    def __init__(self, run_id: _Optional[int] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ...) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("attempt", "status")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    status: RankStatus
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., status: _Optional[_Union[RankStatus, _Mapping]] = ...) -> None: ...

class RunnerHello(_message.Message):
    __slots__ = ("runner_id", "host", "kind", "slots", "labels", "algorithms", "ranks", "folder_id", "device_type", "memory_bytes")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUNNER_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ALGORITHMS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    FOLDER_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    runner_id: str
    host: str
    kind: str
    slots: int
    labels: _containers.ScalarMap[str, str]
    algorithms: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedCompositeFieldContainer[RankReport]
    folder_id: str
    device_type: str
    memory_bytes: int
    def __init__(self, runner_id: _Optional[str] = ..., host: _Optional[str] = ..., kind: _Optional[str] = ..., slots: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., algorithms: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[_Union[RankReport, _Mapping]]] = ..., folder_id: _Optional[str] = ..., device_type: _Optional[str] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class RunnerHeartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunnerPrepared(_message.Message):
    __slots__ = ("attempt", "endpoints")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    endpoints: _containers.RepeatedCompositeFieldContainer[RankEndpoint]
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., endpoints: _Optional[_Iterable[_Union[RankEndpoint, _Mapping]]] = ...) -> None: ...

class RunnerLaunchFailed(_message.Message):
    __slots__ = ("attempt", "reason", "permanent")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    reason: str
    permanent: bool
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., reason: _Optional[str] = ..., permanent: _Optional[bool] = ...) -> None: ...

class RunnerRankChanged(_message.Message):
    __slots__ = ("report",)
    REPORT_FIELD_NUMBER: _ClassVar[int]
    report: RankReport
    def __init__(self, report: _Optional[_Union[RankReport, _Mapping]] = ...) -> None: ...

class RunnerStopped(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ...) -> None: ...

class RunnerLogChunk(_message.Message):
    __slots__ = ("reader", "chunk", "end", "error")
    READER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    reader: int
    chunk: TrainingServiceStreamLogsResponse
    end: bool
    error: str
    def __init__(self, reader: _Optional[int] = ..., chunk: _Optional[_Union[TrainingServiceStreamLogsResponse, _Mapping]] = ..., end: _Optional[bool] = ..., error: _Optional[str] = ...) -> None: ...

class RunnerLeaving(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class RunnerServiceAttendRequest(_message.Message):
    __slots__ = ("hello", "heartbeat", "prepared", "launch_failed", "rank_changed", "stopped", "log_chunk", "leaving")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FAILED_FIELD_NUMBER: _ClassVar[int]
    RANK_CHANGED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    LOG_CHUNK_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    hello: RunnerHello
    heartbeat: RunnerHeartbeat
    prepared: RunnerPrepared
    launch_failed: RunnerLaunchFailed
    rank_changed: RunnerRankChanged
    stopped: RunnerStopped
    log_chunk: RunnerLogChunk
    leaving: RunnerLeaving
    def __init__(self, hello: _Optional[_Union[RunnerHello, _Mapping]] = ..., heartbeat: _Optional[_Union[RunnerHeartbeat, _Mapping]] = ..., prepared: _Optional[_Union[RunnerPrepared, _Mapping]] = ..., launch_failed: _Optional[_Union[RunnerLaunchFailed, _Mapping]] = ..., rank_changed: _Optional[_Union[RunnerRankChanged, _Mapping]] = ..., stopped: _Optional[_Union[RunnerStopped, _Mapping]] = ..., log_chunk: _Optional[_Union[RunnerLogChunk, _Mapping]] = ..., leaving: _Optional[_Union[RunnerLeaving, _Mapping]] = ...) -> None: ...

class RankEndpoint(_message.Message):
    __slots__ = ("rank", "host", "port")
    RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    rank: int
    host: str
    port: int
    def __init__(self, rank: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class RunnerWelcome(_message.Message):
    __slots__ = ("heartbeat_interval", "lease", "artifact_url", "artifact_mark", "prepare")
    HEARTBEAT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_URL_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_MARK_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval: _duration_pb2.Duration
    lease: _duration_pb2.Duration
    artifact_url: str
    artifact_mark: str
    prepare: _duration_pb2.Duration
    def __init__(self, heartbeat_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., artifact_url: _Optional[str] = ..., artifact_mark: _Optional[str] = ..., prepare: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RunnerPrepare(_message.Message):
    __slots__ = ("attempt", "spec", "ranks", "job", "artifact_url", "checkpoint_url", "data_url")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_URL_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    DATA_URL_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    spec: RunSpec
    ranks: _containers.RepeatedScalarFieldContainer[int]
    job: str
    artifact_url: str
    checkpoint_url: str
    data_url: str
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., spec: _Optional[_Union[RunSpec, _Mapping]] = ..., ranks: _Optional[_Iterable[int]] = ..., job: _Optional[str] = ..., artifact_url: _Optional[str] = ..., checkpoint_url: _Optional[str] = ..., data_url: _Optional[str] = ...) -> None: ...

class RunnerStart(_message.Message):
    __slots__ = ("attempt", "endpoints")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    endpoints: _containers.RepeatedCompositeFieldContainer[RankEndpoint]
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., endpoints: _Optional[_Iterable[_Union[RankEndpoint, _Mapping]]] = ...) -> None: ...

class RunnerStop(_message.Message):
    __slots__ = ("attempt", "grace", "reason", "rank")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    grace: _duration_pb2.Duration
    reason: str
    rank: int
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., reason: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class RunnerForget(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptKey
    def __init__(self, attempt: _Optional[_Union[AttemptKey, _Mapping]] = ...) -> None: ...

class RunnerReadLog(_message.Message):
    __slots__ = ("reader", "attempt", "rank", "offset", "follow", "end", "taken_bytes")
    READER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    reader: int
    attempt: AttemptKey
    rank: int
    offset: int
    follow: bool
    end: bool
    taken_bytes: int
    def __init__(self, reader: _Optional[int] = ..., attempt: _Optional[_Union[AttemptKey, _Mapping]] = ..., rank: _Optional[int] = ..., offset: _Optional[int] = ..., follow: _Optional[bool] = ..., end: _Optional[bool] = ..., taken_bytes: _Optional[int] = ...) -> None: ...

class RunnerServiceAttendResponse(_message.Message):
    __slots__ = ("welcome", "prepare", "start", "stop", "forget", "read_log")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    READ_LOG_FIELD_NUMBER: _ClassVar[int]
    welcome: RunnerWelcome
    prepare: RunnerPrepare
    start: RunnerStart
    stop: RunnerStop
    forget: RunnerForget
    read_log: RunnerReadLog
    def __init__(self, welcome: _Optional[_Union[RunnerWelcome, _Mapping]] = ..., prepare: _Optional[_Union[RunnerPrepare, _Mapping]] = ..., start: _Optional[_Union[RunnerStart, _Mapping]] = ..., stop: _Optional[_Union[RunnerStop, _Mapping]] = ..., forget: _Optional[_Union[RunnerForget, _Mapping]] = ..., read_log: _Optional[_Union[RunnerReadLog, _Mapping]] = ...) -> None: ...
