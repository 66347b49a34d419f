"""A master whose messages a test sends one by one, over the real stream, to a real runner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import grpc

import patience
from elastane_proto.v1 import training_pb2, training_pb2_grpc

Request = training_pb2.RunnerServiceAttendRequest
Response = training_pb2.RunnerServiceAttendResponse


class _Stream:
    """One stream of a runner. outgoing: None ends it."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[Response | None] = asyncio.Queue()
        self.incoming: asyncio.Queue[Request] = asyncio.Queue()


class ScriptedMaster(training_pb2_grpc.RunnerServiceServicer):
    """Serves runners; a test takes each stream by `hello`.

    refusal: status with which streams end at once. prepare_seconds: how long it waits for a launch.
    """

    def __init__(
        self, artifact_url: str, refusal: grpc.StatusCode | None = None, prepare_seconds: float = 120.0
    ) -> None:
        self._artifact_url = artifact_url
        self._prepare_seconds = prepare_seconds
        self.refusal = refusal
        self._streams: asyncio.Queue[_Stream] = asyncio.Queue()
        self._stream = _Stream()
        self._server: grpc.aio.Server | None = None
        self.address = "127.0.0.1:0"

    async def __aenter__(self) -> ScriptedMaster:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, after a stop at the same port."""
        self._server = grpc.aio.server()
        training_pb2_grpc.add_RunnerServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self.address)}"
        await self._server.start()

    async def stop(self) -> None:
        """Break all streams."""
        assert self._server is not None
        await self._server.stop(0)

    async def Attend(  # noqa: N802 - the rpc's name
        self, requests: AsyncIterator[Request], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[Response]:
        if self.refusal is not None:
            await context.abort(self.refusal, "not you")
        stream = _Stream()
        self._streams.put_nowait(stream)

        async def read() -> None:
            async for request in requests:
                if request.WhichOneof("message") != "heartbeat":
                    stream.incoming.put_nowait(request)

        reader = asyncio.create_task(read())
        try:
            while (message := await stream.outgoing.get()) is not None:
                yield message
        finally:
            reader.cancel()

    # ---------------------------------------------------------------- conversations

    async def hello(self) -> training_pb2.RunnerHello:
        """Take the next stream: return its Hello, and welcome the runner."""
        async with patience.within(60):
            self._stream = await self._streams.get()
        hello = (await self.next("hello")).hello
        welcome = training_pb2.RunnerWelcome(artifact_url=self._artifact_url)
        welcome.heartbeat_interval.FromMilliseconds(200)
        welcome.prepare.FromMilliseconds(round(1000 * self._prepare_seconds))
        self.send(welcome=welcome)
        return hello

    def send(self, **message: Any) -> None:
        """Send one message, by its name in the oneof."""
        self._stream.outgoing.put_nowait(Response(**message))

    async def next(self, kind: str) -> Request:
        """Return the next message, which must be of this kind."""
        async with patience.within(60):
            request = await self._stream.incoming.get()
        assert request.WhichOneof("message") == kind, request
        return request

    async def next_of(self, *kinds: str) -> Request:
        """Return the next message, which must be of one of these kinds."""
        async with patience.within(60):
            request = await self._stream.incoming.get()
        assert request.WhichOneof("message") in kinds, request
        return request

    async def rank(self, state: str) -> training_pb2.RankStatus:
        """Return what the next message says of a rank, which must be in this state."""
        status = (await self.next("rank_changed")).rank_changed.report.status
        assert training_pb2.RankStatus.State.Name(status.state) == f"STATE_{state}", status
        return status
