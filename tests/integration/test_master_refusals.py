"""What a master may say that lost its job, stops, or has a wrong clock; what a store may forget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import patience
from elastane_master.decisions import operators
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import (
    CancelRequested,
    DatasetCreated,
    Rejection,
    ScaleRequested,
    TaskReport,
    TasksRequested,
)
from elastane_master.decisions.machine import JobMachine
from elastane_master.errors import MachineBroken
from elastane_master.jobs import durable_server
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.serving import stopping
from elastane_master.servers.job_service import JobServicer
from elastane_master.store.connection import Store
from elastane_master.store.errors import Fenced, LogClosed
from elastane_master.store.history import JobHistory
from elastane_master.store.keys import JobKeys
from elastane_master.store.log import LogOptions
from elastane_proto.job_settings import JobSettings
from elastane_proto.v1 import job_pb2
from elastane_shards.settings import QueueSettings
from integration.master_support import open_ledger, private_store

KEYS = JobKeys.of("j")
QUIET = LogOptions(snapshot_seconds=3600, check_seconds=3600)
IMPOSSIBLE = ScaleRequested("r", 5, 2)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path) as store:
        yield store


@pytest.fixture
async def hosts(store: Store) -> AsyncIterator[JobServers]:
    hosts = JobServers(store, QUIET)
    await hosts.start()
    await hosts.create("j", JobSettings(ests=2))
    yield hosts
    await hosts.stop(stopping())


async def test_a_master_that_lost_the_job_does_not_refuse_what_its_successor_may_know(
    store: Store, hosts: JobServers
) -> None:
    with pytest.raises(Rejection, match="workers_max"):
        await hosts.get("j").submit(IMPOSSIBLE)
    successor = JobServers(store, QUIET)
    await successor.start()
    with pytest.raises(Fenced):
        await hosts.get("j").submit(IMPOSSIBLE)
    await successor.stop(stopping())


async def test_a_refusal_does_not_wait_for_ever_for_the_store(
    store: Store, hosts: JobServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_server, "CONFIRM_SECONDS", 0.05)
    host = hosts.get("j")
    written = asyncio.Event()

    async def never(*_: object, **__: object) -> bytes:
        await written.wait()
        return b"OK"

    monkeypatch.setattr(type(host.log._script), "__call__", never)
    with pytest.raises(Rejection) as caught:
        await host.submit(IMPOSSIBLE)
    assert caught.value.reason == "store_unavailable"
    written.set()


async def test_nobody_is_told_of_a_phase_before_it_is_durable(
    store: Store, hosts: JobServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent ends with the phase that it is told; a crash would take back one that is in memory alone."""
    host, may_write = hosts.get("j"), asyncio.Event()
    write = type(host.log._script).__call__

    async def held(*args: object, **named: object) -> object:
        await may_write.wait()
        return await write(*args, **named)

    servicer, context = JobServicer(hosts), None
    watched = servicer.Watch(job_pb2.JobServiceWatchRequest(name="j"), context)  # type: ignore[arg-type]
    assert (await anext(watched)).job.phase == job_pb2.JOB_PHASE_WAITING
    monkeypatch.setattr(type(host.log._script), "__call__", held)
    host.begin(CancelRequested("r"))
    assert host.machine.state.phase == "cancelled"
    asks = (
        anext(watched),
        servicer.Get(job_pb2.JobServiceGetRequest(name="j"), context),  # type: ignore[arg-type]
        servicer.List(job_pb2.JobServiceListRequest(), context),  # type: ignore[arg-type]
    )
    told = [asyncio.ensure_future(ask) for ask in asks]
    host.changed.announce()  # as an earlier change that became durable just now does
    done, _ = await asyncio.wait(told, timeout=0.5)
    assert not done
    may_write.set()
    seen, got, listed = await patience.wait_for(asyncio.gather(*told), 10)
    assert {seen.job.phase, got.job.phase, listed.jobs[0].phase} == {job_pb2.JOB_PHASE_CANCELLED}
    await watched.aclose()


async def test_a_stopping_master_decides_nothing_any_more(store: Store, hosts: JobServers) -> None:
    host = hosts.get("j")
    await hosts.stop(stopping())
    before = host.machine.snapshot()
    with pytest.raises(LogClosed):
        await host.submit(DatasetCreated("r", "d", QueueSettings(task_size=1, size=4)))
    assert host.machine.snapshot() == before


async def test_the_clock_goes_on_from_the_newest_decision(store: Store, hosts: JobServers) -> None:
    """The successor runs on a machine whose clock is an hour behind, and finds a snapshot, no records."""
    host = hosts.get("j")
    await host.submit(ScaleRequested("r", 1, 2))
    host.log.snapshot_soon()
    await host.log.append(None)
    behind = host.clock() - 3600
    successor = JobServers(store, QUIET, clock=Clock(wall=lambda: behind))
    await successor.start()
    assert successor.clock() >= JobMachine.restore(host.machine.snapshot()).state.decided_at > behind
    await successor.stop(stopping())


async def test_commits_of_lost_writes_are_written_again(store: Store) -> None:
    """As after a power cut with `appendfsync everysec`: everything is as it was some writes ago."""
    ledger = await open_ledger(store, options=QUIET)
    names = (KEYS.fence, KEYS.log, KEYS.snapshot, KEYS.history)
    for number in range(3):
        await ledger.append(b"kept %d" % number)
    kept = {name: await store.redis.dump(name) for name in names}
    for number in range(3):
        await ledger.append(b"lost %d" % number)
    for name, value in kept.items():
        await store.redis.restore(name, 0, value, replace=True)
    await ledger.append(b"after")
    commits, _ = await JobHistory(store.redis, "j").commits("", 100)
    wanted = [b"kept %d" % number for number in range(3)]
    wanted += [b"lost %d" % number for number in range(3)] + [b"after"]
    assert commits == [b"history of " + name for name in wanted]
    assert (await open_ledger(store)).records == wanted


async def test_a_store_that_lost_the_taking_over_does_not_fence_its_master(store: Store) -> None:
    first = await open_ledger(store, options=QUIET)
    await first.append(b"a")
    fence = await store.redis.dump(KEYS.fence)
    second = await open_ledger(store, options=QUIET)
    await store.redis.restore(KEYS.fence, 0, fence, replace=True)
    await second.append(b"b")
    with pytest.raises(Fenced):
        await first.append(b"too late")
    assert (await open_ledger(store)).records == [b"a", b"b"]


async def test_a_decision_that_failed_half_way_leaves_what_was_decided_before_it(
    hosts: JobServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts.get("j")
    rng = {"rng/python": bytes(2000)}  # makes an event large: it is kept as it is, the others as records
    await host.submit(DatasetCreated("", "d", QueueSettings(task_size=1, size=100)))
    await host.submit(TasksRequested("a", "d", "w", (), 10, rng))
    await host.submit(TasksRequested("b", "d", "w", (TaskReport(0, 3, 1),), 1))
    before = host.machine.snapshot()

    def half_way(ctx: DecisionContext, event: ScaleRequested) -> None:
        ctx.state.reason = "half of a decision"
        raise RuntimeError("a bug")

    monkeypatch.setattr(operators, "request", half_way)
    with pytest.raises(MachineBroken, match="a bug"):
        await host.submit(ScaleRequested("r", 1, 1))
    assert host.machine.snapshot() == before
