"""A real master in a thread of this process, whose every decision is watched."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from elastane_master.app import Master
from elastane_master.decisions.events import AnyEvent, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.servers import binding
from elastane_master.settings import MasterSettings
from elastane_proto.v1 import errors_pb2, job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc
from fuzz.templates import VICTIM, dataset_settings, job_settings

HELLO_SECONDS = 0.5
FAULTS_OF_OURS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
NOT_OURS = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


class WatchedMachine:
    """Wraps `JobMachine.handle`: what was refused, or not to be stored, must not have changed the state."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.decided = self.refused = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = JobMachine.handle

        def handle(machine: JobMachine, event: AnyEvent, now: float) -> Any:
            before = machine.snapshot()
            try:
                decision = original(machine, event, now)
            except Rejection:
                self.refused += 1
                if machine.snapshot() != before:
                    self.faults.append(f"a refused event changed the state: {event!r}")
                raise
            except Exception as error:
                self.faults.append(f"{error!r} from {event!r}")
                raise
            self.decided += 1
            if not decision.durable and machine.snapshot() != before:
                self.faults.append(f"an event that is not stored changed the state: {event!r}")
            return decision

        monkeypatch.setattr(JobMachine, "handle", handle)

    def check(self) -> None:
        """Raises what was found since the last check."""
        faults, self.faults = self.faults, []
        assert not faults, faults[0]


class FuzzedMaster:
    """A serving master and a channel to it. machine: watches the decisions. codes: of answers, by method."""

    def __init__(self, master: Master, loop: asyncio.AbstractEventLoop, machine: WatchedMachine) -> None:
        self.master, self.loop, self.machine = master, loop, machine
        self.codes: Counter[tuple[str, str]] = Counter()
        self.channel = grpc.insecure_channel(master.address)

    def check_error(
        self, method: str, error: Any, *, may_wait: bool = False
    ) -> errors_pb2.ErrorDetail | None:
        """Every error is typed, none is a fault of the master. may_wait: the call may outlast its caller."""
        code = error.code()
        self.machine.check()
        if code in NOT_OURS:
            assert may_wait, f"{method} did not answer"
            return None
        assert code not in FAULTS_OF_OURS, f"{method}: {code} {error.details()}"
        status = rpc_status.from_call(error)
        assert status is not None and status.details, f"{method}: {code} {error.details()} without details"
        detail = errors_pb2.ErrorDetail()
        assert status.details[0].Unpack(detail)
        assert detail.reason != errors_pb2.ERROR_REASON_UNSPECIFIED, f"{method}: {code} {error.details()}"
        return detail

    def check_alive(self) -> None:
        """It still answers, and nothing broke behind the answers."""
        self.machine.check()
        response = job_pb2_grpc.JobServiceStub(self.channel).Get(
            job_pb2.JobServiceGetRequest(name="job"), timeout=20
        )
        assert response.job.name == "job"

    def check_replay(self) -> None:
        """What is stored gives the live state of every job, and no log broke."""

        async def compare() -> None:
            hosts = self.master.jobs
            assert hosts is not None
            for host in hosts.all():
                assert host.log.failure is None, host.log.failure
                restored = JobMachine.restore(host.machine.snapshot())
                assert restored.snapshot() == host.machine.snapshot()

        asyncio.run_coroutine_threadsafe(compare(), self.loop).result(60)


@contextmanager
def fuzzed_master(folder: Path) -> Iterator[FuzzedMaster]:
    """A master with a job "job" of 2 ESTs and its dataset "tasks"."""
    patches, machine, loop = pytest.MonkeyPatch(), WatchedMachine(), asyncio.new_event_loop()
    machine.install(patches)
    patches.setattr(binding, "HELLO_SECONDS", HELLO_SECONDS)
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(120)

    async def started() -> Master:
        master = Master(MasterSettings(listen="127.0.0.1:0", state_dir=folder, stop_grace_seconds=0.5))
        await master.start()
        return master

    master = run(started())
    fuzzed = FuzzedMaster(master, loop, machine)
    try:
        for name in ("job", VICTIM):
            request = job_pb2.JobServiceCreateRequest(name=name, settings=job_settings())
            job_pb2_grpc.JobServiceStub(fuzzed.channel).Create(request)
        dataset = dataset_settings()
        shard_pb2_grpc.ShardServiceStub(fuzzed.channel).CreateDataset(
            shard_pb2.CreateDatasetRequest(job="job", dataset="tasks", settings=dataset)
        )
        yield fuzzed
    finally:
        fuzzed.channel.close()
        run(master.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        patches.undo()
