"""Clusters of some workers of each framework for recovery.py: faults to inject, and the workers' marks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import psutil
from peers import peer_python

from elastane_cli.rehearse.cluster import LocalCluster
from elastane_proto.v1 import job_pb2

SCRIPT = str(Path(__file__).parent / "peer_scripts" / "recovery_script.py")
_LOOK_SECONDS = 0.02


class EventTimeout(Exception):  # noqa: N818 (a result, not a fault of the benchmark)
    """An expected event did not happen in time."""


class _Until:
    """Waits for a condition. seconds: default timeout. Raises EventTimeout."""

    seconds = 90.0

    def __call__(self, condition: Callable[[], bool], what: str, seconds: float | None = None) -> None:
        seconds = self.seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise EventTimeout(f"no {what} within {seconds:g} s")
            time.sleep(_LOOK_SECONDS)


until = _Until()


class Marks:
    """The workers' marks: by process id, the time at which each step was applied.

    Each file is read from where the last read ended, so that reading takes no CPU time from the workers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: dict[int, int] = {}
        self._ready: dict[int, float] = {}
        self._steps: dict[int, list[float]] = {}

    def pids(self) -> list[int]:
        """Return the ids of all processes that have started."""
        self._read()
        return list(self._offsets)

    def ready(self, pid: int) -> float:
        """Return the time at which the process asked to join."""
        self._read()
        return self._ready[pid]

    def steps(self, pid: int) -> list[float]:
        """Return the times at which the process applied its steps."""
        self._read()
        return self._steps.get(pid, [])

    def training(self, steps: int, since: float = 0.0) -> list[int]:
        """Return the processes that have applied at least `steps` steps since `since`."""
        self._read()
        return [pid for pid, at in self._steps.items() if len(at) >= steps and at[-steps] > since]

    def _read(self) -> None:
        for file in self.folder.iterdir():
            pid = int(file.name)
            with file.open() as marks:
                marks.seek(self._offsets.get(pid, 0))
                text = marks.read()
            whole = text[: text.rfind("\n") + 1]
            self._offsets[pid] = self._offsets.get(pid, 0) + len(whole)
            for line in whole.splitlines():
                seconds, word = line.split()
                if word == "ready":
                    self._ready[pid] = float(seconds)
                else:
                    self._steps.setdefault(pid, []).append(float(seconds))


class Cluster:
    """Workers of one framework, with methods that inject events.

    workers: how many it starts with. gone: workers that were killed, frozen or drained. step_seconds: time of
    one step before any event.
    """

    workers = 3

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self.model = model
        self.marks = Marks(folder / "marks")
        self.marks.folder.mkdir()
        self.gone: set[int] = set()
        self.step_seconds = 0.0
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}

    @abstractmethod
    def start(self) -> None:
        """Start everything, with `workers` workers."""

    @abstractmethod
    def add(self) -> None:
        """Start one more worker."""

    def alive(self) -> list[int]:
        """Return the undisturbed workers that have trained, the oldest first."""
        return [pid for pid in self.marks.training(1) if pid not in self.gone and self.runs(pid)]

    def runs(self, pid: int) -> bool:
        """True if the process has not ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
        return False

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                        child.kill()
            process.wait()

    def _spawn(self, command: list[str], **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"log-{len(self.processes)}").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**self.environment, **environment}
            )
        self.processes.append(process)
        return process


class Elastane(Cluster):
    """Elastane: a master with its private store, and as many ESTs as there may be workers."""

    workers_max = 3
    heartbeat_seconds = 0.0
    """Heartbeat timeout; 0: the default."""

    def start(self) -> None:
        settings = job_pb2.JobSettings(ests=self.workers_max, workers_min=1, workers_max=self.workers_max)
        if self.heartbeat_seconds:
            settings.heartbeat_timeout.FromMilliseconds(int(self.heartbeat_seconds * 1000))
        self.cluster = LocalCluster(
            self.folder / "cluster", settings, [SCRIPT, "elastane", self.model, str(self.marks.folder)]
        )
        self.cluster.start()
        for _ in range(self.workers):
            self.cluster.add_worker()

    def add(self) -> None:
        self.cluster.add_worker()

    def restart_coordinator(self, away_seconds: float) -> None:
        """Kill the master, restart it after `away_seconds`."""
        self.cluster.master.sigkill()
        self.cluster.master.wait()
        time.sleep(away_seconds)
        self.cluster.master.start()

    def drain(self, pid: int) -> None:
        """Drain a worker, as `elastane drain` does."""
        name = next(name for name, process in self.cluster.workers.items() if process.pid == pid)
        self.cluster.client.drain_worker(self.cluster.job, name)

    def unplanned_changes(self) -> int:
        """Return the number of ring changes so far that dropped a step."""
        return sum(
            event.HasField("ring_announced") and not event.ring_announced.planned
            for event in self.cluster.client.events(self.cluster.job)
        )

    def close(self) -> None:
        self.cluster.close()


class ElastaneTuned(Elastane):
    heartbeat_seconds = 1.0


class ElastanePair(Elastane):
    """One worker, whom another one can join: on two cores neither waits for the other's."""

    workers = 1
    workers_max = 2


class Torchft(Cluster):
    """torchft: a lighthouse and three replica groups of one process each."""

    heartbeat_timeout_ms = 5000

    def start(self) -> None:
        self.python = peer_python("torchft")
        self.port = _free_port()
        self._start_lighthouse()
        for _ in range(self.workers):
            self.add()

    def add(self) -> None:
        command = [self.python, SCRIPT, "torchft", self.model, str(self.marks.folder)]
        self._spawn(command, TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{self.port}")

    def restart_coordinator(self, away_seconds: float) -> None:
        """Kill the lighthouse, restart it after `away_seconds`."""
        self.lighthouse.kill()
        self.lighthouse.wait()
        time.sleep(away_seconds)
        self._start_lighthouse()

    def _start_lighthouse(self) -> None:
        lighthouse = str(Path(self.python).parent / "torchft_lighthouse")
        command = [lighthouse, "--min_replicas", "1", "--bind", f"[::]:{self.port}"]
        command += ["--heartbeat_timeout_ms", str(self.heartbeat_timeout_ms)]
        self.lighthouse = self._spawn(command)


class TorchftTuned(Torchft):
    heartbeat_timeout_ms = 1000


class Torchrun(Cluster):
    """torch's elastic agent on three nodes of one worker each."""

    def start(self) -> None:
        self.port = _free_port()
        for _ in range(self.workers):
            self.add()

    def add(self) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}"]
        command += ["--max-restarts", "10", "--local-addr", "127.0.0.1"]
        self._spawn([*command, SCRIPT, "torchrun", self.model, str(self.marks.folder)])

    def kill_last_node(self) -> list[int]:
        """Kill an agent that does not hold the store, with its worker; return the other workers."""
        agents = {process.pid: psutil.Process(process.pid) for process in self.processes}
        holder = next(
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == self.port
        )
        victim = next(agent for pid, agent in agents.items() if pid != holder)
        workers = {child.pid for child in victim.children(recursive=True)}
        others = [pid for pid in self.alive() if pid not in workers]
        self.gone |= workers
        for process in (victim, *victim.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        return others


FRAMEWORKS: dict[str, type[Cluster]] = {
    "elastane": Elastane,
    "elastane 1 s": ElastaneTuned,
    "elastane pair": ElastanePair,
    "torchft": Torchft,
    "torchft 1 s": TorchftTuned,
    "torchrun": Torchrun,
}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
