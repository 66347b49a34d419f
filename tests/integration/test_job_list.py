"""A list of jobs, whole and in pages: of served, closed and held jobs, for callers who see all or some."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from elastane_common import client as client_module
from elastane_common.client import MasterClient
from elastane_common.client_errors import RequestRefusedError
from elastane_master.security.settings import SecuritySettings
from elastane_master.store.keys import JobKeys
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from integration.finished_jobs import name_of, pages, plant
from integration.master_support import private_store, reason_of, serving_master
from integration.security_support import entry, token_of
from integration.test_damaged_jobs import serving

LEFT = 60.0


async def listed(channel: grpc.aio.Channel, **fields: object) -> job_pb2.JobServiceListResponse:
    return await job_pb2_grpc.JobServiceStub(channel).List(job_pb2.JobServiceListRequest(**fields))


async def create(channel: grpc.aio.Channel, name: str) -> None:
    request = job_pb2.JobServiceCreateRequest(name=name, settings=job_pb2.JobSettings(ests=1))
    await job_pb2_grpc.JobServiceStub(channel).Create(request)


async def test_pages_hold_each_job_once_whatever_comes_and_goes(tmp_path: Path) -> None:
    async with private_store(tmp_path) as store:
        await plant(store, 2500)
        held = JobKeys.of(name_of(1700))  # a closed job's record that is void, and nothing beside it
        await store.redis.hset(held.fence, "sequence", 2)
        async with serving(store) as (_, channel):
            for name in ("a", "job-001000x", "z"):
                await create(channel, name)
            all_jobs = list((await listed(channel)).jobs)
            names = [job.name for job in all_jobs]
            assert len(names) == 2503 and names == sorted(names)
            phases = {job.name: job.phase for job in all_jobs}
            assert phases[name_of(1700)] == job_pb2.JOB_PHASE_DAMAGED
            assert (
                phases["z"] == job_pb2.JOB_PHASE_WAITING and phases[name_of(0)] == job_pb2.JOB_PHASE_CANCELLED
            )
            assert [job for page in await pages(channel, 1000) for job in page] == names
            assert [len(page) for page in await pages(channel, 2503)] == [2503]
            assert [len(page) for page in await pages(channel, 2**32 - 1)] == [2503]

            first = await listed(channel, page_size=1001)
            await create(channel, "b")  # behind us
            await create(channel, "job-001000w")  # ahead
            gone = first.jobs[-1].name
            await job_pb2_grpc.JobServiceStub(channel).Delete(job_pb2.JobServiceDeleteRequest(name=gone))
            rest = await listed(channel, page_size=5000, page_token=first.next_page_token)
            assert not rest.next_page_token
            together = [job.name for job in (*first.jobs, *rest.jobs)]
            assert together == sorted({*names, "job-001000w"})

            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await listed(channel, page_size=10, page_token="no name/")
            assert reason_of(refused.value)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")


async def test_no_page_is_too_large_and_our_own_client_asks_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastane_master.servers.job_service.JOBS_PAGE_MAX", 7)
    async with private_store(tmp_path) as store:
        await plant(store, 23)
        async with serving(store) as (master, channel):
            assert [len(page) for page in await pages(channel, 1000)] == [7, 7, 7, 2]
            assert len((await listed(channel)).jobs) == 23

            def asks() -> list[str]:
                with MasterClient(master.address, timeout_seconds=LEFT) as client:
                    with pytest.raises(RequestRefusedError, match="more than 20 jobs") as refused:
                        client.only_job(None)
                    assert name_of(19) in refused.value.hint and name_of(20) not in refused.value.hint
                    return [job.name for job in client.list_jobs()]

            monkeypatch.setattr(client_module, "JOBS_IN_A_PAGE", 5)
            assert await asyncio.to_thread(asks) == [name_of(number) for number in range(23)]


async def test_pages_of_a_caller_who_sees_some_jobs_name_no_other(tmp_path: Path) -> None:
    async with private_store(tmp_path / "state") as store:
        await plant(store, 40)
    table = tmp_path / "tokens.toml"
    table.write_text(entry("some", ["reader"], ["job-00000[57]", "job-000038"]))
    async with serving_master(tmp_path / "state", security=SecuritySettings(token_file=table)) as (
        _,
        channel,
    ):
        metadata = (("authorization", f"Bearer {token_of('some')}"),)
        jobs, found, token = job_pb2_grpc.JobServiceStub(channel), [], ""
        for _ in range(3):
            request = job_pb2.JobServiceListRequest(page_size=1, page_token=token)
            answer = await jobs.List(request, metadata=metadata)
            found.append([job.name for job in answer.jobs])
            token = answer.next_page_token
            assert token in ("", "job-000005", "job-000007")
        assert found == [["job-000005"], ["job-000007"], ["job-000038"]] and not token
