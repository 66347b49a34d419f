"""How many tasks a second the master leases and takes back, durably, beside a bare echo server.

    python benchmarks/dispatch.py [--quick] [--json]

Both servers run one after the other in processes of their own, with the same number of clients in this one. A
pair is one LeaseTasks call that reports the task before and leases the next: it is answered when both are
stored. The echo is the ceiling: a bare grpc.aio server that answers a message of the same size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
from google.protobuf import duration_pb2

from elastane_proto.v1 import job_pb2, job_pb2_grpc, shard_pb2, shard_pb2_grpc

ECHO = """
import asyncio, sys
import grpc
try:
    import uvloop
except ImportError:
    uvloop = asyncio

async def echo(request, context):
    return request

async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(
        "bench.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    open(sys.argv[1], "w").write(f"127.0.0.1:{port}")
    await server.wait_for_termination()

uvloop.run(main())
"""


async def start(arguments: list[str], port_file: Path) -> tuple[asyncio.subprocess.Process, str]:
    """Starts a server process; returns it and its address once the port file is there."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    while not (port_file.exists() and port_file.read_text()):
        if process.returncode is not None:
            raise RuntimeError(f"{arguments} ended with {process.returncode}")
        await asyncio.sleep(0.02)
    return process, port_file.read_text().strip()


async def measure(
    call: Callable[[int], Awaitable[Any]], clients: int, seconds: float, process: psutil.Process
) -> dict[str, float]:
    """Calls from `clients` tasks at once for so long; rate, latencies and the server's CPU a call."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    cpu_before = sum(process.cpu_times()[:2])

    async def loop(client: int) -> None:
        while (began := time.perf_counter()) < end:
            await call(client)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*[loop(client) for client in range(clients)])
    took = time.perf_counter() - began
    cpu = sum(process.cpu_times()[:2]) - cpu_before
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "calls_per_second": round(len(latencies) / took, 1),
        "p50_ms": round(cuts[49] * 1000, 3),
        "p99_ms": round(cuts[98] * 1000, 3),
        "server_cpu_ms_per_call": round(cpu / len(latencies) * 1000, 3),
    }


async def bench_echo(folder: Path, clients: int, seconds: float) -> dict[str, float]:
    """A bare grpc.aio echo."""
    process, address = await start(["-c", ECHO, str(folder / "echo")], folder / "echo")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            echo = channel.unary_unary("/bench.Echo/Echo")
            payload = b"x" * 60
            await echo(payload)
            return await measure(lambda _: echo(payload), clients, seconds, psutil.Process(process.pid))
    finally:
        process.kill()
        await process.wait()


async def bench_master(folder: Path, clients: int, seconds: float, tasks: int) -> dict[str, float]:
    """LeaseTasks that reports `tasks` tasks and leases as many: a real master with its private store."""
    arguments = ["-m", "elastane_master", "--listen", "127.0.0.1:0", "--log-level", "warning"]
    arguments += ["--state-dir", str(folder / "state"), "--port-file", str(folder / "port")]
    process, address = await start(arguments, folder / "port")
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            await job_pb2_grpc.JobServiceStub(channel).Create(
                job_pb2.JobServiceCreateRequest(name="bench", settings=job_pb2.JobSettings(ests=1))
            )
            shards = shard_pb2_grpc.ShardServiceStub(channel)
            settings = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=10**9), task_size=10)
            settings.lease.CopyFrom(duration_pb2.Duration(seconds=3600))
            await shards.CreateDataset(
                shard_pb2.CreateDatasetRequest(job="bench", dataset="d", settings=settings)
            )
            held: dict[int, list[shard_pb2.TaskReport]] = {}
            numbers = dict.fromkeys(range(clients), 0)

            async def lease(client: int) -> None:
                numbers[client] += 1
                response = await shards.LeaseTasks(
                    shard_pb2.LeaseTasksRequest(
                        job="bench",
                        dataset="d",
                        worker_id=f"w{client}",
                        completed=held.get(client, []),
                        max_tasks=tasks,
                        request_id=f"{client}-{numbers[client]}",
                    )
                )
                held[client] = [
                    shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
                    for task in response.tasks
                ]

            result = await measure(lease, clients, seconds, psutil.Process(process.pid))
            result["tasks_per_second"] = round(result["calls_per_second"] * tasks, 1)
            return result
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def main(seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {"seconds": seconds}
    for clients in (1, 16):
        for name in ("echo", "lease_1", "lease_64"):
            with tempfile.TemporaryDirectory() as folder:
                if name == "echo":
                    result = await bench_echo(Path(folder), clients, seconds)
                else:
                    tasks = int(name.partition("_")[2])
                    result = await bench_master(Path(folder), clients, seconds, tasks)
            results[f"{name}, {clients} clients"] = result
        echo, lease = (results[f"{name}, {clients} clients"] for name in ("echo", "lease_1"))
        results[f"lease_1 / echo, {clients} clients"] = round(
            lease["calls_per_second"] / echo["calls_per_second"], 3
        )
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a second each instead of five")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    outcome = asyncio.run(main(1.0 if options.quick else 5.0))
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        for label, figures in outcome.items():
            print(f"{label:28} {figures}")
