"""How long a job will take yet: only what its workers have measured counts."""

from __future__ import annotations

import msgspec
import pytest

from elastane_master.decisions import balance, events
from elastane_master.decisions.remaining import seconds_left
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=50, epochs=2)


def trains() -> JobDriver:
    """A job of 100 steps and four ESTs on two workers."""
    job = JobDriver(settings(4), LONG)
    job.form("w0", "w1")
    return job


def beat(job: JobDriver, worker: str, est_seconds: float, step_seconds: float = 0.0) -> None:
    job.do(
        events.AppliedReported(
            worker,
            job.session(worker),
            job.generation,
            job.state.workers[worker].applied_step,
            device_type="cpu",
            est_seconds=est_seconds,
            est_steps=balance.EST_STEPS_MIN,
            ring_generation=job.generation,
            ring_step_seconds=step_seconds,
            ring_steps=balance.RING_STEPS_MIN if step_seconds else 0,
        )
    )


def test_nothing_is_known_before_every_worker_has_measured() -> None:
    job = trains()
    assert seconds_left(job.state) is None
    beat(job, "w0", 0.2)
    assert seconds_left(job.state) is None
    beat(job, "w1", 0.3)
    assert seconds_left(job.state) == pytest.approx(100 * 2 * 0.3), "the slower one hosts two ESTs"


def test_a_whole_step_counts_once_it_was_measured_and_steps_pass() -> None:
    job = trains()
    for worker in ("w0", "w1"):
        beat(job, worker, 0.2, 0.5)
    assert seconds_left(job.state) == pytest.approx(50.0)
    job.step(0)
    job.step(1)
    left = 100 - job.state.steps.committed
    assert left < 100 and seconds_left(job.state) == pytest.approx(left * 0.5)


def test_a_job_without_steps_or_that_does_not_train_has_no_end() -> None:
    job = JobDriver(settings(4), msgspec.structs.replace(SIGNATURE, steps_per_epoch=0, epochs=0))
    job.form("w0", "w1")
    beat(job, "w0", 0.2, 0.5)
    beat(job, "w1", 0.2, 0.5)
    assert not job.state.total_steps and seconds_left(job.state) is None
    other = trains()
    beat(other, "w0", 0.2, 0.5)
    beat(other, "w1", 0.2, 0.5)
    other.state.phase = "suspended"
    assert seconds_left(other.state) is None
    other.state.phase = "succeeded"
    assert seconds_left(other.state) == 0.0


def test_a_member_that_has_ended_is_no_error() -> None:
    job = trains()
    beat(job, "w0", 0.2)
    beat(job, "w1", 0.2)
    job.do(events.ByeReported("w1", job.session("w1"), "finished", "", 0))
    assert "w1" not in job.state.workers
    assert any(member.worker == "w1" for member in job.state.ring.members)
    assert job.state.phase == "running" and seconds_left(job.state) is None
