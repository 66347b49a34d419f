"""The last lines of an agent's workers, and which of them the master has. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from elastane_common.last_lines import LINE_OVERHEAD_BYTES, LastLines, cut_line

EXITS_MAX: Final = 10
"""Exits of one worker that wait for a master that does not answer; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """A line as it is sent. time: when it was read, in seconds since the Unix epoch."""

    time: float
    is_stderr: bool
    text: str
    cut_bytes: int

    @property
    def size_bytes(self) -> int:
        return len(self.text.encode("utf-8", "replace")) + LINE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """How a worker's process ended: fields of WorkerExit. after: number of the line that follows it."""

    number: int
    after: int
    returncode: int
    how: str
    out_of_memory: str
    expected: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines of one worker from a number on, and perhaps the exit after them."""

    worker: str
    first: int
    lines: tuple[WorkerLine, ...]
    ended: EndedProcess | None = None

    @property
    def end(self) -> int:
        return self.first + len(self.lines)


@dataclass
class _Worker:
    lines: LastLines[WorkerLine] = field(default_factory=LastLines[WorkerLine])
    sent: int = 0
    exits: int = 0
    ended: deque[EndedProcess] = field(default_factory=lambda: deque(maxlen=EXITS_MAX))

    @property
    def has_news(self) -> bool:
        return self.sent < self.lines.end or bool(self.ended)


class WorkerLines:
    """The last lines of each worker of an agent. Not thread-safe."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}

    @property
    def has_news(self) -> bool:
        """True if the master lacks something."""
        return any(worker.has_news for worker in self._workers.values())

    def add(self, worker: str, is_stderr: bool, text: str, now: float) -> None:
        """Keep a line."""
        known = self._workers.setdefault(worker, _Worker())
        kept, cut_bytes = cut_line(text)
        known.lines.add(known.lines.end, WorkerLine(now, is_stderr, kept, cut_bytes))

    def exited(self, worker: str, returncode: int, how: str, out_of_memory: str, *, expected: bool) -> None:
        """Record that the worker's process has ended, after all its lines."""
        known = self._workers.setdefault(worker, _Worker())
        known.exits += 1
        ended = EndedProcess(known.exits, known.lines.end, returncode, how, out_of_memory, expected)
        known.ended.append(ended)

    def take(self, bytes_max: int) -> list[Batch]:
        """Return what the master lacks: of each worker the newest lines, within its share of the bytes."""
        busy = [(name, worker) for name, worker in self._workers.items() if worker.has_news]
        batches: list[Batch] = []
        for name, worker in busy:
            room, first = bytes_max // len(busy), worker.lines.end
            lines = list(worker.lines.since(worker.sent))
            for number, line in reversed(lines):
                room -= line.size_bytes
                if room < 0 and first < worker.lines.end:
                    break
                first = number
            kept = [line for number, line in lines if number >= first]
            for ended in worker.ended:
                part = kept[: max(0, ended.after - first)]
                kept = kept[len(part) :]
                batches.append(Batch(name, first, tuple(part), ended))
                first += len(part)
            if kept:
                batches.append(Batch(name, first, tuple(kept)))
        return batches

    def sent(self, batches: list[Batch]) -> None:
        """Record that the master has these."""
        for batch in batches:
            worker = self._workers[batch.worker]
            worker.sent = max(worker.sent, batch.end)
            if batch.ended is not None and batch.ended in worker.ended:
                worker.ended.remove(batch.ended)

    def send_again(self) -> None:
        """Record that the master has lost all lines."""
        for worker in self._workers.values():
            worker.sent = 0
