"""Dynamic mode: writes one line per finished task, so that a test can count what was really done."""

import argparse
import os
import time
from pathlib import Path

import elastane


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=4000)
    parser.add_argument("--task-size", type=int, default=4)
    parser.add_argument("--busy-seconds", type=float, default=0.002, help="what a task costs")
    parser.add_argument("--prefetch", type=int, default=0)
    args = parser.parse_args()

    job = elastane.init(seed=1)
    with (args.out / f"{os.environ['ELASTANE_WORKER_ID']}-{os.getpid()}.txt").open("a", buffering=1) as done:
        tasks = job.tasks("scores", size=args.size, task_size=args.task_size, prefetch=args.prefetch)
        for task in tasks:
            time.sleep(args.busy_seconds)
            done.write(f"{task.index} {task.attempt} {task.indices.start} {task.indices.stop}\n")


if __name__ == "__main__":
    main()
