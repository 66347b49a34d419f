"""The data port: a listener, and a thread for each connection.

A caller without the secret gets only the time of a handshake, and no memory. A frame's length is compared
with the length that its header requires before memory is allocated; if they differ, the caller gets an error
and its connection is closed. Requests run in order on the connection's thread; answers that wait for a backup
are sent by a second thread, so that the next request does not wait for them.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from elastane.slots import frames
from elastane.slots.frames import CopyBegin, CopyEnd, CopyPart, Error, Header, SlotFrameError
from elastane.slots.handshake import admit
from elastane.slots.tls_stream import Stream, TlsStream
from elastane.slots.wire import Incoming, Piece, read_header, read_into, read_prefix, write_frame
from elastane_common.errors import ElastaneError
from elastane_common.own_port import listen
from elastane_common.process_tls import Offer, own_tls
from elastane_common.tcp_options import prepare
from elastane_ps.copying import Receiving
from elastane_ps.figures import Figures
from elastane_ps.replication import Replication
from elastane_ps.requests import Answer, PsFault, Requests, timed
from elastane_ps.staging import Staging
from elastane_shards.errors import ShardsError

_log = structlog.get_logger(__name__)

CONNECTIONS_MAX: Final = 256
#: Maximum number of callers that have not proved the secret yet.
STRANGERS_MAX: Final = 128
_BACKLOG: Final = 256
#: Longest pause within a frame, in seconds: frames share memory, and a worker may be suspended. Where a part
#: of a header or body has come, it may be twice as long.
_SILENCE_SECONDS: Final = 60
#: Seconds for which the rest of a refused frame is read.
_REFUSED_SECONDS: Final = 1.0


class DataPort:
    """Listens on a free port of `host`.

    secret: of this process for its job. fault: called when the process must end. tls: whether this process
    wants, or can take, encrypted connections; their callers decide. Raises OSError, RefusedError.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        *,
        requests: Requests,
        replication: Replication,
        receiving: Receiving,
        figures: Figures,
        fault: Callable[[BaseException], None],
        staging: Staging | None = None,
        tls: Offer = "off",
    ) -> None:
        self.secret = secret
        self._tls = tls
        if tls == "wanted":
            own_tls()  # what it lacks for that is said now, and not to nobody at each caller
        self._warned = False
        self._requests, self._replication, self._receiving = requests, replication, receiving
        self._figures, self._fault = figures, fault
        self._staging = staging or Staging()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._strangers = 0
        hint = "set ELASTANE_PS_HOST to the address of this machine at which workers reach it"
        self._listener = listen(host, _BACKLOG, failure="this parameter server cannot listen at", hint=hint)
        bracketed = f"[{host}]" if ":" in host else host
        self.address = f"{bracketed}:{self._listener.getsockname()[1]}"
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="elastane-ps-port", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                time.sleep(0.05)  # no descriptors are left; the caller tries again
                continue
            with self._lock:
                full = len(self._connections) >= CONNECTIONS_MAX + STRANGERS_MAX
                full = full or self._strangers >= STRANGERS_MAX
                if not full:
                    self._connections.add(connection)
                    self._strangers += 1
            if full:
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        answers: _Answers | None = None
        try:
            with connection:
                try:
                    prepare(connection)
                    stream = admit(connection, self.secret, own_tls if self._tls != "off" else None)
                finally:
                    with self._lock:
                        self._strangers -= 1
                self._warn(stream)
                answers = _Answers(stream, self._figures)
                self._listen_to(stream, answers)
        except (OSError, ElastaneError, ShardsError) as error:
            if not self._closing:
                _log.debug("a connection to the data port ended", error=str(error))
        finally:
            if answers is not None:
                answers.close()
            with self._lock:
                self._connections.discard(connection)

    def _warn(self, stream: Stream) -> None:
        """Say once that a caller is in clear although this process's connection to the master is not."""
        if self._tls == "wanted" and not isinstance(stream, TlsStream) and not self._warned:
            self._warned = True
            _log.warning(
                "connections to this parameter server are not encrypted, although that to the master is",
                hint="a caller has ELASTANE_RING_TLS=0, or reaches the master without TLS",
            )

    def _listen_to(self, connection: Stream, answers: _Answers) -> None:
        incoming = Incoming(connection)
        while (prefix := read_prefix(incoming)) is not None:
            began = time.monotonic()
            number = prefix.number
            _wait_at_most(connection, _SILENCE_SECONDS)
            try:
                header = read_header(incoming, prefix)
                if self._body_bytes(header) != prefix.body_bytes:
                    raise SlotFrameError(f"a {prefix.kind.name} with a body of {prefix.body_bytes} bytes")
            except (ElastaneError, ShardsError) as error:
                answers.refuse(number, error)
                raise
            body = self._staging.take(prefix.body_bytes)
            given_back = False
            try:
                read_into(incoming, body)
                _wait_at_most(connection, 0)
                answer = self._do(header, body)
                if answer is not None:
                    received = prefix.body_bytes + prefix.header_bytes
                    given_back = answers.give(
                        number, answer, header, began, received, self._staging, len(body)
                    )
            except (ElastaneError, ShardsError) as error:
                answers.refuse(number, error)
                raise
            except (PsFault, MemoryError, RuntimeError) as error:
                self._fault(error)
                raise SlotFrameError("this parameter server ends") from error
            finally:
                if not given_back:
                    self._staging.give_back(len(body))

    def _body_bytes(self, header: Header) -> int:
        if isinstance(header, frames.Replicate | frames.ReplicateInit | frames.ReplicateClose):
            return self._replication.body_bytes(header)
        if isinstance(header, CopyBegin | CopyPart | CopyEnd):
            return self._receiving.body_bytes(header)
        return self._requests.body_bytes(header)

    def _do(self, header: Header, body: memoryview) -> Answer | None:
        if isinstance(header, frames.Replicate | frames.ReplicateInit | frames.ReplicateClose):
            replicated = self._replication.do(header, body)
            return Answer(lambda: (replicated, ()))
        if isinstance(header, CopyBegin | CopyPart | CopyEnd):
            done = self._receiving.do(header, body)
            return None if done is None else Answer(lambda: (done, ()))
        return self._requests.do(header, body)


class _Answers:
    """Sends the answers of one connection, in the order of its requests."""

    def __init__(self, connection: Stream, figures: Figures) -> None:
        self._connection, self._figures = connection, figures
        self._sending = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = 0
        self._thread: threading.Thread | None = None

    def give(
        self,
        number: int,
        answer: Answer,
        header: Header,
        began: float,
        received: int,
        staging: Staging,
        staged: int,
    ) -> bool:
        """Answer a request. True if the answer is sent later, and the request's memory returned then."""

        def now() -> None:
            said, body = answer.make()
            sent = self._write(said, number, body)
            timed(self._figures, header, began, received, sent)

        if self._thread is None and not answer.waits:
            now()
            return False

        def later() -> None:
            try:
                now()
            finally:
                staging.give_back(staged)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="elastane-ps-answers", daemon=True)
            self._thread.start()
        self._waiting.put(later)
        return True

    def refuse(self, number: int, error: Exception) -> None:
        """Send an error before the connection is closed."""
        code = error.code if isinstance(error, ElastaneError) else SlotFrameError.code
        with suppress(OSError, ElastaneError):
            self._write(Error(code, str(error)[:2000]), number, ())
            # Read the rest: otherwise the kernel would send a reset, and the caller would lose the error.
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_REFUSED_SECONDS)
            until = time.monotonic() + _REFUSED_SECONDS
            while time.monotonic() < until and self._connection.recv(1 << 16):
                pass

    def close(self) -> None:
        self._waiting.put(None)

    def _write(self, header: Header, number: int, body: Sequence[Piece]) -> int:
        with self._sending:
            return write_frame(self._connection, header, number, body)

    def _run(self) -> None:
        while (later := self._waiting.get()) is not None:
            with suppress(OSError, ElastaneError):
                later()


def _wait_at_most(connection: Stream, seconds: int) -> None:
    """Limit how long a receive waits for bytes; 0: no limit."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", seconds, 0))
