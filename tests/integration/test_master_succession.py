"""Several masters on one store, as processes: who leads, how the next one takes over, what workers notice."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import patience
from elastane_common.client import MasterClient
from elastane_master.store.connection import Store
from elastane_proto.v1 import job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc
from integration.master_support import (
    ASKED_AGAIN,
    ROOT,
    MasterProcess,
    Worker,
    master_process,
    private_store,
    reason_of,
    server_pid,
)
from integration.test_master_process import Leaser, create, progress_and_history, run_cli
from slow import slow, slow_except

LEASE_SECONDS = 1.0
RELAY = ROOT / "tests" / "integration" / "scripts" / "relay.py"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with private_store(tmp_path / "store") as store:
        yield store


def master_on(store: Store, folder: Path, *arguments: str) -> object:
    return master_process(
        folder, "--store", store.url, "--leader-lease-seconds", str(LEASE_SECONDS), *arguments
    )


def channel_to(master: MasterProcess) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(master.address)


async def health(master: MasterProcess) -> int:
    async with grpc.aio.insecure_channel(master.address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        return reply.status


async def serving(master: MasterProcess, wanted: int = SERVING) -> None:
    """Returns once the master's health says SERVING, or what is wanted: it tells changes by itself."""
    async with grpc.aio.insecure_channel(master.address) as channel, patience.within(60):
        async for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
            if reply.status == wanted:
                return


async def refusal(master: MasterProcess) -> tuple[grpc.StatusCode, str, object]:
    async with grpc.aio.insecure_channel(master.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await job_pb2_grpc.JobServiceStub(channel).Get(job_pb2.JobServiceGetRequest(name="j"), timeout=10)
        return reason_of(refused.value)


async def test_the_second_master_stands_by_and_says_who_leads(store: Store, tmp_path: Path) -> None:
    async with master_on(store, tmp_path / "a") as first, master_on(store, tmp_path / "b") as second:
        await create(first, 10)
        assert (await health(first), await health(second)) == (
            SERVING,
            health_pb2.HealthCheckResponse.NOT_SERVING,
        )
        code, reason, detail = await refusal(second)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_LEADING")
        assert detail.retryable and detail.facts["leader"] == first.address
        # A leader that nobody disturbs leads on, however long.
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        await create(first, 10)
        assert (await refusal(second))[1] == "NOT_LEADING"


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
async def test_the_standby_takes_over_when_the_leader_is_gone(store: Store, tmp_path: Path, how: str) -> None:
    # One that is told to stop gives its lease back: nobody waits for its end.
    lease = ["--leader-lease-seconds", "600"] if how == "SIGTERM" else []
    async with (
        master_on(store, tmp_path / "a", *lease) as first,
        master_on(store, tmp_path / "b", *lease) as second,
    ):
        await create(first, 10)
        ready = asyncio.create_task(serving(second))
        began = time.monotonic()
        first.process.signal(getattr(signal, how))
        await ready
        print(f"{how}: {time.monotonic() - began:.3f} s until the standby serves")
        assert (await progress_and_history(second))[0].todo == 10
        await first.process.ended()
        # It comes back as the standby: nobody is fenced by a restart.
        await first.start()
        assert (await refusal(first))[2].facts["leader"] == second.address
        assert (await progress_and_history(second))[0].todo == 10


async def test_a_leader_that_slept_has_acknowledged_nothing_and_stands_by(
    store: Store, tmp_path: Path
) -> None:
    async with master_on(store, tmp_path / "a") as first, master_on(store, tmp_path / "b") as second:
        await create(first, 100)
        os.kill(first.process.pid, signal.SIGSTOP)
        async with grpc.aio.insecure_channel(first.address) as channel:
            # Written into the sleeper's sockets: it finds them when it wakes.
            asked = [
                asyncio.create_task(_lease(shard_pb2_grpc.ShardServiceStub(channel), number))
                for number in range(20)
            ]
            await serving(second)
            leased = await lease_all(second, 30)
            os.kill(first.process.pid, signal.SIGCONT)
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(outcome, grpc.aio.AioRpcError) for outcome in outcomes), outcomes
        assert {outcome.code() for outcome in outcomes} == {grpc.StatusCode.UNAVAILABLE}
        assert {reason_of(outcome)[1] for outcome in outcomes} <= {"FENCED", "NOT_LEADING"}
        progress, _ = await progress_and_history(second)
        assert (progress.doing, progress.todo) == (30, 70)
        assert len(leased) == 30
        assert first.process.returncode is None
        async with patience.within(30):
            while (await refusal(first))[2].facts.get("leader") != second.address:
                await asyncio.sleep(0.05)
        # And it is the next leader.
        await second.kill()
        await serving(first)
        assert (await progress_and_history(first))[0].doing == 30


@slow
async def test_a_standby_that_slept_stands_by_on_or_takes_over_what_is_there(
    store: Store, tmp_path: Path
) -> None:
    async with master_on(store, tmp_path / "a") as first, master_on(store, tmp_path / "b") as second:
        await create(first, 100)
        os.kill(second.process.pid, signal.SIGSTOP)
        assert len(await lease_all(first, 10)) == 10
        await asyncio.sleep(2.5 * LEASE_SECONDS)  # longer than any lease that it may believe in
        os.kill(second.process.pid, signal.SIGCONT)
        code, reason, detail = await refusal(second)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_LEADING")
        assert detail.facts["leader"] == first.address
        assert len(await lease_all(first, 10)) == 10 and await health(first) == SERVING
        # And when the leader dies meanwhile, it leads once it wakes, with all that was acknowledged.
        os.kill(second.process.pid, signal.SIGSTOP)
        assert len(await lease_all(first, 10)) == 10
        await first.kill()
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        os.kill(second.process.pid, signal.SIGCONT)
        await serving(second)
        progress, _ = await progress_and_history(second)
        assert (progress.doing, progress.todo) == (30, 70)


async def _lease(stub: shard_pb2_grpc.ShardServiceStub, number: int) -> shard_pb2.LeaseTasksResponse:
    request = shard_pb2.LeaseTasksRequest(
        job="j", dataset="d", worker_id=f"s{number}", max_tasks=1, request_id=f"s{number}"
    )
    return await stub.LeaseTasks(request, timeout=120)


async def lease_all(master: MasterProcess, count: int) -> list[int]:
    async with grpc.aio.insecure_channel(master.address) as channel:
        request = shard_pb2.LeaseTasksRequest(job="j", dataset="d", worker_id="w", max_tasks=count)
        reply = await shard_pb2_grpc.ShardServiceStub(channel).LeaseTasks(request)
        return [task.index for task in reply.tasks]


async def test_a_leader_started_again_where_it_was_need_not_wait_for_its_own_lease(
    store: Store, tmp_path: Path
) -> None:
    long = "60"
    async with master_process(tmp_path / "a", "--store", store.url, "--leader-lease-seconds", long) as master:
        await create(master, 10)
        await master.kill()
        await master.start()
        assert await health(master) == SERVING
        assert (await progress_and_history(master))[0].todo == 10


async def test_a_name_with_an_address_for_each_master_leads_to_the_one_that_serves(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo

    def two(host: str, port: int, *arguments: object, **named: object) -> list[object]:
        names = ["127.0.0.1", "127.0.0.2"] if host == "masters.test" else [host]
        return [entry for name in names for entry in look_up(name, port, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", two)

    def ask(addresses: str) -> list[str]:
        with MasterClient(addresses, timeout_seconds=60.0) as client:
            return [job.name for job in client.list_jobs()]

    async with master_on(store, tmp_path / "a") as first:
        await create(first, 10)
        port = first.address.rpartition(":")[2]
        second = MasterProcess(tmp_path / "b", "--store", store.url, "--leader-lease-seconds", "1")
        second.address = f"127.0.0.2:{port}"
        await second.start()
        try:
            assert await asyncio.to_thread(ask, f"masters.test:{port}") == ["j"]
            await first.kill()
            assert await asyncio.to_thread(ask, f"masters.test:{port}") == ["j"]
        finally:
            await second.stop()


async def test_without_standby_the_second_master_ends_and_says_who_leads(
    store: Store, tmp_path: Path
) -> None:
    async with master_on(store, tmp_path / "a") as first:
        await create(first, 10)
        code, errors = await run_cli("--listen", "127.0.0.1:0", "--store", store.url, "--no-standby")
        assert code == 3
        assert f"at {first.address} leads this store" in errors
        await create(first, 10)  # not fenced


async def test_a_private_store_has_one_master_and_says_so(tmp_path: Path) -> None:
    code, errors = await run_cli("--listen", "127.0.0.1:0", "--standby", "--state-dir", str(tmp_path / "x"))
    assert code == 2
    assert "--standby needs --store" in errors
    async with master_process(tmp_path / "a") as first:
        await create(first, 10)
        code, errors = await run_cli("--listen", "127.0.0.1:0", "--state-dir", str(tmp_path / "a"))
        assert code == 2
        assert f"another master (process {first.process.pid})" in errors and "--store" in errors
        assert (await progress_and_history(first))[0].todo == 10


async def test_a_leader_cut_off_from_the_store_sends_its_callers_away_and_goes_on_after(
    store: Store, tmp_path: Path
) -> None:
    async with master_on(store, tmp_path / "a") as first, channel_to(first) as channel:
        await create(first, 10)
        worker = Worker(channel, "w")
        await worker.hello(pid=7)
        assert len(await lease_all(first, 3)) == 3
        server = server_pid(store.embedded)
        os.kill(server, signal.SIGSTOP)
        try:
            await serving(first, NOT_SERVING)
            assert await worker.ended() == grpc.StatusCode.UNAVAILABLE
            assert (await refusal(first))[1] == "NOT_LEADING"
        finally:
            os.kill(server, signal.SIGCONT)
        await serving(first)
        await Worker(channel, "w").hello(pid=7)
        progress = (await progress_and_history(first))[0]
        assert (progress.todo, progress.doing) == (7, 3)  # its tasks are its own: it did not die


async def test_a_leader_that_alone_is_cut_off_from_the_store_is_replaced(
    store: Store, tmp_path: Path
) -> None:
    path = store.embedded.socket_path.with_name("relay.sock")
    async with Partition(store.embedded.socket_path, path) as partition:
        behind = ["--store", f"unix://{path}", "--leader-lease-seconds", str(LEASE_SECONDS)]
        async with (
            master_process(tmp_path / "a", *behind) as first,
            # It keeps its lease while a busy machine lets it stand still.
            master_on(store, tmp_path / "b", "--leader-lease-seconds", "20") as second,
            channel_to(first) as channel,
        ):
            await create(first, 10)
            worker = Worker(channel, "w")
            await worker.hello()
            await partition.cut()
            await serving(second)
            # The old leader holds nobody back: its workers are free to look for the new one.
            assert await worker.ended() == grpc.StatusCode.UNAVAILABLE
            assert len(await lease_all(second, 4)) == 4
            assert (await refusal(first))[1] == "NOT_LEADING"
            await partition.heal()
            async with patience.within(60):
                while (await refusal(first))[2].facts.get("leader") != second.address:
                    await asyncio.sleep(0.05)
            progress = (await progress_and_history(second))[0]
            assert (progress.todo, progress.doing) == (6, 4)


class Partition:
    """A way to the store's socket that can be cut: connections break, new ones are refused.

    A process of its own: the leader behind it must not lose its lease when the test's process stands still
    for a moment, as while it starts another or looks for garbage.
    """

    def __init__(self, target: Path, listen: Path) -> None:
        self.target, self.listen = target, listen
        self.relay: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Partition:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cut()

    async def heal(self) -> None:
        self.relay = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(RELAY), str(self.target), str(self.listen),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert await patience.wait_for(self.relay.stdout.readline(), 60) == b"listens\n"

    async def cut(self) -> None:
        if self.relay is not None:
            self.relay.kill()
            await self.relay.wait()
            self.relay = None


@pytest.mark.parametrize("how", slow_except(["SIGTERM", "SIGKILL"], "SIGKILL"))
async def test_leasers_lose_nothing_over_many_successions(store: Store, tmp_path: Path, how: str) -> None:
    """Two masters, killed or told to stop in turn while tasks are leased: each task done exactly once."""
    size, changes = 900, 3
    async with master_on(store, tmp_path / "a") as first, master_on(store, tmp_path / "b") as second:
        await create(first, size)
        masters = [first, second]
        leasers = [FollowingLeaser(masters, f"w{number}") for number in range(3)]
        running = asyncio.gather(*[leaser.run() for leaser in leasers])
        for change in range(changes):
            async with patience.within(120):
                while sum(len(leaser.done) for leaser in leasers) < 200 * (change + 1):
                    await asyncio.sleep(0.01)
            leader, standby = masters[change % 2], masters[1 - change % 2]
            leader.process.signal(getattr(signal, how))
            await leader.process.ended()
            await serving(standby)
            await leader.start()
        await patience.wait_for(running, 120)
        progress, history = await progress_and_history(masters[changes % 2])
    assert (progress.done, progress.todo, progress.doing, progress.failed) == (size, 0, 0, 0)
    assert sorted(history.elements()) == list(range(size))


class FollowingLeaser(Leaser):
    """A leaser that knows both masters and asks the next one when it is refused."""

    def __init__(self, masters: list[MasterProcess], worker: str) -> None:
        super().__init__(masters[0], worker)
        self.masters = masters
        self.at = 0
        self.stubs: list[shard_pb2_grpc.ShardServiceStub] = []

    async def run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        channels = [grpc.aio.insecure_channel(master.address, options=options) for master in self.masters]
        self.stubs = [shard_pb2_grpc.ShardServiceStub(channel) for channel in channels]
        try:
            await super().run()
        finally:
            for channel in channels:
                await channel.close()

    async def call(
        self, stub: shard_pb2_grpc.ShardServiceStub, request: shard_pb2.LeaseTasksRequest
    ) -> shard_pb2.LeaseTasksResponse:
        while True:
            try:
                return await self.stubs[self.at % 2].LeaseTasks(request, timeout=10)
            except grpc.aio.AioRpcError as error:
                if error.code() not in ASKED_AGAIN:
                    raise
                self.at += 1
                await asyncio.sleep(0.02)
