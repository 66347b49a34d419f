"""Parameter servers and workers as processes, at a master of this process."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from elastane.slots.connection import PsConnection
from elastane.slots.frames import Inspect, Inspected
from elastane.slots.map_message import map_from_proto
from elastane_common.client import MasterClient
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_proto.v1 import job_pb2, ps_pb2, ps_pb2_grpc
from elastane_slots.held_slots import SlotRecord
from integration.forked_cli import FIXED_VARIABLES

SCRIPT = Path(__file__).parent / "scripts" / "push_tasks.py"
HALTING = SCRIPT.with_name("halting_ps.py")
WAIT_SECONDS = 120.0


@dataclass
class PsRun:
    """A job "job". script: arguments of push_tasks.py."""

    address: str
    folder: Path
    script: list[str]
    processes: dict[str, ChildProcess] = field(default_factory=dict)
    workers: dict[str, ChildProcess] = field(default_factory=dict)

    def create(self, **settings: Any) -> None:
        seconds = {name: settings.pop(name, value) for name, value in (("snapshot", 1.0), ("back", 0.3))}
        wanted = job_pb2.JobSettings(ests=1, checkpoint_url=str(self.folder / "checkpoints"), **settings)
        wanted.ps_snapshot.FromNanoseconds(int(seconds["snapshot"] * 1e9))
        wanted.ps_return.FromNanoseconds(int(seconds["back"] * 1e9))
        with MasterClient(self.address) as client:
            client.create_job("job", wanted)

    def start_ps(self, ps_id: str, halts: str = "") -> None:
        """Start a process. halts: where it stands still, see `halting_ps.py`."""
        environment = self._environment(ELASTANE_PS_ID=ps_id, ELASTANE_LOG_LEVEL="warning")
        environment |= {"HALT_AT": halts, "HALT_FILE": str(self.halt_file)}
        command = [str(HALTING)] if halts else ["-m", "elastane_ps"]
        self.processes[ps_id] = _started(ps_id, [sys.executable, *command], environment)

    @property
    def halt_file(self) -> Path:
        return self.folder / "halted"

    def halted(self) -> None:
        """Wait until a process stands still."""
        waited = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.02)):
            if self.halt_file.exists():
                return
            waited.wait(0.02)
        raise AssertionError("nobody stands still")

    def start_worker(self, worker_id: str) -> None:
        out = self.folder / "out"
        out.mkdir(exist_ok=True)
        environment = self._environment(
            ELASTANE_WORKER_ID=worker_id, ELASTANE_ESTS="1", ELASTANE_MODE="elastic"
        )
        command = [sys.executable, str(SCRIPT), "--out", str(out), *self.script]
        self.workers[worker_id] = _started(worker_id, command, environment)

    def kill_ps(self, ps_id: str) -> None:
        _killed(self.processes[ps_id])

    def kill_worker(self, worker_id: str) -> None:
        _killed(self.workers[worker_id])

    def wait(self, worker_id: str) -> int:
        status = self.workers[worker_id].wait(WAIT_SECONDS)
        assert status is not None, f"{worker_id} does not end"
        return status.returncode

    def result(self, worker_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "out" / f"{worker_id}.json").read_text())
        return found

    def until(self, holds: Callable[[ps_pb2.GetSlotsResponse], bool]) -> ps_pb2.GetSlotsResponse:
        """Wait until the master's answer about slots meets a condition."""
        waited = threading.Event()
        with grpc.insecure_channel(self.address) as channel:
            stub = ps_pb2_grpc.SlotServiceStub(channel)
            for _ in range(int(WAIT_SECONDS / 0.05)):
                found: ps_pb2.GetSlotsResponse = stub.GetSlots(ps_pb2.GetSlotsRequest(job="job"))
                if holds(found):
                    return found
                waited.wait(0.05)
        raise AssertionError(found)

    def settled(self, copies: int = 1) -> None:
        self.until(
            lambda found: (
                bool(found.map.places)
                and all(
                    p.owner and not p.restoring and not p.begun and bool(p.backup) == (copies == 2)
                    for p in found.map.places
                )
            )
        )

    def saved(self) -> None:
        """Wait until there is a snapshot of every slot."""
        self.until(lambda found: len(found.snapshots) == len(found.map.places))

    def done(self) -> int:
        with MasterClient(self.address) as client:
            return sum(one.epoch * one.total + one.done for one in client.get_progress("job"))

    def done_reaches(self, count: int) -> None:
        waited = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.02)):
            if self.done() >= count:
                return
            waited.wait(0.02)
        raise AssertionError(f"{self.done()} tasks are done")

    def applied(self, dataset: str = "clicks") -> list[set[tuple[int, int]]]:
        """(epoch, task) of a data set that each slot has applied."""
        with grpc.insecure_channel(self.address) as channel:
            stub = ps_pb2_grpc.SlotServiceStub(channel)
            call = stub.WatchMap(ps_pb2.WatchMapRequest(job="job", worker_id="test"))
            told = map_from_proto(next(iter(call)).map)
            call.cancel()
        owners = {place.owner for place in told.map.places}
        connections = {owner: PsConnection(*told.addresses[owner], encrypted=False) for owner in owners}
        found = []
        for slot, place in enumerate(told.map.places):
            inspected = connections[place.owner].send(Inspect(slot)).result(WAIT_SECONDS).header
            assert isinstance(inspected, Inspected) and inspected.record
            runs = SlotRecord.decode(inspected.record, since=0).applied.runs()
            own = [run for run in runs if run.dataset == dataset]
            found.append({(run.epoch, task) for run in own for task in range(run.start, run.end)})
        for connection in connections.values():
            connection.close()
        return found

    def close(self) -> None:
        for process in [*self.workers.values(), *self.processes.values()]:
            _killed(process)

    def _environment(self, **variables: str) -> dict[str, str]:
        own = {"ELASTANE_MASTER": self.address, "ELASTANE_JOB": "job", **variables}
        # With the variables of other tests' workers the same servers fork them.
        return {**os.environ, **FIXED_VARIABLES, "ELASTANE_MASTER_TIMEOUT_SECONDS": "60", **own}


def _started(name: str, command: list[str], environment: dict[str, str]) -> ChildProcess:
    def show(name: str, stream: str, line: str) -> None:
        print(f"[{name}] {line}")

    child = ChildProcess(name, command, environment=environment, on_line=show)
    child.start()
    return child


def _killed(child: ChildProcess) -> None:
    if child.status is None:
        child.kill_group()
        child.wait()


@contextmanager
def ps_run(address: str, folder: Path, script: list[str]) -> Iterator[PsRun]:
    run = PsRun(address, folder, script)
    try:
        yield run
    finally:
        run.close()


def plain(folder: Path, script: list[str]) -> dict[str, Any]:
    """The result of the same script alone."""
    out = folder / "plain"
    out.mkdir()
    variables = os.environ | FIXED_VARIABLES
    environment = {name: value for name, value in variables.items() if not name.startswith("ELASTANE_")}
    child = _started("plain", [sys.executable, str(SCRIPT), "--out", str(out), *script], environment)
    assert child.wait(WAIT_SECONDS) == ExitStatus(0)
    found: dict[str, Any] = json.loads((out / "plain.json").read_text())
    return found
