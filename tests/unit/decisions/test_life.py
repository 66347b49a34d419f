"""The job's phases, and what operators ask."""

from __future__ import annotations

from typing import Any

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.ring_state import Stage
from elastane_proto.job_settings import JobSettings


def running(*workers: str, ests: int = 4, **changes: Any) -> JobDriver:
    job = JobDriver(settings(ests, **changes))
    job.form(*workers)
    return job


@pytest.mark.parametrize(
    "changes",
    [
        {"ests": 0},
        {"workers_min": 0},
        {"workers_min": 3, "workers_max": 2},
        {"workers_min": 5},
        {"checkpoint_interval_steps": 3},
        {"checkpoint_keep": 0, "checkpoint_url": "x"},
        {"lease_min_seconds": 0.0},
        {"heartbeat_timeout_seconds": float("nan")},
        {"join_window_seconds": -1.0},
        {"torch_threads": 0},
        {"max_wait_seconds": 2.0**62},
        {"idle_max_seconds": 1.1e9},
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Rejection) as refused:
        JobMachine.create("job", settings(**{"ests": 4, **changes}), 0.0)
    assert refused.value.reason == "invalid_argument"


@pytest.mark.parametrize("name", ["", "a b", "{x}", "-a", "x" * 129])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(Rejection):
        JobMachine.create(name, settings(), 0.0)


def test_the_job_succeeds_when_every_member_has_said_bye() -> None:
    job = running("a", "b")
    job.join("c", role="ring")
    job.steps(0, 1)
    job.ready("a", 1, holds=True)
    job.ready("b", 1, holds=True)
    job.ready("c")
    job.steps(1, 20)
    generation = job.generation
    job.take()
    job.bye("a")
    assert job.state.phase == "running"
    job.bye("b")
    job.bye("c")
    assert job.state.phase == "succeeded" and job.generation == generation
    assert [commit.step for commit in job.commits] == list(range(20))


def test_a_member_that_dies_at_the_end_leaves_the_others_to_finish() -> None:
    job = running("a", "b")
    job.steps(0, 20)
    for worker in ("a", "b"):
        job.applied(worker, 20)
    job.lose("b")
    assert job.generation == 1
    job.bye("a")
    assert job.state.phase == "succeeded"


def test_a_handover_that_breaks_after_the_last_step_is_made_again() -> None:
    """Who waits for the state cannot end without it."""
    job = running("a")
    job.steps(0, 20)
    job.applied("a", 20)
    job.lose("a")
    for worker in ("b", "c"):
        job.join(worker)
    job.join("a", session="a-2", generation=1, applied_step=20, holds_state=True)
    job.tick_due()
    generation = job.generation
    for worker in ("a", "b", "c"):
        job.ready(worker, 20 if worker == "a" else 0, holds=worker == "a")
    assert job.state.ring.stage is Stage.RUNNING and job.state.ring.resume_step == 20
    job.lose("c")
    assert job.generation == generation
    job.do(events.RingBrokenReported("b", "b-1", generation, 0, "reset"))
    job.tick_due()
    assert job.generation == generation + 1


def test_if_the_last_one_dies_before_bye_the_job_waits() -> None:
    job = running("a")
    job.steps(0, 20)
    job.applied("a", 20)
    job.lose("a")
    assert job.state.phase == "waiting"


def test_a_member_behind_when_the_others_have_ended_finishes_alone_below_workers_min() -> None:
    job = running("a", "b", workers_min=2)
    job.steps(0, 20)
    job.bye("a")
    job.do(events.RingBrokenReported("b", "b-1", 1, 19, "reset"))
    job.tick_due()
    job.ready("b", 19, holds=True)
    job.report("b", 19)
    job.bye("b")
    assert job.state.phase == "succeeded"
    assert [commit.step for commit in job.commits] == list(range(20))


def test_all_scripts_that_end_early_at_one_step_are_a_success() -> None:
    job = running("a", "b")
    job.steps(0, 5)
    job.bye("a", applied=5)
    job.bye("b", applied=5)
    assert job.state.phase == "succeeded" and "5 of 20" in job.state.reason


def test_a_script_that_ends_early_alone_is_out() -> None:
    job = running("a", "b")
    job.steps(0, 5)
    job.bye("a", applied=5)
    job.report("b", 5)
    assert job.members == ("b",) and job.generation == 2


def test_the_end_of_a_script_of_an_older_history_does_not_count() -> None:
    job = running("a")
    job.steps(0, 20)
    job.lose("a")
    job.join("b")
    job.gather()
    job.ready("b")
    job.loaded("b")
    job.steps(0, 2)
    job.rejoin("a", 1, 20)
    job.lose("b")
    job.bye("a", applied=20)
    assert job.state.phase == "waiting"


def test_a_script_that_raises_at_one_step_in_three_rings_fails_the_job() -> None:
    job = running("a", "b", "c", "d")
    job.steps(0, 3)
    for worker in ("d", "c"):
        job.bye(worker, "failed", 3)
        job.all_ready(3)
        assert job.state.phase == "running"
    job.bye("b", "failed", 3)
    assert job.state.phase == "failed" and "3 times" in job.state.reason
    assert set(job.take(effects.Done)) == {"a"}
    job.do(events.ResumeRequested("r"))
    assert job.state.phase == "waiting"


def test_several_that_raise_in_one_ring_count_once() -> None:
    job = running("a", "b", "c", "d")
    job.steps(0, 3)
    for worker in ("a", "b", "c"):
        job.bye(worker, "failed", 3)
    assert job.state.phase == "running" and job.state.failures == 1


def test_suspension_saves_first_and_sends_everybody_away() -> None:
    job = running("a", "b", checkpoint_url="file:///c")
    job.do(events.SuspendRequested("r"))
    job.step(0)
    messages = job.take(effects.Prepared)
    assert job.state.phase == "running"
    for worker, prepared in messages.items():
        assert prepared.then_checkpoint is not None
        job.saved(worker, prepared.then_checkpoint)
    job.saved("a", job.take(effects.Checkpoint)["a"], complete=True)
    assert job.state.phase == "suspended"
    for worker in ("a", "b"):
        job.ready(worker, 1, holds=True)
    assert set(job.take(effects.Drain)) == {"a", "b"}
    job.join("c")
    assert [type(message) for _, message in job.sent] == [effects.Welcome, effects.Done]
    assert "c" not in job.state.workers


def test_resume_goes_on_from_the_checkpoint() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.lose("a")
    job.do(events.SuspendRequested("r1"))
    assert job.state.phase == "suspended"
    assert not job.do(events.SuspendRequested("r1")).durable
    job.do(events.ResumeRequested("r2"))
    assert job.state.phase == "waiting"
    job.join("b")
    job.gather()
    assert job.members == ("b",)


def test_suspension_that_cannot_be_saved_is_given_up() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.do(events.SuspendRequested("r"))
    job.step(0)
    message = job.take(effects.Prepared)["a"].then_checkpoint
    assert message is not None
    job.report("a", 1)
    job.saved("a", message, error="disk full")
    assert job.state.phase == "running" and job.take(effects.Prepared)["a"].step == 1


def test_suspension_is_called_off() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.do(events.SuspendRequested("r1"))
    job.do(events.ResumeRequested("r2"))
    job.step(0)
    assert job.take(effects.Prepared)["a"].then_checkpoint is None


def test_suspension_without_a_url_is_refused() -> None:
    with pytest.raises(Rejection) as refused:
        running("a").do(events.SuspendRequested("r"))
    assert refused.value.reason == "wrong_phase" and refused.value.hint


def test_cancel_ends_everybody() -> None:
    job = running("a", "b")
    job.do(events.CancelRequested("r"))
    assert set(job.take(effects.Done)) == {"a", "b"}
    job.bye("a", "drained")
    job.lose("b")
    assert job.state.phase == "cancelled" and job.state.workers == {}
    for event in (
        events.ScaleRequested("r2", 1, 2),
        events.SuspendRequested("r3"),
        events.ResumeRequested("r4"),
        events.CheckpointRequested("r5"),
    ):
        with pytest.raises(Rejection):
            job.do(event)
    job.join("c")
    assert job.take(effects.Done)["c"].phase == "cancelled"


@pytest.mark.parametrize(("low", "high"), [(0, 0), (2, 1), (5, 6), (1, 0)])
def test_impossible_scaling_is_refused(low: int, high: int) -> None:
    with pytest.raises(Rejection):
        running("a").do(events.ScaleRequested("r", low, high))


def test_draining_an_unknown_worker() -> None:
    with pytest.raises(Rejection) as refused:
        running("a").do(events.DrainRequested("r", "zzz"))
    assert refused.value.reason == "not_found"


def test_a_tasks_worker_drains_at_once() -> None:
    job = running("a")
    job.join("t", role="tasks")
    job.do(events.DrainRequested("r", "t"))
    assert set(job.take(effects.Drain)) == {"t"}
    job.bye("t", "drained")
    assert job.generation == 1


def test_every_phase_is_noted_with_its_reason() -> None:
    job = running("a")
    job.lose("a")
    kinds = [note.kind for note in job.notes if note.kind.startswith("job_")]
    assert kinds == ["job_running", "job_waiting"]
    assert all(note.reason for note in job.notes)


def test_a_number_of_ests_sent_by_mistake_is_refused() -> None:
    JobMachine.create("j", JobSettings(ests=65_536), 0.0)
    with pytest.raises(Rejection, match="ests is 4294967295") as caught:
        JobMachine.create("j", JobSettings(ests=2**32 - 1), 0.0)
    assert caught.value.facts["field"] == "ests"
