"""Bad input gets a clear error and an exit code, and the job goes on as if it had not been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_matrix import Config

import patience
from elastane_cli.rehearse.cluster import LocalCluster, local_cluster
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import EXIT_MASTER_UNREACHABLE, EXIT_REFUSED
from elastane_proto.v1 import job_pb2, shard_pb2
from integration.forked_scripts import run_forked
from slow import further, slow

CONFIG = Config(2, "sgd", epochs=2)


def settings(**values: object) -> job_pb2.JobSettings:
    return job_pb2.JobSettings(**{"ests": 2, "workers_min": 1, "workers_max": 2, **values})  # type: ignore[arg-type]


def run_fresh(*command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND`, which changes what others import, in an interpreter of its own."""
    return patience.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_master_refuses_bad_requests_and_keeps_its_state(tmp_path: Path) -> None:
    with local_cluster(tmp_path, settings(), []) as cluster:
        client, before = cluster.client, cluster.get_job().SerializeToString()

        def refused(reason: str, call: object, *args: object) -> str:
            with pytest.raises(RequestRefusedError) as caught:
                call(*args)  # type: ignore[operator]
            assert caught.value.reason == reason
            return str(caught.value)

        assert "nosuch" in refused("not_found", client.get_job, "nosuch")
        refused("not_found", client.drain_worker, cluster.job, "nobody")
        assert "ests" in refused("invalid_argument", client.create_job, "new", settings(ests=0)).lower()
        refused("invalid_argument", client.create_job, "new", settings(workers_min=3, workers_max=2))
        refused("invalid_argument", client.create_job, "bad name/", settings())
        assert "ests" in refused("already_exists", client.create_job, cluster.job, settings(ests=3)).lower()
        refused("invalid_argument", client.scale_job, cluster.job, 3, 1)
        empty = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=0), task_size=4)
        refused("invalid_argument", client.create_dataset, cluster.job, "d", empty)
        no_batch = shard_pb2.DatasetSettings(range=shard_pb2.RangeSource(size=8), task_size=0)
        refused("invalid_argument", client.create_dataset, cluster.job, "d", no_batch)
        assert [job.name for job in client.list_jobs()] == [cluster.job]
        assert cluster.get_job().SerializeToString() == before


def start_one(cluster: LocalCluster) -> None:
    cluster.add_worker()
    cluster.wait_for(lambda job: job.step >= 2, what="two steps")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--width", "8"], "parameter", id="model", marks=slow),
        # What else a signature has: unit/decisions/test_signatures.py.
        pytest.param(["--size", "100"], "dataset", id="dataset", marks=further),
        pytest.param(["--batch-size", "4"], "batch", id="batch", marks=further),
    ],
)
def test_worker_with_another_script_is_refused(tmp_path: Path, arguments: list[str], named: str) -> None:
    endless = [*CONFIG.arguments, "--epochs", "1000"]  # not over before the stranger comes
    with local_cluster(tmp_path, settings(), [*endless, "--busy-seconds", "0.05"]) as cluster:
        start_one(cluster)
        environment = {
            "ELASTANE_MASTER": cluster.master.address,
            "ELASTANE_JOB": cluster.job,
            "ELASTANE_ESTS": "2",
            "ELASTANE_WORKER_ID": "stranger",
        }
        result = run_forked(*endless, *arguments, environment=environment)
        assert result.returncode == EXIT_REFUSED, result.stderr
        assert named in result.stderr.lower()
        assert "Traceback" not in result.stderr
        assert cluster.statuses()["w0"] is None
        assert [worker.worker_id for worker in cluster.get_job().workers] == ["w0"]


def test_unreachable_master_ends_the_worker_with_a_hint() -> None:
    environment = {
        "ELASTANE_MASTER": "127.0.0.1:9",
        "ELASTANE_ESTS": "2",
        "ELASTANE_MASTER_TIMEOUT_SECONDS": "1",
    }
    result = run_forked(*CONFIG.arguments, environment=environment)
    assert result.returncode == EXIT_MASTER_UNREACHABLE, result.stderr
    assert "127.0.0.1:9" in result.stderr and "is the master running" in result.stderr


def test_a_dataset_smaller_than_a_batch_is_refused_before_training() -> None:
    environment = {"ELASTANE_MASTER": "127.0.0.1:9", "ELASTANE_ESTS": "2"}
    result = run_forked(*CONFIG.arguments, "--size", "0", environment=environment)
    assert result.returncode != 0
    assert "0 samples" in result.stderr or "num_samples" in result.stderr


def test_bad_environment_names_the_variable() -> None:
    result = run_forked(
        *CONFIG.arguments, environment={"ELASTANE_MASTER": "127.0.0.1:9", "ELASTANE_ESTS": "many"}
    )
    assert result.returncode == EXIT_REFUSED
    assert "ELASTANE_ESTS" in result.stderr


@slow
def test_of_two_processes_with_one_worker_id_the_later_one_stays(tmp_path: Path) -> None:
    # The first one would take minutes, so that the other is there long before its end.
    with local_cluster(tmp_path, settings(), [*CONFIG.arguments, "--busy-seconds", "2"]) as cluster:
        cluster.add_worker()
        cluster.wait_for(lambda job: job.step >= 1, what="a step")
        environment = {
            "ELASTANE_MASTER": cluster.master.address,
            "ELASTANE_JOB": cluster.job,
            "ELASTANE_ESTS": "2",
            "ELASTANE_WORKER_ID": "w0",
        }
        later = run_forked(*CONFIG.arguments, environment=environment, timeout_seconds=300.0)
        assert later.returncode == 0, later.stderr
        first = cluster.workers["w0"].wait(120.0)
        assert first is not None and first.returncode == EXIT_REFUSED, cluster.last_lines()
        log = (cluster.folder / "w0.log").read_text()
        assert "another process joined later as worker w0" in log
        assert "[ELA424]" in log and "ELASTANE_WORKER_ID" in log
        job = cluster.get_job()
        assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, job.reason
        lost = [event for event in cluster.client.events(cluster.job) if event.kind == "worker_lost"]
        assert len(lost) == 1 and "was replaced: another process" in lost[0].reason


ANOTHER_RELEASE = """
import runpy, sys
from elastane_proto import versions
versions.{change}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        pytest.param(
            "PROTOCOL = 99",
            EXIT_REFUSED,
            "it speaks version 99 of the protocol, newer than this master",
            id="newer",
            marks=slow,
        ),
        pytest.param(
            "MASTER_OLDEST = 99",
            EXIT_REFUSED,
            "too old for this elastane, which needs 99 or newer",
            id="needs a newer master",
            marks=further,  # unit/runtime/test_session_machine.py
        ),
        pytest.param("PROTOCOL = versions.CLIENT_OLDEST", 0, "", id="oldest that is served"),
    ],
)
def test_a_worker_of_another_release_is_refused_in_words_or_trains_along(
    tmp_path: Path, change: str, code: int, says: str
) -> None:
    other = tmp_path / "other.py"
    other.write_text(ANOTHER_RELEASE.format(change=change))
    busy = "2" if code else "0"  # who is not disturbed is not waited for
    with local_cluster(tmp_path, settings(), [*CONFIG.arguments, "--busy-seconds", busy]) as cluster:
        if code:
            cluster.add_worker()
            cluster.wait_for(lambda job: job.step >= 1, what="a step")
        generation = cluster.get_job().generation
        environment = {
            "ELASTANE_MASTER": cluster.master.address,
            "ELASTANE_JOB": cluster.job,
            "ELASTANE_ESTS": "2",
            "ELASTANE_WORKER_ID": "other",
        }
        result = run_fresh(str(other), *CONFIG.arguments, environment=environment)
        assert result.returncode == code, result.stderr
        assert says in result.stderr and "Traceback" not in result.stderr
        job = cluster.get_job()
        if code:
            assert "upgrade" in result.stderr and job.generation == generation
            assert [worker.worker_id for worker in job.workers] == ["w0"]
            assert cluster.statuses()["w0"] is None
        else:
            assert job.phase == job_pb2.JOB_PHASE_SUCCEEDED, job.reason
