"""Workers of unlike speed: unequal ranges, the step time that was predicted, and the bits of stock DDP.

They are as slow as the test says because they wait: unlike devices in one job need D2, and CPUs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from compared_runs import compare_runs
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_common.determinism import Level
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
SIZE, BATCH, ESTS, EPOCHS = 240, 4, 6, 11
PER_EPOCH = SIZE // ESTS // BATCH
EST_SECONDS = 0.1
ARGUMENTS = [str(SCRIPT), "--optimizer", "adamw", "--epochs", str(EPOCHS), "--seed", "3"]
ARGUMENTS += ["--size", str(SIZE), "--batch-size", str(BATCH)]


def add(cluster: LocalCluster, *factors: float) -> None:
    """Add workers that need so many times EST_SECONDS for an EST."""
    for factor in factors:
        cluster.add_worker(environment={"BUSY_SECONDS": str(factor * EST_SECONDS)})


def counts(job: job_pb2.Job) -> dict[str, int]:
    """Return how many ESTs each member of the ring hosts."""
    members = (worker for worker in job.workers if worker.state == job_pb2.WORKER_STATE_MEMBER)
    return {worker.worker_id: worker.ests.end - worker.ests.start for worker in members}


@slow
def test_ranges_follow_the_speed_of_the_workers_and_the_bits_stay(tmp_path: Path) -> None:
    settings = job_pb2.JobSettings(
        ests=ESTS, workers_min=3, workers_max=ESTS, audit_samples=True, determinism=Level.D2.to_proto()
    )
    settings.join_window.FromMilliseconds(20)
    with local_cluster(tmp_path / "elastic", settings, ARGUMENTS) as cluster:

        def wait(what: str, condition: Callable[[dict[str, int]], bool]) -> job_pb2.Job:
            return cluster.wait_for(lambda job: condition(counts(job)), what=what)

        add(cluster, 1, 1, 2)
        wait("even ranges", lambda hosted: hosted == {"w0": 2, "w1": 2, "w2": 2})
        cluster.client.scale_job(cluster.job, 1, ESTS)
        # A step of the slow worker's two ESTs takes 4 x, with three for a fast one 3 x EST_SECONDS.
        changed = wait("ranges by speed", lambda hosted: hosted.get("w2") == 1 and len(hosted) == 3)
        cluster.wait_for_step(changed.step + 30)
        figures = cluster.client.worker_figures(cluster.job, counts(changed))
        hosted = counts(changed)
        predicted = max(hosted[name] * figures[name].est_seconds for name in hosted)
        took = figures["w0"].ring_step_seconds
        assert figures["w0"].ring_steps >= 20
        assert took == pytest.approx(predicted, rel=0.1)

        add(cluster, 1)
        wait("the newcomer in the ring", lambda hosted: len(hosted) == 4)
        cluster.client.drain_worker(cluster.job, "w0")
        wait("the drained worker out of the ring", lambda hosted: "w0" not in hosted)
        cluster.workers["w1"].signal(signal.SIGKILL)
        wait("a third for the slow worker", lambda hosted: hosted == {"w2": 2, "w3": 4})
        cluster.wait_for_success()
        history = list(cluster.client.audit_log(cluster.job))
    comparison = compare_runs(
        cluster.reports, _stock(tmp_path), history, ests=ESTS, dataset_size=SIZE, steps_per_epoch=PER_EPOCH
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []


def _stock(tmp_path: Path) -> Path:
    return run_stock_ddp(
        tmp_path / "stock", ARGUMENTS, processes=ESTS, environment={"ELASTANE_DETERMINISM": "d2"}
    )
