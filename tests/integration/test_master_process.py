"""A master as a process: its command line, its death, a second master, a dying store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import grpc
import pytest
from google.protobuf import duration_pb2

import patience
from elastane_agent.supervisor.first_checks import is_full
from elastane_agent.supervisor.master_process import EmbeddedMaster, MasterStartError
from elastane_master.store.embedded import EmbeddedStore
from elastane_proto.v1 import job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc
from integration.master_support import (
    ASKED_AGAIN,
    MasterChild,
    MasterProcess,
    master_process,
    private_store,
    server_pid,
)


async def run_cli(*arguments: str, **environment: str) -> tuple[int, str]:
    """Runs the command line to its end; (exit code, stderr)."""
    errors: list[str] = []

    def hear(_: str, stream: str, text: str) -> None:
        if stream == "stderr":
            errors.append(f"{text}\n")

    process = MasterChild(*arguments, environment=environment, on_line=hear)
    process.start()
    try:
        async with patience.within(60):
            code = await process.ended()
    finally:
        process.kill_group()
    return code, "".join(errors)


def start_fault(state_dir: Path, port: int = 0) -> str:
    """What `elastane run` says where its master cannot start."""
    master = EmbeddedMaster(state_dir, port=port)
    with pytest.raises(MasterStartError) as caught:
        master.start()
    master.stop()
    return str(caught.value)


class Leaser:
    """A worker that leases and reports, retrying through every outage as a client must."""

    def __init__(self, master: MasterProcess, worker: str) -> None:
        self.master = master
        self.worker = worker
        self.done: list[int] = []
        self.requests = 0

    async def run(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 200)]
        async with grpc.aio.insecure_channel(self.master.address, options=options) as channel:
            stub = shard_pb2_grpc.ShardServiceStub(channel)
            reports: list[shard_pb2.TaskReport] = []
            while True:
                self.requests += 1
                request = shard_pb2.LeaseTasksRequest(
                    job="j",
                    dataset="d",
                    worker_id=self.worker,
                    completed=reports,
                    max_tasks=2,
                    request_id=f"{self.worker}-{self.requests}",
                    wait=duration_pb2.Duration(seconds=5),
                )
                reply = await self.call(stub, request)
                for outcome in reply.outcomes:
                    if outcome.outcome == shard_pb2.REPORT_OUTCOME_ACCEPTED:
                        self.done.append(outcome.index)
                if reply.complete:
                    return
                reports = [
                    shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
                    for task in reply.tasks
                ]

    async def call(
        self, stub: shard_pb2_grpc.ShardServiceStub, request: shard_pb2.LeaseTasksRequest
    ) -> shard_pb2.LeaseTasksResponse:
        while True:
            try:
                return await stub.LeaseTasks(request, wait_for_ready=True, timeout=30)
            except grpc.aio.AioRpcError as error:
                if error.code() not in ASKED_AGAIN:
                    raise
                await asyncio.sleep(0.02)


async def create(master: MasterProcess, size: int) -> None:
    """Create job and data set, as clients do: again where a busy master has just lost its lease."""
    job = job_pb2.JobServiceCreateRequest(name="j", settings=job_pb2.JobSettings(ests=1))
    settings = shard_pb2.DatasetSettings(task_size=1, range=shard_pb2.RangeSource(size=size))
    settings.lease.seconds = 600
    dataset = shard_pb2.CreateDatasetRequest(job="j", dataset="d", settings=settings)
    async with grpc.aio.insecure_channel(master.address) as channel, patience.within(60):
        jobs, shards = job_pb2_grpc.JobServiceStub(channel), shard_pb2_grpc.ShardServiceStub(channel)
        while True:
            try:
                await jobs.Create(job)
                await shards.CreateDataset(dataset)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.02)


async def progress_and_history(master: MasterProcess) -> tuple[shard_pb2.Progress, Counter[int]]:
    async with grpc.aio.insecure_channel(master.address) as channel:
        stub = shard_pb2_grpc.ShardServiceStub(channel)
        progress = (await stub.GetProgress(shard_pb2.GetProgressRequest(job="j", dataset="d"))).datasets[0]
        indices: Counter[int] = Counter()
        token = ""
        while True:
            page = await stub.GetAuditLog(
                shard_pb2.GetAuditLogRequest(job="j", page_size=1000, page_token=token)
            )
            indices.update(entry.step for entry in page.entries)
            token = page.next_page_token
            if not token:
                return progress, indices


@pytest.mark.parametrize("victim", ["master", "store"])
async def test_nothing_acknowledged_is_lost_or_doubled_by_kills(tmp_path: Path, victim: str) -> None:
    size, kills = 2500, 4
    moments = random.Random(3)
    async with master_process(tmp_path) as master:
        await create(master, size)
        leasers = [Leaser(master, f"w{number}") for number in range(4)]
        running = asyncio.gather(*[leaser.run() for leaser in leasers])
        acknowledged = 0
        for _ in range(kills):
            acknowledged += moments.randint(100, 400)
            async with patience.within(60):
                while sum(len(leaser.done) for leaser in leasers) < acknowledged and not running.done():
                    await asyncio.sleep(0.002)
            if victim == "master":
                await master.kill()
                await master.start()
            else:
                os.kill(server_pid(EmbeddedStore(tmp_path)), signal.SIGKILL)
        await patience.wait_for(running, 120)
        progress, history = await progress_and_history(master)
    assert (progress.done, progress.todo, progress.doing, progress.failed) == (size, 0, 0, 0)
    assert history == Counter(range(size))
    answered = Counter(index for leaser in leasers for index in leaser.done)
    assert max(answered.values()) == 1
    assert set(answered) <= set(range(size))


async def test_an_address_in_use_is_refused_before_any_job_is_taken_over(tmp_path: Path) -> None:
    async with (
        private_store(tmp_path / "store") as store,
        master_process(tmp_path / "a", "--store", store.url) as first,
    ):
        await create(first, 10)
        code, errors = await run_cli("--listen", first.address, "--store", store.url)
        assert code == 2
        assert (
            errors.count("\n") == 1 and f"cannot listen on {first.address}: Address already in use" in errors
        )
        told = start_fault(tmp_path / "b", port=int(first.address.rpartition(":")[2]))
        assert "\n" not in told and "Address already in use" in told
        await create(first, 10)  # not fenced
        assert (await progress_and_history(first))[0].todo == 10


async def test_a_full_disk_is_said_by_master_and_agent(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        (folder / "filled").write_bytes(b"x" * 4096)
        code, errors = await run_cli("--listen", "127.0.0.1:0", "--state-dir", str(folder))
        assert code == 2 and f"{folder} cannot be written: No space left on device" in errors
        told = start_fault(folder)
        assert (folder / "master.log").read_text() == "", "the log has no room either"
        assert f"{folder}: No space left on device" in told and "\n" not in told
        assert is_full(folder) and not is_full(tmp_path)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "nonsense"], "--listen"),
        (["--listen", "127.0.0.1:70000"], "--listen"),
        (["--log-format", "xml"], "--log-format"),
        (["--listen", "127.0.0.1:0", "--store", "http://x"], "not a URL of a store"),
        (
            ["--listen", "127.0.0.1:0", "--store", "unix:///nowhere/s"],
            "no store answered at unix:///nowhere/s",
        ),
        (["--listen", "127.0.0.1:0", "--state-dir", "/proc/nowhere"], "state directory"),
    ],
)
async def test_a_bad_start_says_why_and_what_to_do(arguments: list[str], message: str) -> None:
    code, errors = await run_cli(*arguments, ELASTANE_STORE_TIMEOUT_SECONDS="0.3")
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


async def test_the_port_file_comes_and_goes_with_the_service(tmp_path: Path) -> None:
    async with master_process(tmp_path, "--log-format", "json") as master:
        assert (tmp_path / "port").read_text() == master.address + "\n"
        await create(master, 10)
        log = await master.stop()
        assert master.process.returncode == 0
        assert '"event": "master serves"' in log
        assert not (tmp_path / "port").exists()
        assert server_pid(EmbeddedStore(tmp_path)) is None
        await master.start()
        assert (await progress_and_history(master))[0].todo == 10


async def test_settings_come_from_the_environment_too(tmp_path: Path) -> None:
    code, errors = await run_cli(ELASTANE_LISTEN="nonsense", ELASTANE_STATE_DIR=str(tmp_path))
    assert code == 2 and "ELASTANE_LISTEN: must be HOST:PORT" in errors
