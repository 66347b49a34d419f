"""A script whose code after optimizer.step() takes longer than its computing, on workers with unequal ranges.

None of them is a straggler but one that computes slowly, and plans predict the steps of other numbers of
workers. Mini-batches and the code after them sleep, so that a busy machine does not decide.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elastane_cli.commands.main import build_app
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
ESTS, BATCH, PER_EPOCH, EPOCHS = 4, 4, 100, 9
BUSY_SECONDS, AFTER_SECONDS = 0.02, 0.06
SLOW = "w1"
STEPS = 40
"""Steps after which a worker that computes at a third of the usual rate has long been called a straggler."""
TOLERANCE = 0.25
"""Tolerance of a predicted step; the error that is looked for would be a factor of three."""
ARGUMENTS = [str(SCRIPT), "--seed", "3", "--size", str(ESTS * BATCH * PER_EPOCH), "--batch-size", str(BATCH)]
ARGUMENTS += ["--epochs", str(EPOCHS)]


def sizes(job: job_pb2.Job) -> list[int]:
    """Return how many ESTs the members of the ring host."""
    members = (worker for worker in job.workers if worker.state == job_pb2.WORKER_STATE_MEMBER)
    return sorted(worker.ests.end - worker.ests.start for worker in members)


def stragglers(job: job_pb2.Job) -> set[str]:
    return {worker.worker_id for worker in job.workers if "a straggler" in worker.reason}


def planned(cluster: LocalCluster) -> dict[int, float]:
    """Return the seconds of a step that `elastane plan` predicts for other numbers of workers."""
    words = ["plan", cluster.job, "--all", "--json"]
    found = CliRunner().invoke(build_app(), words, env={"ELASTANE_MASTER": cluster.addresses})
    assert found.exit_code == 0, found.output
    return {rung["workers"]: rung["step_seconds"] for rung in json.loads(found.stdout)["rungs"]}


def measured(cluster: LocalCluster, job: job_pb2.Job) -> float:
    """Return the seconds of a step in the present ring, as its leader has measured them."""
    leader = next(one for one in job.workers if one.state == job_pb2.WORKER_STATE_MEMBER)
    figures = cluster.client.worker_figures(cluster.job, [leader.worker_id])[leader.worker_id]
    assert figures.ring_steps >= 20
    return figures.ring_step_seconds


@slow
def test_only_a_slow_worker_is_a_straggler_and_plans_count_code_after_steps(tmp_path: Path) -> None:
    settings = job_pb2.JobSettings(ests=ESTS, workers_min=1, workers_max=ESTS)
    settings.join_window.FromMilliseconds(500)
    slowed_by = tmp_path / "slowed"
    environment = {"BUSY_SECONDS": str(BUSY_SECONDS), "AFTER_SECONDS": str(AFTER_SECONDS)}
    with local_cluster(tmp_path / "elastic", settings, ARGUMENTS, environment=environment) as cluster:

        def trains(*ests: int) -> job_pb2.Job:
            """Wait until the members host so many ESTs, and then for STEPS steps without a straggler."""
            formed = cluster.wait_for(lambda job: sizes(job) == list(ests), what=f"ranges {ests}")
            end = formed.step + STEPS
            job = cluster.wait_for(
                lambda job: job.step >= end or bool(stragglers(job)), what="steps without a straggler"
            )
            assert stragglers(job) == set() and sizes(job) == list(ests)
            return job

        # One after the other: the last one to join is the first to stand by, and must not be the slow one.
        for number in range(ESTS):
            name = f"w{number}"
            cluster.add_worker(environment={"SLOWED_BY": str(slowed_by)} if name == SLOW else {})
            cluster.wait_for(lambda job, there=number + 1: len(job.workers) >= there, what=name)
        trains(1, 1, 1, 1)
        of_ones = planned(cluster)

        cluster.client.scale_job(cluster.job, 1, 3)
        job = trains(1, 1, 2)
        assert measured(cluster, job) == pytest.approx(of_ones[2], rel=TOLERANCE)
        of_twos = planned(cluster)

        slowed_by.touch()
        cluster.wait_for(lambda job: stragglers(job) == {SLOW}, what="the straggler")
        slowed_by.unlink()
        cluster.wait_for(lambda job: not stragglers(job), what="the straggler's recovery")

        cluster.client.scale_job(cluster.job, 1, 1)
        job = trains(4)
        assert measured(cluster, job) == pytest.approx(of_twos[1], rel=TOLERANCE)
        assert measured(cluster, job) == pytest.approx(of_ones[1], rel=TOLERANCE)
