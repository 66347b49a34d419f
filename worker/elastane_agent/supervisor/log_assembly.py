"""Output of one worker on the way to its file: every byte, lines of its two streams kept apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from elastane_common.processes.output import Stream

HELD_BYTES_MAX: Final = 64 * 1024
"""Limit on the bytes of an unfinished line that are held; the beginning of a longer one is written early."""


@dataclass
class LogAssembly:
    """Orders what is read from a worker's stdout and stderr. Carriage returns end lines, as newlines do.

    While a line longer than `HELD_BYTES_MAX` is in the file in part, the other stream's lines are held, up to
    the same limit; beyond it the long line is broken, with a newline that the worker did not write.
    """

    _rest: dict[Stream, bytes] = field(default_factory=dict)
    _open: Stream | None = None
    _held: bytearray = field(default_factory=bytearray)
    _held_of: Stream = "stdout"

    def take(self, stream: Stream, data: bytes) -> bytes:
        """Take the bytes read from a stream (b"" at its end); return those to be written now."""
        known = self._rest.pop(stream, b"") + data
        end = max(known.rfind(b"\n"), known.rfind(b"\r")) + 1
        lines, rest = known[:end], known[end:]
        if not data:  # a newline ends the last line, so that what follows in the file begins one
            lines, rest = (known + b"\n" if known or self._open == stream else b""), b""
        elif len(rest) > HELD_BYTES_MAX or self._open == stream:
            lines, rest = known, b""
        if rest:
            self._rest[stream] = rest
        if self._open not in (None, stream):
            self._held += lines
            self._held_of = stream
            return self._break() if len(self._held) > HELD_BYTES_MAX else b""
        if not lines:
            return b""
        if not lines.endswith((b"\n", b"\r")):
            self._open = stream
            return lines
        return lines + self._flush()

    def end(self) -> bytes:
        """Return all that is held, at the end of the file."""
        rest = b"".join(part + b"\n" for part in self._rest.values())
        self._rest.clear()
        return (self._break() if self._open is not None else b"") + rest

    def _break(self) -> bytes:
        """End the long line where it is; return what was held meanwhile."""
        return b"\n" + self._flush()

    def _flush(self) -> bytes:
        """Return what was held, now that the open line has ended; it may open another."""
        held = bytes(self._held)
        self._held.clear()
        self._open = self._held_of if held and not held.endswith((b"\n", b"\r")) else None
        return held
