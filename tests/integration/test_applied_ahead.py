"""Steps applied ahead of a master that is far away: lost ones are undone, and the bits stay."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from slow_link import SlowLink

from compared_runs import compare_runs
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_cli.rehearse.stock_run import run_stock_ddp
from elastane_proto.v1 import job_pb2
from probe_points import probe_points
from slow import slow

SCRIPTS = Path(__file__).parent / "scripts"
SIZE, BATCH, ESTS, EPOCHS = 160, 4, 2, 2
PER_EPOCH = SIZE // ESTS // BATCH
ARGUMENTS = [str(SCRIPTS / "train_matrix.py"), "--epochs", str(EPOCHS), "--seed", "3"]
ARGUMENTS += ["--size", str(SIZE), "--batch-size", str(BATCH)]
PROBED = [str(SCRIPTS / "train_matrix_probed.py"), *ARGUMENTS[1:]]
FAR_SECONDS = 0.05
HELD, LOST = 8, 14
UNDONE = re.compile(r"undid a step that was applied ahead and is lost.*?step\S*=\S*?(\d+)")
MEET_SECONDS = 60.0


class Far:
    """A job whose workers are at the end of slow links, one each. links: by worker."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.links: dict[str, SlowLink] = {}

    def add_worker(self, environment: Mapping[str, str] | None = None) -> str:
        link = SlowLink(self.cluster.addresses, FAR_SECONDS)
        worker = self.cluster.add_worker(environment={"ELASTANE_MASTER": link.address, **(environment or {})})
        self.links[worker] = link
        return worker


@contextmanager
def far_workers(folder: Path, arguments: Sequence[str] = ARGUMENTS, *, workers: int = ESTS) -> Iterator[Far]:
    """A job without workers yet. It trains with so many."""
    asked = job_pb2.JobSettings(
        ests=ESTS,
        workers_min=workers,
        workers_max=workers,
        audit_samples=True,
        checkpoint_url=f"file://{folder / 'checkpoints'}",
    )
    with local_cluster(folder, asked, arguments) as cluster:
        far = Far(cluster)
        try:
            yield far
        finally:
            for link in far.links.values():
                link.close()


def same_bits_as_stock_ddp(cluster: LocalCluster, folder: Path, arguments: Sequence[str] = ARGUMENTS) -> None:
    comparison = compare_runs(
        cluster.reports,
        run_stock_ddp(folder, arguments, processes=ESTS),
        list(cluster.client.audit_log(cluster.job)),
        ests=ESTS,
        dataset_size=SIZE,
        steps_per_epoch=PER_EPOCH,
    )
    assert comparison.audit.ok, comparison.audit.violations
    assert [row.name for row in comparison.rows if not row.equal] == []


def goes_ahead(cluster: LocalCluster, worker: str) -> bool:
    return "steps are applied ahead of its answer" in (cluster.folder / f"{worker}.log").read_text()


def undone(cluster: LocalCluster, worker: str) -> list[int]:
    return [int(step) for step in UNDONE.findall((cluster.folder / f"{worker}.log").read_text())]


@contextmanager
def killed_once_the_other_is_ahead(folder: Path, arguments: Sequence[str]) -> Iterator[LocalCluster]:
    """w1 dies in step LOST, once w0 has applied that ahead, and its report of it is lost on the way.

    So w0 must undo the step. A newcomer takes w1's place, and gets the state from w0.
    """
    is_ahead = threading.Event()
    with far_workers(folder, arguments) as far:

        def reached(worker: str, point: str, step: int) -> None:
            if (worker, point, step) == ("w1", "prepared", LOST - 1):
                far.links[worker].lose_all()
            if (worker, point, step) == ("w0", "ahead", LOST):
                is_ahead.set()

        with probe_points(reached) as told:
            far.add_worker(told)
            # It never goes ahead itself: what it has reported is prepared before its next step begins.
            other = far.add_worker({"ELASTANE_APPLY_AHEAD": "0", **told})
            assert is_ahead.wait(MEET_SECONDS), far.cluster.last_lines()
            far.cluster.workers[other].signal(signal.SIGKILL)
            far.add_worker()
            far.cluster.wait_for_success()
        yield far.cluster


@slow
def test_a_step_that_is_lost_after_it_was_applied_is_undone(tmp_path: Path) -> None:
    with killed_once_the_other_is_ahead(tmp_path / "elastic", PROBED) as cluster:
        assert undone(cluster, "w0") == [LOST]
        same_bits_as_stock_ddp(cluster, tmp_path / "stock")


UNDOABLE = ("amsgrad", "average", "clipping", "cyclic", "evaluated", "plateau")
NOT_AHEAD = ("hook", "job.step", "lbfgs", "other memory", "own optimizer", "scaler")


@slow
@pytest.mark.parametrize("case", UNDOABLE)
def test_what_a_body_does_after_its_step_is_undone_with_it(tmp_path: Path, case: str) -> None:
    arguments = [str(SCRIPTS / "strange_bodies.py"), "--case", case]
    with killed_once_the_other_is_ahead(tmp_path / "elastic", arguments) as cluster:
        assert undone(cluster, "w0") == [LOST]
        same_bits_as_stock_ddp(cluster, tmp_path / "stock", arguments)


@slow
@pytest.mark.parametrize("case", NOT_AHEAD)
def test_what_could_not_be_undone_is_not_applied_ahead(tmp_path: Path, case: str) -> None:
    arguments = [str(SCRIPTS / "strange_bodies.py"), "--case", case]
    is_there = threading.Event()

    def reached(worker: str, point: str, step: int) -> None:
        if (worker, point, step) == ("w1", "prepared", LOST):
            far.cluster.workers[worker].signal(signal.SIGKILL)
            is_there.set()

    with far_workers(tmp_path / "elastic", arguments) as far, probe_points(reached) as told:
        far.add_worker(told)
        far.add_worker(told)
        assert is_there.wait(MEET_SECONDS), far.cluster.last_lines()
        far.add_worker()
        far.cluster.wait_for_success()
        assert not goes_ahead(far.cluster, "w0")
        same_bits_as_stock_ddp(far.cluster, tmp_path / "stock", arguments)


@slow
@pytest.mark.parametrize("change", ["the master dies", "a checkpoint"])
def test_what_happens_while_steps_are_ahead_leaves_the_bits(tmp_path: Path, change: str) -> None:
    with far_workers(tmp_path / "elastic") as far:
        cluster = far.cluster
        far.add_worker()
        far.add_worker()
        cluster.wait_for_step(PER_EPOCH // 2)
        if change == "the master dies":
            cluster.restart_master()
        else:
            cluster.client.checkpoint_job(cluster.job)
        cluster.wait_for_success()
        assert goes_ahead(cluster, "w0") and goes_ahead(cluster, "w1")
        assert not undone(cluster, "w0")
        same_bits_as_stock_ddp(cluster, tmp_path / "stock")


@pytest.mark.parametrize("change", ["a drain", pytest.param("a join", marks=slow)])
def test_a_planned_change_drops_nothing_that_was_begun(tmp_path: Path, change: str) -> None:
    """It comes a step later. What is dropped would be run again. A third worker stands by for it."""
    workers, last = (1, "w1") if change == "a join" else (2, "w2")
    with far_workers(tmp_path / "elastic", workers=workers) as far:
        cluster = far.cluster
        cluster.hold_in([HELD])
        for _ in range(workers):
            far.add_worker()
        with cluster.held(HELD):
            far.add_worker()
            cluster.wait_for(lambda job: last in {one.worker_id for one in job.workers}, what=last)
        cluster.wait_for_step(HELD + 3)
        if change == "a join":
            cluster.client.scale_job(cluster.job, 2, 2)
        else:
            cluster.client.drain_worker(cluster.job, "w1")
        cluster.wait_for_success()
        assert goes_ahead(cluster, "w0") and not undone(cluster, "w0")
        assert cluster.client.worker_figures(cluster.job, ["w0"])["w0"].steps_replayed == 0
        same_bits_as_stock_ddp(cluster, tmp_path / "stock")


def test_nothing_is_applied_ahead_where_it_is_switched_off(tmp_path: Path) -> None:
    with far_workers(tmp_path / "elastic") as far:
        for _ in range(ESTS):
            far.add_worker({"ELASTANE_APPLY_AHEAD": "0"})
        far.cluster.wait_for_success()
        assert not goes_ahead(far.cluster, "w0") and not goes_ahead(far.cluster, "w1")


def test_a_worker_that_drifts_away_is_named_by_one_that_is_ahead(tmp_path: Path) -> None:
    """The one that drifts asks whether its step is applied, and waits; the other one has begun the next."""
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2, fingerprint_steps=4)
    with local_cluster(tmp_path, settings, [str(SCRIPTS / "drifting.py")]) as cluster:
        link = SlowLink(cluster.addresses, FAR_SECONDS)
        for drifts in ("", "flip"):
            environment = {"ELASTANE_TEST_DRIFTS": drifts}
            cluster.add_worker(environment={"ELASTANE_MASTER": link.address, **environment})
        job = cluster.wait_for_end()
        link.close()
        assert "hold different state at the start of step" in job.reason
        assert "weights 2.weight" in job.reason
        assert goes_ahead(cluster, "w0") and not goes_ahead(cluster, "w1")
