"""MetricService on a real master and store: curves, steps, rewinds, who may follow, and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import patience
from elastane_master.servers import metric_service
from elastane_master.store.history import JobHistory
from elastane_proto.v1 import job_pb2, job_pb2_grpc, metric_pb2, metric_pb2_grpc, ring_pb2
from integration.master_support import Worker, reason_of, serving_master
from integration.test_master_sessions import RING, SIGNATURE, form_ring, get_job, job, report


def stub(channel: grpc.aio.Channel) -> Any:
    return metric_pb2_grpc.MetricServiceStub(channel)


async def curve(channel: grpc.aio.Channel, **fields: Any) -> dict[str, list[tuple[int, float]]]:
    answer = await stub(channel).GetSeries(metric_pb2.GetSeriesRequest(job="j", **fields))
    return {one.name: [(point.step, point.mean) for point in one.points] for one in answer.series}


async def train(worker: Worker, go: ring_pb2.Go, steps: range, loss: float) -> None:
    """Steps in which EST 0 logs `loss` and EST 1 three times that: two times in the mean."""
    for step in steps:
        message = report(go, step)
        for rank, task in enumerate(message.tasks):
            task.metrics["loss"] = loss * (1 + 2 * rank)
        message.tasks[0].metrics["only"] = 7.0
        await worker.send(step_report=message)
        await worker.receive("prepared")


async def committed(worker: Worker, go: ring_pb2.Go, step: int, channel: grpc.aio.Channel) -> None:
    """Tells that the steps before `step` are applied, and waits until they are committed."""
    await worker.send(heartbeat=ring_pb2.Heartbeat(generation=go.generation, applied_step=step))
    async with patience.within(20):
        while (await get_job(channel)).step < step:
            await asyncio.sleep(0.01)


async def read(watch: Any) -> metric_pb2.WatchStepsResponse:
    answer = await patience.wait_for(watch.read(), 20)
    assert answer is not grpc.aio.EOF
    return answer


async def test_curves_and_steps_of_a_history_that_goes_back(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        assert await curve(channel) == {}
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        go = await form_ring(worker)
        follower = stub(channel).WatchSteps(metric_pb2.WatchStepsRequest(job="j", follow=True, worker_id="a"))
        first = await read(follower)
        assert not first.steps and first.job_created == (await get_job(channel)).created
        await train(worker, go, range(3), 1.0)
        await committed(worker, go, 3, channel)
        assert await curve(channel) == {
            "loss": [(n, 2.0) for n in range(3)],
            "only": [(n, 7.0) for n in range(3)],
        }
        assert await curve(channel, names=["only", "nonsense"]) == {"only": [(n, 7.0) for n in range(3)]}
        assert [step for step, _ in (await curve(channel, points_max=2))["loss"]] == [0, 2]
        seen: list[metric_pb2.StepValues] = []
        while len(seen) < 3:
            answer = await read(follower)
            seen += answer.steps
        assert [(one.step, one.samples, one.values["loss"]) for one in seen] == [
            (n, 10, 2.0) for n in range(3)
        ]
        token = answer.token

        # The only worker dies; another one begins from the initial state.
        worker.call.cancel()
        other = Worker(channel, "b")
        await other.hello(RING, signature=SIGNATURE)
        go = await form_ring(other)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while True:
                await read(follower)  # its worker does not lead any more
        code, reason, detail = reason_of(refused.value)
        assert (code, reason, detail.facts["leader"]) == (grpc.StatusCode.ABORTED, "STALE", "b")

        await train(other, go, range(2), 5.0)
        await committed(other, go, 2, channel)
        assert await curve(channel) == {"loss": [(0, 10.0), (1, 10.0)], "only": [(0, 7.0), (1, 7.0)]}

        # Who goes on behind the token hears of the rewind, whoever leads.
        request = metric_pb2.WatchStepsRequest(job="j", after=token)
        later = [answer async for answer in stub(channel).WatchSteps(request)]
        assert later[0].token == token and not later[0].steps
        assert [one.step for answer in later for one in answer.steps] == [0, 1]
        every = [one async for one in stub(channel).WatchSteps(metric_pb2.WatchStepsRequest(job="j"))]
        told = [(one.step, one.rewound) for answer in every for one in answer.steps]
        assert told == [(0, False), (1, False), (2, False), (0, True), (1, False)]
        await other.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED))

    async with serving_master(tmp_path) as (_, channel):
        assert await curve(channel, names=["loss"]) == {"loss": [(0, 10.0), (1, 10.0)]}
        environment = (await get_job(channel)).environment
        assert dict(environment) == dict(SIGNATURE.environment)


async def test_curves_are_watched(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        request = metric_pb2.WatchSeriesRequest(job="j")
        request.interval.FromMilliseconds(50)
        watch = stub(channel).WatchSeries(request)
        assert (await patience.wait_for(watch.read(), 20)).step == 0
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        go = await form_ring(worker)
        await train(worker, go, range(2), 1.0)
        await committed(worker, go, 2, channel)
        steps = 0
        while steps < 2:
            answer = await patience.wait_for(watch.read(), 20)
            assert answer.step > steps  # nothing is told twice
            steps = answer.step
        assert [point.step for one in answer.series if one.name == "loss" for point in one.points] == [0, 1]
        watch.cancel()


@pytest.mark.parametrize(
    ("method", "fields", "code", "reason"),
    [
        ("GetSeries", {"job": "none"}, grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
        ("GetSeries", {"points_max": 513}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ("WatchSteps", {"after": "17"}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        ("WatchSeries", {"points_max": 513}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
    ],
)
async def test_bad_requests(
    tmp_path: Path, method: str, fields: dict[str, Any], code: Any, reason: str
) -> None:
    async with job(tmp_path) as (_, channel):
        request = getattr(metric_pb2, f"{method}Request")(**{"job": "j", **fields})
        call = getattr(stub(channel), method)(request)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await (call if method == "GetSeries" else call.read())
        assert reason_of(refused.value)[:2] == (code, reason)


async def test_watches_of_more_jobs_than_are_kept_do_not_read_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_service, "JOBS_KEPT", 1)
    asked: list[str] = []
    news = JobHistory.news

    async def counted(self: JobHistory, after: str, count: int) -> tuple[list[bytes], str]:
        asked.append(after)
        return await news(self, after, count)

    monkeypatch.setattr(JobHistory, "news", counted)
    async with job(tmp_path) as (_, channel):
        worker = Worker(channel, "a")
        await worker.hello(RING, signature=SIGNATURE)
        go = await form_ring(worker)
        await train(worker, go, range(1), 1.0)
        await committed(worker, go, 1, channel)
        request = metric_pb2.WatchSeriesRequest(job="j")
        request.interval.FromMilliseconds(50)
        watch = stub(channel).WatchSeries(request)
        assert (await patience.wait_for(watch.read(), 20)).step == 1
        jobs = job_pb2_grpc.JobServiceStub(channel)
        settings = job_pb2.JobSettings(ests=1)
        await jobs.Create(job_pb2.JobServiceCreateRequest(name="other", settings=settings))
        await stub(channel).GetSeries(metric_pb2.GetSeriesRequest(job="other"))
        asked.clear()
        await train(worker, go, range(1, 2), 1.0)
        await committed(worker, go, 2, channel)
        assert (await patience.wait_for(watch.read(), 20)).step == 2
        assert asked and "" not in asked
