"""SIGKILL of the master, ten times in training and ten in dynamic leasing: nothing acknowledged is lost."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from test_matrix import SIZE, Config

from compared_runs import compare_runs
from elastane_cli.audit import audit
from elastane_cli.rehearse.cluster import local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.v1 import job_pb2, shard_pb2
from slow import further, slow

SCRIPTS = Path(__file__).parent / "scripts"
KILLS = 10


@slow  # three times: test_matrix
def test_master_killed_ten_times_in_training(tmp_path: Path) -> None:
    config = Config(4, epochs=6)
    moments = random.Random(20261121)
    settings = job_pb2.JobSettings(ests=4, workers_min=1, workers_max=4, audit_samples=True)
    script = [*config.arguments, "--busy-seconds", "0.03"]
    with local_cluster(tmp_path / "elastic", settings, script) as cluster:
        for _ in range(2):
            cluster.add_worker()
        step = 0
        for kill in range(KILLS):
            step += moments.randint(1, 7)
            cluster.wait_for_step(min(step, 58))
            cluster.restart_master()
            if kill == 4:
                cluster.add_worker()
        job = cluster.wait_for_end()
        assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, job.reason
        history = list(cluster.client.audit_log(cluster.job))
    stock = run_stock_ddp(tmp_path / "stock", config.arguments, processes=4)
    comparison = compare_runs(
        cluster.reports, stock, history, ests=4, dataset_size=SIZE, steps_per_epoch=config.steps_per_epoch
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert comparison.values == 6 * 4 * config.steps_per_epoch
    assert [row.name for row in comparison.rows if not row.equal] == []


@pytest.mark.parametrize(
    ("prefetch", "size", "kills"), [pytest.param(0, 8000, 10, marks=further), (8, 2400, 2)]
)
def test_master_killed_again_and_again_in_dynamic_leasing(
    tmp_path: Path, prefetch: int, size: int, kills: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    task_size = 4
    script = [
        str(SCRIPTS / "score_tasks.py"),
        "--out",
        str(out),
        "--size",
        str(size),
        "--task-size",
        str(task_size),
        "--prefetch",
        str(prefetch),
    ]
    moments = random.Random(7)
    settings = job_pb2.JobSettings(ests=1, workers_min=1, workers_max=4)
    with local_cluster(tmp_path / "cluster", settings, script) as cluster:
        dataset = shard_pb2.DatasetSettings(
            range=shard_pb2.RangeSource(size=size), task_size=task_size, epochs=1, max_attempts=3
        )
        dataset.lease.seconds = 60
        cluster.client.create_dataset(cluster.job, "scores", dataset)
        for _ in range(3):
            cluster.add_worker()
        done = 0
        for kill in range(kills):
            done += moments.randint(60, 160)
            wait_for_done(cluster.client, cluster.job, done)
            if kill == kills // 2:
                cluster.workers["w1"].signal(signal.SIGSTOP)  # or it would be done before it is killed
            cluster.restart_master()
            if kill == kills // 2:
                cluster.workers["w1"].signal(signal.SIGKILL)
        for name, process in cluster.workers.items():
            status = process.wait(120)
            assert status is not None, cluster.last_lines()
            assert status.returncode == (-signal.SIGKILL if name == "w1" else 0), cluster.last_lines()
        history = list(cluster.client.audit_log(cluster.job, "scores"))
        progress = cluster.client.get_progress(cluster.job, "scores")[0]
    tasks = size // task_size
    assert (progress.done, progress.todo, progress.doing, progress.failed) == (tasks, 0, 0, 0)
    result = audit(history, dataset_sizes={"scores": size}, tasks_per_epoch={"scores": tasks})
    assert result.ok, result.violations
    assert len(history) == tasks
    # What the workers themselves wrote: every task was done, and only those of a fault more than once.
    written = Counter(
        int(line.split()[0]) for path in out.iterdir() for line in path.read_text().splitlines()
    )
    assert sorted(written) == list(range(tasks))
    # A worker that is killed takes with it what it did while the master was away: all it held, at most.
    untold = 2 * (prefetch + 1) if prefetch else KILLS * 3 + 1
    assert sum(written.values()) - tasks <= untold


def wait_for_done(client: object, job: str, tasks: int) -> None:
    """Until so many tasks of the dataset are DONE; woken by the master's own watch."""
    for progress in client.watch_progress(job, "scores", interval_seconds=0.05):  # type: ignore[attr-defined]
        done: list[shard_pb2.Progress] = progress
        if done and done[0].done >= tasks:
            return
