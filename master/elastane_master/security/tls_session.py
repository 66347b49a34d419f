"""One TLS connection without a socket: bytes of the network in, bytes of the caller out, and back.

The front terminates TLS itself, because it could not count what is still encrypted on its way to gRPC, and
gRPC's Python server accepts neither a ready connection nor limits for one.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

RECORD_HEADER_BYTES: Final = 5
RECORD_BYTES_MAX: Final = 16 * 1024 + 2048
_MAJOR_VERSION: Final = 3  # of every version of TLS

PIECE_BYTES: Final = 16 * 1024
"""Bytes encrypted or decrypted at a time, a record's worth: OpenSSL's buffers grow and never shrink."""

PROTOCOL: Final = "h2"


class TlsBroken(Exception):  # noqa: N818 - it says what has happened
    """The caller violates TLS, or lacks a required certificate. farewell: bytes to send to it."""

    def __init__(self, why: str, farewell: bytes = b"") -> None:
        super().__init__(why)
        self.farewell = farewell


class TlsSession:
    """The server's side of a connection.

    Used by one thread at a time. is_open: the handshake is done, and the caller's certificate was checked if
    one is required. opaque: bytes received that were not the caller's data, like those of the handshake.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.is_open = False
        self.opaque = 0
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._in, self._out, server_side=True)

    def shake(self, data: bytes) -> bytes:
        """Continue the handshake; return the bytes to send. Raises TlsBroken."""
        self.feed(data)
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return self._out.read()
        except (ssl.SSLError, OSError) as error:
            raise TlsBroken(getattr(error, "reason", None) or str(error), self._out.read()) from error
        if self._ssl.selected_alpn_protocol() != PROTOCOL:
            raise TlsBroken("the caller does not speak HTTP/2", self._out.read())
        self.is_open = True
        return self._out.read()

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Accept bytes from the network."""
        self._in.write(data)
        self.opaque += len(data)

    def read(self, bytes_max: int) -> bytes:
        """Return decrypted data; empty if more bytes from the network are needed.

        Raises TlsBroken, also after the caller's regular end.
        """
        if not (self._in.pending or self._ssl.pending()):
            return b""  # the usual case, without the cost of an exception
        try:
            data = self._ssl.read(bytes_max)
        except ssl.SSLWantReadError:
            return b""
        except (ssl.SSLError, OSError) as error:
            raise TlsBroken(getattr(error, "reason", None) or str(error), self._out.read()) from error
        if not data:  # a regular end: anything after it would be buffered and never read
            raise TlsBroken("the caller has ended the connection", self._out.read())
        self.opaque -= len(data)
        return data

    def write(self, data: memoryview) -> bytes:
        """Encrypt data for the caller; return the bytes to send. Raises TlsBroken."""
        sent = []
        for at in range(0, len(data), PIECE_BYTES):
            try:
                self._ssl.write(data[at : at + PIECE_BYTES])
            except (ssl.SSLError, OSError) as error:
                raise TlsBroken(getattr(error, "reason", None) or str(error)) from error
            sent.append(self._out.read())
        return b"".join(sent)

    def unsent(self) -> bytes:
        """Return bytes to send as a result of reading, such as replies to key updates."""
        return self._out.read() if self._out.pending else b""

    def end(self) -> bytes:
        """Return the bytes that announce the end of the connection."""
        with contextlib.suppress(ssl.SSLError, OSError):  # the caller need not answer
            self._ssl.unwrap()
        return self._out.read()


def whole_records(data: bytes | bytearray) -> int:
    """Return how many of the bytes are whole records of TLS; all if they are something else. Pure.

    A handshake cannot continue with a partial record, so its bytes are kept until the rest arrives.
    """
    at = 0
    while len(data) - at >= RECORD_HEADER_BYTES:
        size = int.from_bytes(data[at + 3 : at + RECORD_HEADER_BYTES])
        if data[at + 1] != _MAJOR_VERSION or size > RECORD_BYTES_MAX:
            return len(data)
        if len(data) - at < RECORD_HEADER_BYTES + size:
            break
        at += RECORD_HEADER_BYTES + size
    return at
