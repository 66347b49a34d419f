"""The trackers of a worker that leads: a process for each, started and ended with its lead."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

import structlog

from elastane.tracking.tracker import TrackerSpec

_log = structlog.get_logger(__name__)

#: How long the end of the training waits for the last values to be written.
FINISH_SECONDS = 60.0
#: And how long a tracker that is told to end may take to write what it has read.
END_SECONDS = 20.0
LOOK_SECONDS = 0.2
#: What the values are kept from: torch, and the trackers' own, must not take the worker's cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class TrackerProcesses:
    """All trackers of one job in one worker. Used from the script's thread.

    master: where the steps are read; empty: they come by `write`. worker_id: whose lead they follow.
    created: seconds since the Unix epoch, where there is no master to ask.
    """

    def __init__(
        self,
        specs: Sequence[TrackerSpec],
        *,
        job: str,
        master: str = "",
        worker_id: str = "",
        created: float = 0.0,
        timeout_seconds: float = 600.0,
    ) -> None:
        self.specs = list(specs)
        self._asked = {
            "job": job,
            "master": master,
            "worker_id": worker_id,
            "created": created,
            "timeout_seconds": timeout_seconds,
        }
        self._processes: list[subprocess.Popen[str]] = []
        self._ending: list[subprocess.Popen[str]] = []

    def lead(self, leads: bool) -> None:
        """This worker leads, or does not: told at each ring it enters. Those of before end by themselves."""
        if leads and not self._processes:
            self._reap()
            self._processes = [self._start(spec) for spec in self.specs]
        elif leads:
            # One that ended well gave way to another leader's, while this worker was out of the ring. One
            # that failed said so, and is left alone.
            self._processes = [
                self._start(spec) if process.poll() == 0 else process
                for spec, process in zip(self.specs, self._processes, strict=True)
            ]
        elif not leads and self._processes:
            self._release()

    def write(self, step: Mapping[str, object]) -> None:
        """A step of a job without a master, as the fields of LoggedStep."""
        self._tell(step)

    def finish(self, step: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        """The job is over and has so many steps: returns when they are written, or after `FINISH_SECONDS`.

        meanwhile: called several times a second, for what must go on.
        """
        self._tell({"finish": step})
        deadline = time.monotonic() + FINISH_SECONDS
        while any(process.poll() is None for process in self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                next(one for one in self._processes if one.returncode is None).wait(LOOK_SECONDS)
            meanwhile()
            if time.monotonic() > deadline:
                _log.warning("the last values are not in the trackers yet", seconds=FINISH_SECONDS)
                break
        self.close()

    def close(self) -> None:
        """End them; what they have read is written."""
        self._release()
        self._reap()

    def _release(self) -> None:
        """They write what they have read, and end."""
        # Said too: data workers that were forked meanwhile keep the other end of the pipe open.
        self._tell({"stop": True})
        for process in self._processes:
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        self._ending += self._processes
        self._processes = []

    def _reap(self) -> None:
        ending, self._ending = self._ending, []
        for process in ending:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, spec: TrackerSpec) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "elastane.tracking", json.dumps({"to": asdict(spec), **self._asked})],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **_ENVIRONMENT},
            text=True,
        )

    def _tell(self, said: Mapping[str, object]) -> None:
        line = json.dumps(said) + "\n"
        for process in self._processes:
            with contextlib.suppress(OSError):  # it has ended, and said why
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
