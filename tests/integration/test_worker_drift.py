"""Workers that come to hold different state: the job stops and says what, whose and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastane.runtime.rehearsal import Rehearsal, give_order
from elastane_cli.rehearse.cluster import local_cluster
from elastane_common.errors import EXIT_REFUSED
from elastane_common.processes.child import ExitStatus
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = str(Path(__file__).parent / "scripts" / "drifting.py")
PIPELINE_SCRIPT = str(Path(__file__).parent / "scripts" / "pipeline_slips.py")
EVERY = 4

FOUND = {
    "flip": r"w0 and w1 hold different state at the start of step ([6-9]): weights 2\.weight(;|\.)",
    "rate": r"w0 and w1 hold different state at the start of step 10: "
    r"optimizer, param_groups\[0\], lr \(0\.1 in w0, 0\.025 in w1\)\. .*job\.carry",
    "stop": r"the script of w1 left its loop over epochs at drifting\.py:40, at epoch 0, step 10, "
    r"and that of w0 goes on\. .*job\.carry",
}


@pytest.mark.parametrize(
    ("drift", "every"),
    [
        ("flip", EVERY),
        ("stop", EVERY),
        pytest.param("rate", EVERY, marks=slow),
        pytest.param("flip", 0, marks=slow),
    ],
)
def test_a_worker_that_drifts_away_stops_the_job(tmp_path: Path, drift: str, every: int) -> None:
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2, fingerprint_steps=every)
    with local_cluster(tmp_path, settings, [SCRIPT]) as cluster:
        workers = [cluster.add_worker(), cluster.add_worker(environment={"ELASTANE_TEST_DRIFTS": drift})]
        job = cluster.wait_for_end()
        if not every:  # nobody looks: as bad as it would be without
            assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED
            return
        assert job.phase == job_pb2.JOB_PHASE_FAILED
        assert re.match(FOUND[drift], job.reason), job.reason
        for worker in workers:
            assert cluster.workers[worker].wait(30) == ExitStatus(EXIT_REFUSED)
            assert "ELA340" in (tmp_path / f"{worker}.log").read_text()


def test_stages_are_not_trained_with_different_hyperparameters(tmp_path: Path) -> None:
    """Each worker's units would go on with its own: no weights are there twice that could be compared."""
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2, pipeline_stages_min=2)
    with local_cluster(tmp_path, settings, [PIPELINE_SCRIPT, "decay"]) as cluster:
        cluster.add_worker()
        cluster.add_worker(environment={"ELASTANE_TEST_DRIFTS": "1"})
        job = cluster.wait_for_end()
    assert job.phase == job_pb2.JOB_PHASE_FAILED
    found = r"w0 and w1 hold different state at the start of step 6: optimizer, param_groups\[0\], lr \("
    assert re.match(found, job.reason), job.reason


def test_variables_that_all_workers_have_lost_stop_a_job_that_goes_on_from_a_checkpoint(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "checkpoints")
    settings = job_pb2.JobSettings(ests=2, workers_min=1, workers_max=1, checkpoint_url=url)
    drifts = {"ELASTANE_TEST_DRIFTS": "best"}
    orders = tmp_path / "orders"
    give_order(orders, "slow 0.05")
    with local_cluster(tmp_path, settings, [SCRIPT]) as cluster:
        first = cluster.add_worker(environment={**drifts, **Rehearsal(orders=str(orders)).environment()})
        cluster.wait_for_step(11)  # in the second of two epochs of ten steps
        cluster.client.suspend_job(cluster.job)
        assert cluster.wait_for_end().phase == job_pb2.JOB_PHASE_SUSPENDED
        cluster.client.resume_job(cluster.job)
        second = cluster.add_worker(environment=drifts)
        assert cluster.workers[second].wait(30) == ExitStatus(EXIT_REFUSED)
        job = cluster.get_job()
    assert job.phase != job_pb2.JOB_PHASE_SUCCEEDED and job.step == job.saved_step
    said, warned = ((tmp_path / f"{worker}.log").read_text() for worker in (second, first))
    found = r'best, set in line \d+, decides param_group\["lr"\] in line \d+'
    assert re.search(rf"continues at epoch 1 from a checkpoint.*{found}.*job\.carry\(best=\.\.\.\)", said)
    assert "ELA343" in said and "without the values" not in said
    assert re.search(rf"variables of the script live across epochs: .*{found}", warned)
