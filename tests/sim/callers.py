"""Unary callers: a worker that leases dynamic tasks, and the operator. Both repeat requests until answered.

The task client sometimes drops tasks, as if its process had died between lease and report, so that leases
expire. It never reports an error, so no task may become FAILED while attempts are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from elastane_proto.v1 import job_pb2, shard_pb2
from sim.checkers import Checkers
from sim.master_model import MasterModel
from sim.network import Ended, Network, call
from sim.process import Process
from sim.world import World

JOB, DATASET = "job", "evaluation"
TASKS, EPOCHS, TASK_SIZE = 30, 2, 4
BUDGET_IS_SPENT = "is spent"
RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED)


@dataclass(eq=False)
class Caller:
    """A process that makes unary calls to any master it can reach."""

    world: World
    network: Network
    checkers: Checkers
    masters: Callable[[], list[MasterModel]]
    name: str
    process: Process = field(init=False)
    number: int = 0

    def __post_init__(self) -> None:
        self.process = Process(self.world, self.name)

    def request_id(self) -> str:
        self.number += 1
        return f"{self.name}-{self.number}"

    async def ask(
        self,
        method: str,
        request: Any,
        patience_seconds: float = 1.0,
        *,
        may_be_wrong: bool = False,
        expected: str | None = None,
    ) -> Any:
        """Send a request, repeated while the master is away; return the response. Raises Ended if refused.

        expected: words of a refusal that is right.
        """
        while True:
            masters = self.masters()
            if masters:
                master = self.world.rng.choice(masters)
                try:
                    return await call(
                        self.network,
                        self.process,
                        master,
                        f"/elastane.v1.{method}",
                        request,
                        patience_seconds,
                    )
                except Ended as ended:
                    if ended.code not in RETRIED:
                        # A job that is over may have been deleted meanwhile, as it was one of too many.
                        is_deleted = ended.code == grpc.StatusCode.NOT_FOUND and master.deletes_jobs
                        is_expected = expected is not None and expected in str(ended)
                        if not may_be_wrong and not is_deleted and not is_expected:
                            self.checkers.refused_wrongly(f"{method} of {self.name}", ended)
                        raise
            await asyncio.sleep(self.world.rng.uniform(0.05, 0.5))


@dataclass(eq=False)
class TaskClient(Caller):
    """A worker in dynamic mode, which leases and reports tasks."""

    is_through: bool = False

    def start(self) -> None:
        self.process.spawn(self._run())

    async def _run(self) -> None:
        settings = shard_pb2.DatasetSettings(task_size=TASK_SIZE, epochs=EPOCHS, max_attempts=1000)
        settings.range.size = TASKS * TASK_SIZE - 1
        settings.lease.FromSeconds(2)
        create = shard_pb2.CreateDatasetRequest(
            job=JOB, dataset=DATASET, settings=settings, request_id=self.request_id()
        )
        while True:
            try:
                await self.ask("ShardService/CreateDataset", create)
                break
            except Ended:  # while the job is suspended
                await asyncio.sleep(1.0)
        rng, completed = self.world.rng, []
        while not self.is_through:
            request = shard_pb2.LeaseTasksRequest(
                job=JOB,
                dataset=DATASET,
                worker_id=self.name,
                completed=completed,
                max_tasks=rng.randint(1, 4),
                request_id=self.request_id(),
            )
            request.wait.FromMilliseconds(rng.choice((0, 500, 5000)))
            request.rng.python = request.request_id.encode()
            try:
                response = await self.ask("ShardService/LeaseTasks", request, rng.choice((0.3, 2.0, 10.0)))
            except Ended:  # refused while the job is suspended or failed
                await asyncio.sleep(1.0)
                continue
            got = [(task.epoch, task.index, task.attempt) for task in response.tasks]
            told = [(outcome.epoch, outcome.index, outcome.outcome) for outcome in response.outcomes]
            self.world.log(f"{request.request_id} is answered: tasks {got}, outcomes {told}")
            for outcome in response.outcomes:
                if outcome.outcome == shard_pb2.REPORT_OUTCOME_ACCEPTED:
                    self.checkers.task_acknowledged(outcome.epoch, outcome.index)
            if response.complete:
                self.checkers.dataset_complete(EPOCHS * TASKS)
            self.is_through = response.complete and not response.tasks
            forgets = rng.random() < 0.05
            done = () if forgets else response.tasks
            self.checkers.leased(self.name, list(response.tasks))
            completed = [
                shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
                for task in done
            ]
            await asyncio.sleep(rng.choice((0.01, 0.1, 0.5)))


@dataclass(eq=False)
class Registrar(Caller):
    """Makes datasets, and asks for tasks of each once it is made: no master may call it unknown."""

    def start(self, until: float) -> None:
        """Start, and make no more datasets after the time `until`."""
        self.process.spawn(self._run(until))

    async def _run(self, until: float) -> None:
        settings = shard_pb2.DatasetSettings(task_size=1)
        settings.stream.SetInParent()  # it has no tasks, so nothing is leased
        while self.world.now < until:
            name, made = f"stream-{self.number}", self.request_id()
            create = shard_pb2.CreateDatasetRequest(job=JOB, dataset=name, settings=settings, request_id=made)
            lease = shard_pb2.LeaseTasksRequest(job=JOB, dataset=name, worker_id=self.name, max_tasks=1)
            lease.wait.FromMilliseconds(0)
            try:
                await self.ask("ShardService/CreateDataset", create)
                for _ in range(3):
                    lease.request_id = self.request_id()
                    await self.ask("ShardService/LeaseTasks", lease)
            except Ended as ended:  # refused while the job is suspended or failed
                self.world.log(f"REGISTRAR is refused: {ended}")
            await asyncio.sleep(self.world.rng.choice((0.02, 0.2)))


@dataclass(eq=False)
class Operator(Caller):
    """An operator that changes the job repeatedly; checks at the end that the last scaling is in effect.

    scaled: by the last scaling that was acknowledged. in_doubt: by one that is not answered yet; it may have
    taken effect, and the job may end before the answer arrives. losses: of acknowledged writes, by the store.
    """

    scaled: tuple[int, int] | None = None
    in_doubt: tuple[int, int] | None = None
    losses: int = 0
    _queue: list[Callable[[], Any]] = field(default_factory=list)
    _asks: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing is left to ask for."""
        return not self._asks

    async def create(self, settings: job_pb2.JobSettings, name: str = JOB) -> None:
        """Create the job, or another one."""
        request = job_pb2.JobServiceCreateRequest(name=name, settings=settings, request_id=self.request_id())
        await self.ask("JobService/Create", request)

    def scale(self, low: int, high: int) -> None:
        async def ask() -> None:
            request = job_pb2.JobServiceScaleRequest(
                name=JOB, workers_min=low, workers_max=high, request_id=self.request_id()
            )
            self.in_doubt, losses = (low, high), self.losses
            try:
                await self.ask("JobService/Scale", request, may_be_wrong=True)
            except Ended as ended:
                # A pipeline's model may need more workers.
                if "the model needs the memory" not in str(ended):
                    self.checkers.refused_wrongly(f"JobService/Scale of {self.name}", ended)
                self.in_doubt = None
                return
            self.scaled, self.in_doubt = (low, high), None
            if self.losses != losses:  # the store may have lost it while the answer was on its way
                self.scale(low, high)

        self._submit(ask)

    def set_prices(self, spot: int, on_demand: int) -> None:
        request = job_pb2.JobServiceSetPricesRequest(
            name=JOB,
            spot_price_micros=spot,
            on_demand_price_micros=on_demand,
            request_id=self.request_id(),
        )
        self._submit(lambda: self.ask("JobService/SetPrices", request))

    def drain(self, worker: str) -> None:
        request = job_pb2.JobServiceDrainWorkerRequest(
            name=JOB, worker_id=worker, request_id=self.request_id()
        )
        self._submit(lambda: self.ask("JobService/DrainWorker", request, may_be_wrong=True))

    def suspend(self) -> None:
        request = job_pb2.JobServiceSuspendRequest(name=JOB, request_id=self.request_id())
        self._submit(lambda: self.ask("JobService/Suspend", request))

    def resume(self) -> None:
        async def ask() -> None:
            request = job_pb2.JobServiceResumeRequest(name=JOB, request_id=self.request_id())
            try:
                await self.ask("JobService/Resume", request, expected=BUDGET_IS_SPENT)
            except Ended as ended:
                if BUDGET_IS_SPENT not in str(ended):
                    raise
                raised = job_pb2.JobServiceScaleRequest(
                    name=JOB, scaling="budget=500", request_id=self.request_id()
                )
                await self.ask("JobService/Scale", raised)

        self._submit(ask)

    def checkpoint(self) -> None:
        request = job_pb2.JobServiceCheckpointRequest(name=JOB, request_id=self.request_id())

        async def ask() -> None:
            masters = self.masters()
            if masters:
                method = "/elastane.v1.JobService/Checkpoint"
                await call(self.network, self.process, self.world.rng.choice(masters), method, request, 5.0)

        self._submit(ask)

    def _submit(self, ask: Callable[[], Any]) -> None:
        self._queue.append(ask)
        if not self._asks:
            self._asks = True
            self.process.spawn(self._work())

    async def _work(self) -> None:
        while self._queue:
            try:
                await self._queue.pop(0)()
            except Ended as ended:
                self.world.log(f"OPERATOR is refused: {ended}")
        self._asks = False

    async def last_look(self) -> None:
        """Check that the last acknowledged scaling is in effect."""
        request = job_pb2.JobServiceGetRequest(name=JOB)
        job = (await self.ask("JobService/Get", request)).job
        found = job.settings.workers_min, job.settings.workers_max
        if self.scaled is not None and found not in (self.scaled, self.in_doubt):
            self.world.fail("no write lost", f"the job was scaled to {self.scaled} and has {found}")
