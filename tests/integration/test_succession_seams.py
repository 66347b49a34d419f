"""Seams of a succession, in this process: what is told to nobody, and what goes wrong half-way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.exceptions import ConnectionError as StoreGone

from elastane_master.hosts import JobHosts
from elastane_master.security.settings import SecuritySettings
from elastane_master.servers.app import Master
from elastane_master.store.connection import JobNames, Store
from elastane_master.store.errors import Fenced
from elastane_proto.v1 import job_pb2, job_pb2_grpc
from integration.master_support import private_store, reason_of, serving_master
from integration.security_support import standard_tokens, token_of

LEASE_SECONDS = 0.5
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path / "store") as store:
        yield store


def master_on(store: Store, folder: Path, **settings: object) -> object:
    settings = {"leader_lease_seconds": LEASE_SECONDS, **settings}
    return serving_master(folder, store=store.url, **settings)


async def create(channel: grpc.aio.Channel, name: str = "j") -> None:
    settings = job_pb2.JobSettings(ests=1)
    request = job_pb2.JobServiceCreateRequest(name=name, settings=settings)
    await job_pb2_grpc.JobServiceStub(channel).Create(request, timeout=20)


async def outcome(channel: grpc.aio.Channel) -> str:
    """ "served", or the reason of the refusal, of a question about the job."""
    try:
        await job_pb2_grpc.JobServiceStub(channel).Get(job_pb2.JobServiceGetRequest(name="j"), timeout=20)
    except grpc.aio.AioRpcError as error:
        return reason_of(error)[1]
    return "served"


async def becomes(channel: grpc.aio.Channel, wanted: int) -> None:
    """Returns once the master's health is as wanted; it tells changes by itself."""
    async with asyncio.timeout(20):
        async for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if reply.status == wanted:
                return


@asynccontextmanager
async def asleep(master: Master) -> AsyncIterator[None]:
    """Inside, the master's lease is over and it was not told, as if its process had been stopped."""
    keeper = master._keeper
    keeper._tasks[0].cancel()  # it asks for its lease no more
    kept = keeper.state
    keeper.state = msgspec.structs.replace(kept, renewed_at=time.monotonic() - LEASE_SECONDS - 0.001)
    yield
    keeper.state = msgspec.structs.replace(kept, renewed_at=time.monotonic() + 3600)


async def test_a_leader_whose_lease_ran_out_unnoticed_answers_nobody(store: Store, tmp_path: Path) -> None:
    async with master_on(store, tmp_path / "a") as (master, channel):
        await create(channel)
        async with asleep(master):
            assert await outcome(channel) == "NOT_LEADING"
            assert master.leads, "it was not told"
        assert await outcome(channel) == "served"
        # The same of a leader that was cut off from the store and went on afterwards.
        await master.pause("the store does not answer")
        await master.resume()
        async with asleep(master):
            assert await outcome(channel) == "NOT_LEADING"
        assert await outcome(channel) == "served"


async def test_health_is_well_when_a_master_leads_again_after_it_had_lost_the_store(
    store: Store, tmp_path: Path
) -> None:
    async with master_on(store, tmp_path / "a") as (master, channel):
        await create(channel)
        master._hosts.store_reachable(master._hosts.get("j"), False)
        await becomes(channel, NOT_SERVING)
        await master.give_way("another leads")
        await master.lead()
        await becomes(channel, SERVING)
        assert await outcome(channel) == "served"


async def test_takeovers_end_with_the_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One left behind would take its job over in the middle of the next attempt."""

    async def readable(*_: object) -> None: ...

    monkeypatch.setattr("elastane_master.hosts.check_readable", readable)

    async def jobs() -> JobNames:
        return JobNames(["slow", "unreadable"], frozenset())

    hosts = JobHosts(SimpleNamespace(jobs=jobs, redis=None), SimpleNamespace(state_version=1))
    taken, go_on, began = [], asyncio.Event(), asyncio.Event()

    async def take_over(name: str, **_: object) -> None:
        if name == "unreadable":
            await began.wait()
            raise StoreGone("the store is gone")
        began.set()
        await go_on.wait()
        taken.append(name)

    monkeypatch.setattr(hosts, "_take_over", take_over)
    with pytest.raises(StoreGone):
        await hosts.start()
    go_on.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert taken == []
    await hosts.abandon(None)


async def test_a_master_that_is_fenced_while_it_takes_over_stands_by_and_tries_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, attempts = JobHosts.start, []

    async def fenced_once(hosts: JobHosts) -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise Fenced("job j was taken over", job="j")
        await start(hosts)

    monkeypatch.setattr(JobHosts, "start", fenced_once)
    async with master_on(store, tmp_path / "a") as (master, channel):
        assert not master.leads and master._keeper.state.role == "standby"
        assert await outcome(channel) == "NOT_LEADING"
        await becomes(channel, SERVING)
        assert master.leads and len(attempts) == 2
        assert attempts[1] - attempts[0] >= LEASE_SECONDS, "whoever ignores the lease is given time to finish"
        await create(channel)


async def test_health_of_a_standby_can_be_watched_with_a_token(store: Store, tmp_path: Path) -> None:
    """The gate asks which jobs there are only where it matters: a master that stands by knows of none."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text("".join(standard_tokens()))
    guarded = {"security": SecuritySettings(token_file=tokens)}
    async with (
        master_on(store, tmp_path / "a", **guarded) as (first, _),
        master_on(store, tmp_path / "b", **guarded) as (second, channel),
    ):
        assert first.leads and not second.leads
        bearer = (("authorization", f"Bearer {token_of('worker')}"),)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), metadata=bearer)
        assert (await asyncio.wait_for(watch.read(), 20)).status == NOT_SERVING
        await first.stop()
        assert (await asyncio.wait_for(watch.read(), 20)).status == SERVING
