"""Calls rpcs from within the master's process, along the same path as calls from outside.

    gate (token, role, quota, job, log) -> binding (measures, typed refusals) -> servicer

Only the transport is skipped, so the dashboard can do nothing that its caller could not do over gRPC with the
same token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NoReturn

import grpc
from google.rpc import status_pb2

from elastane_master.decisions.events import Rejection
from elastane_master.servers.gate import HEADER, Gate, LocalContext, LocalHandlers
from elastane_proto.v1 import errors_pb2

_DETAILS = "grpc-status-details-bin"


class LocalCalls:
    """The unary rpcs of one master's services. handlers: as given to its server."""

    def __init__(self, gate: Gate, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        self._handlers = LocalHandlers(gate, handlers)

    async def call(self, rpc: str, request: Any, authorization: Sequence[str], peer: str) -> Any:
        """Call the rpc "/package.Service/Method" and return its response. Raises Rejection.

        authorization: values of the Authorization header. peer: the caller's name in the log.
        """
        metadata = tuple((HEADER, value) for value in authorization)
        served = await self._handlers.find(rpc, metadata)
        if served is None or served.unary_unary is None:
            raise Rejection("not_found", f"this master has no rpc {rpc}")
        handler = await self._handlers.guarded(rpc, metadata)
        # The gate turns unary rpcs into streaming ones, because it reads the request itself; for a refused
        # caller it returns a handler for a stream that reads nothing.
        behaviour = handler.stream_unary or handler.stream_stream
        return await behaviour(_messages(request), _Context(metadata, peer))


async def _messages(request: Any) -> AsyncIterator[Any]:
    yield request


class _Context(LocalContext):
    """The parts of a call's context that servicers, binding and gate use."""

    def __init__(self, metadata: tuple[tuple[str, str], ...], peer: str) -> None:
        self._metadata = metadata
        self._peer = peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def set_trailing_metadata(self, metadata: object) -> None:
        """Do nothing: there is no connection on which to send it."""

    def peer(self) -> str:
        return self._peer

    async def abort(self, code: grpc.StatusCode, details: str, trailing: Sequence[Any] = ()) -> NoReturn:
        """Raise the Rejection from which the status was made."""
        status, detail = status_pb2.Status(), errors_pb2.ErrorDetail()
        for key, value in trailing:
            if key == _DETAILS:
                status.ParseFromString(value)
        for packed in status.details:
            packed.Unpack(detail)
        reason = errors_pb2.ErrorReason.Name(detail.reason).removeprefix("ERROR_REASON_").lower()
        rejection = Rejection(reason, details, hint=detail.hint)
        rejection.facts = dict(detail.facts)
        raise rejection
