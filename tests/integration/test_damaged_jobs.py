"""A store that lost a key: its job is held and says what is lost; an operator decides what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import grpc
import pytest
from click.testing import Result
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_master.app import Master
from elastane_master.settings import MasterSettings
from elastane_master.store.connection import Store
from elastane_master.store.keys import JOBS_KEY, STORED_JOBS_KEY, JobKeys
from elastane_master.store.leader_lease import LEASE_KEY
from elastane_proto.v1 import errors_pb2, job_pb2, job_pb2_grpc, ring_pb2, shard_pb2, shard_pb2_grpc
from integration.master_support import Worker, private_store, reason_of
from slow import slow

KEYS, OTHER = JobKeys.of("j"), JobKeys.of("k")
SIZE, DONE = 40, 30


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path) as store:
        yield store


@contextlib.asynccontextmanager
async def serving(store: Store, **settings: object) -> AsyncIterator[tuple[Master, grpc.aio.Channel]]:
    master = Master(
        MasterSettings(
            listen="127.0.0.1:0",
            store=store.url,
            stop_grace_seconds=0.5,
            snapshot_seconds=3600.0,
            leader_lease_seconds=60.0,  # a busy machine is no matter here
            **settings,
        )
    )
    try:
        await master.start()
        async with grpc.aio.insecure_channel(master.address) as channel:
            yield master, channel
    finally:
        await master.stop()


async def create(channel: grpc.aio.Channel, job: str) -> None:
    settings = job_pb2.JobSettings(ests=1)
    await job_pb2_grpc.JobServiceStub(channel).Create(
        job_pb2.JobServiceCreateRequest(name=job, settings=settings)
    )
    dataset = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=SIZE))
    await shard_pb2_grpc.ShardServiceStub(channel).CreateDataset(
        shard_pb2.CreateDatasetRequest(job=job, dataset="d", settings=dataset)
    )


async def work(channel: grpc.aio.Channel, job: str, tasks: int) -> None:
    """A worker does so many tasks, each acknowledged."""
    shards = shard_pb2_grpc.ShardServiceStub(channel)
    reports: list[shard_pb2.TaskReport] = []
    for number in range(tasks + 1):
        reply = await shards.LeaseTasks(
            shard_pb2.LeaseTasksRequest(
                job=job, dataset="d", worker_id="w", completed=reports, max_tasks=int(number < tasks)
            )
        )
        assert all(o.outcome == shard_pb2.REPORT_OUTCOME_ACCEPTED for o in reply.outcomes)
        reports = [
            shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
            for task in reply.tasks
        ]


async def audit(channel: grpc.aio.Channel, job: str) -> Counter[int]:
    """How often each task counts."""
    page = await shard_pb2_grpc.ShardServiceStub(channel).GetAuditLog(
        shard_pb2.GetAuditLogRequest(job=job, page_size=1000)
    )
    return Counter(entry.step for entry in page.entries)


async def killed_after_some_work(store: Store) -> None:
    """What a master leaves that is killed after thirty tasks of each of two jobs."""
    async with serving(store) as (_, channel):
        for job in ("j", "k"):
            await create(channel, job)
            await work(channel, job, DONE)
        left = {key: await store.redis.dump(key) for key in await store.redis.keys("*")}
    await store.redis.flushall()
    for key, value in left.items():
        await store.redis.restore(key, 0, value)
    await store.redis.delete("elastane:{leader}:lease")  # its time is over


async def swap(store: Store, ours: str, theirs: str) -> None:
    await store.redis.rename(ours, "between")
    await store.redis.rename(theirs, ours)
    await store.redis.rename("between", theirs)


async def repair(
    channel: grpc.aio.Channel, job: str, *, accept_loss: bool
) -> job_pb2.JobServiceRepairResponse:
    request = job_pb2.JobServiceRepairRequest(name=job, accept_loss=accept_loss)
    return await job_pb2_grpc.JobServiceStub(channel).Repair(request)


async def refused(call: object) -> errors_pb2.ErrorDetail:
    """The detail of a call that is refused since its job is damaged."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    code, reason, detail = reason_of(error.value)
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "DAMAGED"), error.value.details()
    assert not detail.retryable and "--accept-loss" in detail.hint
    return detail


@pytest.mark.parametrize("part", ["fence", "log", "snapshot", "history", "events", "all"])
async def test_a_job_whose_key_is_gone_is_held_until_an_operator_decides(store: Store, part: str) -> None:
    await killed_after_some_work(store)
    gone = KEYS.all if part == "all" else (getattr(KEYS, part),)
    named = KEYS.fence if part == "all" else gone[0]
    await store.redis.delete(*gone)
    async with serving(store) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        held, other = (await jobs.List(job_pb2.JobServiceListRequest())).jobs
        assert (held.name, held.phase) == ("j", job_pb2.JOB_PHASE_DAMAGED)
        assert held == (await jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job
        assert held.damages[0].key == named and held.damages[0].lost and named in held.reason
        assert other.phase == job_pb2.JOB_PHASE_WAITING
        await work(channel, "k", SIZE - DONE)  # whose keys are whole is served
        assert await audit(channel, "k") == Counter(range(SIZE))

        detail = await refused(Worker(channel, "w").hello(ring_pb2.WORKER_ROLE_TASKS))
        assert named in detail.facts["keys"]
        await refused(work(channel, "j", 1))
        await refused(create(channel, "j"))
        await refused(repair(channel, "j", accept_loss=False))
        accepted = await repair(channel, "j", accept_loss=True)
        assert [damage.key for damage in accepted.accepted][:1] == [named]
        assert accepted.removed == (part in ("snapshot", "all"))
        if accepted.removed:
            await create(channel, "j")
            done = 0
        else:
            # Without its log the state is that of its beginning, before there was a dataset.
            done = 0 if part == "log" else DONE
            if part == "log":
                await create(channel, "j")
        await work(channel, "j", SIZE - done)
        assert await audit(channel, "j") == Counter(range(DONE if part == "history" else 0, SIZE))
    async with serving(store) as (_, channel):  # and it is whole from then on
        assert (await job_pb2_grpc.JobServiceStub(channel).Get(GET)).job.phase == job_pb2.JOB_PHASE_WAITING


GET = job_pb2.JobServiceGetRequest(name="j")


async def test_a_key_that_is_put_back_is_all_that_it_takes(store: Store, tmp_path: Path) -> None:
    await killed_after_some_work(store)
    kept = await store.redis.dump(KEYS.history)
    await store.redis.delete(KEYS.history)
    http = {"http": "127.0.0.1:0", "http_port_file": tmp_path / "http"}
    async with serving(store, **http) as (master, channel), aiohttp.ClientSession() as browser:
        dashboard = f"http://{(tmp_path / 'http').read_text().strip()}/"
        for page, status in (("", 200), ("jobs/j", 409)):
            async with browser.get(dashboard + page) as answer:
                shown = await answer.text()
                assert answer.status == status
                assert KEYS.history in shown and "elastane repair JOB" in shown, shown

        async def command(*words: str) -> Result:
            environment = {"ELASTANE_MASTER": master.address}
            return await asyncio.to_thread(CliRunner().invoke, build_app(), words, env=environment)

        status = await command("status", "j")
        assert status.exit_code == 0 and "j  damaged" in status.stdout
        assert KEYS.history in status.stdout and "it is gone" in status.stdout
        refusal = await command("repair", "j")
        assert refusal.exit_code == 3 and KEYS.history in refusal.output and "ELA170" in refusal.output
        assert "k: served; now waiting" in (await command("repair", "k")).stdout  # nothing to do
        await store.redis.restore(KEYS.history, 0, kept)
        repaired = await command("repair", "j")
        assert repaired.exit_code == 0 and "j: served; now waiting" in repaired.stdout
        await work(channel, "j", SIZE - DONE)
        assert await audit(channel, "j") == Counter(range(SIZE))


async def test_a_held_job_does_not_make_its_master_unready(store: Store, tmp_path: Path) -> None:
    """It would take every other job out of service: an alert is for it, and not a probe."""
    await killed_after_some_work(store)
    await store.redis.delete(KEYS.history)
    http = {"http": "127.0.0.1:0", "http_port_file": tmp_path / "http"}
    async with serving(store, **http) as (_, channel), aiohttp.ClientSession() as browser:
        address = (tmp_path / "http").read_text().strip()
        async with browser.get(f"http://{address}/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        async with browser.get(f"http://{address}/metrics") as answer:
            assert 'elastane_master_jobs{phase="damaged"} 1.0' in await answer.text()


@pytest.mark.parametrize("part", ["fence", "log", "snapshot", "history", "events"])
async def test_keys_of_two_jobs_that_were_swapped_hold_both(store: Store, part: str) -> None:
    await killed_after_some_work(store)
    await swap(store, getattr(KEYS, part), getattr(OTHER, part))
    async with serving(store) as (_, channel):
        for job in ("j", "k"):
            await refused(repair(channel, job, accept_loss=False))
        await swap(store, getattr(KEYS, part), getattr(OTHER, part))
        for job in ("j", "k"):
            await repair(channel, job, accept_loss=False)
            await work(channel, job, SIZE - DONE)
            assert await audit(channel, job) == Counter(range(SIZE))


async def test_two_jobs_whose_keys_are_all_swapped_are_both_held(store: Store) -> None:
    """As a whole each is sound: only its name is another one's."""
    await killed_after_some_work(store)

    async def swap_all() -> None:
        for ours, theirs in zip(KEYS.all, OTHER.all, strict=True):
            await swap(store, ours, theirs)

    await swap_all()
    async with serving(store) as (_, channel):
        for job in ("j", "k"):
            await refused(repair(channel, job, accept_loss=False))
        await swap_all()
        for job in ("j", "k"):
            await repair(channel, job, accept_loss=False)
            await work(channel, job, SIZE - DONE)
            assert await audit(channel, job) == Counter(range(SIZE))


@pytest.mark.parametrize("part", ["fence", "log", "snapshot", "history", "events"])
async def test_keys_of_two_jobs_that_are_swapped_under_their_master_are_not_mixed(
    store: Store, part: str
) -> None:
    """Each is as long as the other, so that nothing but whose it is tells them apart."""

    async def swap_parts() -> None:
        await swap(store, getattr(KEYS, part), getattr(OTHER, part))

    async with serving(store) as (_, channel):
        for job in ("j", "k"):
            await create(channel, job)
            await work(channel, job, DONE)
        await swap_parts()
        for job in ("j", "k"):
            if part == "history":  # one of them could be written to: its numbers are free there
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await work(channel, job, 1)
                await refused(work(channel, job, 1))
            else:  # the state is written again from memory, and of events there are no new ones
                await work(channel, job, 1)
    await store.redis.delete(LEASE_KEY)
    async with serving(store) as (_, channel):
        if part in ("history", "events"):
            for job in ("j", "k"):
                await refused(work(channel, job, 1))
            await swap_parts()
        for job in ("j", "k"):
            await repair(channel, job, accept_loss=False)
            await work(channel, job, SIZE - DONE - 1)
            # The task whose report was refused is still leased to the worker that reported it.
            leased = {DONE} if part == "history" else set()
            assert await audit(channel, job) == Counter(set(range(SIZE)) - leased)


@pytest.mark.parametrize("keys", [(JOBS_KEY,), (STORED_JOBS_KEY,), (JOBS_KEY, STORED_JOBS_KEY)])
async def test_a_list_of_jobs_that_is_gone_is_written_again(store: Store, keys: tuple[str, ...]) -> None:
    await killed_after_some_work(store)
    await store.redis.delete(*keys)
    async with serving(store) as (_, channel):
        for job in ("j", "k"):
            await work(channel, job, SIZE - DONE)
            assert await audit(channel, job) == Counter(range(SIZE))
    for key in (JOBS_KEY, STORED_JOBS_KEY):
        assert await store.redis.smembers(key) == {b"j", b"k"}


@slow
async def test_a_backup_under_a_living_master_holds_the_job_and_nothing_is_done_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yesterday's: what the history had since is kept no longer, the state is in the master's memory."""
    options = MasterSettings.log_options
    monkeypatch.setattr(MasterSettings, "log_options", lambda self: replace(options(self), kept_seconds=0.0))
    async with serving(store) as (_, channel):
        await create(channel, "j")
        await work(channel, "j", 10)
        backup = {key: await store.redis.dump(key) for key in KEYS.all if await store.redis.exists(key)}
        await work(channel, "j", 20)
        for key, value in backup.items():
            await store.redis.restore(key, 0, value, replace=True)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await work(channel, "j", 1)
        detail = await refused(work(channel, "j", 1))
        assert detail.facts["keys"].startswith(KEYS.history)
        job = (await job_pb2_grpc.JobServiceStub(channel).Get(GET)).job
        assert job.phase == job_pb2.JOB_PHASE_DAMAGED and "commits 11 to" in job.damages[0].lost
    async with serving(store) as (_, channel):  # the next master knows it, too
        await refused(work(channel, "j", 1))
        await repair(channel, "j", accept_loss=True)
        progress = await shard_pb2_grpc.ShardServiceStub(channel).GetProgress(
            shard_pb2.GetProgressRequest(job="j", dataset="d")
        )
        await work(channel, "j", SIZE - progress.datasets[0].done)
        counted = await audit(channel, "j")
        assert set(counted.values()) == {1} and set(range(10)) | set(range(31, SIZE)) <= set(counted)
        assert len(counted) < SIZE


async def test_a_day_old_backup_of_the_whole_store_under_its_master_loses_no_job(store: Store) -> None:
    """Not even one that is younger than the backup: neither its keys nor its name are in that."""
    async with serving(store) as (_, channel):
        await create(channel, "j")
        await work(channel, "j", 10)
        backup = {key: await store.redis.dump(key) for key in await store.redis.keys("*")}
        await work(channel, "j", DONE - 10)
        await create(channel, "k")
        await work(channel, "k", DONE)
        lease = await store.redis.dump(LEASE_KEY)
        await store.redis.flushall()
        for key, value in backup.items():
            await store.redis.restore(key, 0, lease if key == LEASE_KEY.encode() else value)
        for job in ("j", "k"):
            await work(channel, job, 5)
        left = {key: await store.redis.dump(key) for key in await store.redis.keys("*")}
    await store.redis.flushall()
    for key, value in left.items():  # the master was killed right then
        await store.redis.restore(key, 0, value)
    await store.redis.delete(LEASE_KEY)
    async with serving(store) as (_, channel):
        for job in ("j", "k"):
            await work(channel, job, SIZE - DONE - 5)
            assert await audit(channel, job) == Counter(range(SIZE))
