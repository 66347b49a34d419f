"""DLRover's own splitters and shard checkpoint, without its master. Run in the peer's environment.

dlrover_splitters.py KIND SIZE SHARD HELD      KIND: table, table-whole or text; prints JSON

Creates a shuffled dataset as DLRover's master does (the first task makes the shards), holds HELD tasks, takes
its checkpoint and reads it back. A table has at most 50,000 shards at a time and is shuffled within them;
table-whole lifts that limit. Memory is the growth of the process. Runs within 12 GiB.
"""

import json
import logging
import random
import resource
import sys
import time

logging.disable(logging.WARNING)

import psutil  # noqa: E402
from dlrover.python.master.shard.base_dataset_manager import DatasetShardCheckpoint  # noqa: E402
from dlrover.python.master.shard.batch_dataset_manager import BatchDatasetManager  # noqa: E402
from dlrover.python.master.shard.dataset_splitter import (  # noqa: E402
    TableDatasetSplitter,
    TextDatasetSplitter,
)

kind, size, shard, held = sys.argv[1], *map(int, sys.argv[2:5])
resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
process = psutil.Process()
random.seed(1)
before = process.memory_info().rss
began = time.perf_counter()
splitter_class = TextDatasetSplitter if kind == "text" else TableDatasetSplitter
more = {"max_shard_count": size} if kind == "table-whole" else {}
manager = BatchDatasetManager("training", shard, splitter_class("d", size, shard, 1, shuffle=True, **more))
tasks = [manager.get_task("worker", 0)]
created = time.perf_counter() - began
tasks += [manager.get_task("worker", number % 64) for number in range(1, held)]
random.shuffle(tasks)
for task in tasks[: held // 2]:
    manager.report_task_status(task.task_id, True)
grown = process.memory_info().rss - before
there = len(manager.todo) + len(manager.doing)
began = time.perf_counter()
checkpoint = manager.checkpoint().to_json()
saved = time.perf_counter() - began
began = time.perf_counter()
manager.restore_checkpoint(DatasetShardCheckpoint.from_json(checkpoint))
restored = time.perf_counter() - began
print(
    json.dumps(
        {
            "create_seconds": created,
            "grown_bytes": grown,
            "checkpoint_bytes": len(checkpoint),
            "checkpoint_seconds": saved,
            "restore_seconds": restored,
            "shards": there,
            "tasks": -(-size // shard),
        }
    )
)
