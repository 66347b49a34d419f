"""Bidirectional session of a worker with the master: one stream, kept alive and reconnected.

A thread reads the stream and passes every message to the handler; another sends heartbeats; a third looks for
silent masters. They carry out what `SessionMachine` decides. When the stream breaks, the session reconnects
with backoff to the next of the masters' addresses and sends Hello again; messages that the old stream may
have lost are repeated by the protocol (`WorkerProtocol.welcome`). A permanent refusal, or a master
unreachable for longer than `timeout_seconds`, ends the session with a typed error that the trainer raises.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from elastane.runtime.session_machine import (
    SILENT_SECONDS,
    Action,
    ByeRequested,
    CheckLeader,
    End,
    Event,
    LeaderChecked,
    LeaveRing,
    MessageReceived,
    Probe,
    Probed,
    RingLeft,
    SendBye,
    SessionMachine,
    SwitchTo,
    Ticked,
    Welcomed,
)
from elastane_common.addresses import AddressBook
from elastane_common.backoff import backoff_seconds
from elastane_common.client_errors import detail_of, stream_ended
from elastane_common.credentials import TLS_HINT, open_channel
from elastane_common.errors import ElastaneError, RefusedError
from elastane_common.message_size import size_options
from elastane_common.stream_session import Connect, Started, StreamEnded, StreamOpened
from elastane_proto.channels import channel_options
from elastane_proto.v1 import ring_pb2, ring_pb2_grpc

_log = structlog.get_logger(__name__)

_CHANNEL_OPTIONS = [
    *channel_options(reconnect_milliseconds_max=1_000),
    ("grpc.http2.max_pings_without_data", 0),
]
_PROBE_TIMEOUT_SECONDS = 1.0
_UNREACHABLE_HINT = (
    "is the master running, and is --master correct? ELASTANE_MASTER_TIMEOUT_SECONDS "
    f"limits the wait; {TLS_HINT}"
)

Handler = Callable[[ring_pb2.AttendResponse], None]


class MasterSession:
    """One worker's session. Thread-safe: `send` may be called from any thread.

    addresses: of the masters, in the form of `elastane_common.addresses`; RefusedError if they are invalid.
    hello: builds the current Hello, with the worker's position. heartbeat: builds a Heartbeat. handler:
    called on the reader thread with every message, in order. failed: called once, on the reader thread, with
    the error that ended the session for good. evicted: called on the reader thread when the master has
    evicted this worker; Hello is sent again once it returns.
    """

    def __init__(
        self,
        addresses: str,
        *,
        hello: Callable[[], ring_pb2.Hello],
        heartbeat: Callable[[], ring_pb2.AttendRequest],
        handler: Handler,
        failed: Callable[[ElastaneError], None],
        timeout_seconds: float,
        evicted: Callable[[], None] = lambda: None,
    ) -> None:
        try:
            self._book = AddressBook(addresses)
        except ValueError as error:
            raise RefusedError(str(error), hint="set --master or ELASTANE_MASTER") from error
        self._machine = SessionMachine(
            str(self._book),
            timeout_seconds=timeout_seconds,
            now=time.monotonic(),
            backoff=backoff_seconds,
            unreachable_hint=_UNREACHABLE_HINT,
        )
        self._hello = hello
        self._heartbeat = heartbeat
        self._handler = handler
        self._failed = failed
        self._evicted = evicted
        #: Guards the machine, and the fields that follow from what it is told.
        self._lock = threading.Lock()
        self._stream: grpc.Call | None = None
        self._outgoing: queue.SimpleQueue[ring_pb2.AttendRequest | None] | None = None
        self._bye: ring_pb2.AttendRequest | None = None
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._run, name="elastane-session", daemon=True)
        self._beater = threading.Thread(target=self._beat, name="elastane-heartbeat", daemon=True)
        self._looker = threading.Thread(target=self._look, name="elastane-look", daemon=True)

    def start(self) -> None:
        """Connect in the background; answers arrive at the handler."""
        self._reader.start()
        self._beater.start()
        self._looker.start()

    def send(self, *messages: ring_pb2.AttendRequest) -> None:
        """Queue messages in order. Dropped while disconnected: the protocol repeats those that matter."""
        with self._lock:
            if self._outgoing is not None:
                for message in messages:
                    self._outgoing.put(message)

    def close(self, bye: ring_pb2.Bye | None = None, *, timeout_seconds: float = 20.0) -> None:
        """Send Bye and end the session.

        Waits until the master has made the Bye durable and ended the stream, because a lost Bye would turn a
        proper end into a death. timeout_seconds: time for an unreachable master to come back.
        """
        if bye is not None and self._reader.is_alive():
            self._bye = self._last(bye)
            if isinstance(self._decide(ByeRequested()), SendBye):
                self.send(self._bye)
            self._reader.join(timeout_seconds)
        self._closing.set()
        with self._lock:
            if self._outgoing is not None:
                self._outgoing.put(None)
        if self._reader.is_alive():
            self._reader.join(1.0)

    def _decide(self, event: Event) -> Action | None:
        with self._lock:
            return self._machine.handle(event, time.monotonic())

    # ------------------------------------------------------------------ reader thread

    def _run(self) -> None:
        try:
            self._attend_until_closed()
        except ElastaneError as error:
            self._failed(error)

    def _attend_until_closed(self) -> None:
        event: Event = Started()
        address = self._book.current()
        while not self._closing.is_set():
            match self._decide(event):
                case Connect(wait_seconds, stays, leader):
                    if not stays:
                        self._book.failed(address, leader)
                    if self._closing.wait(wait_seconds):
                        return
                    address = self._book.current()
                    event = self._attend(address)
                case CheckLeader():
                    event = LeaderChecked(self._leads(address))
                case LeaveRing():
                    self._evicted()
                    event = RingLeft()
                case End(error):
                    if error is not None:
                        raise error
                    return
                case action:
                    raise AssertionError(f"{action} while there is no stream")

    def _attend(self, address: str) -> StreamEnded:
        """Run one stream, from Hello until it ends; return how it ended. Raises the error of an End."""
        outgoing: queue.SimpleQueue[ring_pb2.AttendRequest | None] = queue.SimpleQueue()

        def requests() -> Iterator[ring_pb2.AttendRequest]:
            while (message := outgoing.get()) is not None:
                yield message

        # Built per stream: Hello must carry the worker's position at the moment of connecting.
        outgoing.put(self._first())
        with self._open_channel(address) as channel:
            stream = self._call(channel, requests())
            with self._lock:
                self._stream = stream
                self._machine.handle(StreamOpened(), time.monotonic())
            try:
                for message in stream:
                    if message.HasField("welcome"):
                        action = self._welcomed(message.welcome, outgoing, address)
                    else:
                        action = self._decide(MessageReceived())
                    self._handler(message)
                    if isinstance(action, SendBye):
                        outgoing.put(self._bye)
            except grpc.RpcError as error:
                _log.debug("session ended", address=address, code=str(error.code()), details=error.details())
                detail = detail_of(error)  # type: ignore[arg-type]  # a call that failed is its own error
                return stream_ended(error.code(), error.details() or "", detail)
            finally:
                with self._lock:
                    self._stream = None
                    self._outgoing = None
                outgoing.put(None)
        return StreamEnded()

    def _welcomed(
        self,
        welcome: ring_pb2.Welcome,
        outgoing: queue.SimpleQueue[ring_pb2.AttendRequest | None],
        address: str,
    ) -> Action | None:
        with self._lock:
            action = self._machine.handle(self._terms(welcome), time.monotonic())
            if isinstance(action, End) and action.error is not None:
                raise action.error
            self._outgoing = outgoing
        _log.debug("attending", address=address)
        return action

    # ------------------------------------------------------------------ messages

    def _call(self, channel: grpc.Channel, requests: Iterator[ring_pb2.AttendRequest]) -> Any:
        """Open the stream."""
        return ring_pb2_grpc.RingServiceStub(channel).Attend(requests)

    def _first(self) -> ring_pb2.AttendRequest:
        """Return the message that a stream begins with."""
        return ring_pb2.AttendRequest(hello=self._hello())

    def _last(self, bye: ring_pb2.Bye) -> ring_pb2.AttendRequest:
        """Return the message that ends a session."""
        return ring_pb2.AttendRequest(bye=bye)

    def _terms(self, welcome: ring_pb2.Welcome) -> Welcomed:
        """Return what a Welcome says about the session."""
        seconds = welcome.heartbeat_interval.ToTimedelta().total_seconds()
        return Welcomed(welcome.version, seconds)

    def _open_channel(self, address: str) -> grpc.Channel:
        return open_channel(address, _CHANNEL_OPTIONS + size_options(), name=self._book.name_of(address))

    def _leads(self, address: str) -> bool:
        """True if a master at `address` reports that it leads."""
        try:
            with self._open_channel(address) as channel:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=_PROBE_TIMEOUT_SECONDS
                )
        except (grpc.RpcError, ElastaneError):  # e.g. the token file is missing for a moment
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    # ------------------------------------------------------------------ heartbeat thread

    def _beat(self) -> None:
        while not self._closing.wait(self._machine.heartbeat_seconds):
            self.send(self._heartbeat())

    # ------------------------------------------------------------------ probe thread

    def _look(self) -> None:
        """Probe the other addresses while the master is silent, and move to one that leads."""
        while not self._closing.wait(SILENT_SECONDS):
            current, *others = self._book.all()
            with self._lock:
                stream = self._stream
                action = self._machine.handle(Ticked(tuple(others)), time.monotonic())
            while isinstance(action, Probe):
                action = self._decide(Probed(action.address, self._leads(action.address)))
            if isinstance(action, SwitchTo) and stream is not None:
                _log.info("another master leads", address=action.address, left=current)
                self._book.go_to(action.address)
                stream.cancel()
