"""Finished jobs: closed to a record that costs nothing, read again when asked for, deleted in the end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from redis.exceptions import ConnectionError

import patience
from elastane_master.app import Master
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import VERSION
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.serving import stopping
from elastane_master.store.closed import ClosedJobs
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.errors import Fenced
from elastane_master.store.keys import RUNS, JobKeys
from elastane_master.store.log import JobLog, LogOptions
from elastane_proto.v1 import (
    job_pb2,
    job_pb2_grpc,
    metric_pb2,
    metric_pb2_grpc,
    ring_pb2,
    ring_pb2_grpc,
    shard_pb2,
    shard_pb2_grpc,
)
from integration.master_support import (
    SOURCES,
    Worker,
    open_ledger,
    private_store,
    reason_of,
    serving_master,
)

CLOSE_SECONDS = 0.2
OPTIONS = LogOptions(state_version=VERSION)


class Api:
    """What is asked of a master's jobs."""

    def __init__(self, master: Master, channel: grpc.aio.Channel) -> None:
        self.master, self.channel = master, channel
        self.job_servers = master.jobs
        self.redis = master._store.redis
        self.jobs = job_pb2_grpc.JobServiceStub(channel)
        self.shards = shard_pb2_grpc.ShardServiceStub(channel)

    async def create(self, name: str) -> job_pb2.JobServiceCreateResponse:
        settings = job_pb2.JobSettings(ests=1)
        return await self.jobs.Create(job_pb2.JobServiceCreateRequest(name=name, settings=settings))

    async def finish(self, name: str) -> None:
        await self.create(name)
        await self.jobs.Cancel(job_pb2.JobServiceCancelRequest(name=name))

    async def work(self, name: str, tasks: int) -> None:
        """Creates a job that has done tasks of a dataset."""
        await self.create(name)
        settings = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=tasks))
        await self.shards.CreateDataset(
            shard_pb2.CreateDatasetRequest(job=name, dataset="d", settings=settings)
        )
        leased = await self.lease(name, max_tasks=tasks)
        reports = [
            shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
            for task in leased.tasks
        ]
        await self.lease(name, completed=reports)

    async def lease(self, name: str, **fields: object) -> shard_pb2.LeaseTasksResponse:
        request = shard_pb2.LeaseTasksRequest(job=name, dataset="d", worker_id="w", **fields)
        return await self.shards.LeaseTasks(request, timeout=30)

    async def get(self, name: str) -> job_pb2.Job:
        return (await self.jobs.Get(job_pb2.JobServiceGetRequest(name=name))).job

    async def list(self) -> list[job_pb2.Job]:
        return list((await self.jobs.List(job_pb2.JobServiceListRequest())).jobs)

    async def delete(self, name: str, **fields: object) -> None:
        await self.jobs.Delete(job_pb2.JobServiceDeleteRequest(name=name, **fields))

    async def all_closed(self) -> None:
        """Wait for the logs, too: a job is no longer found before its log has ended."""
        await until(lambda: not self.job_servers.all() and not logs_running())

    async def keys(self, name: str) -> set[str]:
        return {key.decode().rpartition(":")[2] for key in await self.redis.keys(f"elastane:{{{name}}}:*")}

    async def calls(self) -> dict[str, int]:
        """How often the store was asked for what."""
        stats = await self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


async def until(condition: Callable[[], bool]) -> None:
    async with patience.within(60):
        while not condition():
            await asyncio.sleep(0.02)  # a job that is closed tells nobody: nobody follows it


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving_master(
        tmp_path, close_finished_seconds=CLOSE_SECONDS, store_connections_max=3
    ) as served:
        yield Api(*served)


def logs_running() -> list[str]:
    """Logs of jobs; that of the runs is always there."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("log of ") and name != f"log of {RUNS}"]


async def test_closed_jobs_cost_nothing_and_are_still_there(api: Api) -> None:
    names = [f"j{number:02d}" for number in range(40)]
    await asyncio.gather(*[api.create(name) for name in names])
    assert len(logs_running()) == 40
    # Forty jobs write over three connections.
    connections = api.redis.script_connections
    assert 1 <= connections.opened <= 3
    await api.work("worked", 5)
    for name in ["worked", *names]:
        await api.jobs.Cancel(job_pb2.JobServiceCancelRequest(name=name))
    await api.all_closed()

    assert connections.opened <= 3
    listed = await api.list()
    assert [job.name for job in listed] == [*names, "worked"]
    assert all(job.HasField("closed") and job.phase == job_pb2.JOB_PHASE_CANCELLED for job in listed)
    assert (await api.get("j07")).reason == "cancelled by an operator"
    assert api.job_servers.all() == []  # that was answered from the records

    # What is not in the record is read again, of this job alone.
    audit = await api.shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job="worked"))
    assert len(audit.entries) == 5
    progress = await api.shards.GetProgress(shard_pb2.GetProgressRequest(job="worked"))
    assert progress.datasets[0].done == 5
    ring = ring_pb2_grpc.RingServiceStub(api.channel)
    events = [one.event async for one in ring.WatchEvents(ring_pb2.WatchEventsRequest(job="worked"))]
    assert {"job_created", "dataset_created"} <= {event.kind for event in events}
    metrics = metric_pb2_grpc.MetricServiceStub(api.channel)
    await metrics.GetSeries(metric_pb2.GetSeriesRequest(job="worked"))
    assert [host.name for host in api.job_servers.all()] == ["worked"]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.jobs.Scale(job_pb2.JobServiceScaleRequest(name="j07", workers_min=1, workers_max=1))
    assert reason_of(refused.value)[1] == "WRONG_PHASE"
    created = await api.create("j08")  # equal settings: it is that job
    assert not created.created and created.job.phase == job_pb2.JOB_PHASE_CANCELLED
    await api.all_closed()

    # A master that starts asks two things of each, and reads none of them.
    before = await api.calls()
    again = JobServers(Store(api.redis, "", None), OPTIONS)
    await again.start()
    after = await api.calls()
    asked = {name: count - before.get(name, 0) for name, count in after.items()}
    assert again.count == 41 and again.all() == []
    assert asked["evalsha"] <= 4 * 41  # the first time both scripts are asked for, they have to be loaded
    assert asked.get("xrange", 0) == asked.get("xrevrange", 0) == asked.get("get", 0) == 0
    await again.abandon(stopping())


async def test_what_is_changed_after_a_record_was_made_counts(api: Api) -> None:
    await api.finish("j")
    await api.all_closed()
    api.job_servers.finished.close_seconds = 3600
    prices = job_pb2.JobServiceSetPricesRequest(name="j", spot_price_micros=7)
    await api.jobs.SetPrices(prices)  # opens it again
    assert [host.name for host in api.job_servers.all()] == ["j"]
    await api.job_servers.abandon(stopping())  # as a crash: nothing more is written
    await api.job_servers.start()
    api.job_servers.refuse(None)
    job = await api.get("j")
    assert job.settings.spot_price_micros == 7 and not job.HasField("closed")


async def test_a_store_that_lost_the_last_write_is_given_it_again(api: Api) -> None:
    await api.finish("j")
    close, asked = api.job_servers.finished.records.close, asyncio.Event()

    async def lost(job: str, token: int, sequence: int, record: bytes) -> bool:
        api.job_servers.finished.records.close = close
        await api.redis.delete(JobKeys.of(job).snapshot)
        asked.set()
        return await close(job, token, sequence + 1, record)

    api.job_servers.finished.records.close = lost
    await patience.wait_for(asked.wait(), 30)
    async with patience.within(30):
        while "snapshot" not in await api.keys("j"):  # the store tells nobody
            await asyncio.sleep(0.02)
    assert (await api.job_servers.find("j")).machine.state.phase == "cancelled"


async def test_a_leader_whose_job_is_taken_while_it_writes_it_anew_gives_up_leading(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would lead on with an old token, and refuse the job's requests."""
    await api.finish("j")
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    api.job_servers._on_failed = failed.set_result

    async def lost(job: str, token: int, sequence: int, record: bytes) -> bool:
        monkeypatch.setattr(JobLog, "open", taken)
        return False

    async def taken(*args: object, **options: object) -> None:
        raise Fenced("another master took it", job="j", token=1, holder="2")

    api.job_servers.finished.records.close = lost
    assert isinstance(await patience.wait_for(failed, 30), Fenced)


async def test_delete(api: Api) -> None:
    await api.work("j", 3)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await api.delete("j", request_id="first")
    code, reason, detail = reason_of(refused.value)
    assert (
        code == grpc.StatusCode.FAILED_PRECONDITION and reason == "WRONG_PHASE" and "--force" in detail.hint
    )
    assert (await api.get("j")).phase == job_pb2.JOB_PHASE_WAITING

    worker = Worker(api.channel, "w1")
    await worker.hello(role=ring_pb2.WORKER_ROLE_TASKS)
    await api.delete("j", request_id="first", force=True)
    assert (await worker.receive("done")).done.reason == "cancelled by an operator"
    assert await worker.ended() == grpc.StatusCode.NOT_FOUND
    assert await api.keys("j") == {"fence"} and await api.list() == []
    assert not await api.redis.sismember("elastane:jobs", "j")
    assert 0 < await api.redis.ttl(JobKeys.of("j").fence) <= 86_400

    await api.delete("j", request_id="first")  # the answer had been lost
    with pytest.raises(grpc.aio.AioRpcError) as missing:
        await api.delete("j", request_id="second")
    assert missing.value.code() == grpc.StatusCode.NOT_FOUND

    assert (await api.create("j")).created  # another job of that name
    assert await api.redis.ttl(JobKeys.of("j").fence) == -1
    audit = await api.shards.GetAuditLog(shard_pb2.GetAuditLogRequest(job="j"))
    assert len(audit.entries) == 0
    with pytest.raises(grpc.aio.AioRpcError) as other:
        await api.delete("j", request_id="first")
    assert reason_of(other.value)[1] == "WRONG_PHASE"

    await api.finish("closed")
    await until(lambda: [job.name for job in api.job_servers.closed()] == ["closed"])
    await api.delete("closed")
    await api.job_servers.abandon(stopping())
    await api.job_servers.start()  # the next master does not take the new job for the deleted one
    api.job_servers.refuse(None)
    assert [job.name for job in await api.list()] == ["j"]


async def test_finished_jobs_are_deleted_when_they_are_kept_no_longer(tmp_path: Path) -> None:
    async with serving_master(tmp_path, close_finished_seconds=CLOSE_SECONDS, keep_finished="2") as served:
        api = Api(*served)
        await api.create("runs")
        for name in ("a", "b", "c"):
            await api.finish(name)
        await until(lambda: api.job_servers.names() == ["b", "c", "runs"])
        await until(lambda: len(api.job_servers.closed()) == 2)
        assert await api.keys("a") == {"fence"}
        assert {"snapshot", "events"} <= await api.keys("b")


async def test_a_deletion_that_was_cut_off_is_ended_by_the_next_master(api: Api) -> None:
    await api.finish("j")
    await api.all_closed()
    (job,) = api.job_servers.closed()
    await api.job_servers.finished.records.delete("j", job.stored.token, "")
    await api.job_servers.abandon(stopping())
    await api.job_servers.start()
    api.job_servers.refuse(None)
    assert await api.list() == [] and not await api.redis.sismember("elastane:jobs", "j")


async def test_a_deletion_whose_answer_was_lost_is_ended_by_whoever_asks_next(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after an opening that failed halfway, when the store has a newer token than the master knows."""
    for name in ("asked", "again"):
        await api.finish(name)
    await api.all_closed()
    recover = JobLog.open

    async def cut_off(*arguments: object, **options: object) -> None:
        await recover(*arguments, **options)
        raise ConnectionError("connection reset")

    delete = api.job_servers.finished.records.delete

    async def lost(job: str, token: int, request_id: str) -> None:
        await delete(job, token, request_id)
        raise ConnectionError("connection reset")

    with monkeypatch.context() as store:
        store.setattr(JobLog, "open", cut_off)
        for name in ("asked", "again"):
            with pytest.raises(ConnectionError):
                await api.job_servers.find(name)
        store.setattr(api.job_servers.finished.records, "delete", lost)
        for name in ("asked", "again"):
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await api.delete(name, request_id="r")
            assert reason_of(unknown.value)[1] == "STORE_UNAVAILABLE"

    with pytest.raises(Rejection) as busy:
        await api.job_servers.find("asked")
    assert busy.value.reason == "busy"
    await api.delete("again", request_id="r")
    assert api.job_servers.names() == [] and not api.job_servers.held()
    assert await api.keys("asked") == await api.keys("again") == {"fence"}
    assert (await api.create("asked")).created


async def test_an_opening_whose_answer_was_lost_fences_nobody_though_its_record_was_never_stored(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = JobLog.open

    async def cut_off(*arguments: object, **options: object) -> None:
        await recover(*arguments, **options)
        raise ConnectionError("connection reset")

    async def away(*arguments: object) -> bool:
        raise ConnectionError("connection reset")

    await api.finish("j")
    with monkeypatch.context() as store:
        store.setattr(api.job_servers.finished.records, "close", away)
        await api.all_closed()
        store.setattr(JobLog, "open", cut_off)
        with pytest.raises(ConnectionError):
            await api.job_servers.find("j")
    assert (await api.job_servers.find("j")).machine.state.phase == "cancelled"


class StoppedTime:
    """An event loop whose time stands still."""

    def __init__(self, loop: Any) -> None:
        self._loop, self._now = loop, loop.time()

    def time(self) -> float:
        return float(self._now)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_a_job_is_not_closed_when_somebody_comes_while_the_store_is_asked(api: Api) -> None:
    api.job_servers.finished.close_seconds = 3600
    await api.finish("j")
    (host,) = api.job_servers.all()
    confirm, visits = host.confirm, []

    async def visited() -> None:
        await confirm()
        visits.append(await api.get("j"))

    host.confirm = visited
    await until(lambda: host.is_unused(0.01))
    host._loop = StoppedTime(host._loop)  # a busy machine may take long between the visit and the decision
    api.job_servers.finished.close_seconds = 0.01
    await api.job_servers.finished.close_unused()
    assert len(visits) == 1 and api.job_servers.all() == [host] and not host.stopping


async def test_a_master_that_was_asleep_does_not_bring_a_deleted_job_back(tmp_path: Path) -> None:
    async with private_store(tmp_path) as store:
        old = await open_ledger(store)
        await old.append(b"a")
        log, _ = await JobLog.open(store.redis, "j", OPTIONS)
        await ClosedJobs(store.redis).delete("j", log.token, "r")
        with pytest.raises(Fenced):
            await old.append(b"b")
        assert not await store.redis.exists(JobKeys.of("j").snapshot)


async def test_a_closed_job_that_another_master_took_is_not_opened_or_deleted(api: Api) -> None:
    await api.finish("j")
    await api.all_closed()
    failed: list[Exception] = []
    api.job_servers._on_failed = failed.append
    store = await Store.open(StoreOptions(url=api.master._store.url))
    newer = JobServers(store, OPTIONS)
    await newer.start()
    with pytest.raises(Fenced):
        await api.job_servers.find("j")
    with pytest.raises(Fenced):
        await api.job_servers.delete("j")
    # Each time it gives up leading: on with its old token, it would refuse the job's requests for ever.
    assert len(failed) == 2 and api.job_servers.all() == []
    assert (await newer.find("j")).machine.state.phase == "cancelled"
    await newer.stop(stopping())
    await store.close(stop_embedded=False)


async def test_a_master_makes_do_with_few_descriptors_and_says_when_there_are_too_few(tmp_path: Path) -> None:
    def master(limit: int, port_file: Path) -> subprocess.Popen[str]:
        arguments = [
            "--listen",
            "127.0.0.1:0",
            "--state-dir",
            str(tmp_path / "s"),
            "--port-file",
            str(port_file),
        ]
        return subprocess.Popen(
            [
                "sh",
                "-c",
                f'ulimit -n {limit}; exec "$@"',
                "sh",
                sys.executable,
                "-m",
                "elastane_master",
                *arguments,
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
            stderr=subprocess.PIPE,
            text=True,
        )

    refused = master(64, tmp_path / "none")
    assert await asyncio.to_thread(refused.wait, 60) == 2
    assert "64 descriptors" in (said := refused.stderr.read()) and "[ELA440]" in said and "ulimit -n" in said

    port = tmp_path / "port"
    served = master(160, port)
    try:
        await until(lambda: port.exists() or served.poll() is not None)
        async with grpc.aio.insecure_channel(port.read_text().strip()) as channel:
            jobs = job_pb2_grpc.JobServiceStub(channel)
            settings = job_pb2.JobSettings(ests=1)
            for number in range(100):
                await jobs.Create(
                    job_pb2.JobServiceCreateRequest(name=f"j{number}", settings=settings), timeout=60
                )
        assert len(list(Path(f"/proc/{served.pid}/fd").iterdir())) < 80
    finally:
        served.terminate()
        said = (await asyncio.to_thread(served.communicate))[1]
    assert "few descriptors: bounds are lowered" in said and "store_connections_max 32 to" in said
