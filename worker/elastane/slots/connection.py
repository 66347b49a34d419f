"""A client's connection to one parameter server: many requests in flight, answers in any order.

One thread reads answers and completes the futures of requests; a body is read directly into the memory that
the request names. The calling thread writes its request; one caller writes at a time. A connection that
breaks fails all requests in flight and is not reopened, because the slot map may name another owner by then.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from elastane.slots.frames import Error, Header, PsMemoryError, SlotFrameError
from elastane.slots.handshake import greet
from elastane.slots.tls_stream import Stream
from elastane.slots.wire import Incoming, Piece, read_header, read_into, read_prefix, write_frame
from elastane_common.errors import ElastaneError
from elastane_common.tcp_options import prepare

#: Time limit for opening a connection, in seconds.
CONNECT_SECONDS: Final = 5.0

#: Given an answer's header and body length, returns memory for the body: buffers, in order, of that total
#: length. Raises SlotFrameError to break the connection.
Into = Callable[[Header, int], Sequence[memoryview]]


@dataclass(frozen=True)
class Reply:
    """An answer. body: the buffers that `Into` returned, filled."""

    header: Header
    body: Sequence[memoryview]


def anywhere(header: Header, size: int) -> Sequence[memoryview]:
    """Return new memory for a body of any permitted size."""
    return [memoryview(bytearray(size))] if size else []


class PsConnection:
    """A connection. address: "host:port". secret: the server's, from the map.

    encrypted: whether it is TLS. broken: called once, from a separate thread, when the connection ends other
    than by `close`. Raises PsHandshakeError, OSError, and RefusedError if the server does not encrypt.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        *,
        encrypted: bool,
        broken: Callable[[Exception], None] | None = None,
    ) -> None:
        self.address = address
        self._broken_call = broken
        self._socket = connect(address, secret, encrypted=encrypted)
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._pending: dict[int, tuple[Future[Reply], Into]] = {}
        self._number = 0
        self._error: Exception | None = None
        self._closing = False
        self._reader = threading.Thread(target=self._read, name=f"elastane-slots-{address}", daemon=True)
        self._reader.start()

    @property
    def error(self) -> Exception | None:
        """The error that ended the connection; None while it is open."""
        return self._error

    def send(self, header: Header, body: Sequence[Piece] = (), into: Into = anywhere) -> Future[Reply]:
        """Send a request, whose memory must not change until the answer.

        The returned future has the answer, or fails with the error that broke the connection or that the
        server reported.
        """
        future: Future[Reply] = Future()
        with self._sending:
            with self._state:
                if self._error is not None:
                    future.set_exception(self._error)
                    return future
                self._number += 1
                number = self._number
                self._pending[number] = (future, into)
            try:
                write_frame(self._socket, header, number, body)
            except OSError as error:
                self._fail(SlotFrameError(f"{self.address} is gone: {error.strerror or error}"))
            except ElastaneError as error:
                with self._state:
                    is_pending = self._pending.pop(number, None) is not None
                if is_pending:
                    future.set_exception(error)
        return future

    def tell(self, header: Header, body: Sequence[Piece] = ()) -> None:
        """Send a message that has no answer. Raises SlotFrameError if the connection has ended."""
        with self._sending:
            if self._error is not None:
                raise self._error
            self._number += 1
            try:
                write_frame(self._socket, header, self._number, body)
            except OSError as error:
                broken = SlotFrameError(f"{self.address} is gone: {error.strerror or error}")
                self._fail(broken)
                raise broken from error

    def close(self) -> None:
        """End the connection; requests in flight fail. Idempotent, from any thread."""
        self._closing = True
        self._fail(SlotFrameError(f"the connection to {self.address} was closed"))
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _read(self) -> None:
        try:
            incoming = Incoming(self._socket)
            while (prefix := read_prefix(incoming)) is not None:
                header = read_header(incoming, prefix)
                if isinstance(header, Error):
                    kind = PsMemoryError if header.code == PsMemoryError.code else SlotFrameError
                    raise kind(f"{self.address} refused a frame: {header.message}", refused=header.code)
                with self._state:
                    future, into = self._pending.get(prefix.number, (None, anywhere))
                if future is None:
                    raise SlotFrameError(f"{self.address} answered what was not asked")
                body = into(header, prefix.body_bytes)
                if sum(map(len, body)) != prefix.body_bytes:
                    raise SlotFrameError(f"{self.address} answered {prefix.body_bytes} bytes")
                for memory in body:
                    read_into(incoming, memory)
                with self._state:
                    is_pending = self._pending.pop(prefix.number, None) is not None
                if is_pending:  # otherwise `close` has already failed it
                    future.set_result(Reply(header, body))
            raise SlotFrameError(f"{self.address} closed the connection")
        except (OSError, ElastaneError) as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - of the caller's `into`: its request is not waited for
            self._fail(SlotFrameError(f"an answer of {self.address} could not be taken: {error!r}"))
        finally:
            self._socket.close()

    def _fail(self, error: Exception) -> None:
        with self._state:
            if self._error is not None:
                return
            self._error = error
            pending, self._pending = self._pending, {}
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the reading thread closes it
        for future, _ in pending.values():
            future.set_exception(error)
        if self._broken_call is not None and not self._closing:
            threading.Thread(target=self._broken_call, args=(error,), daemon=True).start()


def connect(address: str, secret: bytes, *, encrypted: bool) -> Stream:
    """Open a connection and prove the secret. Raises as `PsConnection`."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS)
    try:
        prepare(connection)
        return greet(connection, secret, encrypted=encrypted)
    except BaseException:
        connection.close()
        raise
