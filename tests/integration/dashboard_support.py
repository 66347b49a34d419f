"""Shared parts of the dashboard's tests: a master with an HTTP port, a job with a loss, dying workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

import patience
from elastane_master.app import Master
from elastane_master.security.settings import SecuritySettings
from elastane_proto.v1 import job_pb2, job_pb2_grpc, ps_pb2, ring_pb2
from integration.master_support import Worker, serving_master
from integration.test_master_sessions import RING, SIGNATURE, duration, form_ring, report
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
