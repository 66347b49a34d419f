"""Refusals on the wire: a gRPC status code, and an ErrorDetail for machines and people.

Every refusal (by the decision code, the translation of a message, or the store) passes here, so all errors of
the API have the same form.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from redis.exceptions import RedisError

from elastane_master.decisions.events import Rejection
from elastane_master.errors import MachineBroken
from elastane_master.store.errors import BadJobName, Fenced, JobDamaged, JobTooNew, StoreError
from elastane_proto.v1 import errors_pb2

_CODES: dict[str, grpc.StatusCode] = {
    "invalid_argument": grpc.StatusCode.INVALID_ARGUMENT,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "stale": grpc.StatusCode.ABORTED,
    "evicted": grpc.StatusCode.ABORTED,
    "mismatch": grpc.StatusCode.FAILED_PRECONDITION,
    "wrong_phase": grpc.StatusCode.FAILED_PRECONDITION,
    "fenced": grpc.StatusCode.UNAVAILABLE,
    "store_unavailable": grpc.StatusCode.UNAVAILABLE,
    "not_leading": grpc.StatusCode.UNAVAILABLE,
    "incompatible": grpc.StatusCode.FAILED_PRECONDITION,
    "limit_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "permission_denied": grpc.StatusCode.PERMISSION_DENIED,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "rate_limited": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "replaced": grpc.StatusCode.FAILED_PRECONDITION,
    "lockstep_dataset": grpc.StatusCode.FAILED_PRECONDITION,
    "damaged": grpc.StatusCode.FAILED_PRECONDITION,
    "too_new": grpc.StatusCode.FAILED_PRECONDITION,
}

_RETRYABLE = frozenset({"evicted", "fenced", "store_unavailable", "not_leading", "busy", "rate_limited"})

ERROR_DOMAIN = "elastane"
"""Domain in google.rpc.ErrorInfo; its reasons are those of our ErrorReason."""

REFUSALS = (Rejection, StoreError, RedisError, MachineBroken)
"""Exceptions that a servicer may raise to refuse a call."""


def as_rejection(error: Exception) -> Rejection:
    """Convert an error to a Rejection; a Rejection is returned unchanged."""
    if isinstance(error, Rejection):
        return error
    if isinstance(error, BadJobName):
        return Rejection("invalid_argument", str(error), hint=error.hint, field="name", **error.facts)
    if isinstance(error, Fenced):
        return Rejection("fenced", str(error), hint=error.hint, **error.facts)
    if isinstance(error, JobDamaged):
        return Rejection("damaged", str(error), hint=error.hint, **error.facts)
    if isinstance(error, JobTooNew):
        return Rejection("too_new", str(error), hint=error.hint, **error.facts)
    if isinstance(error, MachineBroken):
        return Rejection("internal", str(error), hint="this is a bug in the master; its log has the details")
    if isinstance(error, StoreError):
        return Rejection("store_unavailable", str(error), hint=error.hint, **error.facts)
    return Rejection("store_unavailable", f"the store does not answer: {error}", hint="try again in a moment")


def code_of(rejection: Rejection) -> grpc.StatusCode:
    """Status code of a refusal; an unknown reason is a bug and becomes INTERNAL."""
    return _CODES.get(rejection.reason, grpc.StatusCode.INTERNAL)


def is_retryable(rejection: Rejection) -> bool:
    """True if the same request may succeed later."""
    return rejection.reason in _RETRYABLE


def status_of(rejection: Rejection) -> status_pb2.Status:
    """Return the google.rpc.Status of a refusal.

    Our ErrorDetail comes first, then details that generic clients know: ErrorInfo, and BadRequest if a field
    of the request is wrong.
    """
    code = code_of(rejection)
    known = rejection.reason in _CODES
    detail = errors_pb2.ErrorDetail(
        reason=f"ERROR_REASON_{rejection.reason.upper()}" if known else None,
        facts=rejection.facts,
        hint=rejection.hint,
        retryable=is_retryable(rejection),
    )
    details: list[Message] = [
        detail,
        error_details_pb2.ErrorInfo(
            reason=(rejection.reason if known else "internal").upper(),
            domain=ERROR_DOMAIN,
            metadata=rejection.facts,
        ),
    ]
    if code is grpc.StatusCode.INVALID_ARGUMENT and (field := rejection.facts.get("field")):
        wrong = error_details_pb2.BadRequest.FieldViolation(field=field, description=str(rejection))
        details.append(error_details_pb2.BadRequest(field_violations=[wrong]))
    number: int = code.value[0]
    return status_pb2.Status(code=number, message=str(rejection), details=[_packed(one) for one in details])


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End the call with the typed error."""
    status = rpc_status.to_status(status_of(as_rejection(error)))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("abort ends the call")
