"""Seams of a succession, in this process: what is told to nobody, and what goes wrong half-way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.exceptions import ConnectionError as StoreGone

import patience
from elastane_master.app import Master
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.job_servers import JobServers
from elastane_master.security.settings import SecuritySettings
from elastane_master.store.closed import ClosedJobs, Listed
from elastane_master.store.connection import JobNames, Store
from elastane_master.store.errors import Fenced
from elastane_master.store.leader_lease import LEASE_KEY, LeaderLease, LeaseCandidate
from elastane_master.store.log import JobLog
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2, ring_pb2_grpc, shard_pb2, shard_pb2_grpc
from integration.master_support import open_ledger, private_store, reason_of, serving_master
from integration.security_support import standard_tokens, token_of

#: What a test waits out: long enough that a leader on a busy machine renews its own in time.
LEASE_SECONDS = 2.0
#: Of tests that wait for no lease to run out.
LONG_LEASE_SECONDS = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path / "store") as store:
        yield store


def master_on(store: Store, folder: Path, **settings: object) -> object:
    settings = {"leader_lease_seconds": LONG_LEASE_SECONDS, **settings}
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
    async with patience.within(20):
        async for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if reply.status == wanted:
                return


@asynccontextmanager
async def asleep(master: Master) -> AsyncIterator[None]:
    """Inside, the master's lease is over and it was not told, as if its process had been stopped."""
    keeper = master.leadership.keeper
    keeper._tasks[0].cancel()  # it asks for its lease no more
    kept = keeper.state
    keeper.state = msgspec.structs.replace(kept, renewed_at=time.monotonic() - LONG_LEASE_SECONDS - 0.001)
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
        await master.leadership.pause("the store does not answer")
        await master.leadership.resume()
        async with asleep(master):
            assert await outcome(channel) == "NOT_LEADING"
        assert await outcome(channel) == "served"


async def test_health_is_well_when_a_master_leads_again_after_it_had_lost_the_store(
    store: Store, tmp_path: Path
) -> None:
    async with master_on(store, tmp_path / "a") as (master, channel):
        await create(channel)
        master.jobs.store_reachable(master.jobs.get("j"), False)
        await becomes(channel, NOT_SERVING)
        await master.leadership.give_way("another leads")
        await master.leadership.lead()
        await becomes(channel, SERVING)
        assert await outcome(channel) == "served"


async def test_takeovers_end_with_the_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One left behind would take its job over in the middle of the next attempt."""

    async def listed(self: ClosedJobs, jobs: list[str], state_version: int) -> Listed:
        return Listed({}, jobs, [])

    monkeypatch.setattr(ClosedJobs, "take_over", listed)

    async def jobs() -> JobNames:
        return JobNames(["slow", "unreadable"], frozenset())

    hosts = JobServers(SimpleNamespace(jobs=jobs, redis=None), SimpleNamespace(state_version=1))
    taken, go_on, began = [], asyncio.Event(), asyncio.Event()

    async def take_over(name: str, **_: object) -> None:
        if name == "unreadable":
            await began.wait()
            raise StoreGone("the store is gone")
        began.set()
        await go_on.wait()
        taken.append(name)

    monkeypatch.setattr(hosts.opening, "read", take_over)
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
    start, attempts = JobServers.start, []

    async def fenced_once(hosts: JobServers, may_lead: Callable[[], bool]) -> None:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            raise Fenced("job j was taken over", job="j")
        await start(hosts, may_lead)

    monkeypatch.setattr(JobServers, "start", fenced_once)
    async with master_on(store, tmp_path / "a", leader_lease_seconds=LEASE_SECONDS) as (master, channel):
        assert not master.leads and master.leadership.keeper.state.role == "standby"
        assert await outcome(channel) == "NOT_LEADING"
        await becomes(channel, SERVING)
        assert master.leads and len(attempts) == 2
        assert attempts[1] - attempts[0] >= LEASE_SECONDS, "whoever ignores the lease is given time to finish"
        await create(channel)


class Partition:
    """A way to the store's socket that can be cut: connections break, new ones are refused."""

    def __init__(self, target: Path, listen: Path) -> None:
        self.target = target
        self.listen = listen
        self.server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Partition:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def heal(self) -> None:
        self.server = await asyncio.start_unix_server(self.serve, self.listen)

    async def cut(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        self.listen.unlink(missing_ok=True)
        for writer in list(self.writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_unix_connection(self.target)
        pair = {writer, up_writer}
        self.writers |= pair
        try:
            await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        finally:
            self.writers -= pair


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


class CutAt(Partition):
    """A way to the store's socket that is cut when something is asked of the store."""

    def __init__(self, store: Store, word: bytes) -> None:
        socket = store.embedded.socket_path
        super().__init__(socket, socket.with_name("cut.sock"))
        self.word = word
        self.is_set = False
        self.happened = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = asyncio.StreamReader()
        watching = asyncio.create_task(self.watch(reader, ours))
        await super().serve(ours, writer)
        watching.cancel()

    async def watch(self, reader: asyncio.StreamReader, ours: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.is_set and self.word in data:
                    self.is_set = False
                    await self.cut()
                    self.happened.set()
                    break
                ours.feed_data(data)
        ours.feed_eof()


@pytest.mark.parametrize("word", [b"SMEMBERS", b":snapshot"])
async def test_a_takeover_that_was_cut_off_for_longer_than_the_lease_is_done_again(
    store: Store, tmp_path: Path, word: bytes
) -> None:
    async with CutAt(store, word) as way:
        await way.heal()
        async with (
            master_on(store, tmp_path / "a") as (first, channel),
            serving_master(
                tmp_path / "b", store=f"unix://{way.listen}", leader_lease_seconds=LEASE_SECONDS
            ) as (second, to_second),
        ):
            await create(channel)
            lead, ended = second.leadership.lead, asyncio.Event()

            async def told() -> bool:
                done = await lead()
                ended.set()
                return done

            second.leadership.lead = told
            way.is_set = True
            await first.stop()
            async with patience.within(30):
                await way.happened.wait()
                await ended.wait()
            assert not second.leads and second.not_ready()
            assert await outcome(to_second) == "NOT_LEADING"
            await way.heal()
            await becomes(to_second, SERVING)
            assert second.not_ready() == ""
            assert await outcome(to_second) == "served"


async def test_what_was_read_while_another_master_took_the_job_over_is_not_served(store: Store) -> None:
    """A snapshot of before and a log of after would make a state that never was."""
    older = await open_ledger(store)
    await older.append(b"one")
    read = store.redis.get

    async def overtaken(key: str) -> object:
        found = await read(key)
        store.redis.get = read
        newer = await open_ledger(store)
        await newer.append(b"two")
        await newer.log.close()
        return found

    store.redis.get = overtaken
    with pytest.raises(Fenced, match="while it was read"):
        await open_ledger(store)
    await older.log.abandon()
    again = await open_ledger(store)
    assert again.records == [b"one", b"two"]
    await again.log.close()


async def test_a_store_whose_clock_is_set_back_does_not_make_a_lease_longer(store: Store) -> None:
    gone = LeaderLease(store.redis, LeaseCandidate("a:1", "a:7"), 1.0)
    waits = LeaderLease(store.redis, LeaseCandidate("b:1", "b:7"), 60.0)
    assert (await gone.acquire()).token == 1
    assert 0 < (await waits.acquire()).left_seconds <= 1.0
    for seconds_left in (3600, None):  # as it looks after the clock was set back, or a backup was restored
        if seconds_left is None:
            await store.redis.persist(LEASE_KEY)
        else:
            await store.redis.expire(LEASE_KEY, seconds_left)
        reply = await waits.acquire()
        assert reply.token == 0 and 0 < reply.left_seconds <= 1.0
    await waits.released((await waits.acquire()).left_seconds)
    async with patience.within(20):
        while not (await waits.acquire()).token:
            await waits.released(0.05)


async def test_a_dead_masters_last_requests_do_not_take_the_lease_from_its_successor(store: Store) -> None:
    """The kernel delivers what a process has sent also after its death, at the end of an outage."""
    place = "boot/1/a:1"
    dead = LeaderLease(store.redis, LeaseCandidate("a:1", "a:7", place, started_at=100.0), LONG_LEASE_SECONDS)
    restarted = LeaderLease(
        store.redis, LeaseCandidate("a:1", "a:8", place, started_at=101.5), LONG_LEASE_SECONDS
    )
    assert (await dead.acquire()).token == 1
    assert (await restarted.acquire()).token == 2, "it need not wait for the expiry"
    late = await dead.acquire()
    assert (late.token, late.master) == (0, "a:8")
    await dead.release()
    assert (await restarted.acquire()).token == 2


async def test_clocks_that_are_set_back_an_hour_in_a_takeover_put_no_deadline_off(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next master's clock is an hour behind at first, two once it has read a job; the store's too."""
    behind, short = 0.0, {"leader_lease_seconds": LEASE_SECONDS}
    monkeypatch.setattr("elastane_master.jobs.job_servers.Clock", lambda: Clock(lambda: time.time() - behind))
    read = JobLog.open

    async def set_back(*words: object, **named: object) -> object:
        nonlocal behind
        found = await read(*words, **named)
        behind += 3600.0
        return found

    async with master_on(store, tmp_path / "a", **short) as (first, to_first):
        began = time.time()
        for name in ("j", "other"):
            await create(to_first, name)
        settings = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=2))
        settings.lease.seconds = 2
        await shard_pb2_grpc.ShardServiceStub(to_first).CreateDataset(
            shard_pb2.CreateDatasetRequest(job="j", dataset="d", settings=settings)
        )
        assert [task.index for task in (await lease(to_first, "gone", 1)).tasks] == [0]
        behind = 3600.0
        async with master_on(store, tmp_path / "b", **short) as (
            second,
            to_second,
        ):
            assert first.leads and not second.leads
            monkeypatch.setattr(JobLog, "open", set_back)
            first.leadership.keeper._tasks[0].cancel()  # it is as good as dead
            await store.redis.expire(LEASE_KEY, 3600)  # what was left of its lease, as the store sees it now
            async with patience.within(30):
                await becomes(to_second, SERVING)
                assert behind >= 3 * 3600.0
                indices = [task.index for task in (await lease(to_second, "w", 2)).tasks]
                while len(indices) < 2:  # the other one once its lease is over, which it is in two seconds
                    indices += [task.index for task in (await lease(to_second, "w", 2)).tasks]
            assert sorted(indices) == [0, 1]
            events = ring_pb2_grpc.RingServiceStub(to_second).WatchEvents(
                ring_pb2.WatchEventsRequest(job="j", since=1)
            )
            times = [reply.event.time.ToNanoseconds() / 1e9 async for reply in events]
            assert times == sorted(times) and times[0] >= began - 1 and times[-1] <= time.time() + 5


async def lease(channel: grpc.aio.Channel, worker: str, count: int) -> shard_pb2.LeaseTasksResponse:
    request = shard_pb2.LeaseTasksRequest(job="j", dataset="d", worker_id=worker, max_tasks=count)
    request.wait.seconds = 20
    return await shard_pb2_grpc.ShardServiceStub(channel).LeaseTasks(request, timeout=30)


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
        assert (await patience.wait_for(watch.read(), 20)).status == NOT_SERVING
        await first.stop()
        assert (await patience.wait_for(watch.read(), 20)).status == SERVING
