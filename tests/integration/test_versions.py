"""Versions that do not fit are refused at both ends, with a reason, and nothing is changed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

from elastane.runtime.session import MasterSession
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import ElastaneError, RefusedError
from elastane_master.decisions.machine import VERSION
from elastane_master.store.connection import Store
from elastane_master.store.errors import StoreFormatUnknown
from elastane_master.store.format import FORMAT
from elastane_master.store.keys import JobKeys
from elastane_master.store.log import JobLog, LogOptions
from elastane_proto import versions
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2
from integration.master_support import Worker, open_ledger, private_store, reason_of, serving_master
from integration.test_master_process import run_cli

CREATE = job_pb2.JobServiceCreateRequest(name="j", settings=job_pb2.JobSettings(ests=1))
GET = job_pb2.JobServiceGetRequest(name="j")


@pytest.mark.parametrize(
    ("told", "oldest", "says"),
    [(str(versions.PROTOCOL + 1), 1, "newer than this master"), ("1", 2, "too old for this master"),
     ("", 2, "too old for this master"),
     ("one", 1, "no version of the protocol"), ("9" * 5000, 1, "no version of the protocol")],
)  # fmt: skip
async def test_a_worker_whose_version_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, oldest: int, says: str
) -> None:
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        before = (await jobs.Create(CREATE)).job
        monkeypatch.setattr(versions, "CLIENT_OLDEST", oldest)
        worker = Worker(channel, "w")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await worker.hello(version=told)
        code, reason, detail = reason_of(refused.value)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "INCOMPATIBLE")
        assert says in refused.value.details() and "worker w" in refused.value.details()
        assert not detail.retryable and detail.hint and detail.facts["newest"] == str(versions.PROTOCOL)
        monkeypatch.undo()
        assert (await jobs.Get(GET)).job == before


@pytest.mark.parametrize("told", ["", "1"])
async def test_a_worker_whose_version_fits_is_welcome_and_told_the_masters(tmp_path: Path, told: str) -> None:
    async with serving_master(tmp_path) as (_, channel):
        await job_pb2_grpc.JobServiceStub(channel).Create(CREATE)
        assert (await Worker(channel, "w").hello(version=told)).version == str(versions.PROTOCOL)


async def test_a_client_that_is_too_new_is_refused_in_calls_and_watches(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        metadata = ((versions.METADATA_KEY, "7"),)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await jobs.Create(CREATE, metadata=metadata)
        assert reason_of(refused.value)[1] == "INCOMPATIBLE"
        assert not (await jobs.List(job_pb2.JobServiceListRequest())).jobs
        await jobs.Create(CREATE, metadata=((versions.METADATA_KEY, "1"),))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await jobs.Watch(job_pb2.JobServiceWatchRequest(name="j"), metadata=metadata).read()
        assert reason_of(refused.value)[1] == "INCOMPATIBLE"


async def test_a_command_refuses_a_master_that_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(address: str) -> None:
        with MasterClient(address) as client:
            client.list_jobs()

    async with serving_master(tmp_path) as (master, _):
        await asyncio.to_thread(ask, master.address)
        monkeypatch.setattr(versions, "MASTER_OLDEST", versions.PROTOCOL + 1)
        with pytest.raises(RequestRefusedError, match="too old for this elastane") as refused:
            await asyncio.to_thread(ask, master.address)
        assert refused.value.reason == "incompatible"
        assert "masters first" in refused.value.hint


async def test_a_worker_refuses_a_master_that_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "MASTER_OLDEST", 2)
    monkeypatch.setattr(versions, "PROTOCOL", 2)
    failed = threading.Event()
    errors: list[ElastaneError] = []

    def fail(error: ElastaneError) -> None:
        errors.append(error)
        failed.set()

    async with serving_master(tmp_path) as (master, channel):
        await job_pb2_grpc.JobServiceStub(channel).Create(CREATE)
        # The master of this process tells what an old one would: nothing.
        monkeypatch.setattr("elastane_master.servers.translate_session.versions.PROTOCOL", "")
        session = MasterSession(
            master.address,
            hello=lambda: ring_pb2.Hello(
                job="j", worker_id="w", role=ring_pb2.WORKER_ROLE_TASKS, version="1"
            ),
            heartbeat=lambda: ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()),
            handler=lambda message: None,
            failed=fail,
            timeout_seconds=30.0,
        )
        monkeypatch.setattr("elastane_master.servers.binding.require_version", lambda told, who: None)
        monkeypatch.setattr("elastane_master.servers.ring_service.require_version", lambda told, who: None)
        session.start()
        assert await asyncio.to_thread(failed.wait, 30)
        session.close()
    assert isinstance(errors[0], RefusedError)
    assert "too old for this elastane" in str(errors[0])


# ---------------------------------------------------------------- the store


async def contents(store: Store) -> dict[bytes, bytes]:
    """Every key with its bytes."""
    return {key: await store.redis.dump(key) for key in await store.redis.keys("*")}


@pytest.mark.parametrize(
    ("field", "value"), [("format", FORMAT + 1), ("state", VERSION + 1)], ids=["format", "state"]
)
async def test_a_job_of_a_newer_master_is_refused_and_left_as_it_is(
    tmp_path: Path, field: str, value: int
) -> None:
    async with private_store(tmp_path) as store:
        ledger = await open_ledger(store)
        await ledger.append(b"a")
        await store.redis.hset(JobKeys.of("j").fence, field, value)
        before = await contents(store)
        with pytest.raises(StoreFormatUnknown, match="written by a newer master") as refused:
            await JobLog.open(store.redis, "j")
        assert "newer" in str(refused.value) and "start a master at least as new" in refused.value.hint
        assert await contents(store) == before
        # The newer master was not fenced: it goes on writing.
        await ledger.append(b"b")


async def test_what_was_written_bears_the_versions_it_was_written_in(tmp_path: Path) -> None:
    async with private_store(tmp_path) as store:
        ledger = await open_ledger(store, options=LogOptions(state_version=VERSION))
        await ledger.append(b"a")
        written = await store.redis.hmget(JobKeys.of("j").fence, "format", "state")
        assert [int(number) for number in written] == [FORMAT, VERSION]


async def test_an_old_master_does_not_start_on_a_newer_store_and_touches_no_job_of_it(tmp_path: Path) -> None:
    async with private_store(tmp_path) as store:
        for name in ("a", "j"):
            await (await open_ledger(store, name)).append(b"x")
            await store.add_job(name)
        await store.redis.hset(JobKeys.of("j").fence, "state", VERSION + 1)
        before = await contents(store)
        code, errors = await run_cli("--listen", "127.0.0.1:0", "--store", store.url)
        assert code == 2
        assert "job j was written by a newer master" in errors and "Traceback" not in errors
        after = await contents(store)
        assert {key: after[key] for key in before} == before
        assert not await store.redis.exists("elastane:{leader}:lease")  # nobody has to wait for it
