"""Errors of calls to a master: the refusals that callers see, and failures after which a call is retried.

The master describes a refusal in an `ErrorDetail` inside google.rpc.Status: reason, facts, hint, and whether
the call may be retried. `error_of` decodes it; `connection` decides what follows.
"""

from __future__ import annotations

import grpc
from google.rpc import status_pb2
from grpc_status import rpc_status

from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.stream_session import StreamEnded
from elastane_proto.error_codes import wire_code
from elastane_proto.v1 import errors_pb2

MESSAGE_TOO_LARGE_HINT = (
    "a message exceeded the size limit of the master or of this process; see docs/limits.md"
)
#: CANCELLED comes from a server that is shutting down, or from gRPC under load: this client cancels only in
#: `close`.
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}

#: gRPC reports some lost connections with code UNKNOWN and this text (grpc/grpc#34076).
_CONNECTION_LOST = "Stream removed"


class RequestRefusedError(RefusedError):
    """The master refused a request.

    reason: an ErrorReason in lower case ("not_found", ...), or the gRPC status if the master gave none.
    """

    def __init__(self, message: str, *, reason: str, hint: str = "", **facts: object) -> None:
        self.code = wire_code(reason)
        super().__init__(message, hint=hint, **facts)
        self.reason = reason


class ClientClosedError(ElastaneError):
    """The client was closed during a call."""

    code = "ELA403"


class StreamEndedError(Exception):
    """A stream ended normally during the wait for an answer; the request must be sent again."""


class TransientError(Exception):
    """A failed attempt that may be retried. refusal: the error to raise if retries run out, if any."""

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        address: str,
        leader: str = "",
        standby: bool = False,
        refusal: RequestRefusedError | None = None,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.address = address
        self.leader = leader
        self.standby = standby
        self.refusal = refusal


def error_of(error: grpc.Call, address: str) -> RequestRefusedError | TransientError:
    """Return the error that a failed call stands for; a TransientError if the call may be retried."""
    detail = detail_of(error)
    text = error.details() or error.code().name.lower()
    if detail is not None and not detail.retryable:
        return _refused(text, detail)
    if detail is not None:
        standby = detail.reason == errors_pb2.ERROR_REASON_NOT_LEADING
        leader = detail.facts.get("leader", "")
        return TransientError(text, detail.hint, address=address, leader=leader, standby=standby)
    if error.code() in _TRANSIENT or _CONNECTION_LOST in text:
        return TransientError(text, "", address=address)
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return RequestRefusedError(text, reason="limit_exceeded", hint=MESSAGE_TOO_LARGE_HINT)
    return RequestRefusedError(text, reason=error.code().name.lower())


def refusal_of(status: status_pb2.Status) -> RequestRefusedError:
    """Return the error that a refusal in an answer stands for."""
    return _refused(status.message, _detail_in(status) or errors_pb2.ErrorDetail())


def _refused(text: str, detail: errors_pb2.ErrorDetail) -> RequestRefusedError:
    reason = errors_pb2.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_").lower()
    return RequestRefusedError(text, reason=reason, hint=detail.hint, **dict(detail.facts))


def stream_ended(code: grpc.StatusCode, text: str, detail: errors_pb2.ErrorDetail | None) -> StreamEnded:
    """Return the facts of the error that ended a stream. detail: see `detail_of`."""
    if detail is None:
        return StreamEnded(code.name, text)
    has_name = detail.reason and detail.reason in errors_pb2.ErrorReason.values()
    name = errors_pb2.ErrorReason.Name(detail.reason) if has_name else ""
    return StreamEnded(
        code.name,
        text,
        reason=name.removeprefix("ERROR_REASON_"),
        is_retryable=detail.retryable,
        hint=detail.hint,
        facts=dict(detail.facts),
    )


def plain_cause(error: str) -> str:
    """Return the cause in gRPC's text of a failed connection, without the addresses and layers around it."""
    return error.rpartition("Failed to connect to remote host: ")[2] or error


def detail_of(error: grpc.Call) -> errors_pb2.ErrorDetail | None:
    """Return the ErrorDetail of a refused call, if it has one."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # status and details contradict each other: not one of our errors
        return None
    return _detail_in(status) if status is not None else None


def _detail_in(status: status_pb2.Status) -> errors_pb2.ErrorDetail | None:
    for packed in status.details:
        detail = errors_pb2.ErrorDetail()
        if packed.Unpack(detail):
            return detail
    return None
