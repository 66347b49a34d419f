"""Shared parts of the dashboard's tests: a master with an HTTP port, a job with a loss, dying workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import grpc

import patience
from elastane_master.app import Master
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.resource_series import Totals
from elastane_master.security.settings import SecuritySettings
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ps_pb2, ring_pb2
from integration.master_support import Worker, serving_master
from integration.test_master_sessions import RING, SIGNATURE, context, duration, form_ring, report
from integration.test_slot_sessions import Cluster

NASTY = "<script>alert('x')</script>&\"'"
"""A worker can write anything into a reason."""


@contextlib.asynccontextmanager
async def dashboard_master(
    folder: Path, tokens: str = "", **settings: Any
) -> AsyncIterator[tuple[Master, grpc.aio.Channel, str]]:
    """A master in this process, a channel to it, and the base of its dashboard's URLs."""
    file = folder / "http"
    security: dict[str, Any] = {}
    if tokens:
        security["token_file"] = folder / "tokens.toml"
        security["token_file"].write_text(tokens)
    wanted = {"http": "127.0.0.1:0", "http_port_file": file, "security": SecuritySettings(**security)}
    async with serving_master(folder, **wanted, **settings) as (master, channel):
        yield master, channel, f"http://{file.read_text().strip()}"


async def create_job(channel: grpc.aio.Channel, name: str = "j", **settings: Any) -> None:
    """A job of two ESTs with prices."""
    wanted = job_pb2.JobSettings(
        ests=2,
        heartbeat_timeout=duration(60),
        join_window=duration(0.01),
        audit_samples=True,
        spot_price_micros=900_000,
        on_demand_price_micros=3_000_000,
        **settings,
    )
    stub = job_pb2_grpc.JobServiceStub(channel)
    await stub.Create(job_pb2.JobServiceCreateRequest(name=name, settings=wanted))


async def train(channel: grpc.aio.Channel, worker: Worker, steps: int = 2) -> ring_pb2.Go:
    """Form a ring of this one worker, and commit this many steps."""
    await worker.hello(RING, signature=SIGNATURE, host="node-1", pid=7)
    go = await form_ring(worker)
    for step in range(steps):
        await worker.send(step_report=report(go, step))
        await worker.receive("prepared")
    await worker.send(heartbeat=ring_pb2.Heartbeat(generation=go.generation, applied_step=steps))
    stub = job_pb2_grpc.JobServiceStub(channel)
    async with patience.within(20):
        while (await stub.Get(job_pb2.JobServiceGetRequest(name=worker.job))).job.step < steps:
            await asyncio.sleep(0.01)
    return go


def pipeline_signature(units: int = 4) -> ring_pb2.ScriptSignature:
    """Return the signature of a script with this many units, of 0.1 s forward and 0.2 s backward."""
    signature = ring_pb2.ScriptSignature()
    signature.CopyFrom(SIGNATURE)
    for unit in range(units):
        signature.pipeline.units.add(
            name=f"unit {unit}", parameter_bytes=100, forward_seconds=0.1, backward_seconds=0.2
        )
    return signature


async def train_pipeline(channel: grpc.aio.Channel, worker: Worker) -> ring_pb2.Go:
    """Form a ring of this one worker, which runs all units of a pipeline; nothing has been measured yet."""
    await worker.hello(RING, signature=pipeline_signature(), host="node-1", pid=7)
    go = await form_ring(worker)
    await worker.send(step_report=report(go, 0))
    await worker.receive("prepared")
    return go


async def tell_blocks(worker: Worker, go: ring_pb2.Go, step: int) -> None:
    """A heartbeat with the blocks of a step: both micro-batches, forward and backward."""
    figures = ring_pb2.WorkerFigures(generation=go.generation, blocks_step=step, blocks_began=1e9)
    figures.block_seconds.extend((0.0, 0.1, 0.1, 0.3, 0.5, 0.6, 0.6, 0.8))
    heartbeat = ring_pb2.Heartbeat(generation=go.generation, applied_step=1, figures=figures)
    await worker.send(heartbeat=heartbeat)


async def parameter_servers(channel: grpc.aio.Channel) -> Cluster:
    """A job "j" whose slots are at "ps-0" and "ps-1", which has told its figures; a task is in flight."""
    cluster = Cluster(channel)
    await cluster.create(tasks=5, ps_staleness=3)
    servers = [await cluster.ps(f"ps-{number}") for number in range(2)]
    await cluster.register()
    found = await cluster.served()
    await cluster.lease()
    figures = ps_pb2.PsFigures(staleness_counts=[90, 9, 0, 1], push_frames=40, verdicts={"applied": 100})
    for slot, place in enumerate(found.map.places):
        if place.owner == "ps-1":
            figures.slots.add(slot=slot, version=20, rows=1000, weight_bytes=2**20, saved_version=17)
    servers[1].say(heartbeat=ps_pb2.PsHeartbeat(figures=figures))
    await cluster.until(lambda found: any(one.HasField("figures") for one in found.processes))
    return cluster


SESSIONS_OF_A_CONNECTION = 50
"""A master serves somewhat more than 100 streams of one connection at a time."""


@contextlib.asynccontextmanager
async def large_ring(address: str, members: int) -> AsyncIterator[list[Worker]]:
    """Create a job "j" with as many ESTs as workers, and form its ring. Yields the workers."""
    settings = job_pb2.JobSettings(
        ests=members, workers_min=members, heartbeat_timeout=duration(600), join_window=duration(0.01)
    )
    signature = ring_pb2.ScriptSignature(dataset_size=20 * members, batch_size=5, steps_per_epoch=4, epochs=1)

    async def ready(worker: Worker) -> None:
        await worker.hello(RING, signature=signature, host=f"node-{worker.worker_id}", pid=7)
        prepare = (await worker.receive("prepare")).prepare
        await worker.send(ready=ring_pb2.Ready(generation=prepare.generation))

    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(0, members, SESSIONS_OF_A_CONNECTION)
        ]
        stub = job_pb2_grpc.JobServiceStub(channels[0])
        await stub.Create(job_pb2.JobServiceCreateRequest(name="j", settings=settings))
        workers = [
            Worker(channels[number // SESSIONS_OF_A_CONNECTION], f"worker-{number:04}.training.svc")
            for number in range(members)
        ]
        await asyncio.gather(*map(ready, workers))
        load = (await workers[0].receive("load")).load
        contexts = [context(rank, 0, delta=False) for rank in range(members)]
        await workers[0].send(loaded=ring_pb2.Loaded(generation=load.generation, contexts=contexts))
        await asyncio.gather(*(worker.receive("go") for worker in workers))
        yield workers


async def many_events(channel: grpc.aio.Channel, events: int, at_once: int = 50) -> None:
    """Workers that lease tasks come to job "j", and leave or die, until there are so many more events."""

    async def visit(number: int) -> None:
        worker = Worker(channel, f"visitor-{number}")
        await worker.hello()
        if number % 10:
            await worker.send(bye=ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED))
        await worker.call.done_writing()
        await worker.ended()

    for first in range(0, events // 2, at_once):
        await asyncio.gather(*(visit(number) for number in range(first, first + at_once)))


def tell_resources(server: JobServer, workers: Iterable[str], samples: int = 60) -> None:
    """Report for some minutes what workers use of their machines, and a line of each one's output."""
    for worker in workers:
        for number in range(samples + 1):
            memory = 2**30 + number * 2**24
            totals = Totals(1e9 + 10 * number, 5.0 * number, memory, 0.0, 0, 10.0, number, 1.0, 2.0)
            server.resources.tell(worker, totals)
        server.outputs.report(worker, "agent", 0, [(1e9, False, "step 1", 0)])
