"""The relay's server: to workers it looks like a master.

Attend goes into the stream to the master, and so do the sessions of other relays; every other call is passed
on as it is, with its metadata, messages, deadline and status.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from elastane_agent.relay.downstream import WorkerStream
from elastane_agent.relay.upstream import RELAY, RelayedSession, Upstream, carried, open_channel, token_fault
from elastane_proto.relay_batches import AnswerBatch, metadata_from_proto
from elastane_proto.v1 import ring_pb2

ATTEND = "/elastane.v1.RingService/Attend"

_CODES = {code.value[0]: code for code in grpc.StatusCode}

Context = Any  # grpc.aio.ServicerContext of bytes


class RelayService(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Handles every call of a relay's server. Used from one event loop."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._channels: dict[str, grpc.aio.Channel] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a call; they all take and give serialized messages."""
        if details.method == ATTEND:
            return grpc.stream_stream_rpc_method_handler(self._attend)
        if details.method == RELAY:
            return grpc.stream_stream_rpc_method_handler(self._relay)

        async def passed_on(requests: Any, context: Context) -> None:
            await self._pass_on(str(details.method), requests, context)

        return grpc.stream_stream_rpc_method_handler(passed_on)

    async def close(self) -> None:
        """Close the connections of calls that were passed on."""
        for channel in self._channels.values():
            await channel.close(None)

    # ---------------------------------------------------------------- sessions

    async def _attend(self, requests: AsyncIterator[bytes], context: Context) -> None:
        stream = WorkerStream()
        session = self._upstream.open(carried(context.invocation_metadata()), stream)
        reader = asyncio.create_task(_read(requests, session)) if session is not None else None
        try:
            async for answer in stream.answers():
                await context.write(answer)
        finally:
            if reader is not None:
                reader.cancel()
            if stream.status is None and session is not None:
                session.end(ring_pb2.RELAYED_END_CANCELLED)
        assert stream.status is not None
        await _finish(context, stream.status)

    async def _relay(self, requests: AsyncIterator[bytes], context: Context) -> None:
        below = _RelayBelow(self._upstream)
        reader = asyncio.create_task(below.read(requests))
        try:
            async for response in below.responses():
                await context.write(response)
        finally:
            reader.cancel()
            below.close()

    # ---------------------------------------------------------------- all other calls

    async def _pass_on(self, method: str, requests: AsyncIterator[bytes], context: Context) -> None:
        address = self._upstream.book.current()
        metadata = carried(context.invocation_metadata())
        if fault := token_fault(metadata, address):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, fault)
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        opened: Any = self._channels[address]
        call = opened.stream_stream(method)(requests, metadata=metadata, timeout=context.time_remaining())
        try:
            async for response in call:
                await context.write(response)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._upstream.book.failed(address)
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        finally:
            call.cancel()
        context.set_trailing_metadata(tuple(await call.trailing_metadata() or ()))


async def _read(requests: AsyncIterator[bytes], session: RelayedSession) -> None:
    """Pass a worker's messages on until it sends nothing more."""
    async for request in requests:
        session.request(request)
        await session.room()
    session.end(ring_pb2.RELAYED_END_REQUESTS_OVER)


async def _finish(context: Context, status: ring_pb2.RelayedStatus) -> None:
    """End a call with the status that the master, or this relay, gave it."""
    trailing = tuple(metadata_from_proto(status.trailing_metadata))
    if status.code:
        code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
        await context.abort(code, status.message, trailing)
    context.set_trailing_metadata(trailing)


class _SessionBelow:
    """One session of a relay below: a `Downstream`."""

    def __init__(self, below: _RelayBelow, number: int) -> None:
        self._below = below
        self._number = number

    def respond(self, response: bytes, tail: bytes) -> bool:
        self._below.batch.respond(self._number, response, tail)
        self._below.wake.set()
        return True

    def end(self, status: ring_pb2.RelayedStatus) -> None:
        self._below.sessions.pop(self._number, None)
        self._below.batch.end(self._number, status)
        self._below.wake.set()


class _RelayBelow:
    """The stream of another relay, which stands nearer to the workers."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._over = False
        self.batch = AnswerBatch()
        self.sessions: dict[int, RelayedSession] = {}
        self.wake = asyncio.Event()

    async def read(self, requests: AsyncIterator[bytes]) -> None:
        """Pass its messages on until it sends nothing more."""
        try:
            async for payload in requests:
                for frame in ring_pb2.RelayRequest.FromString(payload).frames:
                    self._take(frame)
                for session in list(self.sessions.values())[:1]:
                    await session.room()
        finally:
            self._over = True
            self.wake.set()

    async def responses(self) -> AsyncIterator[bytes]:
        """Yield the messages for it until it has ended its side and its sessions are over."""
        while True:
            while (response := self.batch.take()) is not None:
                yield response.SerializeToString()
            if self._over and not self.sessions:
                return
            await self.wake.wait()
            self.wake.clear()

    def close(self) -> None:
        """End its sessions as broken streams."""
        for session in list(self.sessions.values()):
            session.end(ring_pb2.RELAYED_END_CANCELLED)
        self.sessions.clear()

    def _take(self, frame: ring_pb2.RelayFrame) -> None:
        if frame.WhichOneof("part") == "open":
            below = _SessionBelow(self, frame.session)
            session = self._upstream.open(metadata_from_proto(frame.open.metadata), below)
            if session is not None:
                self.sessions[frame.session] = session
            return
        session = self.sessions.get(frame.session)
        if session is None:
            return
        if frame.WhichOneof("part") == "request":
            session.request(frame.request, frame.held_milliseconds / 1000)
        else:
            session.end(frame.end)
            if frame.end == ring_pb2.RELAYED_END_CANCELLED:
                del self.sessions[frame.session]
