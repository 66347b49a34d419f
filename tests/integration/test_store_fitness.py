"""Stores that a master does not start on, each with its exit code, and replicas that it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

import patience
from elastane_master.master_process import EXIT_UNFIT
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.embedded import find_server_binary
from elastane_master.store.errors import StoreError
from elastane_master.store.fitness import judge
from elastane_master.store.log import LogListener, LogOptions
from integration.master_support import open_ledger
from integration.test_master_process import run_cli


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextlib.asynccontextmanager
async def server(folder: Path, *options: str, port: int = 0) -> AsyncIterator[tuple[str, int]]:
    """A server that listens at a port, and its process id."""
    port = port or free_port()
    folder.mkdir(parents=True)
    words = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options]
    process = await asyncio.create_subprocess_exec(
        find_server_binary(), *words, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with patience.within(20), Redis(host="127.0.0.1", port=port) as redis:
            while True:
                with contextlib.suppress(RedisError):
                    await redis.ping()
                    break
                await asyncio.sleep(0.01)
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.kill()
        await process.wait()


async def refusal(url: str) -> StoreError:
    """What a master says that starts on this store."""
    with pytest.raises(StoreError) as refused:
        await Store.open(StoreOptions(url=url))
    return refused.value


async def test_a_store_that_cannot_be_trusted_is_refused_with_a_code_of_its_own(tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel.conf"
    port, primary_port = free_port(), free_port()
    async with contextlib.AsyncExitStack() as servers:

        async def start(name: str, *options: str, port: int = 0) -> str:
            return (await servers.enter_async_context(server(tmp_path / name, *options, port=port)))[0]

        evicting = await start(
            "e", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", port=primary_port
        )
        replica = await start("r", "--replicaof", "127.0.0.1", str(primary_port))
        cluster = await start("c", "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        sentinel.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel resolve-hostnames no\n")
        process = await asyncio.create_subprocess_exec(
            find_server_binary(), str(sentinel), "--sentinel", stdout=asyncio.subprocess.DEVNULL
        )
        try:
            sentinels = f"redis://127.0.0.1:{port}/0", f"redis+sentinel://127.0.0.1:{port}/0"
            refused = [await refusal(url) for url in (evicting, replica, cluster, *sentinels)]
            code, said = await run_cli("--listen", "127.0.0.1:0", "--store", evicting)
        finally:
            process.kill()
            await process.wait()
    assert [EXIT_UNFIT[type(error)] for error in refused] == [5, 6, 7, 8, 8]
    words = (
        "maxmemory-policy allkeys-lru",
        "is a replica",
        "is a cluster",
        "is a Sentinel",
        "names a Sentinel",
    )
    for error, named in zip(refused, words, strict=True):
        assert named in str(error) and error.hint
    assert code == 5 and "[ELA433]" in said and "stands by" not in said and "Traceback" not in said


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"mode": "standalone", "role": "master"},
        {"role": "primary", "maxmemory": "0", "maxmemory_policy": "allkeys-lru"},
        {"maxmemory": "100", "maxmemory_policy": "noeviction"},
    ],
)
def test_a_store_that_keeps_what_it_has_is_fit(said: dict[str, str]) -> None:
    assert judge(said, "redis://h") is None


async def test_a_user_who_may_not_ask_is_not_refused(tmp_path: Path) -> None:
    async with server(tmp_path / "s") as (url, _), Redis.from_url(url) as admin:
        rights = ["reset", "on", ">x", "~*", "+@all", "-@dangerous", "-hello"]
        await admin.execute_command("ACL", "SETUSER", "elastane", *rights)
        store = await Store.open(StoreOptions(url=url.replace("redis://", "redis://elastane:x@")))
        await store.close(stop_embedded=False)


async def test_nothing_is_acknowledged_that_too_few_replicas_have(tmp_path: Path) -> None:
    failed = 0
    away = asyncio.Event()

    class Listener(LogListener):
        async def revive(self) -> None:
            nonlocal failed
            failed += 1
            if failed >= 3:  # the write was repeated, and is in the store since the first time
                away.set()

    async with (
        server(tmp_path / "primary", "--repl-diskless-sync-delay", "0") as (url, _),
        server(tmp_path / "replica", "--replicaof", "127.0.0.1", url.rpartition(":")[2][:-2]) as (_, pid),
    ):
        store = await Store.open(StoreOptions(url=url))
        ledger = await open_ledger(store, options=LogOptions(3600.0, replicas=1), listener=Listener())
        async with patience.within(20):
            await ledger.append(b"a")
        failed = 0
        away.clear()
        os.kill(pid, signal.SIGSTOP)
        future = ledger.append(b"b")
        async with patience.within(20):
            await away.wait()
        assert not future.done()
        os.kill(pid, signal.SIGCONT)
        async with patience.within(20):
            await asyncio.shield(future)
        await ledger.log.close()
        assert (await open_ledger(store)).records == [b"a", b"b"]
        assert await store.redis.xlen("elastane:{j}:history") == 2
        await store.close(stop_embedded=False)
