"""A whole job on this machine, every process in hand: for the demo and for tests that break things.

The agent keeps workers alive; here nobody does. A worker that is killed stays dead, one that is
wanted is added, and the master can be killed and started again, all at a step of the caller's choice.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from elastane.agent.master_process import EmbeddedMaster
from elastane.agent.process import ChildProcess, ExitStatus
from elastane.client import ClientClosedError, MasterClient
from elastane.determinism import level_from_proto, process_environment
from elastane.errors import ElastaneError
from elastane_proto.v1 import job_pb2

OVER = (
    job_pb2.JOB_PHASE_SUCCEEDED,
    job_pb2.JOB_PHASE_FAILED,
    job_pb2.JOB_PHASE_CANCELLED,
    job_pb2.JOB_PHASE_SUSPENDED,
    job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED,
)


class ClusterError(ElastaneError):
    """The job on this machine did not do what was waited for; the text holds the workers' last lines."""

    code = "ELA405"


class LocalCluster:
    """Master, job and workers of one run. Use `local_cluster`, which cleans up.

    folder: everything of the run (state, logs, reports). script: what each worker runs, without the
    interpreter. environment: further variables of every worker. directory: where they start; default: here.
    launch: how a worker's process is made, with the arguments of `ChildProcess`.
    """

    def __init__(
        self,
        folder: Path,
        settings: job_pb2.JobSettings,
        script: Sequence[str],
        *,
        job: str = "local",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        launch: Callable[..., ChildProcess] = ChildProcess,
    ) -> None:
        self.folder = folder
        self.job = job
        self.reports = folder / "reports"
        self._settings = settings
        self._script = list(script)
        self._extra = dict(environment or {})
        self._directory = directory
        self._launch = launch
        self.master = EmbeddedMaster(folder / "state")
        self.workers: dict[str, ChildProcess] = {}
        self._watchers: list[MasterClient] = []
        self.client: MasterClient

    @property
    def addresses(self) -> str:
        """Where workers and clients look for the master."""
        return self.master.address

    def start(self) -> None:
        """Start the master and create the job; workers are added with `add_worker`."""
        self.master.start()
        self.client = MasterClient(self.addresses, timeout_seconds=60.0)
        self.client.create_job(self.job, self._settings)

    def add_worker(self, name: str = "", environment: Mapping[str, str] | None = None) -> str:
        """Start one more worker; returns its id."""
        name = name or f"w{len(self.workers)}"
        process = self._launch(
            name,
            [sys.executable, *self._script],
            environment=self._environment(name) | dict(environment or {}),
            directory=self._directory,
            log=self.folder / f"{name}.log",
            on_exit=self._worker_ended,
        )
        process.start()
        self.workers[name] = process
        return name

    def restart_master(self) -> None:
        """Kill -9 the master and start it again on the same port and state."""
        self.master.sigkill()
        self.master.wait()
        self.master.start()

    def get_job(self) -> job_pb2.Job:
        return self.client.get_job(self.job)

    def wait_for(
        self, condition: Callable[[job_pb2.Job], bool], *, timeout_seconds: float = 120.0, what: str = ""
    ) -> job_pb2.Job:
        """The first state of the job that meets `condition`, which is asked again when a worker ends.

        Raises ClusterError after the timeout, when the job is over, or when no worker runs any more.
        """
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            job = self._watch(condition, deadline)
            if job is not None:
                return job
            if self.get_job().phase in OVER or not self._any_running():
                break
        job = self.get_job()
        if condition(job):
            return job
        raise ClusterError(
            f"waited for {what or 'a state of the job'}; it is in {job_pb2.JobPhase.Name(job.phase)} "
            f"at step {job.step}: {job.reason}\n{self.last_lines()}"
        )

    def wait_for_step(self, step: int, *, timeout_seconds: float = 120.0) -> job_pb2.Job:
        """Until `step` steps are committed."""
        return self.wait_for(
            lambda job: job.step >= step, timeout_seconds=timeout_seconds, what=f"step {step}"
        )

    def wait_for_end(self, *, timeout_seconds: float = 180.0) -> job_pb2.Job:
        """Until the job is over and every worker has ended."""
        deadline = time.monotonic() + timeout_seconds
        for process in list(self.workers.values()):
            if process.wait(max(0.1, deadline - time.monotonic())) is None:
                raise ClusterError(
                    f"{process.name} did not end in {timeout_seconds:g} s\n{self.last_lines()}"
                )
        return self.wait_for(lambda job: job.phase in OVER, timeout_seconds=10.0, what="the end of the job")

    def statuses(self) -> dict[str, ExitStatus | None]:
        """How each worker ended; None while it runs."""
        return {name: process.status for name, process in self.workers.items()}

    def last_lines(self, count: int = 15) -> str:
        """The end of every log, for error messages."""
        parts = [f"--- master\n{self.master.log_tail(count)}"]
        for name, process in self.workers.items():
            log = self.folder / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            parts.append(f"--- {name} ({process.status or 'running'})\n" + "\n".join(lines[-count:]))
        return "\n".join(parts)

    def close(self) -> None:
        """End everything, whatever its state."""
        for process in self.workers.values():
            process.kill_group()
        for process in self.workers.values():
            process.wait()
        if hasattr(self, "client"):
            self.client.close()
        self.master.stop()

    def _watch(self, condition: Callable[[job_pb2.Job], bool], deadline: float) -> job_pb2.Job | None:
        """The state that meets `condition`; None at the deadline, when a worker ends, or at the job's end."""
        with MasterClient(self.addresses, timeout_seconds=60.0) as watcher:
            # Closing the watcher ends the watch, whatever it waits for.
            timer = threading.Timer(max(0.0, deadline - time.monotonic()), watcher.close)
            timer.daemon = True
            timer.start()
            self._watchers.append(watcher)
            try:
                # A watcher that is closed at the wrong moment says so instead of ending.
                with suppress(ClientClosedError):
                    for job in watcher.watch_job(self.job):
                        if condition(job):
                            return job
                        if job.phase in OVER or not self._any_running():
                            break
            finally:
                self._watchers.remove(watcher)
                timer.cancel()
        return None

    def _worker_ended(self, *_: object) -> None:
        """In the worker's thread: its end need not show in the job, if that has seen it leave before."""
        for watcher in list(self._watchers):
            watcher.close()

    def _any_running(self) -> bool:
        return not self.workers or any(process.status is None for process in self.workers.values())

    def _environment(self, name: str) -> dict[str, str]:
        settings = self._settings
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            # A peer's death is a normal event here; torch would print a C++ backtrace for it.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **process_environment(level_from_proto(settings.determinism), settings.torch_threads),
            "ELASTANE_MASTER": self.addresses,
            "ELASTANE_JOB": self.job,
            "ELASTANE_WORKER_ID": name,
            "ELASTANE_ESTS": str(settings.ests),
            "ELASTANE_TORCH_THREADS": str(settings.torch_threads or 1),
            "ELASTANE_MASTER_TIMEOUT_SECONDS": "60",
            "ELASTANE_REPORT_DIR": str(self.reports),
            "ELASTANE_LOG_TO": "",  # a run that only shows something, unless it is asked for below
            **({"ELASTANE_SEED": str(settings.seed)} if settings.HasField("seed") else {}),
            **_fingerprints(settings),
            **self._extra,
        }


def _fingerprints(settings: job_pb2.JobSettings) -> dict[str, str]:
    if not settings.HasField("fingerprint_steps"):
        return {}
    return {"ELASTANE_FINGERPRINT_STEPS": str(settings.fingerprint_steps)}


@contextmanager
def local_cluster(
    folder: Path,
    settings: job_pb2.JobSettings,
    script: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    launch: Callable[..., ChildProcess] = ChildProcess,
) -> Iterator[LocalCluster]:
    """A started cluster; all its processes have ended when the block is left."""
    cluster = LocalCluster(
        folder, settings, script, environment=environment, directory=directory, launch=launch
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
