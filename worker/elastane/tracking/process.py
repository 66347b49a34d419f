"""Trackers of the leading worker: one process each, running while the worker leads."""

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

#: How long the end of training waits for the last values to be written.
FINISH_SECONDS = 60.0
#: How long a stopped tracker may take to write what it has read.
END_SECONDS = 20.0
LOOK_SECONDS = 0.2
#: Keeps torch and the trackers' libraries from using the worker's cores and GPUs.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class TrackerProcesses:
    """All trackers of one job in one worker. Used from the script's thread.

    master: from which steps are read; empty: they are passed to `write`. worker_id: of this worker. created:
    seconds since the Unix epoch, if there is no master to ask.
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
        """Start or stop the trackers; called at each ring entered with whether this worker leads.

        Stopped processes end in the background.
        """
        if leads and not self._processes:
            self._reap()
            self._processes = [self._start(spec) for spec in self.specs]
        elif leads:
            # A process that ended without error gave way to another leader's while this worker was out of the
            # ring. One that failed has reported it, and is not restarted.
            self._processes = [
                self._start(spec) if process.poll() == 0 else process
                for spec, process in zip(self.specs, self._processes, strict=True)
            ]
        elif not leads and self._processes:
            self._release()

    def write(self, step: Mapping[str, object]) -> None:
        """Write a step of a job without a master, as the fields of LoggedStep."""
        self._tell(step)

    def finish(self, step: int, meanwhile: Callable[[], bool] = lambda: True) -> bool:
        """Finish the job with `step` steps: return when they are written, or after `FINISH_SECONDS`.

        meanwhile: called several times a second, for work that must go on. Once it returns False, the job has
        gone back before `step`: the trackers are released, so that a new ring starts others, and the result
        is False.
        """
        self._tell({"finish": step})
        deadline = time.monotonic() + FINISH_SECONDS
        while any(process.poll() is None for process in self._processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                next(one for one in self._processes if one.returncode is None).wait(LOOK_SECONDS)
            if not meanwhile():
                self._release()
                return False
            if time.monotonic() > deadline:
                _log.warning("the last values are not in the trackers yet", seconds=FINISH_SECONDS)
                break
        self.close()
        return True

    def close(self) -> None:
        """End all trackers; what they have read is written."""
        self._release()
        self._reap()

    def _release(self) -> None:
        """Stop the trackers without waiting; they write what they have read, and end."""
        # Closing the pipe is not enough: data workers forked meanwhile keep its other end open.
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
            with contextlib.suppress(OSError):  # it has ended and reported why
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
