import datetime

from elastane_proto.v1 import history_pb2 as _history_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogLine(_message.Message):
    __slots__ = ("time", "is_stderr", "text", "cut_bytes")
    TIME_FIELD_NUMBER: _ClassVar[int]
    IS_STDERR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    time: _timestamp_pb2.Timestamp
    is_stderr: bool
    text: str
    cut_bytes: int
    def __init__(self, time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., is_stderr: _Optional[bool] = ..., text: _Optional[str] = ..., cut_bytes: _Optional[int] = ...) -> None: ...

class WorkerExit(_message.Message):
    __slots__ = ("number", "returncode", "how", "out_of_memory", "expected")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RETURNCODE_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    number: int
    returncode: int
    how: str
    out_of_memory: str
    expected: bool
    def __init__(self, number: _Optional[int] = ..., returncode: _Optional[int] = ..., how: _Optional[str] = ..., out_of_memory: _Optional[str] = ..., expected: _Optional[bool] = ...) -> None: ...

class WorkerOutput(_message.Message):
    __slots__ = ("worker_id", "first", "lines", "exit")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    first: int
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    exit: WorkerExit
    def __init__(self, worker_id: _Optional[str] = ..., first: _Optional[int] = ..., lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., exit: _Optional[_Union[WorkerExit, _Mapping]] = ...) -> None: ...

class LogServiceReportRequest(_message.Message):
    __slots__ = ("job", "agent", "workers", "files_incomplete")
    JOB_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    FILES_INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    job: str
    agent: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerOutput]
    files_incomplete: _history_pb2.LogFilesIncomplete
    def __init__(self, job: _Optional[str] = ..., agent: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerOutput, _Mapping]]] = ..., files_incomplete: _Optional[_Union[_history_pb2.LogFilesIncomplete, _Mapping]] = ...) -> None: ...

class LogServiceReportResponse(_message.Message):
    __slots__ = ("memory",)
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    memory: str
    def __init__(self, memory: _Optional[str] = ...) -> None: ...

class LogServiceReadRequest(_message.Message):
    __slots__ = ("job", "worker_id", "lines", "follow", "after")
    class AfterEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker_id: str
    lines: int
    follow: bool
    after: _containers.ScalarMap[str, str]
    def __init__(self, job: _Optional[str] = ..., worker_id: _Optional[str] = ..., lines: _Optional[int] = ..., follow: _Optional[bool] = ..., after: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LogServiceReadResponse(_message.Message):
    __slots__ = ("worker_id", "lines", "left_out", "exit", "token")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    lines: _containers.RepeatedCompositeFieldContainer[LogLine]
    left_out: int
    exit: WorkerExit
    token: str
    def __init__(self, worker_id: _Optional[str] = ..., lines: _Optional[_Iterable[_Union[LogLine, _Mapping]]] = ..., left_out: _Optional[int] = ..., exit: _Optional[_Union[WorkerExit, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...
