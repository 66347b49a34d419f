"""Connections to the store that are reset while nothing is asked over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from redis.exceptions import ConnectionError as ConnectionLost

import patience
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.leader_lease import LEASE_KEY
from integration.master_support import master_process, private_store
from integration.store_resets import ResettingWay
from integration.test_master_process import Leaser, create
from integration.test_master_succession import serving

LEASE_SECONDS = 3.0
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_was_reset_while_idle_is_a_lost_one(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with private_store(tmp_path) as behind:
            assert behind.embedded is not None
            async with ResettingWay(behind.embedded.socket_path) as way:
                store = await Store.open(StoreOptions(url=way.url))
                try:
                    script = store.redis.pinned_script("return 7")
                    assert await script(keys=["k"]) == 7
                    idle = [*store.redis.script_connections._free, *pooled(store)]
                    assert len(idle) == 2
                    way.reset()
                    async with patience.within(20):
                        while not all(connection._writer.is_closing() for connection in idle):
                            await asyncio.sleep(0.01)
                    assert await script(keys=["k"]) == 7, "it asks once more over a new connection"
                    with pytest.raises(ConnectionLost):
                        await store.redis.ping()
                    assert await store.redis.ping()
                finally:
                    await store.close(stop_embedded=False)

    run(scenario())


def pooled(store: Store) -> list[Any]:
    return list(store.redis.connection_pool._available_connections)  # type: ignore[attr-defined]


async def renewed(store: Store) -> None:
    """Returns once the lease has more time left than before."""
    async with patience.within(60):
        left = await store.redis.pttl(LEASE_KEY)
        while (now := await store.redis.pttl(LEASE_KEY)) <= left:
            left = now
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [0, 30], ids=["without a job", "with a job"])
async def test_a_leader_whose_idle_connections_are_reset_leads_on(size: int, tmp_path: Path) -> None:
    async with private_store(tmp_path / "store") as store:
        assert store.embedded is not None
        async with ResettingWay(store.embedded.socket_path) as way:
            options = ["--store", way.url, "--leader-lease-seconds", str(LEASE_SECONDS)]
            async with master_process(tmp_path / "a", *options) as master:
                if size:
                    await create(master, size)
                for _ in range(3):
                    way.reset()
                    await renewed(store)
                await serving(master)
                await create(master, size or 30)
                assert master.process is not None and master.process.returncode is None
                leaser = Leaser(master, "w")
                await patience.wait_for(leaser.run(), 60)
                assert len(leaser.done) == (size or 30)
                said = await master.stop()
    assert "role=unsure" not in said and "Traceback" not in said and "bug in the master" not in said, said
