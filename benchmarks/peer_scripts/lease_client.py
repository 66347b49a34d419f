"""An Elastane client that repeatedly leases tasks and reports them.

    lease_client.py ADDRESS SECONDS WORKER TASKS call       one LeaseTasks call for report and lease
    lease_client.py ADDRESS SECONDS WORKER TASKS DEPTH      StreamTasks, DEPTH requests in flight

Starts at a line on standard input, prints JSON. If TASKS is above 1, tasks are leased as runs.
"""

import collections
import json
import sys
import time

import grpc
import uvloop

from elastane_proto.v1 import shard_pb2, shard_pb2_grpc

address, seconds, worker, tasks, mode = (
    sys.argv[1],
    float(sys.argv[2]),
    sys.argv[3],
    int(sys.argv[4]),
    sys.argv[5],
)
number = 0


def request(held: list[shard_pb2.TaskReport]) -> shard_pb2.LeaseTasksRequest:
    global number
    number += 1
    return shard_pb2.LeaseTasksRequest(
        job="bench",
        dataset="d",
        worker_id=worker,
        completed=held,
        max_tasks=tasks,
        runs=tasks > 1,
        request_id=f"{worker}-{number}",
    )


def reports(response: shard_pb2.LeaseTasksResponse) -> list[shard_pb2.TaskReport]:
    return [
        shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt, count=task.count)
        for task in response.tasks
    ]


latencies: list[float] = []
done = 0
began = now = used = 0.0


def call() -> None:
    """Send one call after the other."""
    global began, now, used, done
    shards = shard_pb2_grpc.ShardServiceStub(grpc.insecure_channel(address))
    held = reports(shards.LeaseTasks(request([])))
    print("ready", flush=True)
    sys.stdin.readline()
    began = now = time.perf_counter()
    used = time.process_time()
    while now - began < seconds:
        response = shards.LeaseTasks(request(held))
        done += sum(report.count or 1 for report in held)
        held = reports(response)
        after = time.perf_counter()
        latencies.append(after - now)
        now = after


async def stream() -> None:
    """Send messages over one stream, several of them in flight."""
    global began, now, used, done
    channel = grpc.aio.insecure_channel(address)
    calls = shard_pb2_grpc.ShardServiceStub(channel).StreamTasks()
    sent: collections.deque[float] = collections.deque()

    async def send(*held: list[shard_pb2.TaskReport]) -> None:
        """Send one request each in a single message, as Elastane's client does with queued ones."""
        sent.extend([time.perf_counter()] * len(held))
        requests = [request(one) for one in held]
        await calls.write(
            shard_pb2.StreamTasksRequest(request=requests[0], more=requests[1:], reads_more=True)
        )

    await send([])
    first = reports((await calls.read()).response)
    sent.clear()
    print("ready", flush=True)
    sys.stdin.readline()
    began = now = time.perf_counter()
    used = time.process_time()
    await send(first)
    for _ in range(int(mode) - 1):
        await send([])
    while now - began < seconds:
        message = await calls.read()
        now = time.perf_counter()
        responses = (message.response, *message.more)
        for response in responses:
            latencies.append(now - sent.popleft())
            done += sum(outcome.count or 1 for outcome in response.outcomes)
        await send(*map(reports, responses))
    await calls.done_writing()
    while await calls.read() is not grpc.aio.EOF:
        pass
    await channel.close()


if mode == "call":
    call()
else:
    uvloop.run(stream())
latencies.sort()
thinned = latencies[:: max(1, len(latencies) // 1000)]  # small enough for one write to a pipe
outcome = {"tasks": done, "seconds": now - began, "latencies": thinned, "cpu": time.process_time() - used}
print(json.dumps(outcome), flush=True)
