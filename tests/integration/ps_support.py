"""A worker that pushes by frames, as the tests' own client of parameter servers at a real master."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import grpc

from elastane.slots.map_message import map_from_proto
from elastane.tables.spec import ModelSpec
from elastane.tables.spec_proto import to_proto
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ps_pb2, ps_pb2_grpc, shard_pb2, shard_pb2_grpc
from elastane_slots.slot_map import SlotMap
from unit.ps.cluster import DIGEST, Returned, Worker
from unit.tables.models import small

SPEC = small(slots=8, rows=300)
DATASET = "clicks"
WAIT_SECONDS = 60.0


class PushingJob:
    """A job with a data set "clicks" at a master. What `Worker` needs of a master: the newest map."""

    #: The master of these tests is reached in clear, and so are its parameter servers.
    encrypted = False

    def __init__(self, address: str, name: str = "job", spec: ModelSpec = SPEC) -> None:
        self.address, self.name, self.spec = address, name, spec
        self._channel = grpc.insecure_channel(address)
        self.slots = ps_pb2_grpc.SlotServiceStub(self._channel)
        self.shards = shard_pb2_grpc.ShardServiceStub(self._channel)
        self.changed = threading.RLock()
        self.map = SlotMap.empty(spec.slots)
        self.addresses: dict[str, tuple[str, bytes]] = {}
        self._requests = 0

    def create(self, folder: Path, copies: int) -> None:
        """The job itself, where no agent creates it."""
        settings = job_pb2.JobSettings(
            ests=1,
            checkpoint_url=str(folder / "checkpoints"),
            ps_slots=self.spec.slots,
            ps_replicas=copies - 1,
        )
        settings.return_grace.FromSeconds(5)
        settings.ps_return.FromNanoseconds(200_000_000)
        settings.ps_snapshot.FromNanoseconds(300_000_000)
        request = job_pb2.JobServiceCreateRequest(name=self.name, settings=settings)
        job_pb2_grpc.JobServiceStub(self._channel).Create(request)

    def open(self, tasks: int, max_attempts: int = 0) -> None:
        """The data set and the model."""
        dataset = shard_pb2.DatasetSettings(
            range=shard_pb2.RangeSource(size=10 * tasks), task_size=10, pushes=True, max_attempts=max_attempts
        )
        self.shards.CreateDataset(
            shard_pb2.CreateDatasetRequest(job=self.name, dataset=DATASET, settings=dataset)
        )
        model = to_proto(self.spec, dense_digest=DIGEST)
        self.slots.RegisterModel(ps_pb2.RegisterModelRequest(job=self.name, worker_id="w", model=model))

    def get(self) -> ps_pb2.GetSlotsResponse:
        return self.slots.GetSlots(ps_pb2.GetSlotsRequest(job=self.name))

    def until(self, holds: Callable[[ps_pb2.GetSlotsResponse], bool]) -> ps_pb2.GetSlotsResponse:
        waited = threading.Event()
        for _ in range(int(WAIT_SECONDS / 0.05)):
            if holds(found := self.get()):
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

    def refresh(self) -> None:
        call = self.slots.WatchMap(ps_pb2.WatchMapRequest(job=self.name, worker_id="w"))
        told = map_from_proto(next(iter(call)).map)
        call.cancel()
        self.map, self.addresses = told.map, told.addresses

    def lease(self, reports: list[shard_pb2.TaskReport]) -> shard_pb2.LeaseTasksResponse:
        self._requests += 1
        request = shard_pb2.LeaseTasksRequest(
            job=self.name,
            dataset=DATASET,
            worker_id="w",
            completed=reports,
            max_tasks=1,
            request_id=f"r{self._requests}",
        )
        request.wait.FromSeconds(5)
        return self.shards.LeaseTasks(request)

    def train(self, worker: Worker, between: Callable[[], None] = lambda: None) -> None:
        """Do tasks until the data set is complete. between: called before each."""
        reports: list[shard_pb2.TaskReport] = []
        while True:
            answer = self.lease(reports)
            if answer.complete:
                return
            reports = []
            for task in answer.tasks:
                between()
                reports.append(self.push(worker, task))

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
        self._channel.close()


class MapWorker(Worker):
    """Asks the real master for the map."""

    def refresh(self) -> None:
        self.master.refresh()  # type: ignore[attr-defined]
        super().refresh()
