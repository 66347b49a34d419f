from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CapacityType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAPACITY_TYPE_UNSPECIFIED: _ClassVar[CapacityType]
    CAPACITY_TYPE_SPOT: _ClassVar[CapacityType]
    CAPACITY_TYPE_ON_DEMAND: _ClassVar[CapacityType]
CAPACITY_TYPE_UNSPECIFIED: CapacityType
CAPACITY_TYPE_SPOT: CapacityType
CAPACITY_TYPE_ON_DEMAND: CapacityType

class Range(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class RngStates(_message.Message):
    __slots__ = ("python", "numpy", "torch_cpu", "torch_device")
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    NUMPY_FIELD_NUMBER: _ClassVar[int]
    TORCH_CPU_FIELD_NUMBER: _ClassVar[int]
    TORCH_DEVICE_FIELD_NUMBER: _ClassVar[int]
    python: bytes
    numpy: bytes
    torch_cpu: bytes
    torch_device: bytes
    def __init__(self, python: _Optional[bytes] = ..., numpy: _Optional[bytes] = ..., torch_cpu: _Optional[bytes] = ..., torch_device: _Optional[bytes] = ...) -> None: ...

class LoaderPosition(_message.Message):
    __slots__ = ("epoch", "batch", "base_seed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    BASE_SEED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    batch: int
    base_seed: int
    def __init__(self, epoch: _Optional[int] = ..., batch: _Optional[int] = ..., base_seed: _Optional[int] = ...) -> None: ...

class DataWorkerState(_message.Message):
    __slots__ = ("stream", "rng", "items")
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    STREAM_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    stream: int
    rng: RngStates
    items: _containers.ScalarMap[str, bytes]
    def __init__(self, stream: _Optional[int] = ..., rng: _Optional[_Union[RngStates, _Mapping]] = ..., items: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class GeneratorPosition(_message.Message):
    __slots__ = ("name", "beside_words", "checksum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BESIDE_WORDS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    beside_words: bytes
    checksum: int
    def __init__(self, name: _Optional[str] = ..., beside_words: _Optional[bytes] = ..., checksum: _Optional[int] = ...) -> None: ...

class EstContext(_message.Message):
    __slots__ = ("virtual_rank", "step", "rng", "loader", "streams", "items", "delta", "positions")
    class ItemsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    VIRTUAL_RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    LOADER_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    virtual_rank: int
    step: int
    rng: RngStates
    loader: LoaderPosition
    streams: _containers.RepeatedCompositeFieldContainer[DataWorkerState]
    items: _containers.ScalarMap[str, bytes]
    delta: bool
    positions: _containers.RepeatedCompositeFieldContainer[GeneratorPosition]
    def __init__(self, virtual_rank: _Optional[int] = ..., step: _Optional[int] = ..., rng: _Optional[_Union[RngStates, _Mapping]] = ..., loader: _Optional[_Union[LoaderPosition, _Mapping]] = ..., streams: _Optional[_Iterable[_Union[DataWorkerState, _Mapping]]] = ..., items: _Optional[_Mapping[str, bytes]] = ..., delta: _Optional[bool] = ..., positions: _Optional[_Iterable[_Union[GeneratorPosition, _Mapping]]] = ...) -> None: ...

class ExtraState(_message.Message):
    __slots__ = ("ready_order",)
    READY_ORDER_FIELD_NUMBER: _ClassVar[int]
    ready_order: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ready_order: _Optional[_Iterable[int]] = ...) -> None: ...
