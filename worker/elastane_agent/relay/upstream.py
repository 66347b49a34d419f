"""The relay's stream to the master, in which its sessions travel.

It is opened with the first session. When it breaks, every session in it ends as if its own stream had broken,
and the next one opens another, to the master that is then in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from elastane_agent.relay.downstream import Downstream, away, refusal
from elastane_agent.relay.held_heartbeats import HeldHeartbeats, is_heartbeat
from elastane_common.addresses import AddressBook
from elastane_common.cancellation import end_all
from elastane_common.connection import call_metadata
from elastane_common.credentials import on_loopback, read_credentials
from elastane_common.errors import RefusedError
from elastane_common.message_size import size_options
from elastane_proto.channels import channel_options
from elastane_proto.relay_batches import BATCH_BYTES, FrameBatch, Metadata, metadata_to_proto, responses_of
from elastane_proto.v1 import errors_pb2, ring_pb2, ring_pb2_grpc

RELAY: Final = "/elastane.v1.RingService/Relay"
WAITING_BYTES_MAX: Final = 4 * BATCH_BYTES
"""Size of what waits for the master; beyond it workers are not read."""
WITHOUT_RELAY_SECONDS: Final = 60.0
"""Time until a master that does not know relays is asked again: it may have been upgraded."""

Say = Callable[[str], None]

_RESERVED = ("grpc-", ":", "user-agent", "te", "content-type")


def carried(metadata: Any) -> Metadata:
    """Return what a caller itself has put into a call's metadata."""
    return [(key, value) for key, value in metadata or () if not key.startswith(_RESERVED)]


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel to a master, without TLS (an agent starts no relay where there is TLS)."""
    local = [("grpc.enable_http_proxy", 0)] if on_loopback(address) else []
    options = [*channel_options(reconnect_milliseconds_max=200), *size_options(), *local]
    return grpc.aio.insecure_channel(address, options=options)


def token_fault(metadata: Metadata, address: str) -> str:
    """Return why a call with this metadata may not be sent to `address`: its token would be read; else "".

    The worker has sent it to this machine only, and cannot know where it goes from here.
    """
    if on_loopback(address) or read_credentials().insecure:
        return ""
    has_token = any(key == "authorization" for key, _ in metadata)
    return f"the token would go to {address} unencrypted" if has_token else ""


class RelayedSession:
    """One session as its downstream uses it."""

    def __init__(self, link: _Link, number: int) -> None:
        self._link = link
        self._number = number

    def request(self, request: bytes, held_seconds: float = 0.0) -> None:
        """Send a serialized AttendRequest. held_seconds: for which a relay below has kept it."""
        if is_heartbeat(request):
            self._link.beat(self._number, request, held_seconds)
        else:
            self._link.send(ring_pb2.RelayFrame(session=self._number, request=request))

    def end(self, end: ring_pb2.RelayedEnd) -> None:
        """The worker's side has ended."""
        self._link.end(self._number, end)

    async def room(self) -> None:
        """Wait while too much waits for the master."""
        await self._link.room()


class Upstream:
    """The streams of one relay. Used from one event loop.

    addresses: of the masters. say: told in words what becomes of the streams.
    """

    def __init__(self, addresses: str, say: Say) -> None:
        self.book = AddressBook(addresses)
        self._say = say
        self._link: _Link | None = None
        self._links: set[_Link] = set()
        self._without_relay: dict[str, float] = {}

    def open(self, metadata: Metadata, downstream: Downstream) -> RelayedSession | None:
        """Open a session; None if it ended at once, with its reason given to `downstream`."""
        address = self.book.current()
        if self._without_relay.get(address, 0.0) > time.monotonic():
            self.book.failed(address)
            downstream.end(away(f"the master at {address} does not take relays: connect to it directly"))
            return None
        if fault := token_fault(metadata, address):
            reason = errors_pb2.ERROR_REASON_UNAUTHENTICATED
            hint = "set ELASTANE_INSECURE=1 for the agent if nobody can eavesdrop on the connection"
            downstream.end(refusal(grpc.StatusCode.UNAUTHENTICATED, reason, fault, hint))
            return None
        if self._link is None or self._link.over or self._link.address != address:
            self._link = _Link(self, address)
            self._links.add(self._link)
            self._link.start()
        return self._link.open(metadata, downstream)

    async def close(self) -> None:
        """End all streams."""
        await end_all([link.task for link in self._links if link.task is not None])

    def link_over(self, link: _Link, code: grpc.StatusCode, details: str) -> str:
        """Return why the sessions of a stream that has ended must connect again."""
        self._links.discard(link)
        self.book.failed(link.address)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            self._without_relay[link.address] = time.monotonic() + WITHOUT_RELAY_SECONDS
            text = f"the master at {link.address} is older than relays: its workers connect to it directly"
        elif code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            text = f"the stream to the master at {link.address} broke: {details}"
        else:
            self._without_relay[link.address] = time.monotonic() + WITHOUT_RELAY_SECONDS
            why = f"the master at {link.address} refuses the relay: {details}"
            text = f"{why}: its workers connect to it directly"
        self._say(text)
        return text

    def refused(self, link: _Link) -> None:
        """A session was refused as by a master that does not lead: the next one tries another."""
        self.book.failed(link.address)


class _Link:
    """One stream of a relay. over: it takes no more sessions."""

    def __init__(self, upstream: Upstream, address: str) -> None:
        self.address = address
        self.over = False
        self.task: asyncio.Task[None] | None = None
        self._upstream = upstream
        self._sessions: dict[int, Downstream] = {}
        self._newest = 0
        self._batch = FrameBatch()
        self._heartbeats = HeldHeartbeats()
        self._timer: asyncio.TimerHandle | None = None
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    def open(self, metadata: Metadata, downstream: Downstream) -> RelayedSession:
        self._newest += 1
        self._sessions[self._newest] = downstream
        call = ring_pb2.RelayedCall(metadata=metadata_to_proto(metadata))
        self.send(ring_pb2.RelayFrame(session=self._newest, open=call))
        return RelayedSession(self, self._newest)

    def send(self, frame: ring_pb2.RelayFrame) -> None:
        if self.over or frame.session not in self._sessions:
            return  # its end is on the way to the worker
        self._send_heartbeats()
        self._batch.add(frame)
        if self._batch.bytes > WAITING_BYTES_MAX:
            self._room.clear()
        self._work.set()

    def beat(self, number: int, request: bytes, held_seconds: float) -> None:
        """Send a heartbeat with whatever is sent next, or soon."""
        if self.over or number not in self._sessions:
            return
        loop = asyncio.get_running_loop()
        self._heartbeats.hold(number, request, loop.time(), held_seconds)
        due = self._heartbeats.due
        assert due is not None
        if due <= loop.time():
            self._send_heartbeats()
        elif self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._send_heartbeats)

    def _send_heartbeats(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for frame in self._heartbeats.take(asyncio.get_running_loop().time()):
            self._batch.add(frame)
            self._work.set()

    def end(self, number: int, end: ring_pb2.RelayedEnd) -> None:
        self.send(ring_pb2.RelayFrame(session=number, end=end))
        if end == ring_pb2.RELAYED_END_CANCELLED:
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._sessions.pop(number, None)
        self._heartbeats.forget(number)

    async def room(self) -> None:
        await self._room.wait()

    async def _run(self) -> None:
        code, details = grpc.StatusCode.CANCELLED, "the relay stops"
        try:
            async with open_channel(self.address) as channel:
                relay: Any = ring_pb2_grpc.RingServiceStub(channel).Relay
                call = relay(metadata=[*call_metadata(), *_own_token(self.address)])
                writer = asyncio.create_task(self._write(call))
                try:
                    async for response in call:
                        for answer, tail in responses_of(response):
                            self._deliver(answer, tail)
                finally:
                    writer.cancel()
                code, details = await call.code(), await call.details() or ""
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        except RefusedError as error:  # the relay's own token cannot be read or sent
            code, details = grpc.StatusCode.UNAUTHENTICATED, str(error)
        except ValueError as error:  # an answer that this relay cannot read
            code, details = grpc.StatusCode.INTERNAL, str(error)
        finally:
            self.over = True
            if self._timer is not None:
                self._timer.cancel()
            self._room.set()
            text = self._upstream.link_over(self, code, details)
            for downstream in self._sessions.values():
                downstream.end(away(text))
            self._sessions.clear()

    async def _write(self, call: Any) -> None:
        # Ends with the call, whose reader then learns why.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._work.wait()
                self._work.clear()
                while (request := self._batch.take()) is not None:
                    await call.write(request)
                    if self._batch.bytes <= WAITING_BYTES_MAX:
                        self._room.set()

    def _deliver(self, answer: ring_pb2.RelayAnswer, tail: bytes) -> None:
        for number in answer.sessions:
            downstream = self._sessions.get(number)
            if downstream is None:
                continue
            if answer.WhichOneof("answer") == "status":
                self._forget(number)
                downstream.end(answer.status)
                if answer.status.code == grpc.StatusCode.UNAVAILABLE.value[0]:
                    self._upstream.refused(self)
            elif not downstream.respond(answer.response, tail):
                self.end(number, ring_pb2.RELAYED_END_CANCELLED)


def _own_token(address: str) -> list[tuple[str, str]]:
    """Return the metadata with this process's token, if it has one. Raises RefusedError."""
    credentials = read_credentials()
    if not credentials.has_token:
        return []
    metadata = [("authorization", f"Bearer {credentials.read_token()}")]
    if fault := token_fault(metadata, address):
        raise RefusedError(fault)
    return metadata
