"""What commands say of jobs that train, and of jobs that do tasks."""

from __future__ import annotations

import pytest

from elastane_cli.commands.jobs import headline
from elastane_common.job_words import phase_words, progress_words, working
from elastane_proto.v1 import common_pb2, job_pb2

DOES_TASKS = job_pb2.WorkerInfo(worker_id="w", state=job_pb2.WORKER_STATE_TASKS_ONLY)
TRAINS = job_pb2.WorkerInfo(worker_id="w", ests=common_pb2.Range(start=0, end=2))


def job(phase: str = "WAITING", **fields: object) -> job_pb2.Job:
    number = job_pb2.JobPhase.Value(f"JOB_PHASE_{phase}")
    return job_pb2.Job(name="j", phase=number, reason="no worker yet", saved_step=-1, **fields)  # type: ignore[arg-type]


def tasks(done: int, total: int, over: bool = False) -> job_pb2.TaskCounts:
    return job_pb2.TaskCounts(done=done, total=total, over=over)


@pytest.mark.parametrize(
    ("found", "phase", "progress", "workers"),
    [
        (job(), "waiting", "step 0", 0),
        (job("RUNNING", step=3, steps_per_epoch=5, epochs=2, workers=[TRAINS]), "running", "step 3/10", 1),
        (job(tasks=tasks(0, 9)), "waiting", "0/9 tasks", 0),
        (job(tasks=tasks(2, 9), workers=[DOES_TASKS]), "doing tasks", "2/9 tasks", 1),
        (job(tasks=tasks(2, 0), workers=[DOES_TASKS]), "doing tasks", "2 tasks", 1),
        (job(tasks=tasks(9, 9, over=True)), "tasks done", "9/9 tasks", 0),
        (job("CANCELLED", tasks=tasks(9, 9, over=True)), "cancelled", "9/9 tasks", 0),
        (job("MAX_WAIT_EXCEEDED"), "max wait exceeded", "step 0", 0),
    ],
)
def test_words(found: job_pb2.Job, phase: str, progress: str, workers: int) -> None:
    assert (phase_words(found), progress_words(found), working(found)) == (phase, progress, workers)


def test_the_headline_of_tasks_tells_of_no_steps() -> None:
    shown = headline(job(tasks=tasks(9, 9, over=True)))
    assert "tasks done" in shown and "9/9 tasks" in shown
    assert "step" not in shown and "epoch" not in shown and "no worker yet" not in shown
    assert "step 0, epoch -" in headline(job()) and "no worker yet" in headline(job())
    failed = headline(job("FAILED", tasks=tasks(2, 9)))
    assert "no worker yet" in failed and "failed" in failed
