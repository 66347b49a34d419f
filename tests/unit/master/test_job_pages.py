"""Pages of a list of jobs: each job once, within what the caller sees, and with no name of another's job."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.job_table import ClosedJob
from elastane_master.servers import callers, job_service
from elastane_master.servers.job_service import JobServicer
from elastane_master.store.closed import Closed
from elastane_master.store.errors import BadJobName
from elastane_proto.v1 import job_pb2
from integration.finished_jobs import records


async def servicer(count: int) -> JobServicer:
    hosts = JobServers(SimpleNamespace(redis=None), None)  # type: ignore[arg-type]
    hosts.restored = True
    for name, record in records(count):
        closed = ClosedJob.of(name, Closed(1, record))
        assert closed is not None
        hosts._table.closed[name] = closed
    return JobServicer(hosts)


async def pages(jobs: JobServicer, size: int) -> list[list[str]]:
    found, token = [], ""
    while True:
        answer = await jobs.List(job_pb2.JobServiceListRequest(page_size=size, page_token=token), None)  # type: ignore[arg-type]
        found.append([job.name for job in answer.jobs])
        if not (token := answer.next_page_token):
            return found


async def test_pages_together_are_the_list() -> None:
    jobs = await servicer(23)
    [whole] = await pages(jobs, 0)
    assert len(whole) == 23 and whole == sorted(whole)
    for size in (1, 7, 22, 23, 24, 2**32 - 1):
        found = await pages(jobs, size)
        assert [name for page in found for name in page] == whole
        assert all(len(page) == size for page in found[:-1]) and found[-1]


async def test_no_page_is_larger_than_a_master_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_service, "JOBS_PAGE_MAX", 5)
    jobs = await servicer(12)
    assert [len(page) for page in await pages(jobs, 1000)] == [5, 5, 2]
    assert [len(page) for page in await pages(jobs, 0)] == [12]


async def test_an_empty_list_is_one_empty_page() -> None:
    assert await pages(await servicer(0), 10) == [[]]


async def test_who_sees_some_jobs_gets_full_pages_of_them_and_no_other_name() -> None:
    jobs = await servicer(40)
    callers.covers.set(lambda job: job.endswith(("5", "7")))
    token, tokens = "", []
    while not tokens or token:
        answer = await jobs.List(job_pb2.JobServiceListRequest(page_size=3, page_token=token), None)  # type: ignore[arg-type]
        token = answer.next_page_token
        tokens.append(token)
        assert len(answer.jobs) in (3, 2) and all(job.name.endswith(("5", "7")) for job in answer.jobs)
    assert tokens == ["job-000015", "job-000027", ""]


async def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(BadJobName):
        await (await servicer(3)).List(job_pb2.JobServiceListRequest(page_size=1, page_token="/"), None)  # type: ignore[arg-type]


async def test_a_long_list_lets_others_have_their_turn() -> None:
    jobs, turns = await servicer(3000), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    [whole] = await pages(jobs, 0)
    task.cancel()
    assert len(whole) == 3000 and turns >= 6
