"""The store against a real server: durability, group commit, fencing, lost replies, lost stores."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from redis.exceptions import RedisError

import patience
from elastane_master.store.connection import Store, StoreOptions
from elastane_master.store.embedded import EmbeddedStore
from elastane_master.store.errors import (
    EmbeddedStoreFailed,
    Fenced,
    JobDamaged,
    LogClosed,
    StoreRefused,
    StoreUnreachable,
)
from elastane_master.store.history import JobHistory
from elastane_master.store.keys import JobKeys
from elastane_master.store.log import JobLog, LogListener, LogOptions
from integration.master_support import CuttingRelay, Ledger, open_ledger, private_store, server_pid

KEYS = JobKeys.of("j")
NO_SNAPSHOTS = LogOptions(snapshot_seconds=3600)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path) as store:
        yield store


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(start, start + count)]


async def copied(store: Store) -> dict[bytes, bytes]:
    """Every key of the store, as a backup has it."""
    return {key: await store.redis.dump(key) for key in await store.redis.keys("*")}


async def put_back(store: Store, keys: dict[bytes, bytes]) -> None:
    for key, value in keys.items():
        await store.redis.restore(key, 0, value, replace=True)


async def test_records_come_back_in_order_with_and_without_a_snapshot(store: Store) -> None:
    for options in (LogOptions(snapshot_seconds=0), NO_SNAPSHOTS):
        ledger = await open_ledger(store, options=options)
        before = len(ledger.records)
        for record in numbered(50, before):
            await ledger.append(record)
        again = await open_ledger(store)
        assert again.records == numbered(before + 50)
        await again.log.close()


async def test_appends_made_while_a_write_is_in_flight_share_the_next_one(store: Store) -> None:
    ledger = await open_ledger(store, options=NO_SNAPSHOTS)
    await ledger.append(b"first")  # this write carries the first snapshot
    futures = [ledger.append(record) for record in numbered(500)]
    await asyncio.gather(*futures)
    assert await store.redis.xlen(KEYS.log) <= 2
    assert await store.redis.xlen(KEYS.history) == 501


async def test_appends_that_nobody_awaits_are_written_with_the_next_that_somebody_does(store: Store) -> None:
    log, _ = await JobLog.open(store.redis, "j", NO_SNAPSHOTS)
    log.start(bytes)
    await log.append(b"first")  # this write carries the first snapshot
    before = log.sequence
    for record in numbered(20):
        log.append(record, awaited=False)
        await asyncio.sleep(0)  # the writer, if it were woken, would write here
    assert log.sequence == before
    await log.append(b"last")
    assert log.sequence == before + 1
    _, recovered = await JobLog.open(store.redis, "j")
    assert recovered.records == [*numbered(20), b"last"]


async def test_appends_that_nobody_awaits_are_written_soon_by_themselves_or_when_the_log_closes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = await JobLog.open(store.redis, "j", NO_SNAPSHOTS)
    log.start(bytes)
    await log.append(b"first")
    log.append(b"alone", awaited=False)
    async with patience.within(5):
        while await store.redis.xlen(KEYS.log) < 1:
            await asyncio.sleep(0.001)
    monkeypatch.setattr("elastane_master.store.log._UNAWAITED_SECONDS", 3600.0)
    for ask in (lambda: log.pending, log.settled, log.whole):
        future = log.append(b"another", awaited=False)
        assert not future.done()
        asked = ask()
        async with patience.within(5):
            if asyncio.iscoroutine(asked):
                await asked
            else:
                await future
    log.append(b"large" * 2**20, awaited=False)
    async with patience.within(5):
        while log.durable < log.appended:
            await asyncio.sleep(0.001)
    log.append(b"at the end", awaited=False)
    await log.close()
    _, recovered = await JobLog.open(store.redis, "j")
    assert recovered.snapshot == b"" and log.durable == log.appended


class HandTurnedTimers:
    """The event loop as a log uses it, whose time passes by `turn`."""

    def __init__(self) -> None:
        self.create_future = asyncio.get_running_loop().create_future
        self._now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], None], *_: object) -> Any:
        self._due.append((self._now + seconds, callback))
        return asyncio.get_running_loop().call_soon(lambda: None)  # to be cancelled by who wants to

    def turn(self, seconds: float) -> None:
        self._now += seconds
        due, self._due = self._due, [one for one in self._due if one[0] > self._now]
        for at, callback in due:
            if at <= self._now:
                callback()


async def test_appends_that_nobody_awaits_wait_from_their_own_time_on_and_not_from_earlier_ones(
    store: Store,
) -> None:
    log, _ = await JobLog.open(store.redis, "j", NO_SNAPSHOTS)
    timers: Any = HandTurnedTimers()
    log._loop = timers
    log.start(bytes)
    await log.append(b"first")
    for number in range(5):  # a step each 8 ms, whose last report comes 4 ms after the first
        before = log.sequence
        log.append(b"report %d" % number, awaited=False)
        timers.turn(0.004)
        assert not log._hurries, "a timer of an earlier step writes this one"
        await log.append(b"last report %d" % number)
        assert log.sequence == before + 1
        timers.turn(0.004)
    future = log.append(b"alone", awaited=False)
    timers.turn(0.009)
    assert not log._hurries
    timers.turn(0.002)  # the timer that is there may set another one, for the rest of the time
    timers.turn(0.002)
    async with patience.within(5):
        await asyncio.shield(future)
    await log.close()


async def test_a_future_resolves_only_after_the_owner_was_told_and_the_store_has_it(store: Store) -> None:
    seen: list[tuple[str, int]] = []

    class Listener(LogListener):
        def durable(self, position: int) -> None:
            seen.append(("durable", position))

    ledger = await open_ledger(store, options=NO_SNAPSHOTS, listener=Listener())
    await ledger.append(b"a")
    seen.append(("resolved", ledger.log.durable))
    assert seen == [("durable", 1), ("resolved", 1)]
    assert await store.redis.hget(KEYS.fence, "sequence") == b"1"


async def test_a_snapshot_trims_the_log_and_is_taken_without_new_records(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0  # stands still until both records are there, however slow the disk
    monkeypatch.setattr("elastane_master.store.log.time", SimpleNamespace(monotonic=lambda: now))
    ledger = await open_ledger(store, options=LogOptions(snapshot_seconds=0.2))
    await ledger.append(b"a")
    await ledger.append(b"b")
    assert await store.redis.xlen(KEYS.log) == 1
    now += 0.2
    async with patience.within(5):
        while await store.redis.xlen(KEYS.log):
            await asyncio.sleep(0.02)
    _, recovered = await JobLog.open(store.redis, "j")
    assert recovered.records == []
    assert recovered.snapshot == ledger.snapshot()


async def test_a_large_snapshot_waits_while_others_wait_for_the_store_but_not_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = await JobLog.open(store.redis, "j", LogOptions(snapshot_seconds=0, patience_seconds=0))
    log.start(lambda: bytes(100_000))
    await log.append(b"first")  # comes with a snapshot, however large

    async def append(records: int) -> list[int]:
        """Append one after the other; return the lengths of the log after each."""
        lengths = []
        for _ in range(records):
            await log.append(b"record")
            lengths.append(await store.redis.xlen(KEYS.log))
        return lengths

    monkeypatch.setattr("elastane_master.store.log._LATE_SECONDS", 3600.0)
    with monkeypatch.context() as busy:
        busy.setattr("elastane_master.store.log._REST_SECONDS", 3600.0)  # however slow the disk
        assert await append(10) == list(range(1, 11))
    await log.append(b"record")
    async with patience.within(5):
        while await store.redis.xlen(KEYS.log):
            await asyncio.sleep(0.01)
    monkeypatch.setattr("elastane_master.store.log._LATE_SECONDS", 0.0)
    assert min(await append(50)) == 0
    await log.close()


async def test_a_snapshot_waits_until_the_log_is_as_large_or_its_patience_is_over(store: Store) -> None:
    async def log_of(patience_seconds: float) -> JobLog:
        log, _ = await JobLog.open(
            store.redis, "j", LogOptions(snapshot_seconds=0, patience_seconds=patience_seconds)
        )
        log.start(lambda: bytes(100_000))
        await log.append(b"first")  # comes with a snapshot
        return log

    log = await log_of(3600)
    for count in range(1, 11):
        await log.append(bytes(9_000))
        assert await store.redis.xlen(KEYS.log) == count
    await log.append(bytes(11_000))  # now the records are as large as the snapshot
    # The next one waits 20 times as long as the first took: at most a twentieth of the time goes into them.
    async with patience.within(5):
        while await store.redis.xlen(KEYS.log):
            await asyncio.sleep(0.01)
    await log.close()

    log = await log_of(0.05)
    await log.append(b"small")
    async with patience.within(5):
        while await store.redis.xlen(KEYS.log):
            await asyncio.sleep(0.01)
    await log.close()


async def test_batches_are_split_at_their_bound(store: Store) -> None:
    ledger = await open_ledger(store, options=LogOptions(snapshot_seconds=3600, batch_bytes_max=100))
    await ledger.append(b"first")
    await asyncio.gather(*[ledger.append(record) for record in numbered(100)])
    assert await store.redis.xlen(KEYS.log) > 5
    assert (await open_ledger(store)).records == [b"first", *numbered(100)]


async def test_a_snapshot_covers_all_that_waits_also_what_would_be_another_batch(store: Store) -> None:
    options = LogOptions(snapshot_seconds=0, batch_bytes_max=30)
    ledger = await open_ledger(store, options=options)
    await asyncio.gather(*[ledger.append(record) for record in numbered(60)])
    assert (await open_ledger(store)).records == numbered(60)
    assert await store.redis.xlen(KEYS.history) == 60


async def test_the_older_of_two_masters_is_fenced(store: Store) -> None:
    failures: list[Exception] = []

    class Listener(LogListener):
        def failed(self, error: Exception) -> None:
            failures.append(error)

    old = await open_ledger(store, listener=Listener())
    await old.append(b"mine")
    new = await open_ledger(store)
    with pytest.raises(Fenced) as refused:
        await old.append(b"too late")
    assert refused.value.facts["holder"] == "2"
    assert [type(failure) for failure in failures] == [Fenced]
    with pytest.raises(Fenced):
        old.log.append(b"later still")
    await new.append(b"theirs")
    assert (await open_ledger(store)).records == [b"mine", b"theirs"]
    assert await store.redis.xlen(KEYS.history) == 2


async def test_an_idle_master_learns_that_it_is_fenced(store: Store) -> None:
    fenced = asyncio.Event()

    class Listener(LogListener):
        def failed(self, error: Exception) -> None:
            fenced.set()

    await open_ledger(store, options=LogOptions(check_seconds=0.05), listener=Listener())
    await open_ledger(store)
    await patience.wait_for(fenced.wait(), 5)


@pytest.mark.parametrize("losses", [1, 3])
async def test_a_write_with_a_lost_reply_is_stored_once(store: Store, tmp_path: Path, losses: int) -> None:
    relay_path = store.embedded.socket_path.with_name("relay.sock")
    async with CuttingRelay(store.embedded.socket_path, relay_path) as relay:
        through_relay = await Store.open(StoreOptions(url=f"unix://{relay_path}"))
        ledger = await open_ledger(through_relay, options=NO_SNAPSHOTS)
        await ledger.append(b"first")
        relay.lose_replies = losses
        await ledger.append(b"second")
        await ledger.append(b"third")
        assert relay.lost == losses
        await through_relay.close(stop_embedded=False)
    assert (await open_ledger(store)).records == [b"first", b"second", b"third"]
    assert await store.redis.xlen(KEYS.history) == 3


async def test_replies_lost_at_random_lose_and_double_nothing(store: Store, tmp_path: Path) -> None:
    choices = random.Random(7)
    relay_path = store.embedded.socket_path.with_name("relay.sock")
    async with CuttingRelay(store.embedded.socket_path, relay_path) as relay:
        through_relay = await Store.open(StoreOptions(url=f"unix://{relay_path}"))
        ledger = await open_ledger(through_relay, options=LogOptions(snapshot_seconds=0.01))
        for record in numbered(120):
            future = ledger.append(record)
            relay.lose_replies += choices.random() < 0.15
            if choices.random() < 0.5:
                await asyncio.shield(future)
        await ledger.log.close()
        await through_relay.close(stop_embedded=False)
        assert relay.lost > 5
    assert (await open_ledger(store)).records == numbered(120)
    commits, _ = await JobHistory(store.redis, "j").commits("", 1000)
    assert commits == [b"history of " + record for record in numbered(120)]


async def test_a_killed_server_comes_back_and_nothing_acknowledged_is_lost(store: Store) -> None:
    changes: list[bool] = []

    class Listener(LogListener):
        def reachable(self, reachable: bool) -> None:
            changes.append(reachable)

        async def revive(self) -> None:
            await store.revive()

    ledger = await open_ledger(store, options=LogOptions(snapshot_seconds=0.02), listener=Listener())
    for round_number in range(3):
        pending = [ledger.append(record) for record in numbered(50, 100 * round_number)]
        await asyncio.shield(pending[-1])
        os.kill(server_pid(store.embedded), signal.SIGKILL)
        more = [ledger.append(record) for record in numbered(50, 100 * round_number + 50)]
        await patience.wait_for(asyncio.gather(*more), 30)
    assert changes in ([False, True] * count for count in (1, 2, 3))
    assert (await open_ledger(store)).records == numbered(300)
    assert await store.redis.xlen(KEYS.history) == 300


async def test_a_connection_that_ended_while_nothing_was_written_is_no_absence_of_the_store(
    store: Store,
) -> None:
    told: list[bool] = []

    class Listener(LogListener):
        def reachable(self, reachable: bool) -> None:
            told.append(reachable)

    ledger = await open_ledger(store, options=NO_SNAPSHOTS, listener=Listener())
    await ledger.append(b"a")
    killed = await store.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert killed > 0
    await ledger.append(b"b")
    assert told == []
    assert await store.redis.xlen(KEYS.history) == 2
    await ledger.log.close()


async def test_a_connection_is_made_anew_after_every_error(store: Store) -> None:
    script, connections = (
        store.redis.pinned_script("return redis.call(ARGV[1])"),
        store.redis.script_connections,
    )
    await script(keys=[], args=["PING"])
    (connection,) = connections._free
    await script(keys=[], args=["PING"])
    assert connections._free == [connection]
    with pytest.raises(RedisError):
        await script(keys=[], args=["nonsense"])
    # A server that became a replica says no, and its name may mean another one by now.
    assert await script(keys=[], args=["PING"]) and connection not in connections._free


async def test_nothing_is_acknowledged_while_the_server_is_down(store: Store) -> None:
    ledger = await open_ledger(store)  # its listener does not revive the server
    await ledger.append(b"a")
    os.kill(server_pid(store.embedded), signal.SIGKILL)
    future = ledger.append(b"b")
    await patience.wait_for(ledger.log.settled(), 10)  # returns since the store is known to be down
    assert not ledger.log.reachable
    assert not future.done()
    await store.revive()
    await patience.wait_for(future, 10)
    assert ledger.log.reachable


@pytest.mark.parametrize("loss", ["everything", "newest writes"])
async def test_a_store_that_lost_writes_gets_the_whole_state_again(store: Store, loss: str) -> None:
    ledger = await open_ledger(store, options=NO_SNAPSHOTS)
    for record in numbered(3):
        await ledger.append(record)
    replica = await copied(store)
    for record in numbered(2, 3):
        await ledger.append(record)
    await store.redis.flushall()
    if loss == "newest writes":  # as a promoted replica that was two writes behind
        await put_back(store, replica)
    await ledger.append(b"after the loss")
    await ledger.append(b"one more")
    history, _ = await JobHistory(store.redis, "j").commits("", 100)
    expected = [*numbered(5), b"after the loss", b"one more"]
    assert history == [b"history of " + record for record in expected]
    assert (await open_ledger(store)).records == [*numbered(5), b"after the loss", b"one more"]


@pytest.mark.parametrize("page", [100, 3])
async def test_what_a_store_has_lost_is_not_missing_in_what_is_read(store: Store, page: int) -> None:
    """The master has written nothing since, and its next look at the store is hours away."""
    ledger = await open_ledger(store, options=LogOptions(snapshot_seconds=3600, check_seconds=3600))
    for record in numbered(3):
        await ledger.append(record)
    replica = await copied(store)
    for record in numbered(2, 3):
        await ledger.append(record)
    await store.redis.flushall()
    await put_back(store, replica)
    history = JobHistory(store.redis, "j", log=ledger.log)
    read: list[bytes] = []
    token = "first"
    while token:
        commits, token = await history.commits("" if token == "first" else token, page)
        read += commits
    assert read == [b"history of " + record for record in numbered(5)]
    assert await history.commits("", page) == await JobHistory(store.redis, "j").commits("", page)


async def test_an_idle_master_mends_a_store_that_lost_its_last_write(store: Store) -> None:
    ledger = await open_ledger(store, options=LogOptions(snapshot_seconds=3600, check_seconds=0.05))
    await ledger.append(b"a")
    replica = await copied(store)
    await ledger.append(b"b")
    await put_back(store, replica)
    async with patience.within(5):
        while await store.redis.hget(KEYS.fence, "sequence") != b"3":
            await asyncio.sleep(0.02)
    assert (await open_ledger(store)).records == [b"a", b"b"]


async def test_a_closed_log_has_written_everything_and_refuses_more(store: Store) -> None:
    ledger = await open_ledger(store)
    futures = [ledger.append(record) for record in numbered(20)]
    await ledger.log.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(LogClosed):
        ledger.log.append(b"late")
    _, recovered = await JobLog.open(store.redis, "j")
    assert recovered.records == []  # the last snapshot covers all


async def test_closing_while_the_store_is_down_fails_what_is_pending(store: Store) -> None:
    # With `everysec` the server acknowledges a write that waits for a sync to end, and SIGKILL takes it.
    await store.redis.config_set("appendfsync", "always")
    ledger = await open_ledger(store)
    await ledger.append(b"a")
    os.kill(server_pid(store.embedded), signal.SIGKILL)
    future = ledger.append(b"b")
    await ledger.log.close(timeout_seconds=0.2)
    with pytest.raises(LogClosed):
        await future
    await store.revive()
    assert (await open_ledger(store)).records == [b"a"]


async def test_history_is_read_page_by_page_and_bounded(store: Store) -> None:
    ledger = await open_ledger(store, options=LogOptions(history_entries_max=1000))
    await asyncio.gather(*[ledger.append(record) for record in numbered(25)])
    history = JobHistory(store.redis, "j")
    pages, token = [], ""
    while True:
        page, token = await history.commits(token, 10)
        pages.append(page)
        if not token:
            break
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [commit for page in pages for commit in page] == [b"history of " + r for r in numbered(25)]
    await asyncio.gather(*[ledger.append(record) for record in numbered(4000, 25)])
    assert await store.redis.xlen(KEYS.history) < 1300  # MAXLEN ~ keeps whole nodes


async def test_events_keep_their_numbers_over_a_takeover(store: Store) -> None:
    log, recovered = await JobLog.open(store.redis, "j")
    assert recovered.event_sequence == 0
    log.start(bytes)
    await log.append(None, events=[(1, b"one"), (2, b"two")])
    _, recovered = await JobLog.open(store.redis, "j")
    assert recovered.event_sequence == 2
    assert await JobHistory(store.redis, "j").events(2, 10) == [(2, b"two")]


async def test_the_private_server_outlives_its_master_and_is_found_again(tmp_path: Path) -> None:
    first, second = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
    assert await first.start()
    pid = server_pid(first)
    assert not await second.start()
    assert server_pid(second) == pid
    os.kill(pid, signal.SIGKILL)
    first._process.wait(5)
    assert second.socket_path.exists()  # stale: the kill left it behind
    assert await second.start()
    assert server_pid(second) != pid
    await second.stop()
    assert server_pid(second) is None


async def test_two_starts_at_once_make_one_server(tmp_path: Path) -> None:
    stores = [EmbeddedStore(tmp_path) for _ in range(4)]
    started = await asyncio.gather(*[store.start() for store in stores])
    assert sorted(started) == [False, False, False, True]
    await stores[0].stop()


@pytest.mark.parametrize("polls", [1, 2, 5])
async def test_a_master_that_is_told_to_stop_while_it_starts_leaves_no_server(
    tmp_path: Path, polls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any look at the server: before it listens, and when it answers."""
    asked, answers = asyncio.Event(), EmbeddedStore._answers
    seen = 0

    async def looked_at(store: EmbeddedStore) -> bool:
        nonlocal seen
        seen += 1
        found = await answers(store)
        if seen >= polls or found:
            asked.set()
            await asyncio.sleep(0)
        return found

    monkeypatch.setattr(EmbeddedStore, "_answers", looked_at)
    opening = asyncio.create_task(Store.open(StoreOptions(state_dir=tmp_path)))
    await asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert server_pid(EmbeddedStore(tmp_path)) is None


async def test_a_state_directory_with_a_long_path_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    (temporary := tmp_path / ("t" * 90)).mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # looked up once, and kept
    async with private_store(deep) as store:
        await store.redis.set("x", "y")
        assert len(str(store.embedded.socket_path)) < 100
    async with private_store(deep) as store:
        assert await store.redis.get("x") == b"y"


async def test_a_socket_that_has_no_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastane_master.store.embedded._PLACE", tmp_path / "not there")
    with pytest.raises(EmbeddedStoreFailed, match=r"too long, and .* cannot be made") as refused:
        EmbeddedStore(tmp_path / ("d" * 60) / ("e" * 60))
    assert "--state-dir" in refused.value.hint


async def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(EmbeddedStoreFailed, match="state directory") as refused:
        await EmbeddedStore(tmp_path / "file").start()
    assert "--state-dir" in refused.value.hint


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path)
    (store.folder / "appendonlydir").mkdir(parents=True)
    (store.folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(EmbeddedStoreFailed, match=r"ended while starting: .*manifest"):
        await store.start()


async def test_an_unreachable_store_is_given_up_after_the_stated_time(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match=r"user:\*\*\*@127\.0\.0\.1:1") as refused:
        await Store.open(StoreOptions(url="redis://user:secret@127.0.0.1:1/0", start_timeout_seconds=0.3))
    assert refused.value.hint


async def test_a_store_that_wants_a_password_says_so_at_once(store: Store) -> None:
    await store.redis.config_set("requirepass", "secret")
    try:
        with pytest.raises(StoreRefused) as refused:
            await Store.open(StoreOptions(url=store.url))
        assert "password" in refused.value.hint
        with_password = await Store.open(StoreOptions(url=store.url.replace("unix://", "unix://:secret@")))
        assert "secret" not in with_password.url
        await with_password.close(stop_embedded=False)
    finally:
        await store.redis.config_set("requirepass", "")


@pytest.mark.parametrize("bytes_cut", [1, 30, 3000])
async def test_history_and_events_of_a_store_that_lost_its_end_are_written_again(
    tmp_path: Path, bytes_cut: int
) -> None:
    """kill -9, the last bytes of the append-only file gone, started again: memory has it all."""

    class Listener(LogListener):
        async def revive(self) -> None:
            await store.revive()

    async with private_store(tmp_path) as store:
        ledger = await open_ledger(store, options=NO_SNAPSHOTS, listener=Listener())
        for number, record in enumerate(numbered(40), start=1):
            ledger.records.append(record)
            await ledger.log.append(record, [b"history of " + record], [(number, b"event of " + record)])
        # While a disk is busy with its last fsync, the server keeps what comes for up to two seconds.
        while (await store.redis.info("persistence"))["aof_buffer_length"]:
            await asyncio.sleep(0.01)
        pid = server_pid(store.embedded)
        os.kill(pid, signal.SIGKILL)
        store.embedded._process.wait(10)
        file = next((store.embedded.folder / "appendonlydir").glob("*.incr.aof"))
        os.truncate(file, file.stat().st_size - bytes_cut)
        await store.revive()
        assert await store.redis.xlen(KEYS.history) < 40  # some were lost
        await ledger.append(b"after")
        history = JobHistory(store.redis, "j")
        commits, _ = await history.commits("", 1000)
        assert commits == [b"history of " + record for record in [*numbered(40), b"after"]]
        told = await history.events(1, 1000)
        assert told == [(n, b"event of " + r) for n, r in enumerate(numbered(40), start=1)]
        assert (await open_ledger(store)).records == [*numbered(40), b"after"]


@pytest.mark.parametrize("key", ["fence", "log", "snapshot", "history", "events"])
async def test_a_key_that_vanishes_under_its_master_comes_back_and_nothing_counts_twice(
    store: Store, key: str
) -> None:
    log, _ = await JobLog.open(store.redis, "j", NO_SNAPSHOTS)
    log.start(lambda: b"state")
    for number in range(1, 6):
        await log.append(b"record", [b"commit %d" % number], [(number, b"event %d" % number)])
    await store.redis.delete(getattr(KEYS, key))
    await log.append(b"record", [b"commit 6"], [(6, b"event 6")])
    await log.append(b"record", [b"commit 7"], [(7, b"event 7")])
    await log.close()
    history = JobHistory(store.redis, "j")
    assert (await history.commits("", 100))[0] == [b"commit %d" % number for number in range(1, 8)]
    assert await history.events(1, 100) == [(number, b"event %d" % number) for number in range(1, 8)]
    _, recovered = await JobLog.open(store.redis, "j")
    assert recovered.snapshot == b"state"


@pytest.mark.parametrize("loss", ["history", "backup"])
async def test_what_nobody_has_any_more_ends_the_log_once_the_state_is_safe(store: Store, loss: str) -> None:
    """The history is gone, or the whole store is of yesterday, and commits are kept for no time at all."""
    failures: list[Exception] = []

    class Listener(LogListener):
        def failed(self, error: Exception) -> None:
            failures.append(error)

    ledger = await open_ledger(store, options=replace(NO_SNAPSHOTS, kept_seconds=0.0), listener=Listener())
    await ledger.append(b"a")
    backup = await copied(store)
    for record in numbered(5):
        await ledger.append(record)
    whole = await store.redis.dump(KEYS.history)
    if loss == "history":
        await store.redis.delete(KEYS.history)
    else:
        await put_back(store, backup)
    await asyncio.shield(ledger.append(b"after"))  # the state with it is stored before anybody is told
    with pytest.raises(JobDamaged, match=r"commits [12] to 5 are gone"):
        await ledger.append(b"refused")
    assert [type(failure) for failure in failures] == [JobDamaged]
    with pytest.raises(JobDamaged, match=r"history: [45] of 7 commits are gone"):
        await JobLog.open(store.redis, "j")
    log, recovered = await JobLog.open(store.redis, "j", accept_loss=True)
    again = Ledger(recovered.snapshot, recovered.records)
    assert again.records == [b"a", *numbered(5), b"after"]
    if loss == "history":  # who puts the key back, with what came since, has lost nothing
        ((name, fields),) = await store.redis.xrevrange(KEYS.history, count=1)
        await store.redis.restore(KEYS.history, 0, whole, replace=True)
        await store.redis.xadd(KEYS.history, fields, name)
        await JobLog.open(store.redis, "j")
    else:
        log.start(again.snapshot)
        await log.append(b"x", [b"history of x"])
        assert (await open_ledger(store)).records[-1] == b"after"


async def test_a_log_of_many_entries_is_read_to_its_end(store: Store) -> None:
    ledger = await open_ledger(store, options=replace(NO_SNAPSHOTS, batch_bytes_max=1))
    await ledger.append(b"first")
    await asyncio.gather(*[ledger.append(record) for record in numbered(1100)])
    assert await store.redis.xlen(KEYS.log) == 1100
    await ledger.log.abandon()
    log, recovered = await JobLog.open(store.redis, "j")
    assert recovered.records == numbered(1100)
    # Accepting a loss of its middle leaves what comes before it, and of the history as much.
    await store.redis.xdel(KEYS.log, "701-0")
    with pytest.raises(JobDamaged, match="writes 701 to 701 are gone"):
        await JobLog.open(store.redis, "j")
    log, recovered = await JobLog.open(store.redis, "j", accept_loss=True)
    assert recovered.records == numbered(699)
    ledger = Ledger(recovered.snapshot, recovered.records)
    log.start(ledger.snapshot)
    ledger.log = log
    await ledger.append(b"again")
    history, _ = await JobHistory(store.redis, "j").commits("", 2000)
    assert history == [b"history of " + record for record in (b"first", *numbered(699), b"again")]
    assert (await open_ledger(store)).records == [b"first", *numbered(699), b"again"]


async def test_a_store_of_before_the_chain_is_taken_over_and_chained(store: Store) -> None:
    await store.redis.hset(KEYS.fence, mapping={"token": 3, "sequence": 7, "format": 1, "state": 1})
    state = msgspec.msgpack.encode([b"a", b"b"])
    await store.redis.set(KEYS.snapshot, msgspec.msgpack.encode([1, 6, state]))
    await store.redis.xadd(KEYS.log, {"batch": msgspec.msgpack.encode([1, [b"c"]])}, "7-0")
    for commit in (b"a", b"b", b"c"):
        await store.redis.xadd(KEYS.history, {"commit": commit})
    await store.redis.xadd(KEYS.events, {"event": b"one"}, "1-0")
    ledger = await open_ledger(store)
    assert ledger.records == [b"a", b"b", b"c"]
    await ledger.append(b"d")
    await ledger.append(b"e")
    history = JobHistory(store.redis, "j")
    page, token = await history.commits("", 3)
    assert page == [b"a", b"b", b"c"]
    assert await history.commits(token, 3) == ([b"history of d", b"history of e"], "")
    await ledger.log.abandon()
    again = await open_ledger(store)
    assert again.records == [b"a", b"b", b"c", b"d", b"e"]
    await again.log.abandon()  # a log that goes on writes its snapshot anew
    await store.redis.delete(KEYS.snapshot)
    with pytest.raises(JobDamaged, match="it is gone, and with it the job's state up to write"):
        await JobLog.open(store.redis, "j")
