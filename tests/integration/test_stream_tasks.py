"""StreamTasks over real gRPC: order, requests in flight, waits, refusals, and streams that are left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

import patience
from elastane_master.app import Master
from elastane_master.decisions.events import Rejection
from elastane_proto.v1 import errors_pb2, job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc
from integration.master_support import reason_of, serving_master, store_down

SIZE = 1000


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Master, shard_pb2_grpc.ShardServiceStub]]:
    """A served master with job "j" and dataset "d" of 100 tasks of 10 samples."""
    async with serving_master(tmp_path) as (master, channel):
        await job_pb2_grpc.JobServiceStub(channel).Create(
            job_pb2.JobServiceCreateRequest(name="j", settings=job_pb2.JobSettings(ests=1))
        )
        stub = shard_pb2_grpc.ShardServiceStub(channel)
        settings = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=SIZE), task_size=10)
        await stub.CreateDataset(shard_pb2.CreateDatasetRequest(job="j", dataset="d", settings=settings))
        yield master, stub


@pytest.fixture
def shards(
    served: tuple[Master, shard_pb2_grpc.ShardServiceStub],
) -> shard_pb2_grpc.ShardServiceStub:
    return served[1]


def request(
    number: int,
    completed: list[shard_pb2.TaskReport] | None = None,
    tasks: int = 1,
    wait_seconds: float = 30,
    **fields: object,
) -> shard_pb2.StreamTasksRequest:
    lease = shard_pb2.LeaseTasksRequest(
        **{"job": "j", "dataset": "d", "worker_id": "w", "request_id": str(number), **fields},
        completed=completed or [],
        max_tasks=tasks,
    )
    lease.wait.FromNanoseconds(int(wait_seconds * 1e9))
    return shard_pb2.StreamTasksRequest(request=lease)


def done(task: shard_pb2.Task) -> shard_pb2.TaskReport:
    return shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt, count=task.count)


async def progress(shards: shard_pb2_grpc.ShardServiceStub) -> shard_pb2.Progress:
    return (await shards.GetProgress(shard_pb2.GetProgressRequest(job="j"))).datasets[0]


async def test_every_request_is_answered_in_order_with_many_in_flight(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    call = shards.StreamTasks()
    for number in range(100):
        await call.write(request(number))
    leased = [(await call.read()).response.tasks[0] for _ in range(100)]
    assert [task.index for task in leased] == list(range(100))
    for number, task in enumerate(leased):
        await call.write(request(100 + number, [done(task)], tasks=0))
    await call.done_writing()
    answers = [(await call.read()).response for _ in leased]
    assert await call.read() is grpc.aio.EOF
    assert [answer.outcomes[0].index for answer in answers] == list(range(100))
    assert answers[-1].complete and (await progress(shards)).samples_done == SIZE
    assert await call.code() is grpc.StatusCode.OK


async def test_answers_come_together_to_a_client_that_reads_more(
    served: tuple[Master, shard_pb2_grpc.ShardServiceStub],
) -> None:
    """Decided on while the store was away, they become durable together; others read them one by one."""
    master, shards = served
    log, streams = master.jobs.get("j").log, {name: shards.StreamTasks() for name in ("reads", "old")}
    for name, call in streams.items():  # both are there, so that the store is all that they wait for
        await call.write(_from(name, 0, reads_more=name == "reads"))
        assert len((await call.read()).response.tasks) == 1
    async with patience.within(20):
        async with store_down(master):
            appended = log.appended
            for name, call in streams.items():
                for number in range(1, 11):
                    await call.write(_from(name, number))
            while log.appended < appended + 20:
                await asyncio.sleep(0.005)
        answers: dict[str, list[list[shard_pb2.LeaseTasksResponse]]] = {}
        for name, call in streams.items():
            answers[name] = []
            while sum(map(len, answers[name])) < 10:
                message = await call.read()
                answers[name].append([message.response, *message.more])
    assert [len(batch) for batch in answers["old"]] == [1] * 10
    assert len(answers["reads"]) <= 2, "one write was in flight, the rest is the next"
    for batches in answers.values():
        leased = [task.index for batch in batches for answer in batch for task in answer.tasks]
        assert len(leased) == 10 and leased == sorted(leased)


def _from(worker: str, number: int, *, reads_more: bool = False) -> shard_pb2.StreamTasksRequest:
    message = request(number, worker_id=worker, unanswered=max(0, number - 1))
    message.reads_more = reads_more
    return message


async def test_each_request_of_a_message_is_answered_as_if_it_had_its_own(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    call = shards.StreamTasks()
    await call.write(_together(request(0), request(1)))
    first = await call.read()
    assert first.reads_more, "the client may go on so"
    leased = [first.response.tasks[0], (await call.read()).response.tasks[0]]
    twice = [done(leased[0])]
    last = request(4, [done(leased[1])], tasks=0, unanswered=2)
    await call.write(_together(request(2, twice), request(3, twice, unanswered=1), last))
    answers = [await call.read() for _ in range(3)]
    assert not any(answer.reads_more for answer in answers)
    assert [answer.response.outcomes[0].outcome for answer in answers] == [
        shard_pb2.REPORT_OUTCOME_ACCEPTED,
        shard_pb2.REPORT_OUTCOME_STALE,
        shard_pb2.REPORT_OUTCOME_ACCEPTED,
    ]
    assert [task.index for answer in answers for task in answer.response.tasks] == [2, 3]
    again = shards.StreamTasks()  # a repeated request gets the same answer, whichever message it is in
    await again.write(request(2, twice, unanswered=63))
    assert (await again.read()).response == answers[0].response
    await again.write(_together(request(3, twice, unanswered=63), last))
    assert [(await again.read()).response for _ in range(2)] == [one.response for one in answers[1:]]


async def test_more_requests_in_a_message_than_may_be_in_flight(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    call = shards.StreamTasks()
    await call.write(_together(*(request(number) for number in range(100))))
    answers = [(await call.read()).response for _ in range(100)]
    assert [task.index for answer in answers for task in answer.tasks] == list(range(100))


@pytest.mark.parametrize("first", [True, False], ids=["first message", "later message"])
@pytest.mark.parametrize(
    ("wrong", "code", "reason"),
    [
        ({"dataset": "unknown"}, grpc.StatusCode.NOT_FOUND, errors_pb2.ERROR_REASON_NOT_FOUND),
        ({"job": "other"}, grpc.StatusCode.INVALID_ARGUMENT, errors_pb2.ERROR_REASON_INVALID_ARGUMENT),
    ],
)
async def test_a_refusal_within_a_message_ends_the_stream_after_what_came_before(
    shards: shard_pb2_grpc.ShardServiceStub,
    first: bool,
    wrong: dict[str, object],
    code: grpc.StatusCode,
    reason: errors_pb2.ErrorReason,
) -> None:
    call = shards.StreamTasks()
    if not first:
        await call.write(request(0))
        assert (await call.read()).response.tasks[0].index == 0
    await call.write(_together(request(1), request(2, **wrong), request(3)))
    assert (await call.read()).response.tasks[0].index == int(not first)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    found, _, detail = reason_of(refused.value)
    assert (found, detail.reason) == (code, reason)


def _together(*messages: shard_pb2.StreamTasksRequest) -> shard_pb2.StreamTasksRequest:
    return shard_pb2.StreamTasksRequest(
        request=messages[0].request, more=[message.request for message in messages[1:]]
    )


async def test_runs_go_through_a_dataset_in_few_messages(shards: shard_pb2_grpc.ShardServiceStub) -> None:
    call = shards.StreamTasks()
    held: list[shard_pb2.TaskReport] = []
    answers = []
    while not answers or not answers[-1].complete:
        await call.write(request(len(answers), held, tasks=64, runs=True))
        answers.append((await call.read()).response)
        held = [done(task) for task in answers[-1].tasks]
    assert [(task.index, task.count) for answer in answers for task in answer.tasks] == [(0, 64), (64, 36)]
    log = await shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job="j", page_size=1000))
    assert [(entry.step, entry.range.start, entry.range.end) for entry in log.entries] == [
        (index, 10 * index, 10 * index + 10) for index in range(100)
    ]


async def test_a_request_that_waits_holds_up_those_behind_it_until_a_task_comes_back(
    served: tuple[Master, shard_pb2_grpc.ShardServiceStub],
) -> None:
    master, shards = served
    waiters = master.jobs.get("j").task_waiters
    other = await shards.LeaseTasks(request(0, tasks=100, worker_id="other").request)
    call = shards.StreamTasks()
    await call.write(request(1, wait_seconds=300))
    await call.write(request(2, wait_seconds=300))
    # If the task came back before both wait, the second could be given it as it arrives; the first would then
    # be answered without tasks.
    async with patience.within(60):
        while waiters.count < 2:
            await asyncio.sleep(0.005)
    failed = done(other.tasks[7])
    failed.error = "bad sample"
    await shards.LeaseTasks(request(1, [failed], tasks=0, worker_id="other").request)
    assert (await call.read()).response.tasks[0].index == 7
    held = [done(task) for task in other.tasks if task.index != 7]
    await shards.LeaseTasks(request(2, held, tasks=0, worker_id="other").request)
    await shards.LeaseTasks(
        request(3, [shard_pb2.TaskReport(index=7, attempt=2)], tasks=0, worker_id="w").request
    )
    assert (await call.read()).response.complete


async def test_a_request_that_waits_holds_no_answer_up_that_is_known(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    """While it did, the leases of the tasks in that answer would run, and nobody would do them."""
    held = await shards.LeaseTasks(request(0, tasks=100).request)
    call = shards.StreamTasks()
    await call.write(request(1, wait_seconds=300))
    failed = done(held.tasks[7])
    failed.error = "bad sample"
    await call.write(request(2, [failed], wait_seconds=300, unanswered=1))
    async with patience.within(20):
        first, second = [(await call.read()).response for _ in range(2)]
    assert not first.tasks and not first.complete
    assert [task.index for task in second.tasks] == [7]
    await call.write(request(3, wait_seconds=300))
    await call.write(request(4, [done(held.tasks[8])], tasks=0, unanswered=1))
    async with patience.within(20):
        first, second = [(await call.read()).response for _ in range(2)]
    assert not first.tasks and [outcome.index for outcome in second.outcomes] == [8]


async def test_a_request_that_is_given_tasks_late_makes_nobody_forget_those_behind_it(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    mine = await shards.LeaseTasks(request(0).request)
    other = await shards.LeaseTasks(request(0, tasks=99, worker_id="other").request)
    call = shards.StreamTasks()
    await call.write(request(1))
    behind = request(2, [done(mine.tasks[0])], unanswered=1)
    await call.write(behind)
    async with patience.within(20):
        while (await progress(shards)).done == 0:
            await asyncio.sleep(0.005)
    failed = done(other.tasks[0])
    failed.error = "bad sample"
    await shards.LeaseTasks(request(1, [failed], tasks=0, worker_id="other").request)
    assert (await call.read()).response.tasks
    call.cancel()
    call = shards.StreamTasks()
    behind.request.wait.Clear()
    await call.write(behind)
    (outcome,) = (await call.read()).response.outcomes
    assert outcome.outcome == shard_pb2.REPORT_OUTCOME_ACCEPTED, "the answer it was given before"


async def test_a_job_that_is_paused_sends_streams_of_tasks_away(
    served: tuple[Master, shard_pb2_grpc.ShardServiceStub],
) -> None:
    """One waits for the store, one for tasks, and one for its client: none may stay with a deposed leader."""
    master, shards = served
    host = master.jobs.get("j")
    silent, waiting, writing = shards.StreamTasks(), shards.StreamTasks(), shards.StreamTasks()
    await silent.write(request(0, tasks=99, worker_id="silent"))
    assert len((await silent.read()).response.tasks) == 99
    await writing.write(request(1, worker_id="writing"))
    (task,) = (await writing.read()).response.tasks
    await waiting.write(request(2, worker_id="waiting", wait_seconds=300))
    async with patience.within(20), store_down(master):
        await writing.write(request(3, [done(task)], tasks=0, worker_id="writing"))
        while host.log.appended == host.log.durable or not host.task_waiters.count:
            await asyncio.sleep(0.005)
        master.jobs.pause(Rejection("not_leading", "another master may lead"))
        for call in (silent, waiting, writing):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            assert reason_of(refused.value)[2].reason == errors_pb2.ERROR_REASON_NOT_LEADING
    master.jobs.resume()
    async with patience.within(20):
        await shards.LeaseTasks(request(4, tasks=0).request)
    assert not host._ends


async def test_a_refusal_ends_the_stream_after_what_came_before(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    call = shards.StreamTasks()
    await call.write(request(0))
    await call.write(request(1, dataset="unknown"))
    await call.write(request(2))
    assert (await call.read()).response.tasks[0].index == 0
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    code, _, detail = reason_of(refused.value)
    assert (code, detail.reason) == (grpc.StatusCode.NOT_FOUND, errors_pb2.ERROR_REASON_NOT_FOUND)


async def test_a_stream_is_of_one_job(shards: shard_pb2_grpc.ShardServiceStub) -> None:
    """What a token may do is asked for the first message's job."""
    call = shards.StreamTasks()
    await call.write(request(0))
    await call.write(request(1, job="other"))
    assert (await call.read()).response.tasks
    with pytest.raises(grpc.aio.AioRpcError, match="one job"):
        await call.read()


async def test_bytes_that_are_no_request_are_refused_with_a_reason(
    shards: shard_pb2_grpc.ShardServiceStub, tmp_path: Path
) -> None:
    async with serving_master(tmp_path / "other") as (_, channel):
        call = channel.stream_stream("/elastane.v1.ShardService/StreamTasks")()
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind(
    shards: shard_pb2_grpc.ShardServiceStub,
) -> None:
    held = await shards.LeaseTasks(request(0, tasks=100, worker_id="other").request)
    tasks_before = len(asyncio.all_tasks())
    for number in range(5):
        call = shards.StreamTasks()
        await call.write(request(number, wait_seconds=300))
        await call.write(request(number + 10, wait_seconds=300))
        call.cancel()
    failed = done(held.tasks[0])
    failed.error = "bad sample"
    await shards.LeaseTasks(request(1, [failed], tasks=0, worker_id="other").request)
    # Whoever had left must not have been given it.
    answer = await shards.LeaseTasks(request(2, worker_id="third").request)
    assert answer.tasks[0].index == 0
    async with patience.within(20):
        while len(asyncio.all_tasks()) > tasks_before:
            await asyncio.sleep(0.01)
