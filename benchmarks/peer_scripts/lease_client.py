"""A client of ours that leases tasks and reports them, again and again.

    lease_client.py ADDRESS SECONDS WORKER TASKS call       one LeaseTasks call for report and lease
    lease_client.py ADDRESS SECONDS WORKER TASKS DEPTH      StreamTasks, DEPTH requests in flight

Starts at a line on standard input, prints JSON. Tasks come as runs where several are asked for.
"""

import collections
import json
import queue
import sys
import time

import grpc

from elastane_proto.v1 import shard_pb2, shard_pb2_grpc

address, seconds, worker, tasks, mode = (
    sys.argv[1],
    float(sys.argv[2]),
    sys.argv[3],
    int(sys.argv[4]),
    sys.argv[5],
)
channel = grpc.insecure_channel(address)
shards = shard_pb2_grpc.ShardServiceStub(channel)
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
if mode == "call":
    held = reports(shards.LeaseTasks(request([])))
    print("ready", flush=True)
    sys.stdin.readline()
    began = now = time.perf_counter()
    while now - began < seconds:
        response = shards.LeaseTasks(request(held))
        done += sum(report.count or 1 for report in held)
        held = reports(response)
        after = time.perf_counter()
        latencies.append(after - now)
        now = after
else:
    outgoing: queue.SimpleQueue[shard_pb2.StreamTasksRequest | None] = queue.SimpleQueue()
    sent: collections.deque[float] = collections.deque()

    def send(held: list[shard_pb2.TaskReport]) -> None:
        sent.append(time.perf_counter())
        outgoing.put(shard_pb2.StreamTasksRequest(request=request(held)))

    answers = shards.StreamTasks(iter(outgoing.get, None))
    send([])
    first = reports(next(answers).response)
    sent.clear()
    print("ready", flush=True)
    sys.stdin.readline()
    began = now = time.perf_counter()
    send(first)
    for _ in range(int(mode) - 1):
        send([])
    while now - began < seconds:
        response = next(answers).response
        now = time.perf_counter()
        latencies.append(now - sent.popleft())
        done += sum(outcome.count or 1 for outcome in response.outcomes)
        send(reports(response))
    outgoing.put(None)
    for _ in answers:
        pass
channel.close()
print(json.dumps({"tasks": done, "seconds": now - began, "latencies": latencies}), flush=True)
