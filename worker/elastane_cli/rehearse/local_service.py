"""A training service on this machine (`elastane service`), whose master, runner and ranks can be killed.

As for a user, the service itself restarts processes that die, and the runner handles ranks for the master.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from elastane_agent.supervisor.guard import stop_store
from elastane_common.client import MasterClient
from elastane_common.credentials import speak_plainly
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess
from elastane_common.training_client import TrainingClient
from elastane_runner.launches import launch_of
from elastane_runner.process_records import EXIT, PROCESS, Identity, open_process, parents, read_record

_LOOK_SECONDS = 0.05
_STOP_SECONDS = 30.0

Part = Literal["master", "runner"]
_WORDS: Mapping[Part, bytes] = {"master": b"elastane_master", "runner": b"runner"}


class ServiceError(ElastaneError):
    """The local service did not reach the awaited state; the text holds the last lines of its log."""

    code = "ELA425"


class RankKey(NamedTuple):
    """Identifies a rank of a run."""

    run_id: int
    rank: int


class LocalService:
    """One service. Create it with `local_service`, which cleans up.

    folder: for its data and log. on_look: called at each poll while waiting; raises if there is nothing left
    to wait for. variables: further variables of the service, for its settings.
    """

    def __init__(self, folder: Path, slots: int, variables: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.log_path = folder.with_name(f"{folder.name}.log")
        self._slots = slots
        self._variables = dict(variables or {})
        self._process: ChildProcess | None = None
        self.address = ""
        self.on_look: Callable[[], None] = lambda: None
        self.client: MasterClient
        self.training: TrainingClient

    def start(self) -> None:
        """Start master and runner, and wait until the runner attends. Raises ServiceError."""
        command = [sys.executable, "-m", "elastane_cli", "service", "--state-dir", str(self.folder)]
        command += ["--listen", "127.0.0.1:0", "--slots", str(self._slots), "--on-stop", "stop"]
        # Variables of another service in the calling shell must not affect this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
        self._process = ChildProcess(
            "service",
            command,
            log=self.log_path,
            environment={**environment, **self._variables, "PYTHONUNBUFFERED": "1"},
            death_signal=signal.SIGTERM,
        )
        self._process.start()
        self.wait_for(lambda: bool(self._written_address()), "the master")
        self.address = self._written_address()
        speak_plainly(os.environ)
        self.client = MasterClient(self.address, timeout_seconds=60.0)
        self.training = TrainingClient(self.client)
        self.wait_for(self.attends, "the runner")

    def attends(self) -> bool:
        """True if the master answers and the runner is connected."""
        return any(runner.attends for runner in self.training.get_service().runners)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_seconds: float = 300.0) -> None:
        """Poll until the condition holds. what: for the error. Raises ServiceError, and as `on_look`."""
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            self.on_look()
            if self._process is None or self._process.status is not None:
                raise ServiceError(f"the service ended while {what} was awaited\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise ServiceError(f"waited for {timeout_seconds:g} s for {what}\n{self.last_lines()}")
            time.sleep(_LOOK_SECONDS)

    def kill(self, part: Part) -> None:
        """SIGKILL master or runner; return once a new process has replaced it, which may not serve yet."""
        before = self._processes(part)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        self.wait_for(lambda: bool(set(self._processes(part)) - set(before)), f"the next {part}")

    def ranks(self) -> dict[RankKey, Identity]:
        """Return the process of each running rank, as recorded by the runner's engine."""
        found = {}
        for file in (self.folder / "runner" / "engine").glob(f"runs/*/*/ranks/*/{PROCESS}"):
            record, launch = read_record(file), launch_of(file.parents[3].name)
            if record is None or launch is None or (file.parent / EXIT).exists():
                continue
            identity = Identity(*record["rank"])
            if (handle := open_process(identity)) is not None:
                os.close(handle)
                found[RankKey(launch.run_id, int(file.parent.name))] = identity
        return found

    def rank_of(self, pid: int) -> RankKey:
        """Return the rank to which a process belongs, or from which it descends. Raises ServiceError."""
        keys, above = {identity.pid: key for key, identity in self.ranks().items()}, parents()
        at = pid
        while at not in keys:
            if at not in above:
                raise ServiceError(f"process {pid} is of no rank\n{self.last_lines()}")
            at = above[at]
        return keys[at]

    def kill_rank(self, rank: RankKey) -> None:
        """SIGKILL the process of a rank; the service ends its children. Raises ServiceError."""
        identity = self.ranks().get(rank)
        handle = open_process(identity) if identity is not None else None
        if handle is None:
            raise ServiceError(f"rank {rank.rank} of run {rank.run_id} does not run\n{self.last_lines()}")
        with contextlib.closing(os.fdopen(handle)):
            signal.pidfd_send_signal(handle, signal.SIGKILL)

    def last_lines(self, count: int = 20) -> str:
        """Return the end of the service's log, for error messages."""
        try:
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return "(no log)"

    def close(self) -> None:
        """End the service, with all processes of runs and its store."""
        if self._process is None:
            return
        if hasattr(self, "client"):
            self.client.close()
        left = self.ranks()
        self._process.stop(_STOP_SECONDS)
        for part in _WORDS:  # left by a service that had to be killed
            for pid in self._processes(part):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for identity in {**left, **self.ranks()}.values():  # left by a runner that was just killed
            if (handle := open_process(identity)) is not None:
                with contextlib.closing(os.fdopen(handle)), contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        stop_store(self.folder, _STOP_SECONDS)

    def _written_address(self) -> str:
        try:
            return (self.folder / "address").read_text().strip()
        except FileNotFoundError:
            return ""

    def _processes(self, part: Part) -> list[int]:
        """Return the processes of this service that are its master or its runner."""
        marks = (_WORDS[part], os.fsencode(self.folder))
        return [pid for pid in parents() if _is_ours(pid, *marks)]


def _is_ours(pid: int, word: bytes, folder: bytes) -> bool:
    """True if a process is Python running the module or command `word` for this folder."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return word in words[1:5] and any(one in (folder, folder + b"/runner") for one in words)


@contextmanager
def local_service(
    folder: Path, slots: int, variables: Mapping[str, str] | None = None
) -> Iterator[LocalService]:
    """Yield a started service; at the end of the block all its processes are gone."""
    service = LocalService(folder, slots, variables)
    try:
        service.start()
        yield service
    finally:
        service.close()
