"""What idle workers cost the master: resident memory and CPU for many open Attend sessions.

    python benchmarks/idle_sessions.py [--sessions 1000] [--quick] [--json]

The workers lease dynamic tasks only, so no ring is formed. They sit in a process of their own and send a
heartbeat every second; then they all leave, and what the master keeps is measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import psutil
from dispatch import start

from elastane_proto.v1 import job_pb2, job_pb2_grpc, ring_pb2, ring_pb2_grpc

SESSIONS_PER_CONNECTION = 50
HEARTBEAT_SECONDS = 1.0


async def session(
    channel: grpc.aio.Channel, number: int, joined: asyncio.Semaphore, leave: asyncio.Event
) -> None:
    """One worker from Hello to Bye."""
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


async def measure(address: str, master: psutil.Process, sessions: int, idle_seconds: float) -> dict[str, Any]:
    """Opens the sessions, lets them idle, closes them; memory and CPU of the master at each point."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(address, options=options)
        for _ in range(-(-sessions // SESSIONS_PER_CONNECTION))
    ]
    settings = job_pb2.JobSettings(ests=1)
    settings.heartbeat_timeout.seconds = 60
    await job_pb2_grpc.JobServiceStub(channels[0]).Create(
        job_pb2.JobServiceCreateRequest(name="bench", settings=settings)
    )
    before = master.memory_info().rss
    joined, leave = asyncio.Semaphore(0), asyncio.Event()
    began = time.perf_counter()
    tasks = [
        asyncio.create_task(session(channels[number % len(channels)], number, joined, leave))
        for number in range(sessions)
    ]
    for _ in range(sessions):
        await joined.acquire()
    joining_seconds = time.perf_counter() - began
    cpu_before = sum(master.cpu_times()[:2])
    await asyncio.sleep(idle_seconds)
    cpu = sum(master.cpu_times()[:2]) - cpu_before
    during = master.memory_info().rss
    leave.set()
    await asyncio.gather(*tasks)
    after = master.memory_info().rss
    for channel in channels:
        await channel.close()
    return {
        "sessions": sessions,
        "rss_before_mib": round(before / 2**20, 1),
        "rss_idle_mib": round(during / 2**20, 1),
        "rss_after_mib": round(after / 2**20, 1),
        "kib_per_session": round((during - before) / 1024 / sessions, 1),
        "joining_seconds": round(joining_seconds, 2),
        "cpu_percent_while_idle": round(100 * cpu / idle_seconds, 1),
    }


async def main(sessions: int, idle_seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ["-m", "elastane_master", "--listen", "127.0.0.1:0", "--log-level", "warning"]
        arguments += ["--state-dir", str(folder / "state"), "--port-file", str(folder / "port")]
        process, address = await start(arguments, folder / "port")
        try:
            return await measure(address, psutil.Process(process.pid), sessions, idle_seconds)
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="idle for two seconds instead of ten")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    chosen = parser.parse_args()
    outcome = asyncio.run(main(chosen.sessions, 2.0 if chosen.quick else 10.0))
    print(
        json.dumps(outcome, indent=2) if chosen.json else "\n".join(f"{k:26} {v}" for k, v in outcome.items())
    )
