"""Waits of a rehearsal on its local job: states, ends of workers, steps in which the ring is held."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from elastane_cli.rehearse import cluster as module
from elastane_cli.rehearse.cluster import ClusterError, LocalCluster
from elastane_proto.v1 import job_pb2

RUNNING, SUCCEEDED, FAILED = (
    job_pb2.JOB_PHASE_RUNNING, job_pb2.JOB_PHASE_SUCCEEDED, job_pb2.JOB_PHASE_FAILED,
)  # fmt: skip


def job(step: int, phase: job_pb2.JobPhase = RUNNING, reason: str = "") -> job_pb2.Job:
    return job_pb2.Job(step=step, phase=phase, reason=reason)


class Client:
    """In the place of the client of a master: tells these states, and keeps the last one."""

    states: list[job_pb2.Job]

    def __init__(self, address: str, *, timeout_seconds: float) -> None:
        pass

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def watch_job(self, name: str) -> Iterator[job_pb2.Job]:
        yield from self.states

    def get_job(self, name: str) -> job_pb2.Job:
        return self.states[-1]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    monkeypatch.setattr(module, "MasterClient", Client)
    found: Any = LocalCluster(tmp_path, job_pb2.JobSettings(), ["train.py"])
    found.master = SimpleNamespace(address="127.0.0.1:1", log_tail=lambda count: "the master's log")
    found.client = Client("", timeout_seconds=1.0)
    return found


def is_held(gate: Path) -> bool:
    with gate.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_ring_is_held_in_a_step_until_the_block_ends(cluster: LocalCluster) -> None:
    seen: list[int] = []
    cluster.on_job = lambda job: seen.append(job.step)
    Client.states = [job(0), job(3), job(4)]
    cluster.hold_in([3, 7])
    with cluster.held(3) as found:
        assert found.step == 3 and seen == [0, 3]
        assert is_held(cluster.gates / "3")
    assert not is_held(cluster.gates / "3") and is_held(cluster.gates / "7")


def test_a_wait_ends_with_what_the_check_raises(cluster: LocalCluster) -> None:
    def check() -> None:
        raise ValueError("w1 has ended")

    Client.states = [job(5)]
    cluster.check = check
    assert cluster.wait_for_step(5).step == 5, "what was awaited is not checked"
    with pytest.raises(ValueError, match="w1 has ended"):
        cluster.wait_for_step(6)


@pytest.mark.parametrize(("phase", "steps"), [(SUCCEEDED, 5), (FAILED, None)])
def test_a_job_that_is_over_is_not_waited_for(
    cluster: LocalCluster, phase: job_pb2.JobPhase, steps: int | None
) -> None:
    Client.states = [job(5, phase, "for a reason")]
    with pytest.raises(
        ClusterError, match=r"waited for step 6; the job is \w+ at step 5: for a reason"
    ) as told:
        cluster.wait_for_step(6)
    assert told.value.steps == steps and "the master's log" in str(told.value)


def test_time_is_up(cluster: LocalCluster) -> None:
    Client.states = [job(5)]
    with pytest.raises(ClusterError, match="waited for 0 s for step 6; the job is running"):
        cluster.wait_for_step(6, timeout_seconds=0.0)


def test_only_a_job_that_succeeded_is_a_success(cluster: LocalCluster) -> None:
    Client.states = [job(5, SUCCEEDED)]
    cluster.wait_for_success()
    Client.states = [job(5, FAILED, "for a reason")]
    with pytest.raises(ClusterError, match="the job is failed: for a reason"):
        cluster.wait_for_success()


def test_the_check_says_more_of_a_failure_than_the_phase(cluster: LocalCluster) -> None:
    def check() -> None:
        raise ValueError("w1 raised")

    Client.states = [job(5, FAILED)]
    cluster.check = check
    with pytest.raises(ValueError, match="w1 raised"):
        cluster.wait_for_success()


def test_each_worker_has_a_gpu_of_its_own_and_the_next_one_that_of_a_dead_one(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SimpleNamespace] = []

    def launch(name: str, command: list[str], *, environment: dict[str, str], **_: object) -> SimpleNamespace:
        gpu = environment["CUDA_VISIBLE_DEVICES"]
        started.append(SimpleNamespace(name=name, gpu=gpu, status=None, start=lambda: None))
        return started[-1]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,7")
    monkeypatch.setattr(cluster, "_launch", launch)
    for _ in "123":
        cluster.add_worker()
    started[1].status = "killed"
    cluster.add_worker()
    assert [worker.gpu for worker in started] == ["4", "5", "7", "5"]
