import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CaptureServiceCaptureRequest(_message.Message):
    __slots__ = ("job", "worker_ids", "trace_steps", "wait")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    TRACE_STEPS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    trace_steps: int
    wait: _duration_pb2.Duration
    def __init__(self, job: _Optional[str] = ..., worker_ids: _Optional[_Iterable[str]] = ..., trace_steps: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CaptureServiceCaptureResponse(_message.Message):
    __slots__ = ("worker_ids", "worker_id", "steps_done", "data", "end", "error", "first_est", "end_est")
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_EST_FIELD_NUMBER: _ClassVar[int]
    END_EST_FIELD_NUMBER: _ClassVar[int]
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    worker_id: str
    steps_done: int
    data: bytes
    end: bool
    error: str
    first_est: int
    end_est: int
    def __init__(self, worker_ids: _Optional[_Iterable[str]] = ..., worker_id: _Optional[str] = ..., steps_done: _Optional[int] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ..., error: _Optional[str] = ..., first_est: _Optional[int] = ..., end_est: _Optional[int] = ...) -> None: ...

class CaptureServiceDeliverRequest(_message.Message):
    __slots__ = ("job", "capture", "worker_id", "steps_done", "data", "end", "error", "first_est", "end_est")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FIRST_EST_FIELD_NUMBER: _ClassVar[int]
    END_EST_FIELD_NUMBER: _ClassVar[int]
    job: str
    capture: str
    worker_id: str
    steps_done: int
    data: bytes
    end: bool
    error: str
    first_est: int
    end_est: int
    def __init__(self, job: _Optional[str] = ..., capture: _Optional[str] = ..., worker_id: _Optional[str] = ..., steps_done: _Optional[int] = ..., data: _Optional[bytes] = ..., end: _Optional[bool] = ..., error: _Optional[str] = ..., first_est: _Optional[int] = ..., end_est: _Optional[int] = ...) -> None: ...

class CaptureServiceDeliverResponse(_message.Message):
    __slots__ = ("wanted",)
    WANTED_FIELD_NUMBER: _ClassVar[int]
    wanted: bool
    def __init__(self, wanted: _Optional[bool] = ...) -> None: ...
