"""Prints the output of a rank: unchanged, or with terminal control characters removed."""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING, Final, TextIO

import typer

from elastane_cli.views.text import harmless

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elastane_proto.v1 import training_pb2

#: First and last size that is read to find the last lines, in bytes.
_READ_BYTES: Final = 64 * 1024
_READ_BYTES_MAX: Final = 16 * 1024 * 1024


class LogOutput:
    """Writes pieces of a log to a text stream, or as bytes to the buffer below it.

    clean: replace invalid UTF-8 and control characters, also if a character is split between two pieces; a
    carriage return begins a new line, so that printed text is not overwritten.
    """

    def __init__(self, stream: TextIO, *, clean: bool) -> None:
        self._stream = stream
        self._decoder = _new_decoder() if clean else None

    def write(self, data: bytes) -> None:
        """Write a piece and flush."""
        if self._decoder is None:
            self._stream.buffer.write(data)
        else:
            self._stream.write(harmless(self._decoder.decode(data)))
        self._stream.flush()

    def end(self) -> None:
        """Write the rest of an incomplete character."""
        if self._decoder is not None:
            self._stream.write(harmless(self._decoder.decode(b"", final=True)))
            self._stream.flush()
            self._decoder.reset()


def print_log(pieces: Iterable[training_pb2.TrainingServiceStreamLogsResponse], output: LogOutput) -> None:
    """Print pieces of a log as they arrive; report missing bytes on stderr."""
    for piece in pieces:
        if piece.dropped_bytes:
            typer.echo(f"[{piece.dropped_bytes} bytes were dropped here: the log was too large]", err=True)
        output.write(piece.data)
    output.end()


def last_lines(
    read: Callable[[int], Iterable[training_pb2.TrainingServiceStreamLogsResponse]], lines: int
) -> tuple[bytes, int]:
    """Return the last lines of a log, and the offset after them.

    read: reads the log from an offset to its end; a negative offset counts from the end. At most the last 16
    MiB are returned, even of very long lines.
    """
    size = _READ_BYTES
    while True:
        pieces = list(read(-size))
        if not pieces:
            return b"", 0
        data = b"".join(piece.data for piece in pieces)
        end = pieces[-1].offset + len(pieces[-1].data)
        kept = _split(data)
        if len(kept) > lines or len(data) < size or size >= _READ_BYTES_MAX:
            return b"".join(kept[-lines:] if lines else ()), end
        size *= 4


def _split(data: bytes) -> list[bytes]:
    """Split into lines with their ends; only a newline ends a line."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1].removesuffix(b"\n")
    return lines if lines[-1] else lines[:-1]


def _new_decoder() -> io.IncrementalNewlineDecoder:
    return io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8")(errors="replace"), translate=True
    )
