"""The training services that benchmarks/training_service.py compares: ours, and Ray's jobs on a head node."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc
from peers import peer_python
from servers import SCRIPTS

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common.processes.child import ChildProcess
from elastane_proto.v1 import training_pb2, training_pb2_grpc

INTERPRETER = [str(Path(sys.executable).resolve()), "-I"]
"""Environment of every run and job: the same on all sides, without the environment's start files."""

GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL, on both sides."""

PATIENCE_SECONDS = 60.0
RAY_PORTS = (
    "",
    "dashboard-agent-listen-",
    "dashboard-agent-grpc-",
    "runtime-env-agent-",
    "metrics-export-",
    "ray-client-server-",
)
"""Port options of a head: free ports, because fixed ones may still be in use by the previous head."""
T = TypeVar("T")


def timed_run(mode: str, *arguments: object) -> list[str]:
    """Return the command of a script that records when it runs."""
    return [*INTERPRETER, str(SCRIPTS / "timed_run.py"), mode, *map(str, arguments)]


def until(found: Callable[[], T | None], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """Call `found` every millisecond until it returns a value, and return that. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while (result := found()) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.001)
    return result


def written(path: Path) -> list[float]:
    """Wait for the numbers that a script writes, and return them."""
    return until(lambda: [*map(float, path.read_text().split())] if path.exists() else None, path.name)


class TrainingService(Protocol):
    """Interface to either service. Jobs and runs have string names."""

    name: str

    def submit(self, command: Sequence[str]) -> str:
        """Submit a command that takes one slot; return its name."""
        ...

    def cancel(self, job: str) -> None: ...

    def log_delays(self, job: str, lines: int) -> list[float]:
        """Follow the log of a job; return the delay of each line that says when it was printed."""
        ...


# ---------------------------------------------------------------- ours


class Ours:
    """A master with a private store, and a runner. slots: 0: no runner."""

    name = "Elastane"

    def __init__(self, folder: Path, slots: int) -> None:
        self.master = EmbeddedMaster(folder / "state", arguments=["--log-level", "warning"])
        self.master.start()
        self.folder, self.slots = folder, slots
        self._channel = grpc.insecure_channel(self.master.address)
        self.stub = training_pb2_grpc.TrainingServiceStub(self._channel)
        self.runner: ChildProcess | None = None
        if slots:
            self.start_runner()
            until(lambda: self.attending() or None, "the runner")

    def start_runner(self) -> None:
        command = [sys.executable, "-m", "elastane_cli", "runner", "--master", self.master.address]
        command += ["--folder", str(self.folder / "runner"), "--slots", str(self.slots), "--name", "r1"]
        self.runner = ChildProcess("runner", command, log=self.folder / "runner.log")
        self.runner.start()

    def kill_runner(self) -> None:
        assert self.runner is not None
        self.runner.signal(signal.SIGKILL)
        self.runner.wait()

    def service(self) -> training_pb2.TrainingServiceGetServiceResponse:
        return self.stub.GetService(training_pb2.TrainingServiceGetServiceRequest())

    def attending(self) -> bool:
        return any(runner.attends for runner in self.service().runners)

    def submit(self, command: Sequence[str]) -> str:
        spec = training_pb2.RunSpec(
            output_model_name="m",
            framework=training_pb2.FRAMEWORK_PLAIN,
            code=training_pb2.CodeRef(installed=True),
            command=command,
            retries_max=0,
        )
        spec.grace.FromMilliseconds(int(GRACE_SECONDS * 1000))
        return str(self.stub.Train(training_pb2.TrainingServiceTrainRequest(spec=spec)).run.run_id)

    def get(self, run_id: int) -> training_pb2.Run:
        return self.stub.Get(training_pb2.TrainingServiceGetRequest(run_id=run_id)).run

    def cancel(self, job: str) -> None:
        self.stub.Cancel(training_pb2.TrainingServiceCancelRequest(run_id=int(job)))

    def log_delays(self, job: str, lines: int) -> list[float]:
        delays: list[float] = []
        rest = b""
        request = training_pb2.TrainingServiceStreamLogsRequest(run_id=int(job), follow=True)
        for chunk in self.stub.StreamLogs(request):
            now = time.monotonic()
            *whole, rest = (rest + chunk.data).split(b"\n")
            delays += [now - float(line.split()[1]) for line in whole if line.startswith(b"at ")]
            if len(delays) >= lines:
                break
        return delays

    def ids(self) -> set[int]:
        """Return the ids of all runs, read page by page."""
        found: set[int] = set()
        request = training_pb2.TrainingServiceListRequest(page_size=1000)
        while True:
            page = self.stub.List(request)
            found.update(run.run_id for run in page.runs)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def restart_master(self, *, with_store: bool) -> float:
        """SIGKILL the master (and its store), start it again at once; return the seconds until it answers."""
        store = int((self.master.state_dir / "store" / "server.pid").read_text())
        began = time.monotonic()
        self.master.sigkill()
        if with_store:
            os.kill(store, signal.SIGKILL)
        self.master.wait()
        self.master.start()
        self._channel.close()
        self._channel = grpc.insecure_channel(self.master.address)
        self.stub = training_pb2_grpc.TrainingServiceStub(self._channel)
        until(self._answers, "the master")
        return time.monotonic() - began

    def _answers(self) -> bool | None:
        try:
            return self.get(1).run_id == 1
        except grpc.RpcError:
            return None

    def close(self) -> None:
        self._channel.close()
        if self.runner is not None:
            self.runner.stop(10.0)
        end_all(f"{self.folder}/runner/engine/".encode(), "cmdline")
        self.master.stop()


@contextlib.contextmanager
def ours(slots: int) -> Iterator[Ours]:
    """Context manager: runs our service, and removes all of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        service = Ours(Path(name), slots)
        try:
            yield service
        finally:
            service.close()


# ---------------------------------------------------------------- Ray


class Ray:
    """A Ray head with one CPU for each slot, and its own job client.

    It replaces a loopback address by the machine's own, and listens there.
    Without an external Redis, which is its default, a head keeps its jobs in memory.
    """

    name = "Ray"

    def __init__(self, folder: Path, slots: int) -> None:
        self._python = peer_python("ray")
        self.folder, self._slots = folder, slots
        self._mark = uuid.uuid4().hex
        self._port = free_port()
        self._start()
        self._client = subprocess.Popen(
            [self._python, str(SCRIPTS / "ray_jobs.py"), f"http://127.0.0.1:{self._port}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._client.stdout is not None
        if self._client.stdout.readline().strip() != "ready":
            self.end()
            raise RuntimeError("Ray's client of jobs did not start")

    def _start(self) -> None:
        command = [str(Path(self._python).with_name("ray")), "start", "--head", "--disable-usage-stats"]
        command += ["--node-ip-address=127.0.0.1", f"--num-cpus={self._slots}"]
        command += [f"--{name}port={free_port()}" for name in RAY_PORTS]
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={self._port}"]
        command += [f"--temp-dir={self.folder}", "--object-store-memory=100000000"]
        with (self.folder / "start.log").open("ab") as log:
            subprocess.run(command, env=self._environment(), stdout=log, stderr=log, check=True)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "BENCH_MARK": self._mark,
            "RAY_JOB_STOP_WAIT_TIME_S": f"{GRACE_SECONDS:g}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
        }

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request to the client; return its answer."""
        client = self._client
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(json.dumps({"do": do, **request}) + "\n")
        client.stdin.flush()
        if not select.select([client.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise TimeoutError(f"Ray's client of jobs did not answer to {do} within {PATIENCE_SECONDS:g} s")
        answer = client.stdout.readline()
        if not answer:
            raise RuntimeError(f"Ray's client of jobs ended during {do}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def submit(self, command: Sequence[str]) -> str:
        return str(self.ask("submit", command=" ".join(command))["job"])

    def cancel(self, job: str) -> None:
        self.ask("stop", job=job)

    def log_delays(self, job: str, lines: int) -> list[float]:
        delays: list[float] = self.ask("tail", job=job, lines=lines)["delays"]
        return delays

    def restart(self) -> float:
        """SIGKILL all of the head, start it again at once; return the seconds until it answers."""
        began = time.monotonic()
        self._kill()
        self._start()
        self.ask("count")
        return time.monotonic() - began

    def _kill(self) -> None:
        end_all(f"BENCH_MARK={self._mark}".encode(), "environ")

    def end(self) -> None:
        """End all processes and remove all files."""
        self._kill()
        self._client.kill()
        self._client.wait()


@contextlib.contextmanager
def ray(slots: int) -> Iterator[Ray]:
    """Context manager: runs Ray's head, and removes all of it afterwards."""
    # The paths of its sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name:
        service = Ray(Path(name), slots)
        try:
            service.ask("accepting")
            yield service
        finally:
            service.end()


# ---------------------------------------------------------------- processes


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def marked(mark: bytes, where: str) -> list[int]:
    """Return processes with a word in command line or environment (`where`) that starts with `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if any(word.startswith(mark) for word in (entry / where).read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def end_all(mark: bytes, where: str) -> None:
    """SIGKILL the processes with the mark, until there are none."""
    while pids := [pid for pid in marked(mark, where) if _lives(pid)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    """Return False for a process that has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def seconds_until_gone(pids: Sequence[int], began: float, at_most: float) -> float:
    """Return the seconds from `began` until all these processes have ended. Raises TimeoutError."""
    handles = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(pid))
    try:
        while handles:
            ready, _, _ = select.select(handles, [], [], max(0.0, began + at_most - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{len(handles)} processes are left after {at_most:g} s")
            for handle in ready:
                os.close(handle)
                handles.remove(handle)
        return time.monotonic() - began
    finally:
        for handle in handles:
            os.close(handle)
