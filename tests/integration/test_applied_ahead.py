"""Steps applied ahead of a master that is far away: lost ones are undone, and the bits stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slow_link import SlowLink

from compared_runs import compare_runs
from elastane.runtime.rehearsal import Rehearsal
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.v1 import job_pb2
from slow import slow

SCRIPT = Path(__file__).parent / "scripts" / "train_matrix.py"
SIZE, BATCH, ESTS, EPOCHS = 160, 4, 2, 2
PER_EPOCH = SIZE // ESTS // BATCH
ARGUMENTS = [str(SCRIPT), "--epochs", str(EPOCHS), "--seed", "3"]
ARGUMENTS += ["--size", str(SIZE), "--batch-size", str(BATCH)]
FAR_SECONDS = 0.05
UNDONE = re.compile(r"undid a step that was applied ahead and is lost.*?step\S*=\S*?(\d+)")


@contextmanager
def far_workers(folder: Path, *kills: str, **settings: str) -> Iterator[LocalCluster]:
    """A job with a worker for each entry of `kills` ("point:step"), each at the end of a slow link. It trains
    with two workers only."""
    asked = job_pb2.JobSettings(
        ests=ESTS,
        workers_min=ESTS,
        workers_max=ESTS,
        audit_samples=True,
        checkpoint_url=f"file://{folder / 'checkpoints'}",
    )
    with local_cluster(folder, asked, ARGUMENTS) as cluster:
        links = []
        try:
            for kill in kills:
                link = SlowLink(cluster.addresses, FAR_SECONDS, loses=bool(kill))
                links.append(link)
                given = {"ELASTANE_APPLY_AHEAD": "1", **settings}
                environment = {"ELASTANE_MASTER": link.address} | {k: v for k, v in given.items() if v}
                cluster.add_worker(environment=environment | Rehearsal(kill=kill).environment())
            yield cluster
        finally:
            for link in links:
                link.close()


def same_bits_as_stock_ddp(cluster: LocalCluster, folder: Path) -> None:
    comparison = compare_runs(
        cluster.reports,
        run_stock_ddp(folder, ARGUMENTS, processes=ESTS),
        list(cluster.client.audit_log(cluster.job)),
        ests=ESTS,
        dataset_size=SIZE,
        steps_per_epoch=PER_EPOCH,
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []


def goes_ahead(cluster: LocalCluster, worker: str) -> bool:
    return "steps are applied ahead of its answer" in (cluster.folder / f"{worker}.log").read_text()


def undone(cluster: LocalCluster, worker: str) -> list[str]:
    return UNDONE.findall((cluster.folder / f"{worker}.log").read_text())


@slow
def test_a_step_that_is_lost_after_it_was_applied_is_undone(tmp_path: Path) -> None:
    """A worker is killed in the step that it has applied ahead: its report is lost on the way to the master.

    The other one undoes it, and hands its state over to a newcomer. It is killed in step after step until
    the other one, too, had applied the step by then: which of them is faster is not in the test's hands.
    """
    for step in range(12, 17):
        with far_workers(tmp_path / f"elastic-{step}", "", f"ahead:{step}") as cluster:
            died = cluster.workers["w1"].wait(120.0)
            assert died is not None and died.signal_name == "SIGKILL"
            cluster.add_worker()
            cluster.wait_for_success()
            steps = undone(cluster, "w0")
            assert len(steps) <= 1 and all(int(one) >= step for one in steps)
            same_bits_as_stock_ddp(cluster, tmp_path / f"stock-{step}")
            assert goes_ahead(cluster, "w0") and goes_ahead(cluster, "w1")
        if steps:
            return
    raise AssertionError("the other worker has not been ahead in any of these steps")


@slow
@pytest.mark.parametrize("change", ["the master dies", "a checkpoint", "a drain"])
def test_what_happens_while_steps_are_ahead_leaves_the_bits(tmp_path: Path, change: str) -> None:
    with far_workers(tmp_path / "elastic", "", "") as cluster:
        cluster.wait_for_step(PER_EPOCH // 2)
        if change == "the master dies":
            cluster.restart_master()
        elif change == "a checkpoint":
            cluster.client.checkpoint_job(cluster.job)
        else:
            cluster.add_worker()
            cluster.client.drain_worker(cluster.job, "w1")
        cluster.wait_for_success()
        assert goes_ahead(cluster, "w0") and goes_ahead(cluster, "w1")
        # A drain that ends the ring saves a checkpoint before, and drops the step that is reported by then.
        assert change == "a drain" or not undone(cluster, "w0")
        same_bits_as_stock_ddp(cluster, tmp_path / "stock")


def test_nothing_is_applied_ahead_unless_it_is_asked_for(tmp_path: Path) -> None:
    with far_workers(tmp_path / "elastic", "", "", ELASTANE_APPLY_AHEAD="") as cluster:
        cluster.wait_for_success()
        assert not goes_ahead(cluster, "w0") and not goes_ahead(cluster, "w1")


def test_a_worker_that_drifts_away_is_named_by_one_that_is_ahead(tmp_path: Path) -> None:
    """The one that drifts asks whether its step is applied, and waits; the other one has begun the next."""
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2, fingerprint_steps=4)
    with local_cluster(tmp_path, settings, [str(SCRIPT.with_name("drifting.py"))]) as cluster:
        link = SlowLink(cluster.addresses, FAR_SECONDS)
        for drifts in ("", "flip"):
            environment = {"ELASTANE_APPLY_AHEAD": "1", "ELASTANE_TEST_DRIFTS": drifts}
            cluster.add_worker(environment={"ELASTANE_MASTER": link.address, **environment})
        job = cluster.wait_for_end()
        link.close()
        assert "hold different state at the start of step" in job.reason
        assert "weights 2.weight" in job.reason
        assert goes_ahead(cluster, "w0") and not goes_ahead(cluster, "w1")
