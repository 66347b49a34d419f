"""A job with a deadline whose spot workers go late: it asks for others on demand in time; the same bits."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from compared_runs import compare_runs
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_master.decisions.deadline_on_spot import POLL_SECONDS
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
ESTS, BATCH, EPOCHS, SIZE = 4, 4, 3, 960
PER_EPOCH = SIZE // ESTS // BATCH
EST_SECONDS = 0.05
COLD_SECONDS = 20.0
DEADLINE_SECONDS = 130.0
ARGUMENTS = [str(SCRIPT), "--optimizer", "adamw", "--epochs", str(EPOCHS), "--seed", "3"]
ARGUMENTS += ["--size", str(SIZE), "--batch-size", str(BATCH)]


def add(cluster: LocalCluster, count: int, capacity: str) -> list[str]:
    environment = {"BUSY_SECONDS": str(EST_SECONDS), "ELASTANE_CAPACITY": capacity}
    return [cluster.add_worker(environment=environment) for _ in range(count)]


def wait(cluster: LocalCluster, condition: Callable[[job_pb2.Job], bool]) -> job_pb2.Job:
    """Wait for a state of the job, also while no worker runs."""
    return next(job for job in cluster.client.watch_job(cluster.job) if condition(job))


@slow
def test_spot_that_goes_late_is_replaced_on_demand_in_time(tmp_path: Path) -> None:
    settings = job_pb2.JobSettings(
        ests=ESTS,
        workers_min=1,
        workers_max=ESTS,
        audit_samples=True,
        checkpoint_url=str(tmp_path / "checkpoints"),
        scaling=f"deadline=+{DEADLINE_SECONDS:g}s",
        on_demand_workers=ESTS,
    )
    settings.join_window.FromMilliseconds(20)
    settings.cold_start.FromSeconds(round(COLD_SECONDS))
    with local_cluster(tmp_path / "elastic", settings, ARGUMENTS) as cluster:
        spot = add(cluster, 2, "spot")
        job = wait(cluster, lambda job: job.step >= 60 and "widest rung" in job.scaling.reason)
        deadline = job.scaling.deadline.ToNanoseconds() / 1e9
        assert (job.scaling.workers_target, job.scaling.on_demand_target) == (ESTS, 0)
        for worker in spot:
            cluster.workers[worker].signal(signal.SIGTERM)
        gone = wait(cluster, lambda job: not job.workers)
        assert gone.scaling.on_demand_target == 0, gone.scaling.reason
        steps_left = EPOCHS * PER_EPOCH - gone.step

        asked = wait(cluster, lambda job: job.scaling.on_demand_target > 0)
        left = deadline - time.time()
        assert asked.scaling.on_demand_target == ESTS and "last moment" in asked.scaling.reason
        assert left <= steps_left * 2 * EST_SECONDS + 2 * COLD_SECONDS + POLL_SECONDS, "not before"
        add(cluster, ESTS, "on-demand")
        cluster.wait_for_success()
        ended = time.time()
        history = list(cluster.client.audit_log(cluster.job))
        cost = cluster.get_job().cost
    assert ended <= deadline, f"{ended - deadline:.1f} s late"
    assert cost.on_demand_worker_seconds > 0 and cost.spot_worker_seconds > 0
    stock = run_stock_ddp(tmp_path / "stock", ARGUMENTS, processes=ESTS)
    comparison = compare_runs(
        cluster.reports, stock, history, ests=ESTS, dataset_size=SIZE, steps_per_epoch=PER_EPOCH
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []
