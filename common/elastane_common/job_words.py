"""Describes the state of a job in words, for jobs that train and for jobs that run tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2


def phase_words(job: job_pb2.Job) -> str:
    """Return the phase in words: "running", or "doing tasks" and "tasks done" of a job without a ring.

    The master lets such a job wait for one. Called by commands and agents.
    """
    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import job_pb2

    phase = enum_word(job_pb2.JobPhase.DESCRIPTOR, job.phase)
    if phase == "waiting" and job.HasField("tasks") and (job.tasks.over or working(job)):
        return "tasks done" if job.tasks.over else "doing tasks"
    return phase.replace("_", " ")


def progress_words(job: job_pb2.Job) -> str:
    """Return how far it is: "step 3/40", "step 3", or "12/40 tasks"."""
    if job.HasField("tasks"):
        total = f"/{job.tasks.total}" if job.tasks.total else ""
        return f"{job.tasks.done}{total} tasks"
    total_steps = job.steps_per_epoch * job.epochs
    return f"step {job.step}/{total_steps}" if total_steps else f"step {job.step}"


def working(job: job_pb2.Job) -> int:
    """Return how many workers train, or do the tasks of a job that does tasks alone."""
    from elastane_proto.v1 import job_pb2

    if job.HasField("tasks"):
        return sum(1 for worker in job.workers if worker.state == job_pb2.WORKER_STATE_TASKS_ONLY)
    return sum(1 for worker in job.workers if worker.ests.end > worker.ests.start)
