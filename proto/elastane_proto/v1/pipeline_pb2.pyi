from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StageMemory(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_MEMORY_UNSPECIFIED: _ClassVar[StageMemory]
    STAGE_MEMORY_PLAIN: _ClassVar[StageMemory]
    STAGE_MEMORY_CHECKPOINT: _ClassVar[StageMemory]
    STAGE_MEMORY_SWAP: _ClassVar[StageMemory]
STAGE_MEMORY_UNSPECIFIED: StageMemory
STAGE_MEMORY_PLAIN: StageMemory
STAGE_MEMORY_CHECKPOINT: StageMemory
STAGE_MEMORY_SWAP: StageMemory

class PipelineUnit(_message.Message):
    __slots__ = ("name", "parameter_bytes", "buffer_bytes", "forward_seconds", "backward_seconds", "boundary_bytes", "activation_bytes", "optimizer_bytes", "tie", "workspace_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    parameter_bytes: int
    buffer_bytes: int
    forward_seconds: float
    backward_seconds: float
    boundary_bytes: int
    activation_bytes: int
    optimizer_bytes: int
    tie: int
    workspace_bytes: int
    def __init__(self, name: _Optional[str] = ..., parameter_bytes: _Optional[int] = ..., buffer_bytes: _Optional[int] = ..., forward_seconds: _Optional[float] = ..., backward_seconds: _Optional[float] = ..., boundary_bytes: _Optional[int] = ..., activation_bytes: _Optional[int] = ..., optimizer_bytes: _Optional[int] = ..., tie: _Optional[int] = ..., workspace_bytes: _Optional[int] = ...) -> None: ...

class PipelineModel(_message.Message):
    __slots__ = ("units", "waves", "forward_overhead_seconds", "backward_overhead_seconds")
    UNITS_FIELD_NUMBER: _ClassVar[int]
    WAVES_FIELD_NUMBER: _ClassVar[int]
    FORWARD_OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    units: _containers.RepeatedCompositeFieldContainer[PipelineUnit]
    waves: int
    forward_overhead_seconds: float
    backward_overhead_seconds: float
    def __init__(self, units: _Optional[_Iterable[_Union[PipelineUnit, _Mapping]]] = ..., waves: _Optional[int] = ..., forward_overhead_seconds: _Optional[float] = ..., backward_overhead_seconds: _Optional[float] = ...) -> None: ...

class PipelineStage(_message.Message):
    __slots__ = ("first_unit", "end_unit", "replicas", "shadows", "memory")
    FIRST_UNIT_FIELD_NUMBER: _ClassVar[int]
    END_UNIT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SHADOWS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    first_unit: int
    end_unit: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    shadows: _containers.RepeatedScalarFieldContainer[int]
    memory: StageMemory
    def __init__(self, first_unit: _Optional[int] = ..., end_unit: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., shadows: _Optional[_Iterable[int]] = ..., memory: _Optional[_Union[StageMemory, str]] = ...) -> None: ...

class UnitSource(_message.Message):
    __slots__ = ("first_unit", "end_unit", "donors", "checkpoint")
    FIRST_UNIT_FIELD_NUMBER: _ClassVar[int]
    END_UNIT_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    first_unit: int
    end_unit: int
    donors: _containers.RepeatedScalarFieldContainer[int]
    checkpoint: str
    def __init__(self, first_unit: _Optional[int] = ..., end_unit: _Optional[int] = ..., donors: _Optional[_Iterable[int]] = ..., checkpoint: _Optional[str] = ...) -> None: ...

class UnitRange(_message.Message):
    __slots__ = ("first_unit", "end_unit")
    FIRST_UNIT_FIELD_NUMBER: _ClassVar[int]
    END_UNIT_FIELD_NUMBER: _ClassVar[int]
    first_unit: int
    end_unit: int
    def __init__(self, first_unit: _Optional[int] = ..., end_unit: _Optional[int] = ...) -> None: ...

class PipelinePlan(_message.Message):
    __slots__ = ("stages", "sources", "step_seconds", "reason", "checkpoint_url")
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URL_FIELD_NUMBER: _ClassVar[int]
    stages: _containers.RepeatedCompositeFieldContainer[PipelineStage]
    sources: _containers.RepeatedCompositeFieldContainer[UnitSource]
    step_seconds: float
    reason: str
    checkpoint_url: str
    def __init__(self, stages: _Optional[_Iterable[_Union[PipelineStage, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[UnitSource, _Mapping]]] = ..., step_seconds: _Optional[float] = ..., reason: _Optional[str] = ..., checkpoint_url: _Optional[str] = ...) -> None: ...
