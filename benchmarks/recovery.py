"""How long training stands still when a worker dies, freezes, joins or leaves, beside torchft and torchrun.

    python benchmarks/recovery.py [--quick] [--json [FILE]] [--frameworks a,b] [--models small]

Three workers train the same model. "torchft" runs at its defaults, "torchft 1 s" with a heartbeat time-out of
a second, "torchrun" as three elastic agents. The stall is the longest time after the event in which no
worker that stays applies a step, less one median step.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import psutil
from harness import Report, Row, Series, run_benchmark
from peers import peer_python

from elastane.agent.cluster import LocalCluster
from elastane.client import MasterClient
from elastane_proto.v1 import job_pb2

SCRIPT = str(Path(__file__).parent / "peer_scripts" / "recovery_script.py")
STEPS_BEFORE = 10
"""Steps that every worker must have applied before anything happens to it."""
WAIT_SECONDS = 180.0
SETTLE_STEPS = 10


class Marks:
    """What the workers have written down: by pid, the time at which each step was applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> dict[int, list[tuple[float, str]]]:
        """Of every process that has begun."""
        found = {}
        for file in self.folder.iterdir():
            lines = [line.split() for line in file.read_text().splitlines() if line.count(" ") == 1]
            found[int(file.name)] = [(float(seconds), word) for seconds, word in lines]
        return found

    def steps(self, pid: int) -> list[float]:
        """When the process applied its steps."""
        return [seconds for seconds, word in self.read().get(pid, []) if word != "ready"]

    def training(self, steps: int, since: float = 0.0) -> list[int]:
        """Processes that have applied so many steps since then."""
        return [
            pid
            for pid, marks in self.read().items()
            if sum(word != "ready" and seconds > since for seconds, word in marks) >= steps
        ]


class Cluster:
    """Three workers of one framework, and what can be done to them."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self.model = model
        self.marks = Marks(folder / "marks")
        self.marks.folder.mkdir()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}

    @abstractmethod
    def start(self) -> None:
        """Start everything, with three workers."""

    @abstractmethod
    def add(self) -> None:
        """Start one more worker."""

    def drain(self, pid: int) -> None:
        """Announce to a worker that its node will be taken away."""
        os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in [*psutil.Process(process.pid).children(recursive=True), process]:
                    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                        child.kill()
            process.wait()

    def _spawn(self, command: list[str], **environment: str) -> None:
        with (self.folder / f"log-{len(self.processes)}").open("wb") as log:
            self.processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env={**self.environment, **environment})
            )


class Elastane(Cluster):
    """Ours: a master with its private store, three ESTs."""

    def start(self) -> None:
        settings = job_pb2.JobSettings(ests=3, workers_min=1, workers_max=3)
        self.cluster = LocalCluster(
            self.folder / "cluster", settings, [SCRIPT, "elastane", self.model, str(self.marks.folder)]
        )
        self.cluster.start()
        for _ in range(3):
            self.cluster.add_worker()

    def add(self) -> None:
        self.cluster.add_worker()

    def restart_master(self, away_seconds: float) -> None:
        """Kill the master, start it again after a while."""
        self.cluster.master.sigkill()
        self.cluster.master.wait()
        time.sleep(away_seconds)
        self.cluster.master.start()

    def drain(self, pid: int) -> None:
        name = next(name for name, process in self.cluster.workers.items() if process.pid == pid)
        with MasterClient(self.cluster.master.address) as client:
            client.drain_worker(self.cluster.job, name)

    def close(self) -> None:
        self.cluster.close()


class Torchft(Cluster):
    """torchft: a lighthouse and three replica groups of one process each."""

    heartbeat_timeout_ms = 5000

    def start(self) -> None:
        self.python = peer_python("torchft")
        self.port = _free_port()
        lighthouse = str(Path(self.python).parent / "torchft_lighthouse")
        command = [lighthouse, "--min_replicas", "1", "--bind", f"[::]:{self.port}"]
        self._spawn([*command, "--heartbeat_timeout_ms", str(self.heartbeat_timeout_ms)])
        for _ in range(3):
            self.add()

    def add(self) -> None:
        command = [self.python, SCRIPT, "torchft", self.model, str(self.marks.folder)]
        self._spawn(command, TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{self.port}")


class TorchftTuned(Torchft):
    heartbeat_timeout_ms = 1000


class Torchrun(Cluster):
    """torch's elastic agent on three nodes of one worker each."""

    def start(self) -> None:
        self.port = _free_port()
        for _ in range(3):
            self.add()

    def add(self) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1"]
        command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}"]
        command += ["--max-restarts", "10", "--local-addr", "127.0.0.1"]
        self._spawn([*command, SCRIPT, "torchrun", self.model, str(self.marks.folder)])


FRAMEWORKS: dict[str, type[Cluster]] = {
    "elastane": Elastane,
    "torchft": Torchft,
    "torchft 1 s": TorchftTuned,
    "torchrun": Torchrun,
}


@contextlib.contextmanager
def running(framework: str, model: str) -> Iterator[Cluster]:
    """A cluster whose three workers have trained a little."""
    with tempfile.TemporaryDirectory() as name:
        cluster = FRAMEWORKS[framework](Path(name), model)
        try:
            cluster.start()
            _until(lambda: len(cluster.marks.training(STEPS_BEFORE)) == 3, "three workers that train")
            yield cluster
        finally:
            cluster.close()


def stall_of(cluster: Cluster, staying: list[int], began: float, median_step: float) -> float:
    """The longest time without a step of those who stay, after `began`, less one step."""
    steps = sorted(seconds for pid in staying for seconds in cluster.marks.steps(pid))
    gaps = [after - max(before, began) for before, after in pairwise(steps) if after > began]
    return max(0.0, max(gaps) - median_step)


def median_step(cluster: Cluster) -> float:
    """Seconds between the steps of one worker, before anything happens."""
    steps = cluster.marks.steps(cluster.marks.training(STEPS_BEFORE)[0])
    return statistics.median(after - before for before, after in pairwise(steps[2:]))


def kill(cluster: Cluster, number: int = signal.SIGKILL) -> float:
    """A worker is killed, or frozen; the stall of the others until they train on for a while."""
    victim, *others = cluster.marks.training(STEPS_BEFORE)
    step = median_step(cluster)
    began = time.monotonic()
    os.kill(victim, number)
    try:
        if isinstance(cluster, Torchrun):
            # All its workers are started again: whoever trains, trains on.
            _until(lambda: len(cluster.marks.training(3, began + 3 * step)) >= 2, "steps after the death")
            return stall_of(cluster, list(cluster.marks.read()), began, step)
        _until(
            lambda: set(others) <= set(cluster.marks.training(SETTLE_STEPS, began)), "steps after the event"
        )
        return stall_of(cluster, others, began, step)
    finally:
        if number == signal.SIGSTOP:
            os.kill(victim, signal.SIGCONT)


def freeze(cluster: Cluster) -> float:
    """A silent node."""
    return kill(cluster, signal.SIGSTOP)


def join(cluster: Cluster) -> tuple[float, float]:
    """After a death a newcomer comes: its wait from ready to its first step, and the others' stall."""
    victim, *others = cluster.marks.training(STEPS_BEFORE)
    step = median_step(cluster)
    os.kill(victim, signal.SIGKILL)
    began = time.monotonic()
    _until(lambda: set(others) <= set(cluster.marks.training(SETTLE_STEPS, began)), "steps after the death")
    known = set(cluster.marks.read())
    began = time.monotonic()
    cluster.add()

    def newcomer() -> int | None:
        return next((pid for pid in cluster.marks.training(SETTLE_STEPS) if pid not in known), None)

    _until(lambda: newcomer() is not None, "a newcomer that trains")
    pid = newcomer()
    assert pid is not None
    ready = next(seconds for seconds, word in cluster.marks.read()[pid] if word == "ready")
    return cluster.marks.steps(pid)[0] - ready, stall_of(cluster, others, began, step)


def master_away(cluster: Cluster) -> float:
    """The master is killed and is back after two seconds: the stall beyond these."""
    assert isinstance(cluster, Elastane)
    pids = cluster.marks.training(STEPS_BEFORE)
    step, began = median_step(cluster), time.monotonic()
    cluster.restart_master(2.0)
    _until(lambda: len(cluster.marks.training(SETTLE_STEPS, began + 2.0)) == 3, "steps after the restart")
    return max(0.0, stall_of(cluster, pids, began, step) - 2.0)


def drain(cluster: Cluster) -> float:
    """A worker is told to leave: the stall of the others."""
    victim, *others = cluster.marks.training(STEPS_BEFORE)
    step, began = median_step(cluster), time.monotonic()
    cluster.drain(victim)
    _until(lambda: set(others) <= set(cluster.marks.training(SETTLE_STEPS, began + 0.2)), "steps without it")
    return stall_of(cluster, others, began, step)


def benchmark(args: argparse.Namespace, report: Report) -> None:
    repeats = 1 if args.quick else 3
    chosen = [name.strip() for name in args.frameworks.split(",")]
    for model in args.models.split(","):
        figures: dict[str, dict[str, list[float]]] = {}
        for number in range(repeats):
            for framework in chosen:
                slow = framework == "torchrun"
                for name, event in events(framework, args.quick and slow):
                    print(f"{model}, run {number + 1}: {framework}, {name}", file=sys.stderr)
                    with running(framework, model) as cluster:
                        outcome = event(cluster)
                    figures.setdefault(name, {}).setdefault(framework, []).append(outcome)
        report.rows += rows(model, figures)


def events(framework: str, few: bool) -> list[tuple[str, Callable[[Cluster], float]]]:
    """What is done to this framework; few: only the first."""
    all_events: list[tuple[str, Callable[[Cluster], float]]] = [("worker killed: stall", kill)]
    if few:
        return all_events
    if framework != "torchrun":
        all_events += [
            ("worker frozen: stall", freeze),
            ("newcomer: ready to first step", lambda cluster: join(cluster)[0]),
            ("newcomer: the others' stall", lambda cluster: join(cluster)[1]),
        ]
    if framework == "elastane":
        all_events += [("master killed, back after 2 s: stall beyond", master_away), ("drain: stall", drain)]
    return all_events


def rows(model: str, figures: dict[str, dict[str, list[float]]]) -> list[Row]:
    """Ours beside each peer that was measured."""
    targets = {"worker killed: stall": 0.3, "drain: stall": 0.1}
    found = []
    for name, by_framework in figures.items():
        if "elastane" not in by_framework:
            continue
        ours = Series(by_framework["elastane"], "s")
        case = f"{model}: {name}"
        peers = [peer for peer in by_framework if peer != "elastane"]
        target = targets.get(name)
        if target is not None or not peers:
            found.append(Row(case, ours, target=target, target_absolute=True))
        found += [Row(case, ours, Series(by_framework[peer], "s"), peer, target=1.0) for peer in peers]
    return found


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS:g} s for {what}")
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="which to run")
    parser.add_argument("--models", default="small,25m", help="small, 25m or both")


if __name__ == "__main__":
    run_benchmark("recovery", __doc__, benchmark, options)
