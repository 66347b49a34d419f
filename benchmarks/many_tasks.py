"""What a large dataset costs the master: 10 million tasks, leased and reported out of order.

    python benchmarks/many_tasks.py [--tasks 10000000] [--consume 500000] [--json FILE]

Eight workers hold thousands of leases each and report them in random order; printed are the seconds to
create the dataset, tasks per second, and the master's resident memory before, after creating and after.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import psutil

from elastane.agent.master_process import EmbeddedMaster
from elastane.client import MasterClient
from elastane_proto.v1 import job_pb2, shard_pb2

WORKERS = 8
TASKS_PER_CALL = 500


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=10_000_000)
    parser.add_argument("--consume", type=int, default=500_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    order = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        master = EmbeddedMaster(Path(folder))
        master.start()
        process = psutil.Process(master.pid)

        def megabytes() -> float:
            return process.memory_info().rss / 2**20

        try:
            with MasterClient(master.address, timeout_seconds=60) as client:
                client.create_job("many", job_pb2.JobSettings(ests=1))
                figures = {"tasks": args.tasks, "rss_before_mb": megabytes()}
                settings = shard_pb2.DatasetSettings(
                    range=shard_pb2.RangeSource(size=args.tasks), task_size=1
                )
                started = time.perf_counter()
                client.create_dataset("many", "data", settings)
                figures["create_seconds"] = time.perf_counter() - started
                figures["rss_created_mb"] = megabytes()
                held: dict[int, list[shard_pb2.TaskReport]] = {worker: [] for worker in range(WORKERS)}
                done = 0
                started = time.perf_counter()
                while done < args.consume:
                    worker = order.randrange(WORKERS)
                    order.shuffle(held[worker])
                    finished = held[worker][TASKS_PER_CALL:]
                    response = client.lease_tasks(
                        shard_pb2.LeaseTasksRequest(
                            job="many",
                            dataset="data",
                            worker_id=f"w{worker}",
                            completed=finished,
                            max_tasks=TASKS_PER_CALL,
                        )
                    )
                    done += len(finished)
                    held[worker] = held[worker][:TASKS_PER_CALL] + [
                        shard_pb2.TaskReport(epoch=t.epoch, index=t.index, attempt=t.attempt)
                        for t in response.tasks
                    ]
                figures["tasks_per_second"] = done / (time.perf_counter() - started)
                figures["rss_after_mb"] = megabytes()
                figures["done"] = client.get_progress("many", "data")[0].done
        finally:
            master.stop()
    for name, value in figures.items():
        print(f"{name:>20}: {value:,.3f}" if isinstance(value, float) else f"{name:>20}: {value:,}")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
