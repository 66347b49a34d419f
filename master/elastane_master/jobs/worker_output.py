"""The last lines that the workers of one job have written, as their agents report them. In memory only.

Lines are bounded for each worker and for the job; beyond that the oldest are dropped, and readers are told
how many they miss. A takeover or restart of the master loses them: agents see another `memory` in the answer
to their next report, and send the last lines again.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from elastane_common.last_lines import LINE_OVERHEAD_BYTES, LastLines
from elastane_master.jobs.limits import Limits
from elastane_master.signals import Signal

WORKER_OVERHEAD_BYTES: Final = 500
"""Counted for each worker beside its lines, so that workers without any are bounded, too."""
AGENTS_REMEMBERED: Final = 1000
"""Limit on remembered agents with incomplete files; the latest are kept."""
LINES_AT_ONCE: Final = 200
"""Lines of one piece for a reader."""


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line of a worker. time: when its agent read it, in seconds since the Unix epoch. cut_bytes: left out
    of its end. agent, number: which line it is for that agent."""

    time: float
    is_stderr: bool
    text: str
    cut_bytes: int
    agent: str
    number: int

    @property
    def size_bytes(self) -> int:
        return len(self.text.encode("utf-8", "replace")) + LINE_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class ReportedExit:
    """How a worker's process ended. Fields as in WorkerExit of log.proto. after: position of the line before
    which it did."""

    number: int
    returncode: int
    how: str
    out_of_memory: str
    expected: bool
    after: int


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Consecutive lines of one worker for a reader, or the end of its process. left_out: lines missing before
    them. next: where the reader goes on."""

    worker: str
    lines: Sequence[OutputLine]
    left_out: int
    ended: ReportedExit | None
    next: int


@dataclass
class _Worker:
    """A worker's last lines of output, and how it ended.

    The master has its own line numbers, which also count omitted lines, because agents come and go.
    expected: number of the agent's next line.
    """

    lines: LastLines[OutputLine]
    agent: str = ""
    expected: int = 0
    end: int = 0
    exit_number: int = 0
    ended: ReportedExit | None = None


@dataclass
class WorkerOutputs:
    """Output of all workers of one job. Used from one event loop.

    changed: announces new lines and exits. memory: identifies these contents to agents.
    """

    limits: Limits
    changed: Signal = field(default_factory=Signal)
    memory: str = field(default_factory=lambda: uuid.uuid4().hex)
    _workers: OrderedDict[str, _Worker] = field(default_factory=OrderedDict)
    _size_bytes: int = 0
    _incomplete: deque[str] = field(default_factory=lambda: deque(maxlen=AGENTS_REMEMBERED))

    @property
    def workers(self) -> list[str]:
        """Ids of the workers whose output is known, by name."""
        return sorted(self._workers)

    def report(
        self, worker: str, agent: str, first: int, lines: Iterable[tuple[float, bool, str, int]]
    ) -> None:
        """Keep new lines of a worker. lines: time, is_stderr, text, cut_bytes. Repeated ones are ignored."""
        known = self._workers.get(worker)
        if known is None:
            limits = self.limits
            kept = LastLines[OutputLine](
                limits.output_lines_per_worker_max, limits.output_bytes_per_worker_max
            )
            known = self._workers[worker] = _Worker(kept)
            self._size_bytes += WORKER_OVERHEAD_BYTES
        self._workers.move_to_end(worker)
        self._size_bytes -= known.lines.size_bytes
        if known.agent != agent:
            known.agent, known.expected, known.exit_number = agent, first, 0
            if known.end == 0:
                known.end = first  # its earlier lines count as left out
        for number, (time, is_stderr, text, cut_bytes) in enumerate(lines, first):
            if number < known.expected:
                continue
            known.end += number - known.expected
            known.lines.add(known.end, OutputLine(time, is_stderr, text, cut_bytes, agent, number))
            known.end += 1
            known.expected = number + 1
        self._size_bytes += known.lines.size_bytes
        while self._size_bytes > self.limits.output_bytes_per_job_max and len(self._workers) > 1:
            _, silent = self._workers.popitem(last=False)
            self._size_bytes -= silent.lines.size_bytes + WORKER_OVERHEAD_BYTES
        self.changed.announce()

    def exited(
        self, worker: str, number: int, returncode: int, how: str, out_of_memory: str, *, expected: bool
    ) -> bool:
        """Record an exit of a worker that `report` has told of; False if it is known already."""
        known = self._workers[worker]
        if number <= known.exit_number:
            return False
        known.exit_number = number
        known.ended = ReportedExit(number, returncode, how, out_of_memory, expected, known.end)
        self.changed.announce()
        return True

    def files_incomplete(self, agent: str) -> bool:
        """Record that an agent's files lack output; False if that is known already."""
        is_new = agent not in self._incomplete
        if is_new:
            self._incomplete.append(agent)
        return is_new

    def begin(self, worker: str, lines: int | None) -> int:
        """Return the position from which a reader gets the last `lines` lines; None: all."""
        known = self._workers.get(worker)
        if known is None or lines is None:
            return 0
        return known.lines.last(lines)

    def position(self, worker: str, agent: str, number: int) -> int:
        """Return the position after an agent's line; 0 if it is not known here."""
        known = self._workers.get(worker)
        for position, line in known.lines.since(0) if known is not None else ():
            if line.agent == agent and line.number > number:
                return position
        return known.end if known is not None and known.agent == agent and known.expected == number + 1 else 0

    def has_ended(self, worker: str) -> bool:
        """True if the worker's last process has ended, as far as is known."""
        known = self._workers.get(worker)
        return known is None or (known.ended is not None and known.ended.after == known.end)

    def pieces(self, worker: str, position: int) -> Iterator[OutputPiece]:
        """Yield what there is of a worker from a position on. Nothing may change meanwhile."""
        known = self._workers.get(worker)
        if known is None:
            return
        lines, ended = deque(known.lines.since(position)), known.ended
        while True:
            if ended is not None and ended.after == position:
                yield OutputPiece(worker, (), 0, ended, position)
            if not lines:
                return
            left_out, position = lines[0][0] - position, lines[0][0]
            part: list[OutputLine] = []
            while lines and lines[0][0] == position and len(part) < LINES_AT_ONCE:
                part.append(lines.popleft()[1])
                position += 1
                if ended is not None and ended.after == position:
                    break
            yield OutputPiece(worker, part, left_out, None, position)
