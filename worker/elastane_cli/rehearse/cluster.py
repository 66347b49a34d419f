"""A whole job on this machine with full control of every process, for rehearsals and tests of faults.

Unlike under the agent, nothing is restarted automatically: a killed worker stays dead until the caller adds
another one, and the caller kills and restarts the master, all at the steps it chooses.

The caller changes the ring in known steps, however fast the machine is: workers whose rehearsal has the
folder `gates` are held in the steps of `hold_in`, each until its block of `held` ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elastane.runtime.rehearsal import Gate
from elastane_agent.supervisor import ps_children
from elastane_agent.supervisor.gpus import gpu_variables
from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_agent.supervisor.worker_command import job_variables
from elastane_common.client import MasterClient
from elastane_common.client_errors import ClientClosedError
from elastane_common.errors import ElastaneError
from elastane_common.gpus import VISIBLE
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_proto.v1 import job_pb2

OVER = (
    job_pb2.JOB_PHASE_SUCCEEDED,
    job_pb2.JOB_PHASE_FAILED,
    job_pb2.JOB_PHASE_CANCELLED,
    job_pb2.JOB_PHASE_SUSPENDED,
    job_pb2.JOB_PHASE_MAX_WAIT_EXCEEDED,
)


class ClusterError(ElastaneError):
    """The local job did not reach the awaited state; the text holds the workers' last lines.

    steps: number of steps of a job that succeeded before it reached the awaited state; None otherwise.
    """

    code = "ELA405"

    def __init__(self, message: str, *, steps: int | None = None) -> None:
        super().__init__(message)
        self.steps = steps


class LocalCluster:
    """Master, job and workers of one run. Create it with `local_cluster`, which cleans up.

    folder: for all files of the run (state, logs, reports). script: what each worker runs, without the
    interpreter. environment: additional variables of every worker. directory: their working directory;
    default: the current one. launch: creates a worker's process, with the arguments of `ChildProcess`.

    on_job: called for every state of the job seen while waiting. check: called then, unless that state was
    awaited, and when a worker ends; raises if there is nothing left to wait for.
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
        self.servers: dict[str, ChildProcess] = {}
        self._gpus: dict[str, str] = {}
        self.on_job: Callable[[job_pb2.Job], None] = lambda job: None
        self.check: Callable[[], None] = lambda: None
        self.gates = folder / "gates"
        self._gates: dict[int, Gate] = {}
        self._watchers: list[MasterClient] = []
        self.client: MasterClient

    @property
    def running(self) -> list[str]:
        """Workers whose processes have not ended."""
        return [name for name, process in self.workers.items() if process.status is None]

    @property
    def addresses(self) -> str:
        """The master's address, for workers and clients."""
        return self.master.address

    def start(self) -> None:
        """Start the master and create the job; workers are added with `add_worker`."""
        self.master.start()
        self.client = MasterClient(self.addresses, timeout_seconds=60.0)
        self.client.create_job(self.job, self._settings)

    def add_worker(self, name: str = "", environment: Mapping[str, str] | None = None) -> str:
        """Start one more worker and return its id. name: its id; empty: the next free "w<k>"."""
        name = name or f"w{len(self.workers)}"
        own = self._environment(name) | dict(environment or {})
        running = self.running
        gpu = gpu_variables(own, [self._gpus[worker] for worker in running])
        self._gpus[name] = gpu.get(VISIBLE, "")
        process = self._launch(
            name,
            [sys.executable, *self._script],
            environment=own | gpu,
            directory=self._directory,
            log=self.folder / f"{name}.log",
            on_exit=self.wake,
        )
        process.start()
        self.workers[name] = process
        return name

    def add_server(self) -> str:
        """Start one more parameter server and return its name, "ps-<k>"."""
        name = f"ps-{len(self.servers)}"
        environment = self._environment(name) | {"ELASTANE_PS_ID": name}
        log = self.folder / f"{name}.log"
        process = self._launch(name, ps_children.COMMAND, environment=environment, log=log)
        process.start()
        self.servers[name] = process
        return name

    def hold_in(self, steps: Iterable[int]) -> None:
        """Hold the ring in these steps (see `held`). Call it before the first worker is started."""
        self._gates |= {step: Gate(self.gates / str(step)) for step in steps}

    def restart_master(self) -> None:
        """Kill -9 the master and start it again on the same port and state."""
        self.master.sigkill()
        self.master.wait()
        self.master.start()

    def open_gate(self, step: int) -> None:
        """Release workers that wait in a step of `hold_in`; other steps have no waiting workers."""
        if (gate := self._gates.get(step)) is not None:
            gate.open()

    def get_job(self) -> job_pb2.Job:
        return self.client.get_job(self.job)

    def wait_for(
        self, condition: Callable[[job_pb2.Job], bool], *, timeout_seconds: float = 120.0, what: str = ""
    ) -> job_pb2.Job:
        """Wait for a state of the job that meets `condition`, and return it.

        `condition` is evaluated for every update of the job, and again when a worker ends. what: the awaited
        state, for the error. Raises ClusterError after the timeout, or when the job is over or no worker runs
        any more without the condition being met, and whatever `check` raises.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            job = self._watch(condition, deadline) or self.get_job()
            if condition(job):
                return job
            self.check()
            late = time.monotonic() >= deadline
            if late or job.phase in OVER or not self._any_running():
                after = f" for {timeout_seconds:g} s" if late else ""
                raise ClusterError(
                    f"waited{after} for {what or 'a state of the job'}; the job is {phase_in_words(job)} at "
                    f"step {job.step}: {job.reason}\n{self.last_lines()}",
                    steps=job.step if job.phase == job_pb2.JOB_PHASE_SUCCEEDED else None,
                )

    def wait_for_step(self, step: int, **wait: Any) -> job_pb2.Job:
        """Wait until `step` steps are committed. wait: arguments of `wait_for`, which raises ClusterError."""
        return self.wait_for(lambda job: job.step >= step, what=f"step {step}", **wait)

    @contextmanager
    def held(self, step: int, **wait: Any) -> Iterator[job_pb2.Job]:
        """Wait for `step`, one of those of `hold_in`, and hold the ring in it during the block.

        wait: arguments of `wait_for`, which raises ClusterError.
        """
        yield self.wait_for_step(step, **wait)
        self.open_gate(step)

    def wait_for_success(self, *, timeout_seconds: float = 180.0) -> None:
        """Wait for the end as `wait_for_end` does, then `check`. Raises ClusterError without a success."""
        job = self.wait_for_end(timeout_seconds=timeout_seconds)
        self.check()  # more precise than the job's phase about the failed worker and its error
        if job.phase != job_pb2.JOB_PHASE_SUCCEEDED:
            raise ClusterError(f"the job is {phase_in_words(job)}: {job.reason}\n{self.last_lines()}")

    def wait_for_end(self, *, timeout_seconds: float = 180.0) -> job_pb2.Job:
        """Wait until every worker has ended and the job is over. Raises ClusterError after the timeout."""
        deadline = time.monotonic() + timeout_seconds
        for process in list(self.workers.values()):
            if process.wait(max(0.1, deadline - time.monotonic())) is None:
                raise ClusterError(
                    f"{process.name} did not end in {timeout_seconds:g} s\n{self.last_lines()}"
                )
        return self.wait_for(lambda job: job.phase in OVER, timeout_seconds=10.0, what="the end of the job")

    def statuses(self) -> dict[str, ExitStatus | None]:
        """Return how each worker ended, by id; None while it runs."""
        return {name: process.status for name, process in self.workers.items()}

    def last_lines(self, count: int = 15) -> str:
        """Return the last `count` lines of every log, for error messages."""
        parts = [f"--- master\n{self.master.log_tail(count)}"]
        for name, process in (*self.workers.items(), *self.servers.items()):
            log = self.folder / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            parts.append(f"--- {name} ({process.status or 'running'})\n" + "\n".join(lines[-count:]))
        return "\n".join(parts)

    def wake(self, *_: object) -> None:
        """Let all waits look again. Called in a process's thread when it ends.

        The exit may cause no update of the job, because the master has seen the worker leave before.
        """
        for watcher in list(self._watchers):
            watcher.close()

    def close(self) -> None:
        """Kill the workers and stop the master, whatever their state."""
        for process in (*self.workers.values(), *self.servers.values()):
            process.kill_group()
        for process in (*self.workers.values(), *self.servers.values()):
            process.wait()
        for gate in self._gates.values():
            gate.open()
        if hasattr(self, "client"):
            self.client.close()
        self.master.stop()

    def _watch(self, condition: Callable[[job_pb2.Job], bool], deadline: float) -> job_pb2.Job | None:
        """Return a state that meets `condition`; None at the deadline, or when a worker or the job ends."""
        with MasterClient(self.addresses, timeout_seconds=60.0) as watcher:
            # Closing the client ends the watch even while it is blocked in a read.
            timer = threading.Timer(max(0.0, deadline - time.monotonic()), watcher.close)
            timer.daemon = True
            timer.start()
            self._watchers.append(watcher)
            try:
                # A client that is closed between two reads raises instead of ending the iteration.
                with suppress(ClientClosedError):
                    for job in watcher.watch_job(self.job):
                        self.on_job(job)
                        if condition(job):
                            return job
                        # A worker that ended before this watcher was registered has not closed it.
                        self.check()
                        if job.phase in OVER or not self._any_running():
                            break
            finally:
                self._watchers.remove(watcher)
                timer.cancel()
        return None

    def _any_running(self) -> bool:
        return not self.workers or bool(self.running)

    def _environment(self, name: str) -> dict[str, str]:
        return {
            **os.environ,
            **job_variables(self._settings),
            "ELASTANE_MASTER": self.addresses,
            "ELASTANE_JOB": self.job,
            "ELASTANE_WORKER_ID": name,
            "ELASTANE_MASTER_TIMEOUT_SECONDS": "60",
            "ELASTANE_REPORT_DIR": str(self.reports),
            "ELASTANE_LOG_TO": "",  # no trackers, unless the caller's `environment` sets them
            "MODEL_URL": "",  # and its model is not uploaded
            **self._extra,
        }


def phase_in_words(job: job_pb2.Job) -> str:
    """Return the job's phase as text, such as "running"."""
    return job_pb2.JobPhase.Name(job.phase).removeprefix("JOB_PHASE_").lower()


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
    """Yield a started cluster; at the end of the block all its processes are stopped.

    Arguments are those of `LocalCluster`.
    """
    cluster = LocalCluster(
        folder, settings, script, environment=environment, directory=directory, launch=launch
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
