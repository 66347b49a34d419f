"""Bidirectional session of a worker with the master: one stream, kept alive and reconnected.

A thread reads the stream and passes every message to the handler; another sends heartbeats. When the stream
breaks, the session reconnects with backoff to the next of the masters' addresses and sends Hello again;
messages that the old stream may have lost are repeated by the protocol (`WorkerProtocol.welcome`). A
permanent refusal, or a master unreachable for longer than `timeout_seconds`, ends the session with a typed
error that the trainer raises. NOT_FOUND of the job is final only when it is repeated by a master that leads:
weights are at stake.

If there are several addresses, a third thread probes the others while the current master is silent: a master
that is stopped, or cut off from the store, keeps its streams open, and the worker would wait for it although
another one leads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from elastane_common.addresses import AddressBook
from elastane_common.backoff import backoff_seconds
from elastane_common.credentials import TLS_HINT, open_channel
from elastane_common.errors import (
    ElastaneError,
    MasterUnreachableError,
    RefusedError,
    WorkerReplacedError,
)
from elastane_common.message_size import size_options
from elastane_proto import versions
from elastane_proto.channels import channel_options
from elastane_proto.v1 import errors_pb2, ring_pb2, ring_pb2_grpc

_log = structlog.get_logger(__name__)

_CHANNEL_OPTIONS = [
    *channel_options(reconnect_milliseconds_max=1_000),
    ("grpc.http2.max_pings_without_data", 0),
]
#: Upper limit of the backoff after a standby master's answer: another one leads, or soon will.
_STANDBY_SECONDS_MAX = 0.5
#: After this time without a message the other addresses are probed, and again at this interval.
_SILENT_SECONDS = 2.0
_LOOK_TIMEOUT_SECONDS = 1.0
#: Delay before asking again for a job that was not found: the default duration of a leader's lease.
_NOT_FOUND_SECONDS = 3.0
#: Codes with which a master refuses a worker for good; after any other the worker connects again.
PERMANENT_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}

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
        self._stream: grpc.Call | None = None
        self._hello = hello
        self._heartbeat = heartbeat
        self._handler = handler
        self._failed = failed
        self._evicted = evicted
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._outgoing: queue.SimpleQueue[ring_pb2.AttendRequest | None] | None = None
        self._closing = threading.Event()
        self._bye: ring_pb2.AttendRequest | None = None
        self._heartbeat_interval_seconds = 1.0
        self._last_contact = time.monotonic()
        self._not_found = False
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
            with self._lock:
                self._bye = ring_pb2.AttendRequest(bye=bye)
                if self._outgoing is not None:
                    self._outgoing.put(self._bye)
            self._reader.join(timeout_seconds)
        self._closing.set()
        with self._lock:
            if self._outgoing is not None:
                self._outgoing.put(None)
        if self._reader.is_alive():
            self._reader.join(1.0)

    # ------------------------------------------------------------------ reader thread

    def _run(self) -> None:
        try:
            self._attend_until_closed()
        except ElastaneError as error:
            self._failed(error)

    def _attend_until_closed(self) -> None:
        while not self._closing.is_set():
            address = self._book.current()
            contact_before = self._last_contact
            error = self._attend(address)
            if self._closing.is_set() or (self._bye is not None and error is None):
                return
            detail = _detail(error) if error is not None else errors_pb2.ErrorDetail()
            if error is not None and _is_permanent(error, detail):
                if error.code() != grpc.StatusCode.NOT_FOUND or self._is_gone(address):
                    raise _refusal(error)
                self._book.failed(address)
                self._closing.wait(_NOT_FOUND_SECONDS)
                continue
            if detail.reason == errors_pb2.ERROR_REASON_EVICTED:
                self._evicted()
                self._last_contact = time.monotonic()
            if self._last_contact > contact_before:
                # The master was reachable until now, though it may have sent nothing for long.
                self._last_contact = time.monotonic()
            away_seconds = time.monotonic() - self._last_contact
            if away_seconds > self._timeout_seconds:
                why = error.details() if error is not None else "stream closed"
                raise MasterUnreachableError(
                    f"no master answered at {self._book} for {away_seconds:.0f} s: {why}",
                    hint=(
                        "is the master running, and is --master correct? ELASTANE_MASTER_TIMEOUT_SECONDS "
                        f"limits the wait; {TLS_HINT}"
                    ),
                    last_error=why,
                )
            # A master that evicts this worker leads: stay with it.
            if detail.reason != errors_pb2.ERROR_REASON_EVICTED:
                self._book.failed(address, detail.facts.get("leader", ""))
            seconds = backoff_seconds(away_seconds)
            if detail.reason == errors_pb2.ERROR_REASON_NOT_LEADING:
                seconds = min(seconds, _STANDBY_SECONDS_MAX)
            self._closing.wait(seconds)

    def _is_gone(self, address: str) -> bool:
        """True if the job is gone for good, now that the master at `address` does not know it.

        Accepted only when it is repeated, and only from a master that leads; or after `timeout_seconds`.
        """
        again, self._not_found = self._not_found, True
        if time.monotonic() - self._last_contact > self._timeout_seconds:
            return True
        return again and self._serves(address)

    def _open_channel(self, address: str) -> grpc.Channel:
        return open_channel(address, _CHANNEL_OPTIONS + size_options(), name=self._book.name_of(address))

    def _serves(self, address: str) -> bool:
        """True if a master at `address` reports that it leads."""
        try:
            with self._open_channel(address) as channel:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=_LOOK_TIMEOUT_SECONDS
                )
        except (grpc.RpcError, ElastaneError):  # e.g. the token file is missing for a moment
            return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def _attend(self, address: str) -> grpc.RpcError | None:
        """Run one stream, from Hello until it ends; return the error that ended it."""
        outgoing: queue.SimpleQueue[ring_pb2.AttendRequest | None] = queue.SimpleQueue()

        def requests() -> Iterator[ring_pb2.AttendRequest]:
            while (message := outgoing.get()) is not None:
                yield message

        # Built per stream: Hello must carry the worker's position at the moment of connecting.
        outgoing.put(ring_pb2.AttendRequest(hello=self._hello()))
        with self._open_channel(address) as channel:
            stream = ring_pb2_grpc.RingServiceStub(channel).Attend(requests())
            self._stream = stream
            try:
                for message in stream:
                    if message.HasField("welcome"):
                        self._connected(message.welcome, outgoing, address)
                    self._last_contact = time.monotonic()
                    self._handler(message)
                    if message.HasField("welcome") and self._bye is not None:
                        outgoing.put(self._bye)
            except grpc.RpcError as error:
                _log.debug("session ended", address=address, code=str(error.code()), details=error.details())
                return error
            finally:
                self._stream = None
                with self._lock:
                    self._outgoing = None
                outgoing.put(None)
        return None

    def _connected(
        self,
        welcome: ring_pb2.Welcome,
        outgoing: queue.SimpleQueue[ring_pb2.AttendRequest | None],
        address: str,
    ) -> None:
        fault, hint = versions.master_fault(welcome.version)
        if fault:
            raise RefusedError(fault, hint=hint, version=welcome.version)
        _log.debug("attending", address=address, generation=welcome.generation, resumed=welcome.resumed)
        self._not_found = False
        interval = welcome.heartbeat_interval.ToTimedelta().total_seconds()
        self._heartbeat_interval_seconds = interval or 1.0
        with self._lock:
            self._outgoing = outgoing

    # ------------------------------------------------------------------ heartbeat thread

    def _beat(self) -> None:
        while not self._closing.wait(self._heartbeat_interval_seconds):
            self.send(self._heartbeat())

    # ------------------------------------------------------------------ probe thread

    def _look(self) -> None:
        """Probe the other addresses while the master is silent, and move to one that leads."""
        seen = self._last_contact
        while not self._closing.wait(_SILENT_SECONDS):
            # Silent means no message since the last look, so a switch comes after one to two intervals.
            silent, seen = seen == self._last_contact, self._last_contact
            stream = self._stream
            current, *others = self._book.all()
            if not silent or stream is None:
                continue
            for address in others:
                if self._serves(address) and self._stream is stream:
                    _log.info("another master leads", address=address, left=current)
                    self._book.go_to(address)
                    stream.cancel()
                    break


def _is_permanent(error: grpc.RpcError, detail: errors_pb2.ErrorDetail) -> bool:
    """True if the same Hello, or the same message, would be refused again."""
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
        return not detail.retryable  # a message too large, or beyond another limit
    return error.code() in PERMANENT_CODES


def _refusal(error: grpc.RpcError) -> RefusedError:
    """Return the typed error of a refused session, with the master's facts and hint."""
    detail = _detail(error)
    is_replaced = detail.reason == errors_pb2.ERROR_REASON_REPLACED
    return (WorkerReplacedError if is_replaced else RefusedError)(
        f"the master refused this worker: {error.details()}", hint=detail.hint, **dict(detail.facts)
    )


def _detail(error: grpc.RpcError) -> errors_pb2.ErrorDetail:
    """Return the machine-readable details of an error; empty if there are none."""
    found = errors_pb2.ErrorDetail()
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # a call that failed is its own error
    for packed in status.details if status is not None else ():
        packed.Unpack(found)
    return found
