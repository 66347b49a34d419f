"""A slip in a script ends in a message that names it, and a script that hangs is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane_cli.rehearse.cluster import local_cluster
from elastane_common.errors import EXIT_REFUSED
from elastane_common.processes.child import ExitStatus
from elastane_proto.v1 import job_pb2
from integration.forked_cli import ForkedCommands
from slow import slow_except

SCRIPT = str(Path(__file__).parent / "scripts" / "slips.py")
PIPELINE_SCRIPT = str(Path(__file__).parent / "scripts" / "pipeline_slips.py")

SLIPS = {
    "no epochs": "the loader was used before job.epochs",
    "loader twice": "the loader was used again after the end of epoch 0",
    "epochs twice": "job.epochs was called twice",
    "loader left": "the loader of epoch 0 was left at slips.py:41 by a break, return or next(), in step 1",
    "late buffer": "buffer 1.running_mean was written to after backward() in step 0",
    "new buffer": "buffer 1.running_mean was replaced by another tensor",
}

PIPELINE_SLIPS = {
    "counter in the loop": "pipeline_slips.py, line 88: turns is carried from turn to turn",
    "counter in a unit": "model.1.calls (pipeline_slips.py, line 23) changes from turn to turn",
    "counter in the loss": "pipeline_slips.py, line 34: loss_fn.calls is carried from turn to turn",
    "counter in a hook": "unit 0 was run twice from the same state, and its results differ",
    "counter in a closure": "pipeline_slips.py, line 75: calls is carried from turn to turn",
    "counter in the dataset": "was loaded twice from the same state and differs",
    "average": "average holds a copy of the weights, and was changed in step 0: a worker of a pipeline",
    "optimizer saved": "optimizer.state_dict() was called in a pipeline",
    "held units": "the loop body reads pipe.held, which differs from worker to worker",
}


@pytest.mark.parametrize("slip", slow_except(SLIPS, "no epochs", "loader left", "late buffer"))
def test_a_slip_is_named(tmp_path: Path, slip: str) -> None:
    settings = job_pb2.JobSettings(ests=1, workers_min=1, workers_max=1)
    with local_cluster(tmp_path, settings, [SCRIPT, slip]) as cluster:
        worker = cluster.workers[cluster.add_worker()]
        assert worker.wait(60) == ExitStatus(EXIT_REFUSED), cluster.last_lines()
        assert SLIPS[slip] in cluster.last_lines()


@pytest.mark.parametrize("slip", slow_except([*PIPELINE_SLIPS], "counter in the loss", "counter in a hook"))
def test_what_a_pipelines_script_keeps_from_step_to_step_is_named(tmp_path: Path, slip: str) -> None:
    """Such a script trains other weights than stock DDP, without a word, as soon as workers join."""
    settings = job_pb2.JobSettings(ests=2, workers_min=1, workers_max=1)
    with local_cluster(tmp_path, settings, [PIPELINE_SCRIPT, slip]) as cluster:
        worker = cluster.workers[cluster.add_worker()]
        assert worker.wait(60) == ExitStatus(EXIT_REFUSED), cluster.last_lines()
        assert PIPELINE_SLIPS[slip] in cluster.last_lines()


def test_a_norm_in_a_hook_before_the_step_is_refused(tmp_path: Path) -> None:
    """Each stage would be clipped by the norm of its own gradients."""
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2, pipeline_stages_min=2)
    with local_cluster(tmp_path, settings, [PIPELINE_SCRIPT, "norm in a hook"]) as cluster:
        workers = [cluster.workers[cluster.add_worker()] for _ in range(2)]
        assert EXIT_REFUSED in {worker.wait(60).returncode for worker in workers}, cluster.last_lines()
        assert "p.grad of a parameter whose gradient is in another worker" in cluster.last_lines()


def test_a_script_that_trains_by_itself_has_failed(forked_commands: ForkedCommands, tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import elastane\njob = elastane.init()\nprint('trained, each process for itself')\n")
    done = forked_commands.run("run", "--ests", "2", "--workers", "1:2", str(script), timeout_seconds=60)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the script ended without having used the job" in done.stderr
    assert "elastane launch" in done.stderr


@pytest.mark.parametrize("slip", slow_except(["hang", "hang in backward"], "hang"))
def test_a_worker_that_hangs_does_not_come_back_until_it_can_train(tmp_path: Path, slip: str) -> None:
    settings = job_pb2.JobSettings(ests=2, workers_min=2, workers_max=2)
    settings.lease_min.FromSeconds(1)
    with local_cluster(
        tmp_path, settings, [SCRIPT, slip], environment={"ELASTANE_HANG_SECONDS": "3"}
    ) as cluster:
        cluster.add_worker()
        hangs = cluster.workers[cluster.add_worker(environment={"ELASTANE_TEST_HANGS": "1"})]
        cluster.wait_for(lambda job: job.generation > 0, what="the first ring")
        cluster.client.scale_job(cluster.job, 1, 2)
        assert hangs.wait(60) == ExitStatus(1), cluster.last_lines()
        assert "still in the same step after 3 s" in (tmp_path / f"{hangs.name}.log").read_text()
        assert cluster.wait_for_end().phase == job_pb2.JOB_PHASE_SUCCEEDED
        kinds = [event.kind for event in cluster.client.events(cluster.job)]
        assert kinds.count("worker_evicted") == 1  # nobody who waited for it
        assert kinds.count("worker_joined") == 2


def test_one_worker_leases_the_tasks_of_two_datasets(tmp_path: Path) -> None:
    settings = job_pb2.JobSettings(ests=1, workers_min=1, workers_max=2)
    scores = tmp_path / "scores"
    scores.mkdir()
    with local_cluster(tmp_path, settings, [SCRIPT, "two datasets", str(scores)]) as cluster:
        for name in (cluster.add_worker(), cluster.add_worker()):
            assert cluster.workers[name].wait(60) == ExitStatus(0), cluster.last_lines()
    done = {path.name: path.read_text() for path in scores.iterdir()}
    assert done == {f"{dataset}-{index}": "done\n" for dataset in ("first", "second") for index in range(20)}
