"""Traces and stacks of workers: through a real master, and of a real job, whose bits they do not change."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

import patience
from elastane_cli.commands.main import build_app
from elastane_common.client import MasterClient
from elastane_master.jobs.captures import QUEUE_BYTES_MAX
from elastane_proto.v1 import capture_pb2, capture_pb2_grpc
from integration.master_support import Worker, reason_of
from integration.test_agent import Run
from integration.test_master_sessions import RING, SIGNATURE, form_ring, job
from integration.test_metric_service import read
from integration.test_warm_workers import SCRIPT, trained
from slow import slow


def stub(channel: grpc.aio.Channel) -> Any:
    return capture_pb2_grpc.CaptureServiceStub(channel)


def capture(channel: grpc.aio.Channel, **fields: Any) -> Any:
    return stub(channel).Capture(capture_pb2.CaptureServiceCaptureRequest(job="j", **fields))


async def deliver(channel: grpc.aio.Channel, capture_id: str, worker: str = "a", **fields: Any) -> bool:
    request = capture_pb2.CaptureServiceDeliverRequest(
        job="j", capture=capture_id, worker_id=worker, **fields
    )
    return bool((await stub(channel).Deliver(request)).wanted)


async def member(channel: grpc.aio.Channel) -> Worker:
    worker = Worker(channel, "a")
    await worker.hello(RING, signature=SIGNATURE)
    await form_ring(worker)
    return worker


async def test_an_order_reaches_the_worker_and_its_answer_the_caller(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        worker = await member(channel)
        call = capture(channel, trace_steps=5)
        assert list((await read(call)).worker_ids) == ["a"]
        order = (await worker.receive("capture")).capture
        assert (order.trace_steps, order.first_step > 0, order.end) == (5, True, False)
        assert not await deliver(channel, order.capture, "b", data=b"of nobody who was asked")
        assert not await deliver(channel, "another", data=b"of no capture")
        assert await deliver(channel, order.capture, steps_done=2)
        assert (await read(call)).steps_done == 2
        assert await deliver(channel, order.capture, data=b"trace", end=True, first_est=0, end_est=2)
        part = await read(call)
        assert (part.worker_id, part.data, part.end, part.end_est) == ("a", b"trace", True, 2)
        assert await patience.wait_for(call.read(), 20) is grpc.aio.EOF
        assert not await deliver(channel, order.capture, data=b"late")


async def test_a_caller_that_leaves_ends_the_capture_at_the_worker(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        worker = await member(channel)
        call = capture(channel, trace_steps=5)
        await read(call)
        order = (await worker.receive("capture")).capture
        call.cancel()
        end = (await worker.receive("capture")).capture
        assert end.end and end.capture == order.capture


async def test_a_worker_waits_while_the_caller_is_slower(tmp_path: Path) -> None:
    async with job(tmp_path) as (master, channel):
        worker = await member(channel)
        call = capture(channel)
        await read(call)
        order = (await worker.receive("capture")).capture
        server = master.jobs.get("j")
        found = server.captures._open[order.capture]
        taken, found.take = found.take, list
        data = bytes(2**20)
        for _ in range(QUEUE_BYTES_MAX // len(data)):
            assert await deliver(channel, order.capture, data=data)
        waits = asyncio.ensure_future(deliver(channel, order.capture, data=data, end=True))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waits), 0.2)
        found.take = taken
        size = 0
        while not (part := await read(call)).end:
            size += len(part.data)
        assert await waits and size + len(part.data) == QUEUE_BYTES_MAX + len(data)


async def test_workers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    async with job(tmp_path) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read(capture(channel))
        assert reason_of(refused.value)[1] == "WRONG_PHASE"
        worker = await member(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read(capture(channel, worker_ids=["a", "b"]))
        assert reason_of(refused.value)[1] == "NOT_FOUND" and "'b'" in str(refused.value.details())
        slow = capture(channel, wait={"nanos": 10_000_000})
        await read(slow)
        assert (await read(slow)).error == "no answer within 0.01 s"
        lost = capture(channel)
        await read(lost)
        worker.call.cancel()
        part = await read(lost)
        assert part.end and part.error == "its session has ended"


@slow
def test_a_traced_run_has_the_bits_of_one_that_is_not(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = Run("--ests", "3", "--workers", "2", "--job", "j", str(SCRIPT), str(lock))
        run.until("job_created")
        [address] = [line["address"] for line in run.of("master_started")]
        with MasterClient(address) as client:
            for seen in client.watch_job("j"):
                if len([worker for worker in seen.workers if worker.ests.end > worker.ests.start]) == 2:
                    break
            runner = CliRunner()
            stacks = ["stacks", "j", "--master", address, "--worker", "w1"]
            # Python's stacks have the line, those of py-spy the C function.
            while "flock" not in (shown := runner.invoke(build_app(), stacks)).stdout:
                assert shown.exit_code == 0 and shown.stdout.startswith("== w1\n"), shown.output
            parts = client.capture("j", trace_steps=3)
            assert sorted(next(parts).worker_ids) == ["w0", "w1"]
            again = client.capture("j", ["w0"], trace_steps=1)
            next(again)
            assert "under way" in next(again).error
            fcntl.flock(file, fcntl.LOCK_UN)
            data, hosted = {"w0": b"", "w1": b""}, dict[str, range]()
            for part in parts:
                assert not part.error
                data[part.worker_id] += part.data
                if part.end:
                    hosted[part.worker_id] = range(part.first_est, part.end_est)
    assert sorted(est for ests in hosted.values() for est in ests) == [0, 1, 2]
    for worker, ests in hosted.items():
        names = [event["name"] for event in json.loads(gzip.decompress(data[worker]))["traceEvents"]]
        # One turn may be run twice, for the repeat check.
        assert all(names.count(f"EST {est}") >= 3 for est in ests)
        assert sum(name.startswith("elastane: applied step ") for name in names) == 3
        assert "aten::dropout" in names or "aten::native_dropout" in names or "aten::bernoulli_" in names
    assert trained(run) == trained(Run("--ests", "3", "--workers", "1", str(SCRIPT), str(lock)))
