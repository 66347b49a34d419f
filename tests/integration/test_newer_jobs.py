"""A job that a newer master wrote, and whose fence does not say so: held, named, and left as it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import grpc
import msgspec
import pytest
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_master import settings
from elastane_master.decisions import machine
from elastane_master.decisions.machine import VERSION
from elastane_master.decisions.snapshot_version import version_of
from elastane_master.store.connection import Store
from elastane_master.store.format import FORMAT, decode_snapshot
from elastane_proto.v1 import errors_pb2, job_pb2, job_pb2_grpc, ring_pb2
from integration.master_support import Worker, private_store, reason_of
from integration.test_damaged_jobs import (
    DONE,
    KEYS,
    SIZE,
    audit,
    create,
    killed_after_some_work,
    repair,
    serving,
    work,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path) as store:
        yield store


def be_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master of this process is one of tomorrow, whose jobs have a state of another form."""
    monkeypatch.setattr(machine, "VERSION", VERSION + 1)
    monkeypatch.setattr(machine, "VERSIONS_READ", (*machine.VERSIONS_READ, VERSION + 1))
    monkeypatch.setattr(settings, "VERSION", VERSION + 1)


async def written_newer(store: Store, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """What a newer master leaves of job j, and this one's of job k. part: what of it is newer."""
    await killed_after_some_work(store)
    if part == "state":
        with monkeypatch.context() as tomorrow:
            be_newer(tomorrow)
            async with serving(store):
                pass
        await store.redis.hset("elastane:{k}:fence", "state", VERSION)
        await store.redis.hset(KEYS.fence, "state", VERSION)
    elif part == "format":
        stored = list(msgspec.msgpack.decode(await store.redis.get(KEYS.snapshot)))
        # Tomorrow's has another shape, too: nothing of it but the first number can be relied on.
        await store.redis.set(KEYS.snapshot, msgspec.msgpack.encode([FORMAT + 1, {"all": "else"}, *stored]))
    else:
        await store.redis.xadd(KEYS.log, {"batch": msgspec.msgpack.encode([FORMAT + 1, {}])}, "900-0")


async def contents_of_j(store: Store) -> dict[bytes, bytes]:
    return {key: await store.redis.dump(key) for key in await store.redis.keys("elastane:{j}:*")}


async def refused(call: object) -> errors_pb2.ErrorDetail:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call  # type: ignore[misc]
    code, reason, detail = reason_of(error.value)
    assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "TOO_NEW"), error.value.details()
    assert not detail.retryable and "at least as new" in detail.hint
    return detail


@pytest.mark.parametrize("fence", ["gone", "from a backup"])
@pytest.mark.parametrize("part", ["state", "format", "log"])
async def test_a_newer_masters_job_is_held_and_no_command_touches_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, part: str, fence: str
) -> None:
    await written_newer(store, monkeypatch, part)
    await store.redis.delete("elastane:{leader}:lease", *([KEYS.fence] if fence == "gone" else []))
    if part == "state":  # it took both over: k is made anew below
        kept = decode_snapshot(await store.redis.get(KEYS.snapshot))
        assert version_of(kept.state) == VERSION + 1
        await store.redis.delete(*await store.redis.keys("elastane:{k}:*"))
        await store.redis.srem("elastane:jobs", "k")
        await store.redis.srem("elastane:jobs:stored", "k")
    before = await contents_of_j(store)
    async with serving(store) as (master, channel):
        if part == "state":
            await create(channel, "k")
            await work(channel, "k", DONE)
        jobs = job_pb2_grpc.JobServiceStub(channel)
        held, other = (await jobs.List(job_pb2.JobServiceListRequest())).jobs
        assert (held.name, held.phase) == ("j", job_pb2.JOB_PHASE_TOO_NEW)
        assert "written by a newer master" in held.reason and not held.damages
        assert held == (await jobs.Get(job_pb2.JobServiceGetRequest(name="j"))).job
        assert other.phase == job_pb2.JOB_PHASE_WAITING
        await work(channel, "k", SIZE - DONE)
        assert await audit(channel, "k") == Counter(range(SIZE))

        detail = await refused(Worker(channel, "w").hello(ring_pb2.WORKER_ROLE_TASKS))
        assert detail.facts["known"] == f"{FORMAT}.{VERSION}"
        assert detail.facts["keys"] == (KEYS.log if part == "log" else KEYS.snapshot)
        await refused(work(channel, "j", 1))
        await refused(create(channel, "j"))
        for accept_loss in (False, True, True):
            await refused(repair(channel, "j", accept_loss=accept_loss))
        await refused(jobs.Delete(job_pb2.JobServiceDeleteRequest(name="j", force=True)))

        environment = {"ELASTANE_MASTER": master.address}
        for words, code, said in (
            (("status", "j"), 0, "at least as new"),
            (("repair", "j", "--accept-loss"), 3, "ELA171"),
        ):
            result = await asyncio.to_thread(CliRunner().invoke, build_app(), words, env=environment)
            assert result.exit_code == code and said in result.output, result.output
    after = await contents_of_j(store)
    if fence == "gone":
        assert after == before
    else:  # only its fence was taken, before it showed what the others are
        fence = KEYS.fence.encode()
        assert {**after, fence: b""} == {**before, fence: b""}


async def test_it_is_told_of_by_metric_dashboard_and_the_newer_master_serves_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await written_newer(store, monkeypatch, "state")
    await store.redis.delete("elastane:{leader}:lease", KEYS.fence, "elastane:{k}:fence")
    http = {"http": "127.0.0.1:0", "http_port_file": tmp_path / "http"}
    async with serving(store, **http), aiohttp.ClientSession() as browser:
        address = f"http://{(tmp_path / 'http').read_text().strip()}"
        async with browser.get(f"{address}/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
        async with browser.get(f"{address}/metrics") as answer:
            assert 'elastane_master_jobs{phase="too_new"} 2.0' in await answer.text()
        async with browser.get(f"{address}/") as answer:
            assert ">too new</span>" in await answer.text()
    await store.redis.delete("elastane:{leader}:lease")
    be_newer(monkeypatch)
    async with serving(store) as (_, channel):  # to which it is a job whose fence is gone
        await repair(channel, "j", accept_loss=True)
        await work(channel, "j", SIZE - DONE)
        assert await audit(channel, "j") == Counter(range(SIZE))
