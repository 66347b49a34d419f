"""Each limit of the master, met: a typed error that names it, nothing changed, and room again afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2

import patience
from elastane.runtime.session import MasterSession
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import ElastaneError
from elastane_master.app import Master
from elastane_proto.v1 import (
    common_pb2,
    job_pb2,
    job_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)
from integration.master_support import Worker, reason_of, serving_master

RING = ring_pb2.WORKER_ROLE_RING
SIGNATURE = ring_pb2.ScriptSignature(dataset_size=40, batch_size=5, steps_per_epoch=4, epochs=1)


class Api:
    """A master with job "j" and dataset "d", and everything that can be asked of it."""

    def __init__(self, master: Master, channel: grpc.aio.Channel) -> None:
        self.master = master
        self.channel = channel
        self.jobs = job_pb2_grpc.JobServiceStub(channel)
        self.shards = shard_pb2_grpc.ShardServiceStub(channel)
        self.ring = ring_pb2_grpc.RingServiceStub(channel)

    async def create(self, name: str = "j", **settings: object) -> job_pb2.JobServiceCreateResponse:
        window = duration_pb2.Duration(nanos=10_000_000)
        settings = {"ests": 1, "join_window": window, **settings}
        return await self.jobs.Create(
            job_pb2.JobServiceCreateRequest(name=name, settings=job_pb2.JobSettings(**settings))
        )

    async def dataset(self, name: str = "d", **fields: object) -> shard_pb2.CreateDatasetResponse:
        fields = fields or {"range": shard_pb2.RangeSource(size=4)}
        settings = shard_pb2.DatasetSettings(task_size=1, **fields)
        return await self.shards.CreateDataset(
            shard_pb2.CreateDatasetRequest(job="j", dataset=name, settings=settings)
        )

    async def lease(self, worker: str = "w", **fields: object) -> shard_pb2.LeaseTasksResponse:
        request = shard_pb2.LeaseTasksRequest(job="j", dataset="d", worker_id=worker, **fields)
        return await self.shards.LeaseTasks(request, timeout=30)

    async def revision(self) -> int:
        return (await self.jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job.revision


@contextlib.asynccontextmanager
async def api(folder: Path, **limits: object) -> AsyncIterator[Api]:
    async with serving_master(folder, **limits) as (master, channel):
        api = Api(master, channel)
        await api.create()
        await api.dataset()
        yield api


async def trainer(api: Api, **hello: object) -> Worker:
    """The ring's only worker, at the beginning of step 0."""
    worker = Worker(api.channel, "t")
    await worker.hello(role=RING, signature=SIGNATURE, store_address="h:1", **hello)
    prepare = (await worker.receive("prepare")).prepare
    await worker.send(ready=ring_pb2.Ready(generation=prepare.generation))
    await worker.receive("load")
    context = common_pb2.EstContext(virtual_rank=0)
    context.items["a"] = b"x" * 600
    await worker.send(loaded=ring_pb2.Loaded(generation=prepare.generation, contexts=[context]))
    await worker.receive("go")
    return worker


def report(items: dict[str, bytes], metrics: dict[str, float]) -> ring_pb2.StepReport:
    context = common_pb2.EstContext(virtual_rank=0, step=1, delta=True)
    for name, value in items.items():
        context.items[name] = value
    task = ring_pb2.StepTask(virtual_rank=0, metrics=metrics)
    task.range.end = 5
    return ring_pb2.StepReport(generation=1, step=0, contexts=[context], tasks=[task])


Act = Callable[[Api], Awaitable[object]]
TOO_MUCH: dict[str, tuple[dict[str, object], Act]] = {
    "ests_per_job_max": ({}, lambda api: api.create("k", ests=10_001)),
    "url_characters_max": ({}, lambda api: api.create("k", checkpoint_url="x" * 5000)),
    "datasets_per_job_max": ({"datasets_per_job_max": 1}, lambda api: api.dataset("e")),
    "dataset_entries_max": (
        {"dataset_entries_max": 3},
        lambda api: api.dataset("e", list=shard_pb2.ListSource(entries=range(4))),
    ),
    "tasks_per_lease_max": ({"tasks_per_lease_max": 2}, lambda api: api.lease(max_tasks=3)),
    "reports_per_lease_max": (
        {"reports_per_lease_max": 1},
        lambda api: api.lease(completed=[shard_pb2.TaskReport(index=i) for i in range(2)]),
    ),
    "sessions_per_job_max": (
        {"sessions_per_job_max": 1},
        lambda api: api.ring.GetWorkerFigures(
            ring_pb2.GetWorkerFiguresRequest(job="j", worker_ids=["a", "b"])
        ),
    ),
    "context_bytes_max": (
        {"context_bytes_max": 2048},
        lambda api: api.lease(max_tasks=1, rng=common_pb2.RngStates(torch_cpu=b"x" * 3000)),
    ),
}


@pytest.mark.parametrize("limit", TOO_MUCH)
async def test_a_request_beyond_a_limit_is_refused_and_changes_nothing(tmp_path: Path, limit: str) -> None:
    limits, act = TOO_MUCH[limit]
    async with api(tmp_path, **limits) as served:
        before = await served.revision()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await act(served)
        code, reason, detail = reason_of(refused.value)
        assert (code, reason, detail.facts["limit"]) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "LIMIT_EXCEEDED",
            limit,
        )
        assert not detail.retryable
        assert f"ELASTANE_{limit.upper()}" in detail.hint
        assert await served.revision() == before
        assert (await served.lease(max_tasks=1)).tasks


@pytest.mark.parametrize(
    ("limit", "limits", "items", "metrics"),
    [
        ("context_bytes_max", {"context_bytes_max": 1024}, {"b": b"x" * 500}, {}),  # with the 600 kept
        ("contexts_bytes_max", {"contexts_bytes_max": 1024}, {"b": b"x" * 500}, {}),
        ("context_parts_max", {"context_parts_max": 10}, {f"i{n}": b"x" for n in range(10)}, {}),
        ("name_characters_max", {"name_characters_max": 20}, {"n" * 30: b"x"}, {}),
        ("name_characters_max", {"name_characters_max": 20}, {}, {"n" * 30: 1.0}),
        ("metrics_per_task_max", {"metrics_per_task_max": 2}, {}, {"a": 1.0, "b": 1.0, "c": 1.0}),
    ],
)
async def test_a_step_beyond_a_limit_ends_the_session_with_its_name(
    tmp_path: Path, limit: str, limits: dict[str, object], items: dict[str, bytes], metrics: dict[str, float]
) -> None:
    async with api(tmp_path, **limits) as served:
        worker = await trainer(served)
        await worker.send(step_report=report(items, metrics))
        assert await worker.ended() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "at most" in await worker.call.details()
        job = (await served.jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job
        assert job.step == 0


async def test_a_step_within_the_limits_is_taken(tmp_path: Path) -> None:
    async with api(tmp_path, context_bytes_max=1024, metrics_per_task_max=2) as served:
        worker = await trainer(served)
        await worker.send(step_report=report({"b": b"x" * 400}, {"a": 1.0, "b": 1.0}))
        assert (await worker.receive("prepared")).prepared.step == 0


@pytest.mark.parametrize(
    ("limit", "limits", "signature"),
    [
        ("tensors_max", {"tensors_max": 1}, {"tensors": [ring_pb2.TensorSpec(name="t")] * 2}),
        ("facts_max", {"facts_max": 10}, {"environment": {str(n): "x" for n in range(11)}}),
    ],
)
async def test_a_signature_beyond_a_limit_is_refused(
    tmp_path: Path, limit: str, limits: dict[str, object], signature: dict[str, object]
) -> None:
    async with api(tmp_path, **limits) as served:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Worker(served.channel, "t").hello(
                role=RING, signature=ring_pb2.ScriptSignature(dataset_size=4, **signature)
            )
        assert reason_of(refused.value)[2].facts["limit"] == limit


async def busy(act: Callable[[], Awaitable[object]], limit: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await act()
    code, reason, detail = reason_of(refused.value)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUSY")
    assert detail.facts["limit"] == limit
    assert detail.retryable


async def test_jobs_that_are_over_make_room_for_others(tmp_path: Path) -> None:
    async with api(tmp_path, jobs_max=2) as served:
        await served.create("k")
        await busy(lambda: served.create("l"), "jobs_max")
        await served.create("k")  # it is there
        await served.jobs.Cancel(job_pb2.JobServiceCancelRequest(name="k"))
        await served.create("l")


async def test_workers_beyond_the_limit_wait_until_one_leaves(tmp_path: Path) -> None:
    async with api(tmp_path, sessions_per_job_max=2) as served:
        first = Worker(served.channel, "a")
        await first.hello()
        await Worker(served.channel, "b").hello()
        await busy(lambda: Worker(served.channel, "c").hello(), "sessions_per_job_max")
        await Worker(served.channel, "a").hello()  # a new stream of the same worker is not one more
        assert await first.ended() == grpc.StatusCode.ABORTED
        second = Worker(served.channel, "b")
        await second.hello()
        await second.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED))
        assert await second.ended() == grpc.StatusCode.OK
        await Worker(served.channel, "c").hello()


async def test_figures_are_kept_of_as_many_workers_as_may_attend(tmp_path: Path) -> None:
    async with api(tmp_path, sessions_per_job_max=2) as served:
        for step, name in enumerate("abca", 1):
            worker = Worker(served.channel, name)
            await worker.hello()
            figures = ring_pb2.WorkerFigures(step=step)
            await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED, figures=figures))
            assert await worker.ended() == grpc.StatusCode.OK
        found: dict[str, int] = {}
        for name in "abc":
            request = ring_pb2.GetWorkerFiguresRequest(job="j", worker_ids=[name, name])
            response = await served.ring.GetWorkerFigures(request)
            found |= {worker: figures.step for worker, figures in response.figures.items()}
        assert found == {"a": 4, "c": 3}, "those that were reported last"


async def test_watchers_beyond_the_limit_are_refused_until_one_leaves(tmp_path: Path) -> None:
    async with api(tmp_path, watchers_per_job_max=2) as served:
        watch = served.jobs.Watch(job_pb2.JobServiceWatchRequest(name="j"))
        await watch.read()
        events = served.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="j", follow=True))
        await events.read()
        for act in (
            lambda: served.jobs.Watch(job_pb2.JobServiceWatchRequest(name="j")).read(),
            lambda: served.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="j")).read(),
            lambda: served.shards.WatchProgress(shard_pb2.WatchProgressRequest(job="j")).read(),
        ):
            await busy(act, "watchers_per_job_max")
        watch.cancel()
        host = served.master.jobs.get("j")
        async with patience.within(20):
            while host.watchers > 1:
                await asyncio.sleep(0.01)  # the server hears of a cancelled call when it does
        assert await served.jobs.Watch(job_pb2.JobServiceWatchRequest(name="j")).read()


async def test_calls_that_wait_for_tasks_are_limited(tmp_path: Path) -> None:
    async with api(tmp_path, lease_waiters_per_job_max=1) as served:
        assert len((await served.lease("a", max_tasks=4)).tasks) == 4
        waiting = asyncio.create_task(served.lease("b", max_tasks=1))
        host = served.master.jobs.get("j")
        async with patience.within(20):
            while host.task_waiters.count < 1:
                await asyncio.sleep(0.01)
        await busy(lambda: served.lease("c", max_tasks=1), "lease_waiters_per_job_max")
        failed = shard_pb2.TaskReport(index=0, attempt=1, error="x" * 100_000)
        await served.lease("a", completed=[failed])
        assert len((await waiting).tasks) == 1
        listed = await served.shards.ListTasks(shard_pb2.ListTasksRequest(job="j", dataset="d"))
        kept = [error.error for task in listed.tasks for error in task.errors]
        assert len(kept) == 1 and len(kept[0]) < 5000


async def test_the_texts_of_events_are_cut(tmp_path: Path) -> None:
    async with api(tmp_path, note_characters_max=100) as served:
        worker = Worker(served.channel, "a")
        await worker.hello()
        await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FAILED, message="e" * 50_000))
        await worker.ended()
        events = [
            reply.event async for reply in served.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="j"))
        ]
        lost = next(event for event in events if event.kind == "worker_lost")
        assert len(lost.reason) < 150 and "more characters" in lost.reason


async def test_a_watcher_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    """Its stream is filled until nothing goes in any more; what the master keeps for it is one message."""
    async with api(tmp_path, watch_write_seconds_max=0.3) as served:
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(served.master.address, options=options) as slow:
            watch = ring_pb2_grpc.RingServiceStub(slow).WatchEvents(
                ring_pb2.WatchEventsRequest(job="j", follow=True)
            )
            await watch.read()
            host = served.master.jobs.get("j")
            async with patience.within(60):
                while host.watchers:
                    worker = Worker(served.channel, "a")
                    await worker.hello()
                    await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FAILED, message="e" * 4000))
                    await worker.ended()
            assert host.watchers == 0
            with pytest.raises(grpc.aio.AioRpcError) as cut:
                while await watch.read() is not grpc.aio.EOF:
                    pass
            assert reason_of(cut.value)[2].facts["limit"] == "watch_write_seconds_max"


async def test_a_message_too_large_is_a_typed_error_for_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(address: str) -> None:
        with MasterClient(address) as client:
            settings = shard_pb2.DatasetSettings(task_size=1)
            settings.list.entries.extend([2**60] * 20_000)
            client.create_dataset("j", "big", settings)

    async with api(tmp_path, message_bytes_max=2**16) as served:
        with pytest.raises(RequestRefusedError, match="larger than max") as refused:
            await asyncio.to_thread(ask, served.master.address)
        assert refused.value.reason == "limit_exceeded"
        assert "docs/limits.md" in refused.value.hint
        monkeypatch.setenv("ELASTANE_CLIENT_MESSAGE_BYTES_MAX", "66000")
        with pytest.raises(RequestRefusedError) as refused:
            await asyncio.to_thread(ask, served.master.address)
        assert refused.value.reason == "limit_exceeded"


async def test_a_stream_that_says_nothing_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastane_master.servers.binding.HELLO_SECONDS", 0.2)
    async with api(tmp_path) as served:
        silent = Worker(served.channel, "s")
        assert await silent.ended() == grpc.StatusCode.INVALID_ARGUMENT
        assert "does not begin with Hello" in await silent.call.details()


async def test_a_worker_that_finds_no_room_waits_for_it(tmp_path: Path) -> None:
    welcome = threading.Event()
    errors: list[ElastaneError] = []
    async with api(tmp_path, sessions_per_job_max=1) as served:
        first = Worker(served.channel, "a")
        await first.hello()
        session = MasterSession(
            served.master.address,
            hello=lambda: ring_pb2.Hello(job="j", worker_id="b", role=ring_pb2.WORKER_ROLE_TASKS),
            heartbeat=lambda: ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()),
            handler=lambda message: welcome.set(),
            failed=errors.append,
            timeout_seconds=60.0,
        )
        session.start()
        assert not await asyncio.to_thread(welcome.wait, 0.3)
        await first.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_FINISHED))
        assert await asyncio.to_thread(welcome.wait, 30)
        session.close()
    assert errors == []


async def test_calls_that_wait_for_a_busy_master_are_all_answered(tmp_path: Path) -> None:
    """As when thousands of workers come back at once; gRPC would drop some of more than a thousand."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    request = job_pb2.JobServiceGetRequest(name="j")
    async with api(tmp_path) as at:
        channels = [grpc.insecure_channel(at.master.address, options=own) for _ in range(25)]
        try:
            await asyncio.gather(
                *(asyncio.to_thread(grpc.channel_ready_future(channel).result, 30) for channel in channels)
            )
            calls = [
                job_pb2_grpc.JobServiceStub(channel).Get.future(request, timeout=120)
                for channel in channels  # begun while the master's loop stands still: here
                for _ in range(100)
            ]
            answers = await asyncio.to_thread(lambda: [call.exception() for call in calls])
            assert answers == [None] * len(calls)
        finally:
            for channel in channels:
                channel.close()
