"""Log lines of one kind are limited; what is left out is counted and told.

A fault that strikes a thousand workers at once, or a client that calls in a loop, must not fill a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

KINDS_MAX = 1000


class LogLimit:
    """A processor of structlog: lets `lines_per_second` lines of a kind (its event) pass in each second.

    The first line of any kind after a second bears `left_out`: how many were left out, by kind. Errors
    always pass.
    """

    def __init__(self, lines_per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines_max = lines_per_second
        self._clock = clock
        self._second = clock()
        self._lines: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        now = self._clock()
        if now - self._second >= 1.0:
            self._second = now
            self._lines.clear()
            if self._left_out:
                event["left_out"], self._left_out = self._left_out, {}
        kind = str(event.get("event"))
        if kind not in self._lines and len(self._lines) >= KINDS_MAX:
            kind = "(other kinds)"  # texts that are never the same are no kinds
        self._lines[kind] = self._lines.get(kind, 0) + 1
        if self._lines[kind] > self._lines_max and method not in ("error", "critical", "exception"):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            raise structlog.DropEvent
        return event
