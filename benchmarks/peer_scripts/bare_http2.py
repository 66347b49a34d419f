"""A minimal gRPC stream over HTTP/2, for benchmarks with thousands of clients.

To the server it looks like a gRPC client: one connection, one stream, messages with their prefix of five
bytes. A Python gRPC client uses more CPU per message than the master does; this one uses a tenth of it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_INITIAL_WINDOW = 4
_WINDOW_MAX = 2**31 - 1
_WINDOW_DEFAULT = 65_535
_FRAME_MAX = 16_384
_STREAM = 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class BareStream(asyncio.Protocol):
    """One connection with one call. received: called with every message. lost: called with the reason."""

    def __init__(self, path: str, received: Callable[[bytes], None], lost: Callable[[str], None]) -> None:
        self._path = path.encode()
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._message = bytearray()
        self._waiting = bytearray()
        self._connection_window = _WINDOW_DEFAULT
        self._stream_window = _WINDOW_DEFAULT
        self._initial_window = _WINDOW_DEFAULT
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not one by its class
        # HPACK literals without indexing: no dynamic table and no Huffman code needed.
        headers = b"\x83\x86" + b"\x04" + _text(self._path) + b"\x01" + _text(b"master")
        headers += b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers")
        self._transport.write(
            _PREFACE
            + frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW, _WINDOW_MAX))
            + frame(_WINDOW, 0, 0, struct.pack(">I", _WINDOW_MAX - _WINDOW_DEFAULT))
            + frame(_HEADERS, _END_HEADERS, _STREAM, headers)
        )

    def send(self, message: bytes) -> None:
        """Send a message; queue what exceeds the server's flow-control windows."""
        data = b"\0" + struct.pack(">I", len(message)) + message
        fits = min(self._connection_window, self._stream_window, _FRAME_MAX)
        if not self._waiting and len(data) <= fits:
            self._connection_window -= len(data)
            self._stream_window -= len(data)
            assert self._transport is not None
            self._transport.write(frame(_DATA, 0, _STREAM, data))
            return
        self._waiting += data
        self._flush()

    def close(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        assert self._transport is not None
        while self._waiting:
            fits = min(self._connection_window, self._stream_window, _FRAME_MAX, len(self._waiting))
            if fits <= 0:
                return
            self._transport.write(frame(_DATA, 0, _STREAM, bytes(self._waiting[:fits])))
            del self._waiting[:fits]
            self._connection_window -= fits
            self._stream_window -= fits

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        place = 0
        while len(buffer) - place >= 9:
            size = int.from_bytes(buffer[place : place + 3], "big")
            if len(buffer) - place < 9 + size:
                break
            payload = bytes(buffer[place + 9 : place + 9 + size])
            stream = int.from_bytes(buffer[place + 5 : place + 9], "big")
            self._frame(buffer[place + 3], buffer[place + 4], stream, payload)
            place += 9 + size
        del buffer[:place]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == _DATA:
            self._message += payload
            while len(self._message) >= 5:
                size = int.from_bytes(self._message[1:5], "big")
                if len(self._message) < 5 + size:
                    break
                message = bytes(self._message[5 : 5 + size])
                del self._message[: 5 + size]
                self._received(message)
        elif kind == _WINDOW:
            more = int.from_bytes(payload, "big") & _WINDOW_MAX
            if stream:
                self._stream_window += more
            else:
                self._connection_window += more
            self._flush()
        elif kind == _PING and not flags & _ACK:
            self._transport.write(frame(_PING, _ACK, 0, payload))
        elif kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
            self._transport.write(frame(_SETTINGS, _ACK, 0, b""))
            self._flush()
        elif kind in (_RST, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            self._lost(f"the server ended the stream: frame {kind}, {payload[:200]!r}")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(f"the connection was lost: {error}")


def _text(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value
