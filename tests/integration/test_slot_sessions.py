"""Parameter servers, and workers that push, at a real master: tasks while servers come, die and move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from elastane_master.app import Master
from elastane_proto.rendezvous import group_secret
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ps_pb2, ps_pb2_grpc, shard_pb2, shard_pb2_grpc
from elastane_slots.pushes import AGAIN_VERDICTS, DONE_VERDICTS, Push
from elastane_slots.tasks import TaskName
from integration.fake_ps import FakePs
from integration.master_support import reason_of, serving_master

SLOTS = 8
MODEL = ps_pb2.SlotModel(
    slots=SLOTS,
    seed=7,
    tensors=[ps_pb2.DenseTensor(name="fc", shape=[4, 2], dtype="float32", rule=ps_pb2.DENSE_RULE_SGD)],
    tables=[
        ps_pb2.RowTable(
            name="ids",
            rows=100,
            width=4,
            dtype="float32",
            padding_row=0,
            distribution=ps_pb2.ROW_DISTRIBUTION_NORMAL,
            scale=0.1,
            rule=ps_pb2.ROW_RULE_ROWWISE_ADAGRAD,
        )
    ],
    dense_digest=b"d" * 32,
)


class Cluster:
    """A job "j" with a data set "clicks" of tasks that push; its parameter servers live in this process."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.slots = ps_pb2_grpc.SlotServiceStub(channel)
        self.shards = shard_pb2_grpc.ShardServiceStub(channel)
        self.servers: dict[str, FakePs] = {}
        self.disk: dict[int, tuple[bytes, list[TaskName]]] = {}
        self.requests = 0

    async def create(self, tasks: int, **settings: object) -> None:
        job = job_pb2.JobSettings(
            ests=1,
            checkpoint_url="memory://slots",
            ps_slots=SLOTS,
            **settings,  # type: ignore[arg-type]
        )
        job.return_grace.FromSeconds(5)
        job.heartbeat_timeout.FromSeconds(60)
        job.ps_return.FromNanoseconds(50_000_000)
        await job_pb2_grpc.JobServiceStub(self.channel).Create(
            job_pb2.JobServiceCreateRequest(name="j", settings=job)
        )
        dataset = shard_pb2.DatasetSettings(
            range=shard_pb2.RangeSource(size=10 * tasks), task_size=10, pushes=True
        )
        await self.shards.CreateDataset(
            shard_pb2.CreateDatasetRequest(job="j", dataset="clicks", settings=dataset)
        )

    async def ps(self, ps_id: str) -> FakePs:
        server = FakePs(ps_id, self.servers, self.disk)
        await server.attend(self.channel)
        return server

    async def register(self) -> ps_pb2.RegisterModelResponse:
        return await self.slots.RegisterModel(
            ps_pb2.RegisterModelRequest(job="j", worker_id="w", model=MODEL)
        )

    async def get(self) -> ps_pb2.GetSlotsResponse:
        return await self.slots.GetSlots(ps_pb2.GetSlotsRequest(job="j"))

    async def until(self, holds: Callable[[ps_pb2.GetSlotsResponse], bool]) -> ps_pb2.GetSlotsResponse:
        async with asyncio.timeout(15):
            while not holds(found := await self.get()):
                await asyncio.sleep(0.02)
        return found

    async def served(self) -> ps_pb2.GetSlotsResponse:
        return await self.until(
            lambda found: all(
                place.owner and not place.restoring and not place.begun for place in found.map.places
            )
        )

    async def lease(
        self, *reports: shard_pb2.TaskReport, wait: float = 5.0, most: int = 1
    ) -> shard_pb2.LeaseTasksResponse:
        self.requests += 1
        request = shard_pb2.LeaseTasksRequest(
            job="j",
            dataset="clicks",
            worker_id="w",
            completed=reports,
            max_tasks=most,
            request_id=f"r{self.requests}",
        )
        request.wait.FromNanoseconds(round(wait * 1e9))
        return await self.shards.LeaseTasks(request)

    async def push(self, task: shard_pb2.Task) -> shard_pb2.TaskReport:
        """Push a task to every slot, as a worker does that knows the newest map; return its report."""
        name = TaskName("clicks", task.epoch, task.index)
        lives: dict[int, int] = {}
        async with asyncio.timeout(15):
            while len(lives) < SLOTS:
                places = (await self.get()).map
                for slot, place in enumerate(places.places):
                    server = self.servers.get(place.owner)
                    if slot in lives or server is None:
                        continue
                    answer = server.push(slot, Push(name, task.lease, places.generation))
                    if answer.verdict in DONE_VERDICTS:
                        lives[slot] = answer.life
                    elif answer.verdict not in AGAIN_VERDICTS:
                        return shard_pb2.TaskReport(
                            epoch=task.epoch,
                            index=task.index,
                            attempt=task.attempt,
                            returned=True,
                            error=answer.verdict,
                        )
                await asyncio.sleep(0)
        return shard_pb2.TaskReport(
            epoch=task.epoch, index=task.index, attempt=task.attempt, lives_sum=sum(lives.values())
        )

    async def train(self, most: int = 1000) -> bool:
        """Do up to so many tasks; True once the data set is complete."""
        reports: list[shard_pb2.TaskReport] = []
        while most or reports:
            answer = await self.lease(*reports, most=min(most, 1))
            most, reports = max(0, most - 1), []
            if answer.complete:
                return True
            reports = [await self.push(task) for task in answer.tasks]
        return False

    async def check(self, tasks: int) -> None:
        """Every slot has every task once, and the audit log a commit for each time that it was DONE."""
        expected = {TaskName("clicks", 0, index) for index in range(tasks)}
        for slot, place in enumerate((await self.get()).map.places):
            names = self.servers[place.owner].names[slot]
            assert set(names) == expected and len(names) == tasks, slot
        log = await self.shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job="j", page_size=1000))
        times: dict[int, int] = {}
        for entry in log.entries:
            assert entry.reopened == times.get(entry.step, 0)
            times[entry.step] = entry.reopened + 1
        assert set(times) == set(range(tasks))


@contextlib.asynccontextmanager
async def cluster(folder: Path, tasks: int = 12, **settings: object) -> AsyncIterator[tuple[Master, Cluster]]:
    async with serving_master(folder) as (master, channel):
        found = Cluster(channel)
        await found.create(tasks, **settings)
        try:
            yield master, found
        finally:
            for server in list(found.servers.values()):
                await server.die()


async def test_every_task_is_applied_once_while_parameter_servers_come_die_and_leave(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, job):
        assert not (await job.lease(wait=0)).tasks
        first = await job.ps("ps-0")
        registered = await job.register()
        assert registered.created and registered.settings.snapshot_url == "memory://slots"
        assert not (await job.register()).created
        await job.served()
        assert not await job.train(3)
        first.save()
        assert not await job.train(3)
        second = await job.ps("ps-1")
        await job.served()
        assert second.owned() and not await job.train(2)
        await first.die()
        # Its slots go back to what was saved: tasks of since then are done again, once at every slot.
        found = await job.until(lambda found: found.reopened > 0)
        assert {process.ps_id for process in found.processes} == {"ps-1"}
        third = await job.ps("ps-2")
        await job.served()
        await job.slots.DrainPs(ps_pb2.DrainPsRequest(job="j", ps_id="ps-1", reason="test"))
        await job.until(lambda found: all(place.owner == "ps-2" for place in found.map.places))
        await second.leave()
        assert await job.train()
        await job.check(12)
        assert len(third.owned()) == SLOTS
        events = [note.kind async for note in events_of(job.channel)]
        for kind in (
            "model_registered",
            "ps_joined",
            "ps_lost",
            "slots_restored",
            "tasks_reopened",
            "slots_moved",
        ):
            assert kind in events, kind
        assert "ps_left" in events


async def test_a_restarted_master_finds_the_slots_where_they_were(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, job):
        server = await job.ps("ps-0")
        await job.register()
        before = (await job.served()).map
        assert not await job.train(4)
    # The process of the parameter server lives on, while another master takes over.
    async with serving_master(tmp_path) as (_, channel):
        job.channel, job.slots = channel, ps_pb2_grpc.SlotServiceStub(channel)
        job.shards = shard_pb2_grpc.ShardServiceStub(channel)
        assert [process.state for process in (await job.get()).processes] == ["awaited"]
        job.servers["ps-0"] = server
        await server.attend(channel)
        after = (await job.get()).map
        # A store may have lost maps that somebody has seen: those of another master are numbered far beyond.
        assert after.generation > before.generation
        assert (after.places, after.processes) == (before.places, before.processes)
        assert await job.train()
        await job.check(12)
        await server.die()


async def test_workers_follow_the_map_and_only_they_get_the_secrets(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, job):
        await job.ps("ps-0")
        await job.register()
        await job.served()
        watch = job.slots.WatchMap(ps_pb2.WatchMapRequest(job="j", worker_id="w"))
        told = await watch.read()
        [address] = told.map.processes
        assert address.address == "ps-0:1"
        assert address.secret == group_secret(b"ps-0".ljust(32, b"k"), "j")
        assert not any(one.secret for one in (await job.get()).map.processes)
        await job.ps("ps-1")
        newer = await watch.read()
        assert newer.map.generation > told.map.generation and len(newer.map.processes) == 2
        watch.cancel()


async def test_a_checkpoint_is_waited_for_and_slots_go_back_to_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, job):
        await job.ps("ps-0")
        await job.ps("ps-1")
        await job.register()
        await job.served()
        assert not await job.train(4)
        saved = await job.slots.CheckpointSlots(ps_pb2.CheckpointSlotsRequest(job="j", request_id="c"))
        assert saved.tasks == 4 and not saved.surplus
        assert saved.url == f"memory://slots/slot-checkpoints/{saved.checkpoint}"
        again = await job.slots.CheckpointSlots(ps_pb2.CheckpointSlotsRequest(job="j", request_id="c"))
        assert again == saved and (await job.get()).checkpoint == saved.checkpoint
        assert not await job.train(3)
        await job.slots.RewindSlots(ps_pb2.RewindSlotsRequest(job="j", checkpoint=saved.checkpoint))
        await job.served()
        assert (await job.get()).reopened == 3
        assert await job.train()
        await job.check(12)


async def test_what_is_said_wrong_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (_, job):
        server = await job.ps("ps-0")
        await job.register()
        before = await job.served()
        for bad in (
            ps_pb2.RegisterModelRequest(job="j", worker_id="w", model=ps_pb2.SlotModel(slots=4)),
            ps_pb2.RegisterModelRequest(job="j", worker_id="", model=MODEL),
            ps_pb2.RegisterModelRequest(
                job="j", worker_id="w", model=ps_pb2.SlotModel(tensors=[ps_pb2.DenseTensor(name="x")])
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await job.slots.RegisterModel(bad)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await job.slots.RewindSlots(ps_pb2.RewindSlotsRequest(job="j", checkpoint="none"))
        assert reason_of(refused.value)[1] == "NOT_FOUND"
        assert (await job.get()).map == before.map
        # A message that nobody sends costs its sender the session.
        server.say(restored=ps_pb2.SlotRestored(slot=0, life=0, applied=b"\xff"))
        await asyncio.wait_for(server.ended.wait(), 10)
        assert "not a set of applied tasks" in server.refused
        stranger = FakePs("no name!", {}, {})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await stranger.attend(job.channel)
        assert "cannot be ps_id" in stranger.refused


async def events_of(channel: grpc.aio.Channel) -> AsyncIterator[object]:
    from elastane_proto.v1 import ring_pb2, ring_pb2_grpc

    async for response in ring_pb2_grpc.RingServiceStub(channel).WatchEvents(
        ring_pb2.WatchEventsRequest(job="j")
    ):
        yield response.event
