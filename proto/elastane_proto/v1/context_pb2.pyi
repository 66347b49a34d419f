from elastane_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ContextServiceGetRequest(_message.Message):
    __slots__ = ("job", "virtual_rank", "step")
    JOB_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job: str
    virtual_rank: int
    step: int
    def __init__(self, job: _Optional[str] = ..., virtual_rank: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class ContextServiceGetResponse(_message.Message):
    __slots__ = ("context",)
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    context: _common_pb2.EstContext
    def __init__(self, context: _Optional[_Union[_common_pb2.EstContext, _Mapping]] = ...) -> None: ...

class ContextServiceListRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ContextInfo(_message.Message):
    __slots__ = ("virtual_rank", "step", "loader", "bytes", "sha256", "worker_id")
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    virtual_rank: int
    step: int
    loader: _common_pb2.LoaderPosition
    bytes: int
    sha256: str
    worker_id: str
    def __init__(self, virtual_rank: _Optional[int] = ..., step: _Optional[int] = ..., loader: _Optional[_Union[_common_pb2.LoaderPosition, _Mapping]] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., worker_id: _Optional[str] = ...) -> None: ...

class ContextServiceListResponse(_message.Message):
    __slots__ = ("contexts",)
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    contexts: _containers.RepeatedCompositeFieldContainer[ContextInfo]
    def __init__(self, contexts: _Optional[_Iterable[_Union[ContextInfo, _Mapping]]] = ...) -> None: ...
