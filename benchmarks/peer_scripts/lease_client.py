"""A client of ours that leases tasks and reports them, in merged calls, again and again.

    lease_client.py ADDRESS SECONDS WORKER TASKS      starts at a line on standard input, prints JSON
"""

import json
import sys
import time

import grpc

from elastane_proto.v1 import shard_pb2, shard_pb2_grpc

address, seconds, worker, tasks = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
shards = shard_pb2_grpc.ShardServiceStub(grpc.insecure_channel(address))
held: list[shard_pb2.TaskReport] = []
number = 0


def lease() -> int:
    """Reports the tasks held and leases as many: one call."""
    global held, number
    number += 1
    response = shards.LeaseTasks(
        shard_pb2.LeaseTasksRequest(
            job="bench",
            dataset="d",
            worker_id=worker,
            completed=held,
            max_tasks=tasks,
            request_id=f"{worker}-{number}",
        )
    )
    reported = len(held)
    held = [
        shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt)
        for task in response.tasks
    ]
    return reported


lease()
print("ready", flush=True)
sys.stdin.readline()
latencies = []
done = 0
began = now = time.perf_counter()
while now - began < seconds:
    done += lease()
    after = time.perf_counter()
    latencies.append(after - now)
    now = after
print(json.dumps({"tasks": done, "seconds": now - began, "latencies": latencies}), flush=True)
