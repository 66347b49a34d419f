"""Writes the output of many processes to one terminal: whole lines, prefixed, never interleaved.

Each process's bytes go through a `LineSplitter`; an `Output` writes whole lines under one lock, one write
each. A line without an end (a progress bar, binary data) is cut at `LINE_BYTES_MAX` to bound memory. A closed
reader (`| head`) must not stop the workers: lines are dropped from then on.
"""

from __future__ import annotations

import json
import sys
import threading
import zlib
from collections.abc import Mapping
from typing import Literal, TextIO

Stream = Literal["stdout", "stderr"]

LINE_BYTES_MAX = 64 * 1024

_PREFIX_COLORS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)
_KIND_COLORS: Mapping[str, int] = {"info": 2, "warning": 33, "error": 31, "success": 32}


class LineSplitter:
    """Splits bytes into text lines. "\\n", "\\r\\n" and "\\r" end a line; invalid UTF-8 is replaced."""

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self._limit = limit
        self._rest = b""
        self._drawn = False  # a part of the unfinished line was returned already, at a "\r"

    def feed(self, data: bytes) -> list[str]:
        """Take more bytes; return the lines that are complete now."""
        data = self._rest + data
        # The second half of a "\r\n" may come with the next read.
        held = b"\r" if data.endswith(b"\r") else b""
        *ended, rest = data.removesuffix(held).replace(b"\r\n", b"\n").split(b"\n")
        lines: list[str] = []
        for line in ended:
            # A progress bar redraws itself with "\r": an empty piece between two of them is not a line,
            # nor is the empty rest before the final "\n".
            drawn = [piece for piece in line.split(b"\r") if piece]
            if not drawn and not self._drawn:
                drawn = [b""]
            self._drawn = False
            lines.extend(text for piece in drawn for text in self._cut(piece))
        *pieces, rest = rest.split(b"\r")
        drawn = [piece for piece in pieces if piece]
        self._drawn = self._drawn or bool(drawn)
        lines.extend(text for piece in drawn for text in self._cut(piece))
        while len(rest) > self._limit:
            head = self._head(rest)
            lines.append(head.decode("utf-8", "replace"))
            rest = rest[len(head) :]
        self._rest = rest + held
        return lines

    def flush(self) -> list[str]:
        """Return the rest, which has no newline, at the end of the input."""
        rest, self._rest = self._rest.removesuffix(b"\r"), b""
        return self._cut(rest) if rest else []

    def _cut(self, line: bytes) -> list[str]:
        pieces = []
        while len(line) > self._limit:
            head = self._head(line)
            pieces.append(head.decode("utf-8", "replace"))
            line = line[len(head) :]
        pieces.append(line.decode("utf-8", "replace"))
        return pieces

    def _head(self, line: bytes) -> bytes:
        """Return at most `limit` bytes from the start of `line`, not ending inside a UTF-8 character."""
        end = self._limit
        # Step back over continuation bytes (10xxxxxx), of which a character has three at most.
        while end > self._limit - 4 and end > 1 and line[end] & 0xC0 == 0x80:
            end -= 1
        return line[:end]


class Output:
    """Terminal output of the agent and its workers. Thread-safe.

    as_json: write one JSON object per line to stdout instead, workers' output included.
    stdout, stderr: default to the process's own. color: None: if the stream is a terminal.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        color: bool | None = None,
    ) -> None:
        self._as_json = as_json
        self._streams: dict[Stream, TextIO] = {"stdout": stdout or sys.stdout, "stderr": stderr or sys.stderr}
        self._lock = threading.Lock()
        self._closed: set[Stream] = set()
        self._passing = False
        self._color = {
            name: stream.isatty() if color is None else color for name, stream in self._streams.items()
        }

    def line(self, source: str, stream: Stream, text: str) -> None:
        """Write one line of a worker's output. source: the worker's id."""
        if self._as_json:
            self._write_json({"event": "output", "worker": source, "stream": stream, "line": text})
            return
        prefix = f"[{source}] "
        if self._color[stream]:
            code = _PREFIX_COLORS[zlib.crc32(source.encode()) % len(_PREFIX_COLORS)]
            prefix = f"\x1b[{code}m{prefix}\x1b[0m"
        self._write(stream, f"{prefix}{text}\n")

    def say(self, text: str, kind: str = "info", event: str = "message", **facts: object) -> None:
        """Write one line of the agent itself.

        kind: "info", "warning", "error" or "success". event, facts: added to the object with `as_json`.
        """
        if self._as_json:
            self._write_json({"event": event, "kind": kind, "message": text, **facts})
            return
        line = f"[elastane] {text}"
        if self._color["stderr"]:
            line = f"\x1b[{_KIND_COLORS.get(kind, 0)}m{line}\x1b[0m"
        self._write("stderr", line + "\n")

    def passing(self, text: str) -> None:
        """Show a status line that the next output replaces; empty: remove it.

        Does nothing unless stderr is a terminal with colours.
        """
        if not self._as_json and self._color["stderr"]:
            with self._lock:
                self._draw(f"[elastane] {text}" if text else "")

    def _draw(self, text: str) -> None:
        if "stderr" in self._closed or not (text or self._passing):
            return
        self._passing = bool(text)
        try:
            self._streams["stderr"].write(f"\r\x1b[K{text}")
            self._streams["stderr"].flush()
        except (OSError, ValueError):
            self._closed.add("stderr")

    def _write_json(self, value: dict[str, object]) -> None:
        self._write("stdout", json.dumps(value, default=str) + "\n")

    def _write(self, stream: Stream, text: str) -> None:
        with self._lock:
            if self._passing:
                self._draw("")
            if stream in self._closed:
                return
            target = self._streams[stream]
            try:
                try:
                    target.write(text)
                except UnicodeEncodeError:
                    encoding = target.encoding or "ascii"
                    target.write(text.encode(encoding, "backslashreplace").decode(encoding))
                target.flush()
            except (OSError, ValueError):
                # The reader or the terminal (EIO) is gone, or the stream is closed. The workers go on.
                self._closed.add(stream)
