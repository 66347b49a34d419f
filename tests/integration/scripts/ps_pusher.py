"""A worker of `elastane run --ps` that pushes by frames of the tests, and says what every slot has applied.

    ps_pusher.py TASKS [FILE]

Each task waits while somebody has FILE locked.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from integration.ps_support import MapWorker, PushingJob

TASKS = int(sys.argv[1])
LOCKED = Path(sys.argv[2]) if len(sys.argv) > 2 else None


def wait() -> None:
    if LOCKED is not None:
        with LOCKED.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)


job = PushingJob(os.environ["ELASTANE_MASTER"], os.environ["ELASTANE_JOB"])
job.open(TASKS)
job.until(lambda found: bool(found.map.places) and all(place.owner for place in found.map.places))
job.refresh()
worker = MapWorker(job)  # type: ignore[arg-type]
worker.refresh()
worker.initialise()
print("pushing", flush=True)
job.train(worker, wait)
worker.refresh()
print("applied", json.dumps([sorted(tasks) for tasks in worker.applied()]), flush=True)
worker.close()
job.close()
