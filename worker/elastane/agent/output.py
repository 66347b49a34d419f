"""Lines of many processes on one terminal: whole, prefixed, never interleaved.

Each process's bytes go through a `LineSplitter`; whole lines are written by an `Output` under one lock,
one write each. A line that never ends (a progress bar without newline, binary rubbish) is cut at
`LINE_BYTES_MAX`, so that memory stays bounded. A reader that went away (`| head`) must not stop the
workers: from then on lines are dropped.
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
    """Bytes in, text lines out. "\\n", "\\r\\n" and "\\r" end a line; bad UTF-8 is replaced."""

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self._limit = limit
        self._rest = b""
        self._drawn = False  # something of the line that goes on was handed out at a return

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        data = self._rest + data
        # The second half of a "\r\n" may come with the next read.
        held = b"\r" if data.endswith(b"\r") else b""
        *ended, rest = data.removesuffix(held).replace(b"\r\n", b"\n").split(b"\n")
        lines: list[str] = []
        for line in ended:
            # A progress bar draws over itself: what is empty between two returns is no line, nor is what
            # is left of the line when its end comes.
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
        """What is left without a newline."""
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
        """At most `limit` bytes, not ending inside a character."""
        end = self._limit
        while end > self._limit - 4 and end > 1 and line[end] & 0xC0 == 0x80:
            end -= 1
        return line[:end]


class Output:
    """Where the agent and its workers write. Called from many threads.

    as_json: one JSON object per line on stdout instead, output of workers included.
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
        """One line of a worker's output."""
        if self._as_json:
            self._write_json({"event": "output", "worker": source, "stream": stream, "line": text})
            return
        prefix = f"[{source}] "
        if self._color[stream]:
            code = _PREFIX_COLORS[zlib.crc32(source.encode()) % len(_PREFIX_COLORS)]
            prefix = f"\x1b[{code}m{prefix}\x1b[0m"
        self._write(stream, f"{prefix}{text}\n")

    def say(self, text: str, kind: str = "info", event: str = "message", **facts: object) -> None:
        """One line of the agent's own; kind: "info", "warning", "error" or "success"."""
        if self._as_json:
            self._write_json({"event": event, "kind": kind, "message": text, **facts})
            return
        line = f"[elastane] {text}"
        if self._color["stderr"]:
            line = f"\x1b[{_KIND_COLORS.get(kind, 0)}m{line}\x1b[0m"
        self._write("stderr", line + "\n")

    def passing(self, text: str) -> None:
        """A line on a terminal that the next one replaces, for what changes all the time; empty: gone.

        Where nobody looks on, nothing is said.
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
                # The reader is gone, or the terminal (EIO), or the stream is closed. The workers go on.
                self._closed.add(stream)
