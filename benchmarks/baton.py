"""Alternates the training processes of several frameworks, one segment of steps at a time.

Processes are started once and warmed up; then a baton is passed between the sides: one side trains a
segment while the others block inside their loop bodies, using no CPU time. So slow phases of a shared machine
affect all sides, and start-up is paid once. Uses only the standard library, because peers import it too.

    Runner   in a training process: `step` is called at the start of each global step
    Side     in the benchmark: the processes of one framework
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Uncounted steps at the start of a segment, in which processes wake up and caches fill.
STEPS_DROPPED = 2
START_SECONDS = 90.0
SEGMENT_SECONDS = 60.0


class Runner:
    """The training process's end of the baton. path: socket of its side; segment: steps in a segment."""

    def __init__(self, path: str, segment: int, *, leader: bool) -> None:
        self._segment = segment
        self._marks: list[float] = []
        self._cpu = 0.0
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        self._file = self._connection.makefile("rw")
        self._say({"leader": leader, "pid": os.getpid()})

    def step(self, number: int) -> None:
        """Mark the start of global step `number`; block until it is this side's turn."""
        self._marks.append(time.perf_counter())
        if number % self._segment:
            return
        self._report()
        if not self._file.readline():
            raise SystemExit("the benchmark has ended")
        self._marks = [time.perf_counter()]
        self._cpu = time.process_time()

    def end(self, **facts: Any) -> None:
        """Report the end of the last step. facts: values that the benchmark compares."""
        self._marks.append(time.perf_counter())
        self._report(**facts)
        self._file.close()
        self._connection.close()

    def _report(self, **facts: Any) -> None:
        steps = [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]
        self._say({"steps": steps, "cpu": time.process_time() - self._cpu, **facts})

    def _say(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


@dataclass
class Segment:
    """Measurements of one segment of a side.

    steps: seconds of each counted step at the leader. cpu: CPU seconds per step, of all processes.
    processes: seconds of every step of every process. reports: the report of every process; facts: the
    leader's, with what it passed to `end`.
    """

    steps: list[float]
    cpu: float
    processes: list[list[float]]
    reports: list[dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)


class SideError(RuntimeError):
    """A training process ended or did not answer in time."""


class Side:
    """The benchmark's end of the baton, for one framework.

    path: of the socket; size: number of training processes that will connect. others_cpu: returns the CPU
    seconds used so far by processes that do not train (a master).
    """

    def __init__(self, name: str, path: Path, size: int, others_cpu: Callable[[], float] = lambda: 0.0):
        self.name = name
        self.path = path
        self._size = size
        self._others_cpu = others_cpu
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(size)
        self._connections: list[socket.socket] = []
        self._buffers: dict[socket.socket, bytes] = {}
        self._leader: socket.socket | None = None

    def meet(self, failed: Callable[[], str | None] = lambda: None) -> None:
        """Wait until every process has reached its first step. failed: returns why none will, or None."""
        deadline = time.monotonic() + START_SECONDS
        self._server.settimeout(0.2)
        while len(self._connections) < self._size:
            why = failed()
            if why or time.monotonic() > deadline:
                raise SideError(f"{self.name}: {why or 'processes did not start in time'}")
            with suppress(TimeoutError):
                connection, _ = self._server.accept()
                connection.setblocking(True)
                self._connections.append(connection)
                self._buffers[connection] = b""
                if self._line(connection)["leader"]:
                    self._leader = connection
        self._collect()

    def run(self) -> Segment:
        """Run one segment of this side, while the others wait."""
        before = self._others_cpu()
        for connection in self._connections:
            connection.sendall(b"go\n")
        reports = self._collect()
        assert self._leader is not None
        leader = reports[self._leader]
        count = len(leader["steps"])
        cpu = sum(report["cpu"] for report in reports.values()) + self._others_cpu() - before
        facts = {name: value for name, value in leader.items() if name not in ("steps", "cpu")}
        processes = [report["steps"] for report in reports.values()]
        return Segment(leader["steps"][STEPS_DROPPED:], cpu / count, processes, [*reports.values()], facts)

    def close(self) -> None:
        """Close the connections, which ends the waiting processes."""
        for connection in self._connections:
            connection.close()
        self._server.close()

    def _collect(self) -> dict[socket.socket, dict[str, Any]]:
        """Return the report of every process. Raises SideError."""
        reports: dict[socket.socket, dict[str, Any]] = {}
        deadline = time.monotonic() + SEGMENT_SECONDS
        with selectors.DefaultSelector() as selector:
            for connection in self._connections:
                if b"\n" in self._buffers[connection]:  # received together with the previous message
                    reports[connection] = self._line(connection)
                else:
                    selector.register(connection, selectors.EVENT_READ)
            while len(reports) < self._size:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise SideError(f"{self.name}: a segment took over {SEGMENT_SECONDS:g} s")
                for key, _ in ready:
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    reports[connection] = self._line(connection)
                    selector.unregister(connection)
        return reports

    def _line(self, connection: socket.socket) -> dict[str, Any]:
        while b"\n" not in self._buffers[connection]:
            received = connection.recv(1 << 20)
            if not received:
                raise SideError(f"{self.name}: a training process ended")
            self._buffers[connection] += received
        line, _, self._buffers[connection] = self._buffers[connection].partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message
