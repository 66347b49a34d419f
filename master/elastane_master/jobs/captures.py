"""Captures of one job under way: answers of workers on their way to the command that asked. In memory only.

    command --Capture--> here --CaptureOrder, in its session--> worker
            <--answers--       <--Deliver, a call for each part--

A worker's call returns when there is room for its part, so a slow command fills no memory.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from elastane_master.signals import Signal

QUEUE_BYTES_MAX: Final = 2 * 2**20
"""Limit of the answers of one capture that wait for its command."""
PART_BYTES_MAX: Final = 1 * 2**20


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a worker's answer. Fields as in CaptureServiceDeliverRequest."""

    worker: str
    steps_done: int = 0
    data: bytes = b""
    end: bool = False
    error: str = ""
    first_est: int = 0
    end_est: int = 0


@dataclass
class Capture:
    """One capture. waiting: workers that have not sent everything."""

    waiting: set[str]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    news: Signal = field(default_factory=Signal)
    over: bool = False
    _room: Signal = field(default_factory=Signal)
    _parts: deque[Part] = field(default_factory=deque)
    _bytes: int = 0

    async def deliver(self, part: Part) -> bool:
        """Queue a part of a worker that is waited for, once there is room; False if it is not wanted."""
        while self._bytes and self._bytes + len(part.data) > QUEUE_BYTES_MAX and not self.over:
            await self._room.beyond(self._room.count)
        if self.over or part.worker not in self.waiting:
            return False
        self._put(part)
        return True

    def lose(self, worker: str, error: str) -> None:
        """Note that nothing more comes from a worker."""
        if worker in self.waiting:
            self._put(Part(worker, end=True, error=error))

    def take(self) -> list[Part]:
        """Return all parts that wait."""
        parts = list(self._parts)
        self._parts.clear()
        self._bytes = 0
        self._room.announce()
        return parts

    def close(self) -> None:
        """Refuse further parts, and release the workers that wait for room."""
        self.over = True
        self._room.announce()

    def _put(self, part: Part) -> None:
        if part.end:
            self.waiting.discard(part.worker)
        self._parts.append(part)
        self._bytes += len(part.data)
        self.news.announce()


class Captures:
    """Captures of one job. Used from one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, Capture] = {}

    def begin(self, workers: Iterable[str]) -> Capture:
        """Begin a capture; `end` it."""
        capture = Capture(set(workers))
        self._open[capture.id] = capture
        return capture

    def end(self, capture: Capture) -> None:
        """End a capture."""
        del self._open[capture.id]
        capture.close()

    async def deliver(self, capture: str, part: Part) -> bool:
        """Pass on a part; False if nobody waits for it."""
        found = self._open.get(capture)
        return found is not None and await found.deliver(part)
