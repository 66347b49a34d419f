from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SnapshotState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUNNING: _ClassVar[SnapshotState]
    READY: _ClassVar[SnapshotState]
    FAILED: _ClassVar[SnapshotState]
RUNNING: SnapshotState
READY: SnapshotState
FAILED: SnapshotState

class VersionQuery(_message.Message):
    __slots__ = ("dataset_id", "version_hash")
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_HASH_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    version_hash: str
    def __init__(self, dataset_id: _Optional[str] = ..., version_hash: _Optional[str] = ...) -> None: ...

class VersionedSnapshot(_message.Message):
    __slots__ = ("dataset_id", "version_hash", "state", "parts", "root", "statistics")
    class StatisticsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_HASH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    dataset_id: str
    version_hash: str
    state: SnapshotState
    parts: _containers.RepeatedCompositeFieldContainer[FileInfo]
    root: FileInfo
    statistics: _containers.ScalarMap[str, str]
    def __init__(self, dataset_id: _Optional[str] = ..., version_hash: _Optional[str] = ..., state: _Optional[_Union[SnapshotState, str]] = ..., parts: _Optional[_Iterable[_Union[FileInfo, _Mapping]]] = ..., root: _Optional[_Union[FileInfo, _Mapping]] = ..., statistics: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FileInfo(_message.Message):
    __slots__ = ("name", "bucket", "path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    bucket: str
    path: str
    def __init__(self, name: _Optional[str] = ..., bucket: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...
