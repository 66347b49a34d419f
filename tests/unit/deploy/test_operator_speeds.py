"""What the operator reads of the speed of a job's workers."""

from __future__ import annotations

import pytest

from elastane_operator.edge.masters import Access, Masters
from elastane_proto.v1 import job_pb2, ring_pb2
from unit.cli.fake_master import FakeMaster, serving


async def test_each_est_costs_its_computing_and_the_scripts_code_after_it() -> None:
    fake = FakeMaster()
    job = fake.jobs["train"]
    job.phase = job_pb2.JOB_PHASE_RUNNING
    for worker in job.workers:
        worker.state = job_pb2.WORKER_STATE_MEMBER
        fake.figures[worker.worker_id] = ring_pb2.WorkerFigures(
            est_seconds=0.003, after_est_seconds=0.05, est_steps=31
        )
    masters = Masters(timeout_seconds=10)
    try:
        with serving(fake) as address:
            view = await masters.view(Access(address), "train", measured=True)
    finally:
        await masters.close()
    assert view.job is not None and view.job.est_seconds == pytest.approx(0.053)
