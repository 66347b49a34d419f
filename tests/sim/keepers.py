"""Callers that make a job, end it, and look that it stays what it was, until they delete it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from elastane_proto.v1 import job_pb2, ring_pb2, shard_pb2
from sim.callers import Caller
from sim.master_model import MasterModel
from sim.network import Ended, Stream

DATASET, TASKS = "work", 3
STAYS_SECONDS_MAX = 2.0


@dataclass(eq=False)
class Keeper(Caller):
    """Makes a job, ends it, and looks that it stays what it was. Asks for one thing at a time.

    made: by this caller; else it is there, and its operator may still change its prices. shown: the job as
    the last answer told of it, less what may differ. tasks: committed ones. finished: says how many jobs may
    be over.
    """

    job: str = ""
    made: bool = True
    tasks: int = 0
    deletes: bool = False
    newest: float = math.inf
    finished: Callable[[], int] = lambda: 0
    shown: job_pb2.Job | None = None
    is_over: bool = False
    is_gone: bool = False

    # ------------------------------------------------------------------ its life

    async def make(self) -> None:
        """While nothing goes wrong: a creation that arrives late could make a deleted job again."""
        if self.made:
            await self._create()
            settings = shard_pb2.DatasetSettings(task_size=1, max_attempts=1000)
            settings.range.size = TASKS
            settings.lease.FromSeconds(60)
            create = shard_pb2.CreateDatasetRequest(job=self.job, dataset=DATASET, settings=settings)
            create.request_id = self.request_id()
            await self.asked("ShardService/CreateDataset", create)
        else:
            self.is_over = True
            self.shown = self._shown((await self.asked("JobService/Get", self._get())).job)

    async def live(self, rng: random.Random) -> None:
        """Ends the job, then asks for it and about it."""
        await asyncio.sleep(rng.uniform(0.0, 2.0))
        if self.made:
            await self._work()
            await self._cancel()
        acts = [self.look, self._look_through, self.read, self._reprice]
        if not self.deletes:
            acts.append(self._create)
        for _ in range(rng.randint(3, 7)):
            await asyncio.sleep(rng.choice((0.05, 0.6, 1.5)))
            await rng.choice(acts)()
        if self.deletes:
            await self._delete()
            await self.look()

    async def _work(self) -> None:
        completed: list[shard_pb2.TaskReport] = []
        while True:
            request = shard_pb2.LeaseTasksRequest(job=self.job, dataset=DATASET, worker_id=self.name)
            request.completed.extend(completed)
            request.max_tasks, request.request_id = TASKS, self.request_id()
            response = await self.asked("ShardService/LeaseTasks", request)
            if response.complete:
                self.tasks = TASKS
                return
            completed = [
                shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
                for task in response.tasks
            ]

    async def _cancel(self) -> None:
        self.is_over = True  # as of now, perhaps
        request = job_pb2.JobServiceCancelRequest(name=self.job, request_id=self.request_id())
        response = await self.asked("JobService/Cancel", request)
        if response is not None:
            self.shown = self._shown(response.job)
            if response.job.phase != job_pb2.JOB_PHASE_CANCELLED:
                self._broken("not lost", f"was cancelled, and is told of in phase {response.job.phase}")

    async def _delete(self) -> None:
        request = job_pb2.JobServiceDeleteRequest(name=self.job, request_id=self.request_id())
        if self.is_gone:
            return
        await self.asked("JobService/Delete", request)
        self.world.log(f"job {self.job} is deleted")
        self.is_gone = True

    # ------------------------------------------------------------------ what it asks for

    async def look(self) -> None:
        """What Get says."""
        response = await self.asked("JobService/Get", self._get())
        if response is not None:
            self.compare(response.job)

    async def _look_through(self) -> None:
        listed = (await self.asked("JobService/List", job_pb2.JobServiceListRequest())).jobs
        found = [job for job in listed if job.name == self.job]
        if found:
            self.compare(found[0])
        else:
            self.missing("List")

    async def _create(self) -> None:
        """Creates it, or finds it as it is."""
        settings = job_pb2.JobSettings(ests=1)
        request = job_pb2.JobServiceCreateRequest(name=self.job, settings=settings)
        request.request_id = self.request_id()
        if not self.made or self.is_gone or (self.is_over and math.isfinite(self.newest)):
            return  # it would be made again, rightly
        response = await self.asked("JobService/Create", request)
        if self.shown is None:
            return
        if response.created:
            self._broken("not lost", "was over, and could be created anew")
        self.compare(response.job)

    async def _reprice(self) -> None:
        """Changes a finished job: what was recorded of it is void."""
        if not self.made:
            return
        request = job_pb2.JobServiceSetPricesRequest(name=self.job, request_id=self.request_id())
        request.spot_price_micros = self.number
        response = await self.asked("JobService/SetPrices", request)
        if response is not None:
            if response.job.settings.spot_price_micros != self.number:
                self._broken("not lost", f"got the price {self.number} and has another")
            self.shown = self._shown(response.job)

    async def read(self) -> None:
        """What is in no record: its committed tasks."""
        if not self.made or self.is_gone:
            return
        request = shard_pb2.GetAuditLogRequest(job=self.job, page_size=1000)
        response = await self.asked("ShardService/GetAuditLog", request)
        if response is None:
            return
        done = [(entry.epoch, entry.step) for entry in response.entries]
        if len(set(done)) < len(done):
            self._broken("not served twice", f"committed {done}")
        if len(done) != self.tasks:
            self._broken("not lost", f"has {len(done)} of {self.tasks} commits")

    def compare(self, job: job_pb2.Job) -> None:
        """An answer tells of the job."""
        if self.is_gone:
            self._broken("not resurrected", f"was deleted, and is there in phase {job.phase}")
        elif self.shown is not None and self._shown(job) != self.shown:
            how = "its record" if job.HasField("closed") else "the open job"
            now, then = (" ".join(str(one).split()) for one in (self._shown(job), self.shown))
            self._broken("not lost", f"is another one by {how}: {now}; it was {then}")

    def missing(self, what: str) -> None:
        if not self.is_gone and self.is_over and self.finished() > self.newest:
            self.is_gone = True  # it is kept no longer
        if not self.is_gone:
            self._broken("not lost", f"is not there, says {what}")

    def _get(self) -> job_pb2.JobServiceGetRequest:
        return job_pb2.JobServiceGetRequest(name=self.job)

    async def asked(self, method: str, request: Any) -> Any:
        """The response; None: there is no such job, rightly."""
        while True:
            try:
                return await self.ask(method, request, may_be_wrong=True)
            except Ended as ended:
                if ended.detail.retryable:
                    await asyncio.sleep(0.1)
                elif ended.code == grpc.StatusCode.NOT_FOUND:
                    self.missing(method)
                    return None
                else:
                    self._broken("no refusal", f"{method} was refused: {ended}")
                    return None

    def _broken(self, checker: str, text: str) -> None:
        self.world.fail(checker, f"job {self.job} {text}")

    def _shown(self, job: job_pb2.Job) -> job_pb2.Job:
        """What of a finished job stays the same: not how often it changed, or whether it is closed."""
        shown = job_pb2.Job()
        shown.CopyFrom(job)
        shown.ClearField("closed")
        shown.ClearField("datasets")  # a job that is over still takes new ones
        shown.ClearField("revision")
        if not self.made:
            for told in (shown.settings, shown.cost):
                told.ClearField("spot_price_micros")
                told.ClearField("on_demand_price_micros")
        return shown


@dataclass(eq=False)
class Visitor(Caller):
    """Reads jobs while others change and delete them."""

    async def visit(self, jobs: list[str]) -> None:
        """Until it is killed."""
        while True:
            await asyncio.sleep(self.world.rng.choice((0.02, 0.3, 1.0)))
            request = shard_pb2.GetAuditLogRequest(job=self.world.rng.choice(jobs))
            try:
                await self.ask("ShardService/GetAuditLog", request, may_be_wrong=True)
            except Ended as ended:
                if not ended.detail.retryable and ended.code != grpc.StatusCode.NOT_FOUND:
                    self.world.fail("no refusal", f"{self.name} was refused: {ended}")


@dataclass(eq=False)
class Latecomer(Caller):
    """A worker that comes to jobs that are over: it is told so, and never that there is no such job."""

    stream: Stream | None = None

    async def come(self, jobs: Callable[[], list[str]]) -> None:
        """Come to one of the jobs after the other, until it leaves. jobs: those that are over, and stay."""
        rng = self.world.rng
        while True:
            await asyncio.sleep(rng.choice((0.1, 0.3, 0.6, 1.2)))
            masters, over = self.masters(), jobs()
            if masters and over:
                await self._attend(rng.choice(masters), rng.choice(over))

    def leave(self) -> None:
        """End its process, and the stream with it."""
        self.process.kill()
        if self.stream is not None:
            self.stream.reset()

    async def _attend(self, master: MasterModel, job: str) -> None:
        ended: asyncio.Future[Ended | None] = self.process.create_future()

        def take(payload: bytes) -> None:
            if ring_pb2.AttendResponse.FromString(payload).HasField("done"):
                bye = ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED)
                stream.write(ring_pb2.AttendRequest(bye=bye).SerializeToString())

        def end(with_: Ended | None) -> None:
            if not ended.done():
                ended.set_result(with_)

        self.stream = stream = Stream(self.network, self.process, master, take, end)
        hello = ring_pb2.Hello(job=job, worker_id=self.name, role=ring_pb2.WORKER_ROLE_RING, version="1")
        stream.write(ring_pb2.AttendRequest(hello=hello).SerializeToString())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STAYS_SECONDS_MAX):
                refusal = await ended
                if refusal is not None and refusal.code == grpc.StatusCode.NOT_FOUND:
                    self.world.fail("no refusal", f"{self.name} came to job {job}, which is over: {refusal}")
        stream.reset()
