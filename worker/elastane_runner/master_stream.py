"""A runner's stream to the leading master, reopened whenever it breaks.

gRPC's stream blocks, so a thread reads it and hands each message to the event loop; everything else happens
there. `send` puts a message behind the Hello of the current stream. Without a stream messages are dropped:
the next Hello has all that they would have said.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import grpc
import structlog

from elastane_common.addresses import AddressBook
from elastane_common.backoff import backoff_seconds
from elastane_common.client_errors import detail_of, stream_ended
from elastane_common.credentials import open_channel
from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.message_size import size_options
from elastane_common.stream_session import Connect, Started, StreamEnded, StreamOpened
from elastane_proto.channels import channel_options
from elastane_proto.v1 import training_pb2, training_pb2_grpc
from elastane_runner.attending import (
    Action,
    AttendingMachine,
    Closed,
    End,
    Event,
    Stage,
    Welcomed,
)

_log = structlog.get_logger(__name__)

T = TypeVar("T")
Request = training_pb2.RunnerServiceAttendRequest
Response = training_pb2.RunnerServiceAttendResponse
_Outgoing = queue.SimpleQueue[Request | None]

_CHANNEL_OPTIONS = [
    *channel_options(reconnect_milliseconds_max=1_000),
    ("grpc.http2.max_pings_without_data", 0),
]


#: Time that a master has to end a stream whose runner has nothing more to say.
_CLOSE_SECONDS: Final = 2.0


class MasterStream:
    """The session of one runner. Its methods are called, and call back, on one event loop.

    addresses: of the masters; RefusedError if they are invalid. hello: builds the current Hello. received:
    called with each message but Welcome, in order. welcomed: called with Welcome.
    """

    def __init__(
        self,
        addresses: str,
        *,
        hello: Callable[[], training_pb2.RunnerHello],
        received: Callable[[Response], None],
        welcomed: Callable[[training_pb2.RunnerWelcome], None],
    ) -> None:
        try:
            self._book = AddressBook(addresses)
        except ValueError as error:
            raise RefusedError(str(error), hint="set --master or ELASTANE_MASTER") from error
        self._hello, self._received, self._welcomed = hello, received, welcomed
        self._machine = AttendingMachine(now=time.monotonic(), backoff=backoff_seconds)
        self._outgoing: _Outgoing | None = None
        self._call: grpc.Call | None = None
        #: A separate thread, because a stream occupies it for days.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="runner-stream")
        self._closing = threading.Event()

    async def run(self) -> None:
        """Attend until `close`. Raises RefusedError when a master refuses this runner for good."""
        self._loop = asyncio.get_running_loop()
        beating = asyncio.create_task(self._beat())
        try:
            event: Event = Started()
            while True:
                match self._decide(event):
                    case Connect(wait_seconds, stays, leader):
                        event = await self._connect(wait_seconds, stays, leader)
                    case End(error):
                        if error is not None:
                            raise error
                        return
                    case action:
                        raise AssertionError(f"{action} while there is no stream")
        finally:
            self.close()
            beating.cancel()

    def send(self, **message: Any) -> None:
        """Send one message, given by its name in the oneof; dropped without a stream."""
        if self._outgoing is not None:
            self._outgoing.put(Request(**message))

    def close(self) -> None:
        """End the session; messages sent before still go out if the stream is healthy."""
        self._closing.set()
        if self._outgoing is not None:
            self._outgoing.put(None)
        if self._call is not None:
            self._loop.call_later(_CLOSE_SECONDS, self._call.cancel)

    def _decide(self, event: Event) -> Action | None:
        return self._machine.handle(event, time.monotonic())

    async def _connect(self, wait_seconds: float, stays: bool, leader: str) -> Event:
        if not stays:
            self._book.failed(self._book.current(), leader)
        if await self._in_thread(self._closing.wait, wait_seconds):
            return Closed()
        address = await self._in_thread(self._book.current)
        outgoing: _Outgoing = queue.SimpleQueue()
        outgoing.put(Request(hello=self._hello()))
        self._outgoing = outgoing
        self._decide(StreamOpened())
        try:
            return await self._in_thread(self._attend, address, outgoing)
        finally:
            self._outgoing = self._call = None
            outgoing.put(None)

    def _in_thread(self, work: Callable[..., T], *arguments: object) -> Awaitable[T]:
        return self._loop.run_in_executor(self._thread, work, *arguments)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._machine.heartbeat_seconds)
            if self._machine.stage is Stage.ATTENDING:
                self.send(heartbeat=training_pb2.RunnerHeartbeat())

    # ------------------------------------------------------------------ the stream's thread

    def _attend(self, address: str, outgoing: _Outgoing) -> Event:
        """Run one stream until it ends; return how it ended."""

        def requests() -> Iterator[Request]:
            while (message := outgoing.get()) is not None:
                yield message

        try:
            options = _CHANNEL_OPTIONS + size_options()
            with open_channel(address, options, name=self._book.name_of(address)) as channel:
                stub = training_pb2_grpc.RunnerServiceStub(channel)  # type: ignore[no-untyped-call]
                call = self._call = stub.Attend(requests())
                for message in call:
                    self._loop.call_soon_threadsafe(self._on_message, message, outgoing)
        except grpc.RpcError as error:
            _log.debug("stream ended", address=address, code=str(error.code()), details=error.details())
            detail = detail_of(error)  # type: ignore[arg-type]  # a call that failed is its own error
            ended = stream_ended(error.code(), error.details() or "", detail)
            if ended.reason == "EVICTED":
                _log.warning("the master has ended the stream", reason=ended.text)
        except ElastaneError as error:  # e.g. the token's file is missing for a moment
            ended = StreamEnded("UNAVAILABLE", str(error), hint=error.hint)
        else:
            ended = StreamEnded()
        return Closed() if self._closing.is_set() else ended

    def _on_message(self, message: Response, outgoing: _Outgoing) -> None:
        if self._outgoing is not outgoing:  # of a stream that has ended since
            return
        if message.HasField("welcome"):
            seconds = message.welcome.heartbeat_interval.ToTimedelta().total_seconds()
            self._decide(Welcomed(seconds))
            self._welcomed(message.welcome)
        else:
            self._received(message)
