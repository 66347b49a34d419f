"""A store whose disk is full for a while: what it acknowledges after that can be read again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import patience
from elastane_master.store.connection import Store
from elastane_master.store.log import LogOptions
from integration.master_support import open_ledger, private_store, server_pid

NO_SNAPSHOTS = LogOptions(snapshot_seconds=3600)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
async def store(disk: Path) -> AsyncIterator[Store]:
    async with private_store(disk) as store:
        yield store


def newest_file(store: Store) -> Path:
    assert store.embedded is not None
    return max((store.embedded.folder / "appendonlydir").glob("*.incr.aof"), key=lambda path: path.name)


async def rewritten(store: Store, than: Path) -> None:
    """Returns once the file that is appended to is a newer one, and the rewrite is over."""
    async with patience.within(20):
        while (
            newest_file(store) == than or (await store.redis.info("persistence"))["aof_rewrite_in_progress"]
        ):
            await asyncio.sleep(0.02)


async def test_a_file_with_a_gap_is_written_anew_once_the_disk_has_room(store: Store, disk: Path) -> None:
    """The server leaves a gap in a file that a rewrite began, and would not read what is behind it."""
    first = newest_file(store)
    await store.redis.bgrewriteaof()
    await rewritten(store, first)
    ledger = await open_ledger(store, options=NO_SNAPSHOTS)
    await ledger.append(b"before")
    damaged = newest_file(store)
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    (disk / "others").write_bytes(bytes(room - 8192))
    written = ledger.append(os.urandom(16_384))
    async with patience.within(20):
        while (await store.redis.info("persistence"))["aof_last_write_status"] == "ok":
            await asyncio.sleep(0.02)
        more = ledger.append(b"while there is no room")
        while ledger.log.reachable:
            await asyncio.sleep(0.02)
    assert not more.done()
    (disk / "others").unlink()
    await patience.wait_for(asyncio.gather(written, more), 20)
    await rewritten(store, damaged)
    await ledger.append(b"after")
    os.kill(server_pid(store.embedded), signal.SIGKILL)
    await store.revive()
    assert (await open_ledger(store)).records == ledger.records
