"""A pipeline's worker becomes three times as slow: it gets fewer units, and the bits stay stock DDP's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compared_runs import compare_runs
from elastane_cli.rehearse.cluster import local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "train_slow_stage.py"
ESTS, STEPS = 4, 140


def units_of(job: job_pb2.Job) -> dict[str, int]:
    return {stage.replicas[0]: stage.end_unit - stage.first_unit for stage in job.pipeline.stages}


@slow
@pytest.mark.timeout(300)
def test_a_worker_that_is_three_times_as_slow_gets_fewer_units(tmp_path: Path) -> None:
    settings = job_pb2.JobSettings(
        ests=ESTS,
        workers_min=2,
        workers_max=2,
        audit_samples=True,
        pipeline_stages_min=2,
        pipeline_stages_max=2,
    )
    marks = tmp_path / "slow"
    marks.mkdir()
    arguments = [str(SCRIPT), "--steps", str(STEPS)]
    with local_cluster(tmp_path, settings, arguments, environment={"SLOW_DIR": str(marks)}) as cluster:
        for name in ("w0", "w1"):
            cluster.add_worker(name)
        # Both are measured.
        job = cluster.wait_for(
            lambda job: job.step >= 10 and all(device.speed for device in job.pipeline.devices),
            what="the speed of both workers",
        )
        worker, count = max(units_of(job).items(), key=lambda one: one[1])
        (marks / worker).touch()
        cluster.wait_for(lambda job: units_of(job).get(worker, count) < count, what="another plan")
        told = [event for event in cluster.client.events(cluster.job) if event.kind == "stages_planned"]
        # Other load on the machine adds to both workers' times.
        reason = rf"planned anew: .*: {worker} computes at 0\.[2-6]\d? of the speed"
        assert re.search(reason, told[-1].reason), told[-1].reason
        assert float(told[-1].facts["step_seconds"]) < 0.8 * float(told[-1].facts["step_seconds_before"])
        cluster.wait_for_success(timeout_seconds=180.0)
        changes = [event for event in cluster.client.events(cluster.job) if event.kind == "stages_planned"]
        assert len(changes) <= 3, "what is as good is left alone"
        history = list(cluster.client.audit_log(cluster.job))
    stock = run_stock_ddp(tmp_path / "stock", [*arguments, "--seconds", "0"], processes=ESTS)
    found = compare_runs(
        cluster.reports, stock, history, ests=ESTS, dataset_size=8 * STEPS, steps_per_epoch=STEPS
    )
    assert found.differing == [] and found.audit is not None and found.audit.ok
