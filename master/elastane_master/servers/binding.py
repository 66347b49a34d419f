"""Binding of servicers to services: the one place that parses requests and turns errors into statuses.

In the generated registration, parsing cannot be intercepted: invalid bytes end as INTERNAL, and every
servicer method would have to catch its own errors. Here the methods come from the service's descriptor;
parsing failures become INVALID_ARGUMENT, and the errors in `errors.REFUSALS` become typed ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from elastane_master.decisions.events import Rejection
from elastane_master.metrics.measures import MethodMeasures, RpcMeasures
from elastane_master.servers.errors import REFUSALS, as_rejection, code_of, refuse
from elastane_proto import versions

_SPOKEN = ((versions.METADATA_KEY, str(versions.PROTOCOL)),)

_LOOK_SECONDS_MIN = 0.001

HELLO_SECONDS = 10.0
"""Time for the caller of a session's stream to send its Hello."""

_OK, _CANCELLED, _UNKNOWN = (
    code.name for code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
)

Context = grpc.aio.ServicerContext[Any, Any]

Request = TypeVar("Request", bound=Message)


class Malformed:
    """Placeholder for a request whose bytes could not be parsed."""

    def __init__(self, message: str, size: int) -> None:
        self.message = message
        self.size = size

    def rejection(self) -> Rejection:
        return Rejection(
            "invalid_argument",
            f"the request is not a {self.message}",
            hint="use the client of the same version as the master",
            bytes=self.size,
        )


async def first_message(requests: AsyncIterator[Request | Malformed]) -> Request:
    """Return the Hello that begins a stream. Raises Rejection."""
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            first = await anext(requests, None)
    except TimeoutError:
        first = None
    if isinstance(first, Malformed):
        raise first.rejection()
    if first is None or first.WhichOneof("message") != "hello":
        raise Rejection("invalid_argument", "the stream does not begin with Hello", hint="send Hello first")
    return first


def service_handler(
    service: ServiceDescriptor,
    servicer: object,
    write_seconds: float = 30.0,
    measures: RpcMeasures | None = None,
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handler that serves all methods of `service` by the servicer's methods of the same names.

    A method that streams to the client is an async generator. A client that does not read a message within
    `write_seconds` is cut off. measures: receive the duration and outcome of each call. Raises AttributeError
    if a method is missing.
    """
    measures = measures or RpcMeasures()
    handlers = {
        method.name: _method_handler(method, getattr(servicer, method.name), write_seconds, measures)
        for method in service.methods
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _method_handler(
    method: MethodDescriptor, behaviour: Callable[..., Any], write_seconds: float, measures: RpcMeasures
) -> Any:
    parse = _parser(method)
    name = f"{method.containing_service.name}.{method.name}"
    measured = measures.method(name, streaming=method.server_streaming)
    if method.server_streaming:
        streaming = (
            grpc.stream_stream_rpc_method_handler
            if method.client_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        return streaming(_streaming(behaviour, write_seconds, measured), parse, _serialize)
    return grpc.unary_unary_rpc_method_handler(_unary(behaviour, measured), parse, _serialize)


def _parser(method: MethodDescriptor) -> Callable[[bytes], Message | Malformed]:
    message_class = GetMessageClass(method.input_type)
    name = method.input_type.name

    def parse(payload: bytes) -> Message | Malformed:
        try:
            return message_class.FromString(payload)
        except DecodeError:
            return Malformed(name, len(payload))

    return parse


def require_client(context: Context) -> None:
    """Send this master's protocol version; raises Rejection for a client with an incompatible one."""
    context.set_trailing_metadata(_SPOKEN)
    for key, value in context.invocation_metadata() or ():
        if key == versions.METADATA_KEY:
            require_version(str(value), "the client")


def require_version(version: str, who: str) -> None:
    """Raise Rejection if `who`, a worker or client with this protocol version, cannot be served."""
    fault, hint = versions.client_fault(version)
    if fault:
        raise Rejection(
            "incompatible",
            f"{who} and this master are incompatible: {fault}",
            hint=hint,
            version=version[:40],
            oldest=versions.CLIENT_OLDEST,
            newest=versions.PROTOCOL,
        )


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


class _Writer:
    """Writes the messages of one stream; cuts off a client that does not read one within `seconds`.

    One timer per stream checks whether the write it saw before is still in progress: a timeout per message
    would cost more than the rest of sending it.
    """

    def __init__(self, context: Context, seconds: float) -> None:
        self._context = context
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._began: float | None = None
        self._too_late = False
        self._timer = self._loop.call_later(seconds, self._look)

    async def write(self, message: Message | bytes) -> None:
        """Send one message. Raises Rejection if the client does not read it in time."""
        self._began = self._loop.time()
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if not self._too_late or self._task is None:
                raise
            self._task.uncancel()
            raise Rejection(
                "busy",
                f"the stream was not read for {self._seconds:g} s",
                hint="read it faster, or reconnect and continue where you were",
                limit="watch_write_seconds_max",
                maximum=self._seconds,
            ) from None
        finally:
            self._began = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds
        if self._began is not None:
            left = self._began + self._seconds - self._loop.time()
            if left <= 0 and self._task is not None:
                self._too_late = True
                self._task.cancel()
                return
        self._timer = self._loop.call_later(max(left, _LOOK_SECONDS_MIN), self._look)


def _unary(
    behaviour: Callable[[Any, Context], Awaitable[Message]], measured: MethodMeasures
) -> Callable[..., Awaitable[Message]]:
    async def serve(request: Message | Malformed, context: Context) -> Message:
        began, code = time.perf_counter(), _UNKNOWN
        try:
            require_client(context)
            if isinstance(request, Malformed):
                raise request.rejection()
            response = await behaviour(request, context)
            code = _OK
            return response
        except asyncio.CancelledError:
            code = _CANCELLED
            raise
        except REFUSALS as error:
            code = _refused(measured, error)
            await refuse(context, error)
        finally:
            measured.ended(code, time.perf_counter() - began)

    return serve


def _streaming(
    behaviour: Callable[[Any, Context], AsyncGenerator[Message | bytes]],
    write_seconds: float,
    measured: MethodMeasures,
) -> Callable[..., Awaitable[None]]:
    async def serve(request: Any, context: Context) -> None:
        began, code = time.perf_counter(), _UNKNOWN
        measured.open += 1
        try:
            require_client(context)
            if isinstance(request, Malformed):
                raise request.rejection()
            writer = _Writer(context, write_seconds)
            try:
                # Closed right here, even if the client is gone: the end of the generator is how the servicer
                # notices.
                async with aclosing(behaviour(request, context)) as messages:
                    async for message in messages:
                        await writer.write(message)
            finally:
                writer.close()
            code = _OK
        except asyncio.CancelledError:
            code = _CANCELLED
            raise
        except REFUSALS as error:
            code = _refused(measured, error)
            await refuse(context, error)
        finally:
            measured.open -= 1
            measured.ended(code, time.perf_counter() - began)

    return serve


def _refused(measured: MethodMeasures, error: Exception) -> str:
    """Count a refusal; return the name of its status."""
    rejection = as_rejection(error)
    measured.refused(rejection.reason)
    return code_of(rejection).name
