"""Workers' streams over real gRPC: joining, losing, silence, refusals, the return to a restarted master."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2

import patience
from elastane_master.app import Master
from elastane_proto import contexts
from elastane_proto.v1 import (
    common_pb2,
    context_pb2,
    context_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)
from integration.master_support import Worker, reason_of, serving_master, store_down, store_stopped

RING = ring_pb2.WORKER_ROLE_RING
SIGNATURE = ring_pb2.ScriptSignature(dataset_size=40, batch_size=5, steps_per_epoch=4, epochs=1)


def duration(value: float) -> duration_pb2.Duration:
    message = duration_pb2.Duration()
    message.FromNanoseconds(int(value * 1e9))
    return message


@contextlib.asynccontextmanager
async def job(
    folder: Path, heartbeat_seconds: float = 30.0, ests: int = 2, **options: object
) -> AsyncIterator[tuple[Master, grpc.aio.Channel]]:
    """A master with job "j". options: settings of the master."""
    async with serving_master(folder, **options) as (master, channel):
        settings = job_pb2.JobSettings(
            ests=ests,
            heartbeat_timeout=duration(heartbeat_seconds),
            join_window=duration(0.01),
            audit_samples=True,
        )
        await job_pb2_grpc.JobServiceStub(channel).Create(
            job_pb2.JobServiceCreateRequest(name="j", settings=settings)
        )
        yield master, channel


async def get_job(channel: grpc.aio.Channel) -> job_pb2.Job:
    reply = await job_pb2_grpc.JobServiceStub(channel).Get(job_pb2.JobServiceGetRequest(name="j"))
    return reply.job


async def wait_for_workers(channel: grpc.aio.Channel, names: set[str]) -> job_pb2.Job:
    watch = job_pb2_grpc.JobServiceStub(channel).Watch(job_pb2.JobServiceWatchRequest(name="j"))
    async with patience.within(20):
        while True:
            job = (await watch.read()).job
            if {worker.worker_id for worker in job.workers} == names:
                watch.cancel()
                return job


async def lease_one(channel: grpc.aio.Channel, worker: str) -> shard_pb2.LeaseTasksResponse:
    request = shard_pb2.LeaseTasksRequest(
        job="j", dataset="d", worker_id=worker, max_tasks=1, wait=duration(20)
    )
    return await shard_pb2_grpc.ShardServiceStub(channel).LeaseTasks(request)


async def create_dataset(channel: grpc.aio.Channel, size: int) -> None:
    settings = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=size))
    await shard_pb2_grpc.ShardServiceStub(channel).CreateDataset(
        shard_pb2.CreateDatasetRequest(job="j", dataset="d", settings=settings)
    )


def context(rank: int, step: int, *, delta: bool = True) -> common_pb2.EstContext:
    parts = {"rng/python": b"state %d of %d" % (step, rank), "loader": contexts.pack_loader(0, step, 7)}
    return contexts.context_to_proto(rank, step, parts, delta=delta)


async def form_ring(worker: Worker) -> ring_pb2.Go:
    """Takes the first worker of a job to Go at step 0."""
    prepare = (await worker.receive("prepare")).prepare
    await worker.send(ready=ring_pb2.Ready(generation=prepare.generation))
    load = (await worker.receive("load")).load
    loaded = ring_pb2.Loaded(
        generation=load.generation, contexts=[context(r, 0, delta=False) for r in (0, 1)]
    )
    await worker.send(loaded=loaded)
    return (await worker.receive("go")).go


def report(go: ring_pb2.Go, step: int) -> ring_pb2.StepReport:
    tasks = [
        ring_pb2.StepTask(
            virtual_rank=rank,
            range=common_pb2.Range(start=10 * step + 5 * rank, end=10 * step + 5 * rank + 5),
            samples=range(10 * step + 5 * rank, 10 * step + 5 * rank + 5),
            metrics={"loss": 1.0 / (step + 1)},
        )
        for rank in (0, 1)
    ]
    return ring_pb2.StepReport(
        generation=go.generation, step=step, contexts=[context(r, step + 1) for r in (0, 1)], tasks=tasks
    )


async def test_figures_are_the_last_that_a_worker_sent(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        ring = ring_pb2_grpc.RingServiceStub(channel)

        async def wait_for_figures(**steps: int) -> None:
            request = ring_pb2.GetWorkerFiguresRequest(job="j", worker_ids=["w0", "w1", "absent"])
            found: dict[str, int] = {}
            async with asyncio.timeout(20):
                while found != steps:
                    response = await ring.GetWorkerFigures(request)
                    found = {name: figures.step for name, figures in response.figures.items()}

        silent, worker = Worker(channel, "w1"), Worker(channel, "w0")
        await silent.hello()
        await worker.hello()
        too_large = ring_pb2.WorkerFigures(step=9, step_counts=[1] * 9999)
        for figures in (ring_pb2.WorkerFigures(step=4), too_large, None):
            await worker.send(heartbeat=ring_pb2.Heartbeat(figures=figures))
        await wait_for_figures(w0=4)
        again = Worker(channel, "w0")
        await again.hello()
        await worker.ended()
        await wait_for_figures(w0=4)
        # Of a pipeline with many units: their times are not kept, and the rest is.
        figures = ring_pb2.WorkerFigures(step=5, unit_forward_seconds=[0.1] * 9999)
        await again.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED, figures=figures))
        assert await again.ended() == grpc.StatusCode.OK
        await wait_for_figures(w0=5)


async def test_one_worker_trains_to_the_end(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        worker = Worker(channel, "a")
        welcome = await worker.hello(RING, signature=SIGNATURE)
        assert (welcome.ests, welcome.resumed, welcome.audit_samples) == (2, False, True)
        assert welcome.heartbeat_interval.seconds == 1
        go = await form_ring(worker)
        assert [member.worker_id for member in go.members] == ["a"]
        assert (go.members[0].ests.start, go.members[0].ests.end) == (0, 2)
        for step in range(4):
            await worker.send(step_report=report(go, step))
            assert (await worker.receive("prepared")).prepared.step == step
        stub = context_pb2_grpc.ContextServiceStub(channel)
        stored = (await stub.Get(context_pb2.ContextServiceGetRequest(job="j", virtual_rank=1))).context
        assert contexts.context_from_proto(stored) == contexts.context_from_proto(context(1, 4, delta=False))
        infos = (await stub.List(context_pb2.ContextServiceListRequest(job="j"))).contexts
        assert {
            (info.virtual_rank, info.worker_id, info.loader.batch) for info in infos if info.step == 4
        } == {
            (0, "a", 4),
            (1, "a", 4),
        }
        await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED, applied_step=4))
        assert await worker.ended() == grpc.StatusCode.OK
        assert (await get_job(channel)).phase == job_pb2.JOB_PHASE_SUCCEEDED
        audit = await shard_pb2_grpc.ShardServiceStub(channel).GetAuditLog(
            shard_pb2.GetAuditLogRequest(job="j", dataset="train")
        )
        assert [(entry.step, entry.virtual_rank) for entry in audit.entries] == [
            (step, rank) for step in range(4) for rank in (0, 1)
        ]
        assert sorted(sample for entry in audit.entries for sample in entry.samples) == list(range(40))
        assert audit.entries[2].metrics["loss"] == 0.5


async def test_a_ring_goes_on_under_a_restarted_master(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE, pid=7)
        go = await form_ring(worker)
        await worker.send(step_report=report(go, 0))
        await worker.receive("prepared")
        stopping = asyncio.create_task(master.stop())
        assert await worker.ended() == grpc.StatusCode.UNAVAILABLE
        await stopping
    async with serving_master(tmp_path) as (_, channel):
        awaited = (await get_job(channel)).workers[0]
        assert awaited.state == job_pb2.WORKER_STATE_AWAITED
        worker = Worker(channel, "a")
        welcome = await worker.hello(
            RING, signature=SIGNATURE, pid=7, generation=go.generation, applied_step=1, holds_state=True
        )
        assert welcome.resumed
        assert welcome.generation == go.generation
        await worker.send(step_report=report(go, 1))
        assert (await worker.receive("prepared")).prepared.step == 1
        await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED))
        await worker.ended()


async def test_a_broken_stream_returns_the_tasks_at_once(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        await create_dataset(channel, 1)
        async with grpc.aio.insecure_channel(master.address) as other:
            await Worker(other, "a").hello()
            assert (await lease_one(channel, "a")).tasks[0].attempt == 1
            waiting = asyncio.ensure_future(lease_one(channel, "b"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
        assert (await patience.wait_for(waiting, 5)).tasks[0].attempt == 2
        await wait_for_workers(channel, set())


async def test_a_silent_worker_is_evicted_and_a_speaking_one_is_not(tmp_path: Path) -> None:
    async with job(tmp_path, heartbeat_seconds=0.6) as (_, channel):
        silent, speaking = Worker(channel, "silent"), Worker(channel, "speaking")
        await silent.hello()
        await speaking.hello()
        ended = asyncio.ensure_future(silent.ended())
        while not ended.done():
            await speaking.send(heartbeat=ring_pb2.Heartbeat())
            await asyncio.wait({ended}, timeout=0.1)
        assert ended.result() == grpc.StatusCode.ABORTED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await silent.call.read()
        _, reason, detail = reason_of(refused.value)
        assert reason == "EVICTED"
        assert detail.retryable
        workers = (await get_job(channel)).workers
        assert [worker.worker_id for worker in workers] == ["speaking"]
        assert workers[0].last_heard.seconds >= workers[0].joined.seconds
        again = Worker(channel, "silent")
        assert not (await again.hello()).resumed


async def test_a_newer_stream_of_a_worker_ends_the_older_one(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        old, new = Worker(channel, "a"), Worker(channel, "a")
        await old.hello()
        await new.hello()
        assert await old.ended() == grpc.StatusCode.ABORTED
        assert [worker.worker_id for worker in (await get_job(channel)).workers] == ["a"]
        await new.send(heartbeat=ring_pb2.Heartbeat())
        await new.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED))
        assert await new.ended() == grpc.StatusCode.OK
        await wait_for_workers(channel, set())


async def test_a_refused_newer_stream_leaves_the_older_one_alone(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        old, new = Worker(channel, "a"), Worker(channel, "a")
        await old.hello(RING, signature=SIGNATURE)
        other = ring_pb2.ScriptSignature(dataset_size=41, batch_size=5, steps_per_epoch=4, epochs=1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await new.hello(RING, signature=other)
        code, reason, detail = reason_of(refused.value)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "MISMATCH")
        assert detail.facts
        await form_ring(old)
        assert [worker.worker_id for worker in (await get_job(channel)).workers] == ["a"]


async def test_a_worker_that_does_not_begin_with_a_good_hello_is_refused(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        hellos = [
            ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()),
            ring_pb2.AttendRequest(),
            ring_pb2.AttendRequest(hello=ring_pb2.Hello(job="j", worker_id="a")),
            ring_pb2.AttendRequest(hello=ring_pb2.Hello(job="j", role=RING)),
            ring_pb2.AttendRequest(hello=ring_pb2.Hello(job="j", worker_id="x" * 300, role=RING)),
        ]
        for hello in hellos:
            call = ring_pb2_grpc.RingServiceStub(channel).Attend(iter([hello]))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert reason_of(refused.value)[1] == "INVALID_ARGUMENT"
        assert not (await get_job(channel)).workers


@pytest.mark.parametrize(
    "message",
    [
        {"hello": ring_pb2.Hello(job="j", worker_id="a", role=RING)},
        {"bye": ring_pb2.Bye()},
        {"leaving": ring_pb2.Leaving(notice=duration(-1))},
        {"ready": ring_pb2.Ready(generation=99)},
        {},
    ],
)
async def test_a_later_message_that_is_refused_ends_the_stream(tmp_path: Path, message: dict) -> None:
    async with job(tmp_path) as (_, channel):
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        await worker.receive("prepare")
        await worker.send(**message)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while await patience.wait_for(worker.call.read(), 10) is not grpc.aio.EOF:
                pass
        assert reason_of(refused.value)[1] == ("STALE" if "ready" in message else "INVALID_ARGUMENT")
        await wait_for_workers(channel, set())


async def test_a_hello_to_a_finished_job_hears_that_it_is_done(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        await job_pb2_grpc.JobServiceStub(channel).Cancel(job_pb2.JobServiceCancelRequest(name="j"))
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        assert (await worker.receive("done")).done.phase == "cancelled"
        await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED))
        assert await worker.ended() == grpc.StatusCode.OK


async def test_cancelling_a_job_says_done_to_its_ring(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        await form_ring(worker)
        await job_pb2_grpc.JobServiceStub(channel).Cancel(job_pb2.JobServiceCancelRequest(name="j"))
        assert (await worker.receive("done")).done.phase == "cancelled"


async def test_nothing_is_said_before_it_is_durable(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        go = await form_ring(worker)
        async with store_down(master):
            await worker.send(step_report=report(go, 0))
            prepared = asyncio.ensure_future(worker.receive("prepared"))
            done, _ = await asyncio.wait({prepared}, timeout=0.5)
            assert not done
        assert (await prepared).prepared.step == 0


async def test_no_worker_is_evicted_while_the_store_is_away(tmp_path: Path) -> None:
    async with job(tmp_path, heartbeat_seconds=0.5) as (master, channel):
        worker = Worker(channel, "a")
        await worker.hello()
        async with store_down(master):
            write = asyncio.ensure_future(create_dataset(channel, 1))
            while master.jobs.get("j").log.reachable:
                await asyncio.sleep(0.01)
            await asyncio.sleep(1.5)  # silent for three timeouts
            assert [info.worker_id for info in (await get_job(channel)).workers] == ["a"]
        await write
        await wait_for_workers(channel, set())  # from now on its silence counts


async def test_a_worker_that_waits_for_its_welcome_is_not_expected_to_speak(tmp_path: Path) -> None:
    """The store hangs for longer than the heartbeat timeout, and Welcome, which has the interval, is late."""
    async with job(tmp_path, heartbeat_seconds=0.5) as (master, channel):
        worker = Worker(channel, "a")
        with store_stopped(master):
            hello = asyncio.ensure_future(worker.hello())
            await asyncio.wait({hello}, timeout=1.5)
            assert not hello.done()
        await hello
        for _ in range(10):
            await worker.send(heartbeat=ring_pb2.Heartbeat())
            await asyncio.sleep(0.1)
        assert [info.worker_id for info in (await get_job(channel)).workers] == ["a"]


async def test_a_stopped_master_does_not_blame_its_workers(tmp_path: Path) -> None:
    async with job(tmp_path, heartbeat_seconds=2.5) as (_, channel):
        worker = Worker(channel, "a")
        await worker.hello()
        time.sleep(4)
        await worker.send(heartbeat=ring_pb2.Heartbeat())
        await asyncio.sleep(0.5)
        assert [info.worker_id for info in (await get_job(channel)).workers] == ["a"]
