"""TLS on a socket that one thread reads while another writes.

Python's `ssl.SSLSocket` may be used by one thread at a time before 3.13. Here OpenSSL encrypts and decrypts
in memory, under a lock that no thread holds while it waits for the network.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

#: Bytes that are encrypted, or received, at a time: some records of 16 KiB.
_PART_BYTES: Final = 2**18


class TlsStream:
    """The methods of a socket that frames need, over `plain`, which belongs to the stream from now on.

    One thread may read while one writes. Timeouts and socket options are those of `plain`.
    """

    def __init__(self, plain: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._plain = plain
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._received = bytearray(_PART_BYTES)

    def shake_hands(self, deadline: float) -> None:
        """Shake hands. deadline: a monotonic time. Raises OSError, such as ssl.SSLError and TimeoutError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # why, for the other end
                raise
            else:
                self._flush()
                return
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("a handshake took too long")
            self._plain.settimeout(left)
            if not self._receive():
                raise ConnectionError("the other end closed the connection")

    def has_received(self, prefix: bytes) -> bool:
        """True if what arrived last begins with it, encrypted or not."""
        return self._received.startswith(prefix)

    @property
    def tls(self) -> ssl.SSLObject:
        """OpenSSL's end, for the certificate of the other one."""
        return self._tls

    def recv(self, size: int) -> bytes:
        """As of a socket."""
        memory = bytearray(size)
        return bytes(memory[: self.recv_into(memoryview(memory))])

    def recv_into(self, memory: memoryview) -> int:
        """As of a socket: at least one byte, at most a record; 0 at the end, announced or not."""
        while True:
            with self._lock:
                try:
                    # With a buffer, `read` returns a count; typeshed does not know that.
                    return int(self._tls.read(len(memory), memory))
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0
            if not self._receive():
                return 0

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """As of a socket."""
        rest = memoryview(data).cast("B")
        while len(rest):
            with self._lock:
                rest = rest[self._tls.write(rest[:_PART_BYTES]) :]
                encrypted = self._outgoing.read()
            self._plain.sendall(encrypted)

    def sendmsg(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """As of a socket; sends everything."""
        for buffer in buffers:
            self.sendall(buffer)
        return sum(map(len, buffers))

    def settimeout(self, seconds: float | None) -> None:
        """As of a socket."""
        self._plain.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """As of a socket."""
        self._plain.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """As of a socket. The other end sees the connection's end, not TLS's."""
        self._plain.shutdown(how)

    def close(self) -> None:
        """As of a socket."""
        self._plain.close()

    def __enter__(self) -> TlsStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> int:
        """Pass what has arrived to OpenSSL; return its size, 0 at the end."""
        count = self._plain.recv_into(self._received)
        with self._lock:
            self._incoming.write(memoryview(self._received)[:count])
        return count

    def _flush(self) -> None:
        self._plain.sendall(self._outgoing.read())


#: A connection to a parameter server, in clear or encrypted.
Stream = socket.socket | TlsStream
