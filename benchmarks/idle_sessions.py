"""Cost of idle workers at the master: memory and CPU for a thousand open sessions.

    python benchmarks/idle_sessions.py [--sessions 1000] [--quick] [--json [FILE]]

The workers lease dynamic tasks only, so no ring is formed. They run in this process and send a heartbeat
every second; then they all leave, and the master's memory is measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import grpc
from harness import Report, Row, Series, run_benchmark
from servers import Server, elastane_master

from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2, ring_pb2_grpc

SESSIONS_PER_CONNECTION = 50
HEARTBEAT_SECONDS = 1.0
MEBIBYTE = 2**20


async def session(
    channel: grpc.aio.Channel, number: int, joined: asyncio.Semaphore, leave: asyncio.Event
) -> None:
    """Run one worker's session from Hello to Bye."""
    call = ring_pb2_grpc.RingServiceStub(channel).Attend()
    hello = ring_pb2.Hello(job="bench", worker_id=f"w{number}", role=ring_pb2.WORKER_ROLE_TASKS)
    await call.write(ring_pb2.AttendRequest(hello=hello))
    await call.read()
    joined.release()
    beat = ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat())
    while not leave.is_set():
        try:
            await asyncio.wait_for(leave.wait(), HEARTBEAT_SECONDS)
        except TimeoutError:
            await call.write(beat)
    bye = ring_pb2.Bye(reason=ring_pb2.BYE_REASON_DRAINED)
    await call.write(ring_pb2.AttendRequest(bye=bye))
    while await call.read() is not grpc.aio.EOF:
        pass


async def measure(server: Server, sessions: int, idle_seconds: float) -> list[Row]:
    """Open the sessions, let them idle, close them; measure memory and CPU of the master at each point."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(server.address, options=options)
        for _ in range(-(-sessions // SESSIONS_PER_CONNECTION))
    ]
    settings = job_pb2.JobSettings(ests=1)
    settings.heartbeat_timeout.FromSeconds(60)
    await job_pb2_grpc.JobServiceStub(channels[0]).Create(
        job_pb2.JobServiceCreateRequest(name="bench", settings=settings)
    )
    before = server.rss_bytes()
    joined, leave = asyncio.Semaphore(0), asyncio.Event()
    began = time.perf_counter()
    tasks = [
        asyncio.create_task(session(channels[number % len(channels)], number, joined, leave))
        for number in range(sessions)
    ]
    for _ in range(sessions):
        await joined.acquire()
    joining_seconds = time.perf_counter() - began
    cpu_before = server.cpu_seconds()
    await asyncio.sleep(idle_seconds)
    cpu = server.cpu_seconds() - cpu_before
    during = server.rss_bytes()
    leave.set()
    await asyncio.gather(*tasks)
    after = server.rss_bytes()
    for channel in channels:
        await channel.close()

    def row(what: str, value: float, unit: str, note: str = "") -> Row:
        return Row(f"{sessions:,} idle sessions: {what}", Series([value], unit), note=note)

    return [
        row("memory of one", (during - before) / 1024 / sessions, "KiB"),
        row("master CPU", 100 * cpu / idle_seconds, "% of a core", "a heartbeat of each every second"),
        row("joining, all", joining_seconds, "s"),
        row("memory kept when they have left", (after - before) / MEBIBYTE, "MiB"),
    ]


def benchmark(args: argparse.Namespace, report: Report) -> None:
    with elastane_master() as server:
        report.rows += asyncio.run(measure(server, args.sessions, 3.0 if args.quick else 15.0))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=1000)


if __name__ == "__main__":
    run_benchmark("idle_sessions", __doc__, benchmark, options)
