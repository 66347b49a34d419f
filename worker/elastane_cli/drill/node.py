"""Spot node of a drill: `elastane run` as its users start it, with a file for its termination notice."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastane_common.atomic_writes import write_atomically
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.output import Stream

_LINES_SHOWN = 30


class DrillFailed(ElastaneError):  # noqa: N818 - says what happened, as the exit code does
    """The drill could not be completed; the text contains the node's last lines."""

    code = "ELA418"


class SpotNode:
    """One node. Start it from a thread that lives at least as long.

    master: "host:port"; job: to join; workers: number of workers here; script: with its arguments. on_exit:
    called from another thread when it has ended.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        master: str,
        job: str,
        workers: int,
        script: Sequence[str],
        environment: Mapping[str, str],
        on_exit: Callable[[], None],
    ) -> None:
        self.name = name
        self.workers = workers
        self._on_exit = on_exit
        self._notice = folder / f"{name}.notice"
        self._lines: list[dict[str, Any]] = []
        self._said: list[str] = []
        self._changed = threading.Condition()
        self._process = ChildProcess(
            name,
            [
                *(sys.executable, "-u", "-m", "elastane_cli"),
                *("run", "--json", "--master", master, "--job", job),
                *("--local-workers", str(workers), "--spot", f"file:{self._notice}", "--spot-poll", "0.1"),
                *("--capacity", "spot", *script),
            ],
            environment={**os.environ, **environment},
            on_line=self._line,
            on_exit=self._ended,
        )

    def start(self) -> None:
        self._process.start()

    def reclaim(self, seconds: float) -> float:
        """Give the node its termination notice, in `seconds`; return once its agent has read it.

        Returns the time.monotonic() of the notice.
        """
        at = time.monotonic()
        write_atomically(self._notice, json.dumps({"seconds": seconds, "reason": "spot drill"}))
        self.wait_for("spot_notice", seconds)
        return at

    def wait_for(self, event: str, timeout_seconds: float) -> None:
        """Wait until the agent has reported the event. Raises DrillFailed."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_said(event) or self.ended is not None, timeout_seconds)
            if not self.has_said(event):
                raise DrillFailed(f"{self.name} did not say {event}:\n{self.last_lines()}")

    def has_said(self, event: str) -> bool:
        return any(line.get("event") == event for line in self._lines)

    @property
    def ended(self) -> ExitStatus | None:
        return self._process.status

    def wait(self, timeout_seconds: float) -> int:
        """Wait for its end and return its exit code. Raises DrillFailed if it does not end."""
        status = self._process.wait(timeout_seconds)
        if status is None:
            raise DrillFailed(f"{self.name} did not end within {timeout_seconds:g} s:\n{self.last_lines()}")
        return status.returncode

    def last_lines(self) -> str:
        return "\n".join(self._said[-_LINES_SHOWN:])

    def close(self) -> None:
        """End the node and all its processes, whatever its state."""
        if self._process.status is None:
            self._process.stop(10.0)

    def _line(self, _: str, stream: Stream, text: str) -> None:
        found: object = None
        if stream == "stdout":
            try:
                found = json.loads(text)
            except ValueError:
                found = None
        with self._changed:
            if isinstance(found, dict):
                self._lines.append(found)
                text = str(found.get("line") or found.get("message") or text)
            self._said.append(f"[{self.name}] {text}")
            self._changed.notify_all()

    def _ended(self, *_: object) -> None:
        with self._changed:
            self._changed.notify_all()
        self._on_exit()
