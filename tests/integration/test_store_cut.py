"""The file of a real store, cut short at many places while the master is dead: the workers make it whole."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import shutil
from pathlib import Path

from redis.exceptions import RedisError

import patience
from elastane_cli.chaos.store_server import StoreServer
from elastane_master.decisions import effects
from elastane_master.decisions.machine import JobMachine
from elastane_master.jobs import records
from elastane_master.jobs.records import StoredCommit, StoredNote
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.history import JobHistory
from elastane_master.store.log import JobLog, LogOptions
from ring_of_protocols import RingOfProtocols, standing

BYTES = (0, 1, 17, 39, 40, 500, 1000, 2000, 3000, 4096)
NO_SNAPSHOTS = LogOptions(snapshot_seconds=3600.0)


def server(folder: Path) -> StoreServer:
    return StoreServer(folder, folder.with_suffix(".log"))


def file_of(folder: Path) -> Path:
    (found,) = (folder / "appendonlydir").glob("*.incr.aof")
    return found


async def in_the_file(store: Store) -> None:
    """Wait until the file has all that was acknowledged: during a slow fsync the server holds writes back."""
    async with patience.within(20):
        while (await store.redis.info("persistence"))["aof_buffer_length"]:
            await asyncio.sleep(0.01)


async def written(folder: Path, job: RingOfProtocols, snapshot_at: int) -> list[tuple[str, int, int]]:
    """Writes the job's decisions one by one, a snapshot behind one of them, and kills the store.

    Returns what each write was, and the bytes of the file before and after it.
    """
    running = server(folder)
    running.start()
    store = await Store.open(StoreOptions(url=running.url))
    log, _ = await JobLog.open(store.redis, "job", NO_SNAPSHOTS)
    position, notes = 0, 0
    log.start(lambda: job.stored[position][0])
    writes = []
    for position, (stored, decision) in enumerate(job.decided):
        commits = [effect for effect in decision.effects if isinstance(effect, effects.Commit)]
        history = [records.encode(StoredCommit(stored.now, commit)) for commit in commits]
        events = []
        for effect in decision.effects:
            if isinstance(effect, effects.Note):
                notes += 1
                events.append((notes, records.encode(StoredNote(notes, stored.now, effect))))
        if position in (0, snapshot_at):
            log.snapshot_soon()
        before = file_of(folder).stat().st_size
        await asyncio.shield(
            log.append(records.encode(stored) if decision.durable else None, history, events)
        )
        await in_the_file(store)
        kind = "snapshot" if position in (0, snapshot_at) else "commit" if commits else "record"
        writes.append((kind, before, file_of(folder).stat().st_size))
    running.kill()
    await log.abandon()
    await store.close(stop_embedded=False)
    running.stop()
    return writes


async def read_back(folder: Path) -> tuple[JobMachine, list[effects.Commit]]:
    """What a master finds that takes the job over from this file."""
    running = server(folder)
    running.start()
    try:
        store = await Store.open(StoreOptions(url=running.url))
        log, recovered = await JobLog.open(store.redis, "job", NO_SNAPSHOTS)
        payloads, _ = await JobHistory(store.redis, "job").commits("", 1000)
        await log.abandon()
        await store.close(stop_embedded=False)
    finally:
        running.stop()
    assert recovered.snapshot is not None
    machine = JobMachine.restore(recovered.snapshot)
    for record in recovered.records:
        stored = records.decode_event(record)
        machine.handle(stored.event, stored.now)
    commits = [records.decode_commit(payload).commit for payload in payloads]
    return machine, [commit for commit in commits if isinstance(commit, effects.Commit)]


async def test_history_is_whole_wherever_the_file_was_cut(tmp_path: Path) -> None:
    job = RingOfProtocols(steps=12)
    for name in "abc":
        job.start(name)
    job.attend("a", "b", "c")
    job.run(10)
    snapshot_at = len(job.decided) - 8
    writes = await written(tmp_path / "whole", job, snapshot_at)
    end = writes[-1][2]
    cuts = set(BYTES)
    for kind in ("record", "commit", "snapshot"):
        _, before, after = [write for write in writes if write[0] == kind][-1]
        cuts |= {end - before, end - (before + after) // 2, end - after, end - after + 1}
    restored = 0
    for number, cut in enumerate(
        sorted(cut for cut in cuts if cut <= max(4096, end - writes[snapshot_at][1]))
    ):
        folder = tmp_path / f"cut-{number}"
        shutil.copytree(tmp_path / "whole", folder)
        server(folder).cut(cut)
        machine, history = await read_back(folder)
        again = copy.deepcopy(job)
        again.taken_over(machine, history)
        again.attend("b", "c", "a")
        again.run()
        again.finish()
        commits = standing(again.history)
        assert len(commits) == 12 and not again.noted("history_forgotten"), f"{cut} bytes cut"
        assert [commit.tasks for commit in commits[:9]] == [commit.tasks for commit in job.history[:9]]
        restored += bool(again.noted("history_restored"))
    assert restored >= len(cuts) / 2


async def rewritten(store: Store) -> None:
    """Returns once the server has rewritten its file since it was started."""
    async with patience.within(20):
        while True:
            with contextlib.suppress(RedisError):  # over a connection from before the restart
                if (await store.redis.info("persistence"))["aof_last_rewrite_time_sec"] != -1:
                    return
            await asyncio.sleep(0.02)


async def test_writes_that_were_lost_do_not_come_back_at_the_next_restart(tmp_path: Path) -> None:
    """Redis 7.0 keeps the beginning of a transaction that was cut off, and completes it with later writes."""
    running = server(tmp_path / "store")

    async def restarted(cut: int) -> None:
        running.kill()
        running.cut(cut)
        running.start()

    running.start()
    store = await Store.open(StoreOptions(url=running.url))
    log, _ = await JobLog.open(store.redis, "job", NO_SNAPSHOTS)
    log.start(bytes)
    await log.append(b"first", [b"first"])
    await log.append(b"lost", [b"lost"])
    await in_the_file(store)
    await log.abandon()
    await store.close(stop_embedded=False)
    await restarted(cut=20)  # the end of a transaction has 14 bytes
    store = await Store.open(StoreOptions(url=running.url))
    await rewritten(store)
    log, _ = await JobLog.open(store.redis, "job", NO_SNAPSHOTS)
    log.start(bytes)
    await log.append(b"instead", [b"instead"])
    await in_the_file(store)
    await restarted(cut=0)
    await log.whole()  # the master is alive, and notices that the server was started
    await rewritten(store)
    await log.abandon()
    await store.close(stop_embedded=False)
    store = await Store.open(StoreOptions(url=running.url))
    commits, _ = await JobHistory(store.redis, "job").commits("", 10)
    _, recovered = await JobLog.open(store.redis, "job", NO_SNAPSHOTS)
    assert commits == [b"first", b"instead"] and not recovered.damages
    await store.close(stop_embedded=False)
    running.stop()
