from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_ARGUMENT: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_ALREADY_EXISTS: _ClassVar[ErrorReason]
    ERROR_REASON_STALE: _ClassVar[ErrorReason]
    ERROR_REASON_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_WRONG_PHASE: _ClassVar[ErrorReason]
    ERROR_REASON_EVICTED: _ClassVar[ErrorReason]
    ERROR_REASON_FENCED: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_LEADING: _ClassVar[ErrorReason]
    ERROR_REASON_INCOMPATIBLE: _ClassVar[ErrorReason]
    ERROR_REASON_LIMIT_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_BUSY: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_QUOTA_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_RATE_LIMITED: _ClassVar[ErrorReason]
    ERROR_REASON_LOCKSTEP_DATASET: _ClassVar[ErrorReason]
    ERROR_REASON_DAMAGED: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_NEW: _ClassVar[ErrorReason]
    ERROR_REASON_REPLACED: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_ARGUMENT: ErrorReason
ERROR_REASON_NOT_FOUND: ErrorReason
ERROR_REASON_ALREADY_EXISTS: ErrorReason
ERROR_REASON_STALE: ErrorReason
ERROR_REASON_MISMATCH: ErrorReason
ERROR_REASON_WRONG_PHASE: ErrorReason
ERROR_REASON_EVICTED: ErrorReason
ERROR_REASON_FENCED: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_NOT_LEADING: ErrorReason
ERROR_REASON_INCOMPATIBLE: ErrorReason
ERROR_REASON_LIMIT_EXCEEDED: ErrorReason
ERROR_REASON_BUSY: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_QUOTA_EXCEEDED: ErrorReason
ERROR_REASON_RATE_LIMITED: ErrorReason
ERROR_REASON_LOCKSTEP_DATASET: ErrorReason
ERROR_REASON_DAMAGED: ErrorReason
ERROR_REASON_TOO_NEW: ErrorReason
ERROR_REASON_REPLACED: ErrorReason

class ErrorDetail(_message.Message):
    __slots__ = ("reason", "facts", "hint", "retryable")
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    reason: ErrorReason
    facts: _containers.ScalarMap[str, str]
    hint: str
    retryable: bool
    def __init__(self, reason: _Optional[_Union[ErrorReason, str]] = ..., facts: _Optional[_Mapping[str, str]] = ..., hint: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...
