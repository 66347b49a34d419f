"""Read models, liveness, snapshots."""

from __future__ import annotations

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import events
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.views import (
    context_of,
    context_views,
    job_view,
    progress_views,
    ring_view,
)


def running() -> JobDriver:
    job = JobDriver(settings(4, workers_max=2))
    job.form("a", "b")
    job.join("c")
    job.join("t", role="tasks")
    job.steps(0, 12)
    job.report("a", 12)
    return job


def test_the_job_and_its_workers() -> None:
    job = running()
    job.do(events.DrainRequested("r", "b"))
    view = job_view(job.machine)
    assert (view.phase, view.step, view.epoch, view.epochs) == ("running", 11, 1, 2)
    places = {worker.worker: (worker.place, worker.start, worker.end) for worker in view.workers}
    assert places == {
        "a": ("member", 0, 2),
        "b": ("draining", 2, 4),
        "c": ("standby", 0, 0),
        "t": ("tasks_only", 0, 0),
    }
    assert all(worker.reason for worker in view.workers)
    job.do(events.MasterStarted("m"))
    assert {worker.place for worker in job_view(job.machine).workers} == {"awaited"}
    assert job_view(job.machine).revision > view.revision


def test_the_ring() -> None:
    view = ring_view(running().machine)
    assert (view.generation, view.step, view.stage) == (1, 11, "running")
    assert [member.worker for member in view.members] == ["a", "b"]


def test_contexts_with_their_hosts() -> None:
    job = running()
    views = context_views(job.machine)
    assert [(view.step, view.virtual_rank, view.worker) for view in views[:4]] == [
        (11, 0, "a"), (11, 1, "a"), (11, 2, "b"), (11, 3, "b")
    ]  # fmt: skip
    assert len({view.sha256 for view in views}) == 8 and views[0].bytes == 5
    step, parts = context_of(job.machine, 3)
    assert step == 12 and parts["rng/python"] == b"3@12"
    for rank, wanted in ((4, None), (0, 3)):
        with pytest.raises(Rejection):
            context_of(job.machine, rank, wanted)


def test_progress_of_the_training() -> None:
    view = progress_views(running().machine, 200.0)[0]
    assert view.dataset == "train"
    assert (view.progress.epoch, view.progress.done, view.progress.total) == (1, 4, 40)
    assert {(info.index, info.worker) for info in view.holders} == {(12, "b")}


def test_a_snapshot_gives_the_same_machine() -> None:
    job = running()
    snapshot = job.machine.snapshot()
    copy = JobMachine.restore(snapshot)
    assert copy.snapshot() == snapshot
    event = events.StreamLost("a", "a-1", "EOF")
    assert copy.handle(event, 300.0) == job.machine.handle(event, 300.0)
    assert copy.snapshot() == job.machine.snapshot()


def test_silent_sessions() -> None:
    liveness = Liveness()
    assert liveness.next_deadline(3.0) is None
    liveness.heard("a", "a-1", 10.0)
    liveness.heard("b", "b-1", 9.0)
    assert liveness.next_deadline(3.0) == 12.0
    assert liveness.silent(12.5, 3.0) == [("b", "b-1")]
    assert liveness.silent(14.0, 3.0) == [("b", "b-1"), ("a", "a-1")]
    liveness.heard("a", "a-1", 14.0)
    liveness.forget("b", "b-1")
    assert liveness.silent(14.0, 3.0) == [] and liveness.last_heard("a", "a-1") == 14.0
