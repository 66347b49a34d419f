"""The end of a rank's output as text that a page can show. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from elastane_master.servers.translate import shown

TAIL_BYTES: Final = 16 * 1024
TAIL_LINES: Final = 200

_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
"""Colours, movements of the cursor, titles of windows."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The last lines of a rank's output. before: bytes that are not shown. problem: why there is none."""

    text: str = ""
    before: int = 0
    problem: str = ""


def tail_of(data: bytes, offset: int) -> LogTail:
    """Return the last lines of a log. data: its last bytes. offset: of the first of them.

    A line whose beginning is missing is left out, unless it is the only one.
    """
    begin = max(0, len(data) - TAIL_BYTES)
    if offset + begin > 0:
        begin = data.find(b"\n", begin) + 1 or begin
    lines = data[begin:].splitlines(keepends=True)
    kept = b"".join(lines[-TAIL_LINES:])
    text = _TERMINAL.sub("", kept.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")
    return LogTail(shown(text, 2 * TAIL_BYTES), offset + len(data) - len(kept))
