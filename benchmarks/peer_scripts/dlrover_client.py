"""A DLRover client that repeatedly takes one task and reports it. Run in the peer's environment.

dlrover_client.py ADDRESS SECONDS      starts at a line on standard input, prints JSON
"""

import json
import logging
import sys
import time

logging.disable(logging.INFO)

from dlrover.python.elastic_agent.master_client import build_master_client  # noqa: E402

address, seconds = sys.argv[1], float(sys.argv[2])
client = build_master_client(address)
client.report_dataset_shard_params(
    batch_size=10,
    num_epochs=1,
    dataset_size=400_000_000,
    shuffle=False,
    num_minibatches_per_shard=1,
    dataset_name="d",
    task_type=1,
    storage_type="table",
)
client.get_task("d")
print("ready", flush=True)
sys.stdin.readline()
latencies = []
began = now = time.perf_counter()
used = time.process_time()
while now - began < seconds:
    found, task = client.get_task("d")
    if not found or not client.report_task_result("d", task.task_id, "").success:
        sys.exit("the master gave no task, or did not take it back")
    after = time.perf_counter()
    latencies.append(after - now)
    now = after
count = len(latencies)
latencies.sort()
thinned = latencies[:: max(1, count // 1000)]  # small enough for one write to a pipe
outcome = {"tasks": count, "seconds": now - began, "latencies": thinned, "cpu": time.process_time() - used}
print(json.dumps(outcome), flush=True)
