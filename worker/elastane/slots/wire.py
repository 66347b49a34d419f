"""Frames on a socket: written from many buffers, read into memory that the receiver chooses."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, Protocol

from elastane.slots.frames import (
    PREFIX_BYTES,
    Header,
    Prefix,
    SlotFrameError,
    decode_header,
    decode_prefix,
    encode,
)
from elastane.slots.tls_stream import Stream

Piece = bytes | bytearray | memoryview
#: Maximum number of buffers in one system call.
_PIECES: Final = 512
#: Buffers below this size in bytes are joined first, which is faster than passing each to the kernel.
_JOINED_BYTES: Final = 2**18
#: Bytes that are read ahead of a connection.
_INCOMING_BYTES: Final = 2**14
_ALIGNMENT_BYTES: Final = 64
_ZEROS: Final = bytes(_ALIGNMENT_BYTES)


def pad(pieces: Sequence[Piece]) -> list[Piece]:
    """Return sections, each padded with zeros to a multiple of 64 bytes."""
    padded: list[Piece] = []
    for piece in pieces:
        if len(piece):
            padded.append(piece)
        if rest := -len(piece) % _ALIGNMENT_BYTES:
            padded.append(_ZEROS[:rest])
    return padded


def write_frame(connection: Stream, header: Header, number: int, body: Sequence[Piece] = ()) -> int:
    """Write a frame; return its size in bytes. body: buffers in order, already padded. Raises OSError.

    The caller must exclude other writers.
    """
    front = encode(header, number, sum(map(len, body)))
    total = len(front) + sum(map(len, body))
    if total <= _JOINED_BYTES:
        connection.sendall(front + b"".join(body))
        return total
    pieces = [memoryview(piece) for piece in (front, *body)]
    at = 0
    while at < len(pieces):
        sent = connection.sendmsg(pieces[at : at + _PIECES])
        while at < len(pieces) and sent >= len(pieces[at]):
            sent -= len(pieces[at])
            at += 1
        if sent:
            pieces[at] = pieces[at][sent:]
    return total


class Source(Protocol):
    """What frames are read from: a `Stream`, or `Incoming`."""

    def recv_into(self, memory: memoryview, /) -> int: ...


class Incoming:
    """What comes from a connection: a small frame is taken with one call, a large body with one more.

    A call gives the interpreter's lock away, and has to wait for it where other threads compute.
    """

    def __init__(self, connection: Stream) -> None:
        self._connection = connection
        #: A socket fills large memory before its thread is woken.
        self._socket = connection if isinstance(connection, socket.socket) else None
        self._buffer = memoryview(bytearray(_INCOMING_BYTES))
        self._taken = self._came = 0

    def recv_into(self, memory: memoryview, /) -> int:
        """As of a socket, with what has come before."""
        if self._taken == self._came:
            if len(memory) >= len(self._buffer):
                if self._socket is not None:
                    return self._socket.recv_into(memory, 0, socket.MSG_WAITALL)
                return self._connection.recv_into(memory)
            self._taken, self._came = 0, self._connection.recv_into(self._buffer)
        count = min(len(memory), self._came - self._taken)
        memory[:count] = self._buffer[self._taken : self._taken + count]
        self._taken += count
        return count


def read_prefix(connection: Source) -> Prefix | None:
    """Read the prefix of the next frame; None if the other end closed before it. Raises SlotFrameError."""
    data = bytearray(PREFIX_BYTES)
    if not read_into(connection, memoryview(data), may_end=True):
        return None
    return decode_prefix(data)


def read_header(connection: Source, prefix: Prefix) -> Header:
    """Read the header that follows a prefix. Raises SlotFrameError."""
    data = bytearray(prefix.header_bytes)
    read_into(connection, memoryview(data))
    return decode_header(prefix, data)


def read_into(connection: Source, memory: memoryview, *, may_end: bool = False) -> bool:
    """Fill memory from the socket. Raises SlotFrameError if the stream ends early.

    may_end: return False instead if it ends before the first byte.
    """
    filled = 0
    while filled < len(memory):
        try:
            count = connection.recv_into(memory[filled:])
        except OSError as error:
            raise SlotFrameError(f"a connection broke: {error.strerror or error}") from error
        if not count:
            if may_end and not filled:
                return False
            raise SlotFrameError(f"a frame ended {len(memory) - filled} bytes early")
        filled += count
    return True
