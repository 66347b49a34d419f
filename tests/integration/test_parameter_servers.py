"""Parameter servers at a real master: a worker pushes while they come, die and leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from elastane.slots.map_message import map_from_proto
from elastane.tables.spec_proto import to_proto
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ps_pb2, ps_pb2_grpc, shard_pb2, shard_pb2_grpc
from elastane_ps.environment import PsEnvironment
from elastane_ps.process import PsProcess
from elastane_slots.slot_map import SlotMap
from integration.master_support import serving_master
from unit.ps.cluster import DIGEST, Returned, Worker
from unit.tables.models import small

SPEC = small(slots=8, rows=300)
TASKS = 30
WAIT_SECONDS = 60.0


class Job:
    """A job "job" with a data set "clicks" at a master, and its parameter servers. What `Worker` needs of a
    master: the newest map."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address, self.folder, self.spec = address, folder, SPEC
        self._channel = grpc.insecure_channel(address)
        self.slots = ps_pb2_grpc.SlotServiceStub(self._channel)
        self.shards = shard_pb2_grpc.ShardServiceStub(self._channel)
        self.processes: dict[str, PsProcess] = {}
        self.ended: dict[str, Future[int]] = {}
        self._threads = ThreadPoolExecutor(16)
        self.changed = threading.RLock()
        self.map = SlotMap.empty(SPEC.slots)
        self.addresses: dict[str, tuple[str, bytes]] = {}
        self._requests = 0

    def create(self, copies: int) -> None:
        settings = job_pb2.JobSettings(
            ests=1,
            checkpoint_url=str(self.folder / "checkpoints"),
            ps_slots=SPEC.slots,
            ps_replicas=copies - 1,
        )
        settings.return_grace.FromSeconds(5)
        settings.ps_return.FromNanoseconds(200_000_000)
        settings.ps_snapshot.FromNanoseconds(300_000_000)
        request = job_pb2.JobServiceCreateRequest(name="job", settings=settings)
        job_pb2_grpc.JobServiceStub(self._channel).Create(request)
        dataset = shard_pb2.DatasetSettings(
            range=shard_pb2.RangeSource(size=10 * TASKS), task_size=10, pushes=True
        )
        self.shards.CreateDataset(
            shard_pb2.CreateDatasetRequest(job="job", dataset="clicks", settings=dataset)
        )
        model = to_proto(SPEC, dense_digest=DIGEST)
        self.slots.RegisterModel(ps_pb2.RegisterModelRequest(job="job", worker_id="w", model=model))

    def start(self, ps_id: str) -> None:
        process = PsProcess(PsEnvironment(master=self.address, job="job", ps_id=ps_id))
        self.processes[ps_id] = process
        self.ended[ps_id] = self._threads.submit(process.run)

    def get(self) -> ps_pb2.GetSlotsResponse:
        return self.slots.GetSlots(ps_pb2.GetSlotsRequest(job="job"))

    def until(self, holds: Callable[[ps_pb2.GetSlotsResponse], bool]) -> ps_pb2.GetSlotsResponse:
        waited = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.05)):
            if holds(found := self.get()):
                return found
            waited.wait(0.05)
        raise AssertionError(found)

    def settled(self, copies: int = 1) -> None:
        self.until(
            lambda found: all(
                p.owner and not p.restoring and not p.begun and bool(p.backup) == (copies == 2)
                for p in found.map.places
            )
        )

    def refresh(self) -> None:
        call = self.slots.WatchMap(ps_pb2.WatchMapRequest(job="job", worker_id="w"))
        told = map_from_proto(next(iter(call)).map)
        call.cancel()
        self.map, self.addresses = told.map, told.addresses

    def train(self, worker: Worker) -> None:
        """Do tasks until the data set is complete."""
        reports: list[shard_pb2.TaskReport] = []
        while True:
            self._requests += 1
            request = shard_pb2.LeaseTasksRequest(
                job="job",
                dataset="clicks",
                worker_id="w",
                completed=reports,
                max_tasks=1,
                request_id=f"r{self._requests}",
            )
            request.wait.FromSeconds(5)
            answer = self.shards.LeaseTasks(request)
            if answer.complete:
                return
            reports = [self.push(worker, task) for task in answer.tasks]

    def push(self, worker: Worker, task: shard_pb2.Task) -> shard_pb2.TaskReport:
        report = shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
        self.refresh()
        worker.refresh()
        try:
            report.lives_sum = worker.push(task.index, task.lease, worker.pull(task.index, task.lease))
        except Returned:
            report.returned, report.error = True, "a slot was restored"
        return report

    def close(self) -> None:
        for process in self.processes.values():
            process.die()
        self._threads.shutdown()
        self._channel.close()


class MapWorker(Worker):
    """Asks the real master for the map."""

    def refresh(self) -> None:
        self.master.refresh()  # type: ignore[attr-defined]
        super().refresh()


def scenario(address: str, folder: Path, copies: int) -> None:
    job = Job(address, folder)
    try:
        job.create(copies)
        for number in range(2):
            job.start(f"ps-{number}")
        job.settled(copies)
        job.refresh()
        worker = MapWorker(job)  # type: ignore[arg-type]
        worker.initialise()
        with ThreadPoolExecutor(1) as pool:
            trained = pool.submit(job.train, worker)
            for event in faults(job, copies):
                if trained.done():
                    break
                event()
            trained.result()
        worker.refresh()
        assert worker.applied() == [set(range(TASKS))] * SPEC.slots
        found = job.get()
        assert not found.gate.outstanding and not found.gate.returned
        if copies == 2:
            assert not any(place.life for place in found.map.places)
        worker.close()
    finally:
        job.close()


def faults(job: Job, copies: int) -> Iterator[Callable[[], None]]:
    pause = threading.Event()
    yield lambda: pause.wait(0.5) and None
    yield lambda: job.start("ps-2")
    yield lambda: job.settled(copies)
    yield lambda: job.processes["ps-0"].die()
    yield lambda: job.settled(copies)
    yield lambda: job.start("ps-3")
    yield lambda: job.settled(copies)
    yield lambda: job.processes["ps-1"].leave("asked")
    yield lambda: job.ended["ps-1"].result(WAIT_SECONDS) and None


@pytest.mark.parametrize("copies", [1, 2])
async def test_every_task_is_applied_once(tmp_path: Path, copies: int) -> None:
    async with serving_master(tmp_path / "state") as (master, _):
        address = master.address
        await asyncio.to_thread(scenario, address, tmp_path, copies)
