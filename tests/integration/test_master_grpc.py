"""The services over real gRPC: answers, typed errors, long polls, pages, watches."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf import descriptor_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

import patience
from elastane_master.decisions.machine import JobMachine
from elastane_master.servers import ring_service
from elastane_proto.v1 import (
    context_pb2,
    context_pb2_grpc,
    errors_pb2,
    job_pb2,
    job_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)
from integration.master_support import Worker, reason_of, serving_master, store_down

SERVICES = [f"elastane.v1.{name}Service" for name in ("Context", "Job", "Ring", "Shard")]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """A served master with job "j", and a stub of each service."""
    async with serving_master(tmp_path) as (master, channel):
        api = SimpleNamespace(
            master=master,
            channel=channel,
            jobs=job_pb2_grpc.JobServiceStub(channel),
            shards=shard_pb2_grpc.ShardServiceStub(channel),
            ring=ring_pb2_grpc.RingServiceStub(channel),
            contexts=context_pb2_grpc.ContextServiceStub(channel),
        )
        await api.jobs.Create(create())
        yield api


def standard_details(error: grpc.aio.AioRpcError) -> dict[str, Message]:
    """What google.rpc defines of an error's details, by name."""
    found: dict[str, Message] = {}
    status = rpc_status.from_call(error)
    assert status is not None
    for packed in status.details[1:]:
        name = packed.TypeName().removeprefix("google.rpc.")
        found[name] = getattr(error_details_pb2, name)()
        assert packed.Unpack(found[name])
    return found


def create(name: str = "j", **settings: object) -> job_pb2.JobServiceCreateRequest:
    return job_pb2.JobServiceCreateRequest(name=name, settings=job_pb2.JobSettings(**{"ests": 2, **settings}))


def dataset(name: str = "d", size: int = 100, **settings: object) -> shard_pb2.CreateDatasetRequest:
    chosen = {"task_size": 10, "range": shard_pb2.RangeSource(size=size), **settings}
    return shard_pb2.CreateDatasetRequest(
        job="j", dataset=name, settings=shard_pb2.DatasetSettings(**chosen), request_id=f"create-{name}"
    )


def lease(worker: str = "w", wait_seconds: float = 0, **fields: object) -> shard_pb2.LeaseTasksRequest:
    request = shard_pb2.LeaseTasksRequest(
        **{"job": "j", "dataset": "d", "worker_id": worker, "max_tasks": 1, **fields}
    )
    request.wait.FromNanoseconds(int(wait_seconds * 1e9))
    return request


def done(task: shard_pb2.Task, error: str = "") -> shard_pb2.TaskReport:
    return shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt, error=error)


async def test_reflection_and_health_know_every_service(api: SimpleNamespace) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(api.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    listed = [service.name async for reply in call for service in reply.list_services_response.service]
    assert set(SERVICES) < set(listed)
    assert "grpc.health.v1.Health" in listed
    # Under the stable name too, which newer clients ask first; and both can be described.
    stable = api.channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in listed),
    ]
    again, *files = [reply async for reply in stable(iter(asked))]
    assert [service.name for service in again.list_services_response.service] == listed
    assert all(reply.HasField("file_descriptor_response") for reply in files)
    described = descriptor_pb2.FileDescriptorProto.FromString(
        files[
            listed.index("grpc.reflection.v1.ServerReflection")
        ].file_descriptor_response.file_descriptor_proto[0]
    )
    assert described.package == "grpc.reflection.v1" and b"v1alpha" not in described.SerializeToString()
    health = health_pb2_grpc.HealthStub(api.channel)
    for name in ["", *SERVICES]:
        reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_creating_a_job_twice_finds_it_and_other_settings_are_refused(api: SimpleNamespace) -> None:
    again = await api.jobs.Create(create())
    assert not again.created
    assert again.job.settings.workers_min == 1
    assert again.job.settings.heartbeat_timeout.seconds == 3
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.jobs.Create(create(ests=3))
    code, reason, detail = reason_of(refused.value)
    assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")
    assert detail.facts["field"] == "ests"
    assert detail.hint
    assert not detail.retryable


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (create("bad name"), "job"),
        (create("x" * 64), "job"),
        (create("ok", ests=0), "field"),
        (create("ok", workers_min=3), "field"),
        (create("ok", heartbeat_timeout=duration_pb2.Duration(seconds=-1)), "field"),
        (create("ok", lease_factor=float("nan")), "field"),
    ],
)
async def test_impossible_jobs_are_refused(
    api: SimpleNamespace, request_message: job_pb2.JobServiceCreateRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.jobs.Create(request_message)
    code, reason, detail = reason_of(refused.value)
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert field in detail.facts
    known = standard_details(refused.value)
    info = known["ErrorInfo"]
    assert (info.reason, info.domain, dict(info.metadata)) == (reason, "elastane", dict(detail.facts))
    [violation] = known["BadRequest"].field_violations
    assert violation.field == detail.facts["field"] and violation.description
    assert [job.name for job in (await api.jobs.List(job_pb2.JobServiceListRequest())).jobs] == ["j"]


async def test_what_is_not_there_is_not_found(api: SimpleNamespace) -> None:
    calls = [
        api.jobs.Get(job_pb2.JobServiceGetRequest(name="other")),
        api.jobs.DrainWorker(job_pb2.JobServiceDrainWorkerRequest(name="j", worker_id="w")),
        api.shards.LeaseTasks(lease()),
        api.shards.GetProgress(shard_pb2.GetProgressRequest(job="j", dataset="d")),
        api.shards.ListTasks(shard_pb2.ListTasksRequest(job="j", dataset="d")),
        api.shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job="other")),
        api.ring.GetRing(ring_pb2.GetRingRequest(job="other")),
        api.contexts.Get(context_pb2.ContextServiceGetRequest(job="j", virtual_rank=0)),
        api.contexts.List(context_pb2.ContextServiceListRequest(job="other")),
        api.jobs.Watch(job_pb2.JobServiceWatchRequest(name="other")).read(),
        api.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="other")).read(),
        Worker(api.channel, "w", job="other").hello(),
    ]
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert reason_of(refused.value)[:2] == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")


async def test_bytes_that_are_no_message_change_nothing(api: SimpleNamespace) -> None:
    before = (await api.jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job.revision
    for method in ("JobService/Scale", "JobService/Cancel", "ShardService/LeaseTasks"):
        call = api.channel.unary_unary(f"/elastane.v1.{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"\xff\xff\xff")
        assert reason_of(refused.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    stream = api.channel.stream_stream("/elastane.v1.RingService/Attend")(iter([b"\xff\xff\xff"]))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stream.read()
    assert reason_of(refused.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert (await api.jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job.revision == before


async def test_an_oversized_message_is_refused_and_the_master_lives(tmp_path: Path) -> None:
    async with serving_master(tmp_path, message_bytes_max=2**16) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await jobs.Create(create("x" * 2**17))
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not (await jobs.List(job_pb2.JobServiceListRequest())).jobs


async def test_a_fault_in_the_decision_code_is_taken_back(
    api: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.shards.CreateDataset(dataset())
    first = await api.shards.LeaseTasks(lease(request_id="1"))
    handle = JobMachine.handle

    def broken(self: JobMachine, event: object, now: float) -> object:
        monkeypatch.setattr(JobMachine, "handle", handle)
        handle(self, event, now)
        raise RuntimeError("after half of the work")

    monkeypatch.setattr(JobMachine, "handle", broken)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.shards.LeaseTasks(lease(request_id="2"))
    assert refused.value.code() == grpc.StatusCode.INTERNAL
    second = await api.shards.LeaseTasks(lease(request_id="3"))
    assert [task.index for task in (*first.tasks, *second.tasks)] == [0, 1]


async def test_leases_reports_and_the_committed_history(api: SimpleNamespace) -> None:
    assert (await api.shards.CreateDataset(dataset(size=45))).created
    assert not (await api.shards.CreateDataset(dataset(size=45))).created
    reports: list[shard_pb2.TaskReport] = []
    ranges = []
    for number in range(10):
        reply = await api.shards.LeaseTasks(lease(max_tasks=2, completed=reports, request_id=str(number)))
        ranges += [(task.range.start, task.range.end) for task in reply.tasks]
        reports = [done(task) for task in reply.tasks]
        if reply.complete:
            break
    assert ranges == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 45)]
    progress = (await api.shards.GetProgress(shard_pb2.GetProgressRequest())).datasets[0]
    assert (progress.done, progress.todo, progress.samples_done, progress.complete) == (5, 0, 45, True)
    entries, token, pages = [], "", 0
    while True:
        page = await api.shards.GetAuditLog(
            shard_pb2.GetAuditLogRequest(job="j", page_size=2, page_token=token)
        )
        entries += page.entries
        pages += 1
        token = page.next_page_token
        if not token:
            break
    assert pages == 3
    assert [(entry.step, entry.range.start, entry.worker_id) for entry in entries] == [
        (index, 10 * index, "w") for index in range(5)
    ]
    other = await api.shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job="j", dataset="train"))
    assert not other.entries


async def test_the_same_request_id_gives_the_same_lease(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset())
    first, again = [await api.shards.LeaseTasks(lease(request_id="a")) for _ in range(2)]
    assert first == again
    assert (await api.shards.LeaseTasks(lease(request_id="b"))).tasks[0].index == 1


async def test_a_worker_waits_on_the_server_for_a_task_that_comes_back(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset(size=10))
    held = (await api.shards.LeaseTasks(lease("a"))).tasks[0]
    waiting = [asyncio.ensure_future(api.shards.LeaseTasks(lease(f"b{n}", 30))) for n in range(20)]
    await asyncio.sleep(0.2)
    assert not any(call.done() for call in waiting)
    await api.shards.LeaseTasks(lease("a", max_tasks=0, completed=[done(held, error="bad sample")]))
    finished, pending = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    task = finished.pop().result().tasks[0]
    assert (task.index, task.attempt) == (0, 2)
    holder = (await api.shards.GetProgress(shard_pb2.GetProgressRequest(job="j"))).datasets[0].holders[0]
    await api.shards.LeaseTasks(lease(holder.worker_id, max_tasks=0, completed=[done(task)]))
    replies = await patience.wait_for(asyncio.gather(*pending), 10)
    assert all(reply.complete and not reply.tasks for reply in replies)


async def test_a_waiter_that_left_does_not_swallow_the_task(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset(size=10))
    held = (await api.shards.LeaseTasks(lease("a"))).tasks[0]
    leaver = api.shards.LeaseTasks(lease("leaver", 30))
    stayer = api.shards.LeaseTasks(lease("stayer", 30))
    await asyncio.sleep(0.2)
    leaver.cancel()
    await api.shards.LeaseTasks(lease("a", max_tasks=0, completed=[done(held, error="x")]))
    assert (await patience.wait_for(stayer, 10)).tasks[0].index == 0


async def test_an_empty_answer_comes_when_the_wait_is_over(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset(size=10))
    held = (await api.shards.LeaseTasks(lease("a"))).tasks[0]
    reply = await api.shards.LeaseTasks(lease("b", 0.2))
    assert not reply.tasks
    assert not reply.complete
    assert held.deadline.seconds > 0


async def test_a_lease_that_times_out_goes_to_the_next_worker(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset(size=10, lease=duration_pb2.Duration(seconds=60)))
    first = (await api.shards.LeaseTasks(lease("a"))).tasks[0]
    # A short lease could end a second time, on a busy machine, before a's report of the first is there.
    clock = api.master.jobs.get("j").clock
    clock.at_least(clock() + 61)
    second = (await api.shards.LeaseTasks(lease("b", 30))).tasks[0]
    assert (second.index, second.attempt) == (0, 2)
    late = await api.shards.LeaseTasks(lease("a", max_tasks=0, completed=[done(first)]))
    assert late.outcomes[0].outcome == shard_pb2.REPORT_OUTCOME_STALE


async def test_a_stream_dataset_wakes_its_waiters_when_it_grows(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(
        shard_pb2.CreateDatasetRequest(
            job="j",
            dataset="d",
            settings=shard_pb2.DatasetSettings(task_size=10, stream=shard_pb2.StreamSource(watermark=0)),
        )
    )
    waiting = asyncio.ensure_future(api.shards.LeaseTasks(lease("a", 30)))
    await asyncio.sleep(0.1)
    await api.shards.ExtendDataset(
        shard_pb2.ExtendDatasetRequest(job="j", dataset="d", watermark=10, closed=True)
    )
    task = (await patience.wait_for(waiting, 10)).tasks[0]
    assert (task.range.start, task.range.end) == (0, 10)
    final = await api.shards.LeaseTasks(lease("a", completed=[done(task)]))
    assert final.complete


async def test_tasks_are_listed_page_by_page(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset(size=100))
    await api.shards.LeaseTasks(lease("a", max_tasks=3))
    listed, token = [], ""
    while True:
        request = shard_pb2.ListTasksRequest(job="j", dataset="d", page_size=4, page_token=token)
        page = await api.shards.ListTasks(request)
        listed += page.tasks
        token = page.next_page_token
        if not token:
            break
    assert [task.index for task in listed] == list(range(10))
    assert [task.worker_id for task in listed] == ["a"] * 3 + [""] * 7
    doing = await api.shards.ListTasks(
        shard_pb2.ListTasksRequest(job="j", dataset="d", state=shard_pb2.TASK_STATE_DOING)
    )
    assert [task.index for task in doing.tasks] == [0, 1, 2]
    for bad in ({"page_token": "x"}, {"page_size": 1001}, {"state": 9}):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.shards.ListTasks(shard_pb2.ListTasksRequest(job="j", dataset="d", **bad))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_progress_without_a_job_needs_there_to_be_one(api: SimpleNamespace) -> None:
    await api.shards.GetProgress(shard_pb2.GetProgressRequest())
    await api.jobs.Create(create("second"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.shards.GetProgress(shard_pb2.GetProgressRequest())
    code, _, detail = reason_of(refused.value)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert detail.facts["jobs"] == "j, second"


async def test_watches_show_now_and_then_every_change(api: SimpleNamespace) -> None:
    await api.shards.CreateDataset(dataset())
    job = api.jobs.Watch(job_pb2.JobServiceWatchRequest(name="j"))
    progress = api.shards.WatchProgress(
        shard_pb2.WatchProgressRequest(job="j", dataset="d", interval=duration_pb2.Duration(nanos=1))
    )
    assert (await job.read()).job.phase == job_pb2.JOB_PHASE_WAITING
    assert (await progress.read()).datasets[0].doing == 0
    await api.shards.LeaseTasks(lease())
    assert (await patience.wait_for(progress.read(), 10)).datasets[0].doing == 1
    await api.jobs.Cancel(job_pb2.JobServiceCancelRequest(name="j"))
    async with patience.within(10):
        while (await job.read()).job.phase != job_pb2.JOB_PHASE_CANCELLED:
            pass
    job.cancel()
    progress.cancel()


async def test_past_and_new_events_are_followed_without_a_gap(api: SimpleNamespace) -> None:
    follower = api.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="j", follow=True))
    first = (await follower.read()).event
    assert (first.sequence, first.kind) == (1, "job_created")
    for number in range(5):
        await api.shards.CreateDataset(dataset(f"d{number}"))
    numbers = [(await patience.wait_for(follower.read(), 10)).event.sequence for _ in range(5)]
    assert numbers == [2, 3, 4, 5, 6]
    past = [
        reply.event async for reply in api.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="j", since=3))
    ]
    assert [event.sequence for event in past] == [3, 4, 5, 6]
    assert all(event.reason for event in past)
    follower.cancel()


async def test_scaling_takes_effect_once_for_each_request_id(api: SimpleNamespace) -> None:
    request = job_pb2.JobServiceScaleRequest(name="j", workers_min=1, workers_max=2, request_id="once")
    first = await api.jobs.Scale(request)
    again = await api.jobs.Scale(request)
    assert first.job.settings.workers_max == 2
    assert again.job.revision == first.job.revision
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.jobs.Resume(job_pb2.JobServiceResumeRequest(name="j"))
    assert reason_of(refused.value)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_PHASE")


async def test_naming_the_most_alone_leaves_the_fewest_as_they_are(api: SimpleNamespace) -> None:
    async def scaled(low: int, high: int) -> tuple[int, int]:
        request = job_pb2.JobServiceScaleRequest(name="j", workers_min=low, workers_max=high)
        settings = (await api.jobs.Scale(request)).job.settings
        return settings.workers_min, settings.workers_max

    assert await scaled(0, 2) == (1, 2)
    assert await scaled(2, 4) == (2, 4)
    assert await scaled(0, 3) == (2, 3)
    assert await scaled(0, 1) == (1, 1), "never beyond the most"
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await scaled(0, 0)
    assert reason_of(refused.value)[1] == "INVALID_ARGUMENT"


async def test_the_training_s_own_tasks_are_not_leased(api: SimpleNamespace) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.shards.LeaseTasks(lease(dataset="train"))
    code, reason, detail = reason_of(refused.value)
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "LOCKSTEP_DATASET")
    assert "are the training itself" in (refused.value.details() or "") and "another name" in detail.hint
    assert "BadRequest" not in standard_details(refused.value)


async def test_without_its_store_the_master_says_that_it_does_not_serve(api: SimpleNamespace) -> None:
    health = health_pb2_grpc.HealthStub(api.channel)
    watch = health.Watch(health_pb2.HealthCheckRequest(service="elastane.v1.JobService"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    async with store_down(api.master):
        write = asyncio.ensure_future(api.shards.CreateDataset(dataset()))
        status = (await patience.wait_for(watch.read(), 10)).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await api.jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job.name == "j"  # reads go on
        assert not write.done()
    assert (await patience.wait_for(watch.read(), 10)).status == health_pb2.HealthCheckResponse.SERVING
    assert (await patience.wait_for(write, 10)).created
    watch.cancel()


async def test_a_caller_who_leaves_does_not_take_the_write_of_others_along(api: SimpleNamespace) -> None:
    async with store_down(api.master):
        host = api.master.jobs.get("j")
        in_flight = asyncio.ensure_future(api.shards.CreateDataset(dataset("in-flight")))
        while host.log.reachable:
            await asyncio.sleep(0.01)
        leaver = api.shards.CreateDataset(dataset("left"))
        stayer = asyncio.ensure_future(api.shards.CreateDataset(dataset("stayed")))
        while len(host.machine.queues.dynamic) < 3:
            await asyncio.sleep(0.01)
        leaver.cancel()
        await asyncio.sleep(0.1)
        assert not stayer.done()
    assert (await patience.wait_for(in_flight, 10)).created
    assert (await patience.wait_for(stayer, 10)).created


async def test_a_hello_that_is_read_after_its_call_has_ended_admits_nobody(
    api: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_message, begun = ring_service.first_message, asyncio.Event()

    async def noticed(requests: ring_service.Requests) -> ring_pb2.AttendRequest:
        begun.set()
        return await first_message(requests)

    monkeypatch.setattr(ring_service, "first_message", noticed)
    hello = ring_pb2.Hello(job="j", worker_id="late", role=ring_pb2.WORKER_ROLE_TASKS)
    messages: queue.SimpleQueue[ring_pb2.AttendRequest | None] = queue.SimpleQueue()
    with grpc.insecure_channel(api.master.address) as channel:
        call = ring_pb2_grpc.RingServiceStub(channel).Attend(iter(messages.get, None))
        await patience.wait_for(begun.wait(), 20)
        # The master is busy, as with a large decision; gRPC's threads take in what arrives meanwhile.
        messages.put(ring_pb2.AttendRequest(hello=hello))
        time.sleep(0.3)
        call.cancel()
        time.sleep(0.3)
        await Worker(api.channel, "later").hello()
        messages.put(None)
    told = api.ring.WatchEvents(ring_pb2.WatchEventsRequest(job="j"))
    joined = [one.event.worker_id async for one in told if one.event.kind == "worker_joined"]
    assert joined == ["later"]


def test_every_reason_has_a_code_of_its_own_name() -> None:
    from elastane_master.decisions.events import Rejection
    from elastane_master.servers.errors import status_of

    for name, _ in errors_pb2.ErrorReason.items():
        reason = name.removeprefix("ERROR_REASON_").lower()
        if reason == "unspecified":
            continue
        status = status_of(Rejection(reason, "x"))
        detail = errors_pb2.ErrorDetail()
        assert status.details[0].Unpack(detail)
        assert errors_pb2.ErrorReason.Name(detail.reason) == name
        assert status.code != grpc.StatusCode.INTERNAL.value[0]
