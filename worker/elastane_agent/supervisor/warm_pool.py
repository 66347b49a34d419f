"""Preloaded workers (`elastane run --warm`): processes that have run the script's imports and wait.

Loading Python, torch and the libraries of a script takes seconds, which delay the replacement of a dead
worker. A preloaded process gets its worker's identity and runs the script at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final

from elastane_agent.supervisor.job_view import JobView
from elastane_agent.supervisor.output_reporting import WorkerOutput
from elastane_common.gpus import VISIBLE
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Output

PREFIX: Final = "warm-"
#: A pipe buffers a line of this size without a reader; a longer one might block the agent.
_LINE_BYTES_MAX: Final = 60_000


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, object] | None:
    """Return the changes that `elastane.warm_start` has to make to its environment, or None.

    None: a differing variable, such as those of Python and OpenMP, may already have taken effect. Those of
    Elastane and the one that selects GPUs are read later.
    """
    differing = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if any(not name.startswith("ELASTANE_") and name != VISIBLE for name in differing):
        return None
    return {
        "set": {name: after[name] for name in sorted(differing & after.keys())},
        "unset": sorted(differing - after.keys()),
    }


def is_settled(view: JobView, running: Collection[str]) -> bool:
    """Return True if starting a preloaded worker would not slow down a worker that is about to join."""
    return view.phase == "running" and bool(running) and view.joined.issuperset(running)


class WarmPool:
    """The preloaded workers of an agent; used by its main thread.

    count: number to keep. command: the script and its arguments. lines: takes their output. on_exit: called
    from another thread when a process ends, with its name in the pool (`exited`), even if it became a worker.
    """

    def __init__(
        self,
        count: int,
        command: tuple[str, ...],
        output: Output,
        lines: WorkerOutput,
        on_exit: Callable[[str, ExitStatus], None],
    ) -> None:
        self._lines = lines
        self._count, self._output, self._on_exit = count, output, on_exit
        self._command = [sys.executable, "-u", "-m", "elastane.warm_start", *command]
        self._waiting: dict[str, tuple[ChildProcess, dict[str, str]]] = {}
        self._taken: dict[str, str] = {}
        self._started = 0

    def fill(self, environment: Mapping[str, str]) -> None:
        """Start missing processes, with the environment of a worker without a name."""
        while len(self._waiting) < self._count:
            name = f"{PREFIX}{self._started}"
            self._started += 1
            self._waiting[name] = self._start(name, environment), dict(environment)

    def _start(self, name: str, environment: Mapping[str, str]) -> ChildProcess:
        child = ChildProcess(
            name,
            self._command,
            environment=environment,
            on_line=self._lines.line,
            on_bytes=self._lines.read,
            on_exit=lambda _, status: self._on_exit(name, status),
            listens=True,
        )
        child.start()
        text = f"{name} started, pid {child.pid}, to be the next worker"
        self._output.say(text, event="warm_worker_started", worker=name, pid=child.pid)
        return child

    def take(self, worker: str, environment: Mapping[str, str]) -> ChildProcess | None:
        """Turn the oldest suitable preloaded process into this worker and return it, if there is one."""
        for name, (child, own) in self._waiting.items():
            told = changes(own, environment)
            text = json.dumps(told) + "\n"
            if told is None or len(text) > _LINE_BYTES_MAX or not child.tell(text):
                continue
            del self._waiting[name]
            self._taken[name] = worker
            child.name = worker  # the prefix of its lines from now on
            return child
        return None

    def exited(self, name: str, status: ExitStatus) -> str:
        """Return the worker that an ended process had become; "": it was still waiting.

        A process that ended while waiting is not replaced, because its replacement would end, too.
        """
        if worker := self._taken.pop(name, ""):
            return worker
        self._waiting.pop(name, None)
        self._count -= 1
        text = f"{name} {status} while it waited; {self._count} preloaded workers are kept from now on"
        self._output.say(text, "warning", "warm_worker_lost")
        return ""

    def close(self) -> None:
        """Kill the waiting processes."""
        for child, _ in self._waiting.values():
            child.kill_group()
        for child, _ in self._waiting.values():
            child.wait()
