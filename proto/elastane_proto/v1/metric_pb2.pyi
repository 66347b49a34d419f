import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepValues(_message.Message):
    __slots__ = ("step", "epoch", "generation", "committed", "values", "samples", "rewound")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REWOUND_FIELD_NUMBER: _ClassVar[int]
    step: int
    epoch: int
    generation: int
    committed: _timestamp_pb2.Timestamp
    values: _containers.ScalarMap[str, float]
    samples: int
    rewound: bool
    def __init__(self, step: _Optional[int] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., committed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., values: _Optional[_Mapping[str, float]] = ..., samples: _Optional[int] = ..., rewound: _Optional[bool] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("step", "steps", "mean", "min", "max", "last")
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    step: int
    steps: int
    mean: float
    min: float
    max: float
    last: float
    def __init__(self, step: _Optional[int] = ..., steps: _Optional[int] = ..., mean: _Optional[float] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., last: _Optional[float] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("name", "points")
    NAME_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    points: _containers.RepeatedCompositeFieldContainer[Point]
    def __init__(self, name: _Optional[str] = ..., points: _Optional[_Iterable[_Union[Point, _Mapping]]] = ...) -> None: ...

class GetSeriesRequest(_message.Message):
    __slots__ = ("job", "names", "points_max")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    POINTS_MAX_FIELD_NUMBER: _ClassVar[int]
    job: str
    names: _containers.RepeatedScalarFieldContainer[str]
    points_max: int
    def __init__(self, job: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., points_max: _Optional[int] = ...) -> None: ...

class GetSeriesResponse(_message.Message):
    __slots__ = ("series", "step", "names_left_out")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAMES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    step: int
    names_left_out: int
    def __init__(self, series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ..., step: _Optional[int] = ..., names_left_out: _Optional[int] = ...) -> None: ...

class WatchSeriesRequest(_message.Message):
    __slots__ = ("job", "names", "points_max", "interval")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    POINTS_MAX_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    job: str
    names: _containers.RepeatedScalarFieldContainer[str]
    points_max: int
    interval: _duration_pb2.Duration
    def __init__(self, job: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., points_max: _Optional[int] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchSeriesResponse(_message.Message):
    __slots__ = ("series", "step", "names_left_out")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAMES_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    step: int
    names_left_out: int
    def __init__(self, series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ..., step: _Optional[int] = ..., names_left_out: _Optional[int] = ...) -> None: ...

class WatchStepsRequest(_message.Message):
    __slots__ = ("job", "since_step", "after", "follow", "worker_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SINCE_STEP_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    job: str
    since_step: int
    after: str
    follow: bool
    worker_id: str
    def __init__(self, job: _Optional[str] = ..., since_step: _Optional[int] = ..., after: _Optional[str] = ..., follow: _Optional[bool] = ..., worker_id: _Optional[str] = ...) -> None: ...

class WatchStepsResponse(_message.Message):
    __slots__ = ("steps", "token", "job_created")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    JOB_CREATED_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepValues]
    token: str
    job_created: _timestamp_pb2.Timestamp
    def __init__(self, steps: _Optional[_Iterable[_Union[StepValues, _Mapping]]] = ..., token: _Optional[str] = ..., job_created: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
