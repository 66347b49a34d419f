"""Output of a rank as a command prints it: as it is, or made harmless for a terminal."""

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

    clean: replace invalid UTF-8 and control characters, also where a character is cut between two pieces; a
    carriage return begins a new line, so that nothing that was printed is overwritten.
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
        """Write what is left of a character that was cut off."""
        if self._decoder is not None:
            self._stream.write(harmless(self._decoder.decode(b"", final=True)))
            self._stream.flush()
            self._decoder.reset()


def print_log(pieces: Iterable[training_pb2.TrainingServiceStreamLogsResponse], output: LogOutput) -> None:
    """Print pieces of a log as they come; on stderr, say where bytes are missing."""
    for piece in pieces:
        if piece.dropped_bytes:
            typer.echo(f"[{piece.dropped_bytes} bytes were dropped here: the log was too large]", err=True)
        output.write(piece.data)
    output.end()


def last_lines(
    read: Callable[[int], Iterable[training_pb2.TrainingServiceStreamLogsResponse]], lines: int
) -> tuple[bytes, int]:
    """Return the last lines of a log, and the offset behind them.

    read: reads the log from an offset to its end; a negative offset counts from the end. Of lines that are
    megabytes long, only the last 16 MiB are returned.
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
