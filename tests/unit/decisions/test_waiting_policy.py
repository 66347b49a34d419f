"""How long is waited, with how many workers is trained, and what a notice's end does."""

from __future__ import annotations

from typing import Any

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.machine import JobMachine


def waiting(*workers: str, **changes: Any) -> JobDriver:
    """A job of 4 ESTs on at least 3 workers that waits for 600 s at most, from time 0 on."""
    job = JobDriver(settings(4, **{"workers_min": 3, "max_wait_seconds": 600.0, **changes}))
    for worker in workers:
        job.join(worker)
    return job


def let_pass(job: JobDriver, until: float) -> None:
    """Every deadline up to then is met, and none is asked for in vain."""
    for _ in range(50):
        due = job.machine.next_deadline()
        if due is None or due > until:
            job.now = max(job.now, until)
            return
        job.do(events.Tick(), after=max(0.0, due - job.now))
    raise AssertionError("deadlines without end")


# ------------------------------------------------------------------ max wait


def test_workers_that_wait_too_long_are_released() -> None:
    job = waiting("a", "b")
    let_pass(job, 599.9)
    assert job.state.phase == "waiting"
    job.take()
    let_pass(job, 600.1)
    assert job.state.phase == "max_wait_exceeded"
    [note] = job.noted("job_max_wait_exceeded")
    assert job.state.reason == note.reason == "2 of 3 workers were there after 600 s: they are released"
    assert note.facts == {"there": "2", "needed": "3", "max_wait_seconds": "600", "lost": "0"}
    assert [cost.kind for cost in job.noted("job_cost")] == ["job_cost"]
    assert set(job.take(effects.Drain)) == {"a", "b"}
    assert job.machine.next_deadline() is None, "nothing is waited for any more"
    # Who comes now is sent away at once, and told why.
    job.join("c")
    assert job.take(effects.Done)["c"].phase == "max_wait_exceeded" and "c" not in job.state.workers


def test_enough_workers_end_the_wait() -> None:
    job = waiting("a", "b")
    let_pass(job, 599.0)
    job.join("c")
    let_pass(job, 601.0)
    assert job.state.phase == "running" and job.state.wait_until is None


def test_without_a_bound_nothing_is_waited_for() -> None:
    job = waiting("a", max_wait_seconds=0.0)
    let_pass(job, 1e6)
    assert job.state.phase == "waiting" and job.state.wait_until is None


def test_resume_waits_again() -> None:
    job = waiting("a")
    let_pass(job, 600.1)
    job.bye("a", "drained")
    job.do(events.ResumeRequested("r"), after=1000.0)
    assert job.state.phase == "waiting"
    for worker in "ab":
        job.join(worker)
    began = job.now
    let_pass(job, 1600.9)
    assert job.state.phase == "waiting" and began > 1600
    let_pass(job, began + 700)
    assert job.state.phase == "max_wait_exceeded" and len(job.noted("job_max_wait_exceeded")) == 2


def test_the_wait_begins_anew_when_training_stops_and_says_what_will_be_done_again() -> None:
    job = waiting(checkpoint_url="x", checkpoint_interval_steps=100)
    job.form("a", "b", "c")
    job.steps(0, 5)
    for worker in "abc":
        job.applied(worker, 5)
    let_pass(job, job.now + 20)  # longer than a step lasts is nobody's business here
    lost_at = job.now
    job.lose("c")
    for worker in ("a", "b"):
        job.ready(worker, 5, holds=True)
    assert job.state.phase == "waiting" and job.state.wait_until == pytest.approx(lost_at + 600, abs=0.1)
    assert all(job.state.workers[worker].holds_state for worker in "ab"), "survivors keep what they have"
    job.take()
    let_pass(job, lost_at + 601)
    [note] = job.noted("job_max_wait_exceeded")
    assert note.facts["lost"] == "5" and note.reason.endswith(
        "they are released; 5 steps after the newest checkpoint will be done again"
    )
    for worker in ("a", "b"):
        job.ready(worker, 5, holds=True)
    assert set(job.take(effects.Drain)) == {"a", "b"}


def test_a_third_worker_in_time_goes_on_with_the_state_of_the_survivors() -> None:
    job = waiting()
    job.form("a", "b", "c")
    job.steps(0, 5)
    job.lose("c")
    for worker in ("a", "b"):
        job.ready(worker, 5, holds=True)
    let_pass(job, job.now + 300)
    assert job.state.reason == "2 of at least 3 workers are there" and job.members == ()
    job.join("d")
    job.gather()
    for worker in ("a", "b"):
        job.ready(worker, 5, holds=True)
    job.ready("d")
    assert job.state.ring.stage == "running" and job.state.ring.resume_step == 5
    assert job.take(effects.Go)["d"].donors == (0, 1)


def test_a_restart_of_the_master_neither_begins_the_wait_anew_nor_ends_it_at_once() -> None:
    job = waiting("a", "b")
    let_pass(job, 300)
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m"))
    assert job.state.wait_until == 600.0
    # The master was away until long after: who waited has the return grace to come back.
    job.do(events.MasterStarted("m"), after=1000.0)
    assert job.state.phase == "waiting"
    for worker in "abc":
        job.join(worker, session=f"{worker}-2")
    let_pass(job, job.now + 1)
    assert job.state.phase == "running"


def test_a_master_that_was_away_and_finds_too_few_releases_them_after_the_grace() -> None:
    job = waiting("a", "b")
    job.do(events.MasterStarted("m"), after=1000.0)
    started = job.now
    job.join("a", session="a-2")
    let_pass(job, started + 9.9)
    assert job.state.phase == "waiting"
    let_pass(job, started + 10.1)
    assert job.state.phase == "max_wait_exceeded"


def test_workers_that_lease_tasks_do_the_jobs_work() -> None:
    job = waiting(workers_min=2)
    job.join("t", role="tasks")
    job.join("u", role="tasks")
    let_pass(job, 5000.0)
    assert job.state.phase == "waiting", "nobody trains, but nobody is missing"
    job.lose("u")
    lost_at = job.now
    let_pass(job, lost_at + 601)
    assert job.state.phase == "max_wait_exceeded" and job.take(effects.Done)["t"].phase == "max_wait_exceeded"


def test_what_can_be_asked_of_a_job_that_waited_too_long() -> None:
    job = waiting(checkpoint_url="x")
    let_pass(job, 601)
    job.do(events.SuspendRequested("s"))
    assert job.state.phase == "max_wait_exceeded"
    with pytest.raises(Rejection, match="no workers"):
        job.do(events.CheckpointRequested("c"))
    job.do(events.ScaleRequested("t", 1, 4))
    assert job.state.phase == "max_wait_exceeded", "an operator says when it goes on"
    job.do(events.CancelRequested("d"))
    assert job.state.phase == "cancelled"


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_wait_that_cannot_be(seconds: float) -> None:
    with pytest.raises(Rejection):
        waiting(max_wait_seconds=seconds)


# ------------------------------------------------------------------ recovery


def test_with_fixed_recovery_only_the_full_number_trains() -> None:
    job = waiting(workers_min=1, workers_max=3, recovery="fixed", max_wait_seconds=0.0)
    job.join("a")
    job.join("b")
    let_pass(job, job.now + 100)
    assert job.state.phase == "waiting"
    assert job.state.reason == "2 of all 3 workers are there; with fixed recovery no fewer train"
    job.join("c")
    for worker in "abc":
        job.ready(worker)
    job.loaded("a")
    job.steps(0, 3)
    job.lose("b")
    for worker in ("a", "c"):
        job.ready(worker, 3, holds=True)
    let_pass(job, job.now + 100)
    assert job.state.phase == "waiting" and job.members == ()
    job.join("b", session="b-2")
    for worker in ("a", "c"):
        job.ready(worker, 3, holds=True)
    job.ready("b")
    assert job.state.ring.stage == "running" and job.state.ring.resume_step == 3


def test_fixed_recovery_has_no_more_workers_than_ests_and_ends_with_those_that_are_left() -> None:
    job = JobDriver(settings(2, workers_max=5, recovery="fixed"))
    job.form("a", "b")
    job.steps(0, 20)
    job.bye("a")
    assert job.state.phase == "running"
    job.bye("b")
    assert job.state.phase == "succeeded"


def test_elastic_recovery_goes_on_with_any_number() -> None:
    job = JobDriver(settings(4, workers_min=1, workers_max=3))
    job.form("a", "b", "c")
    job.steps(0, 3)
    job.lose("b")
    for worker in ("a", "c"):
        job.ready(worker, 3, holds=True)
    assert job.state.ring.stage == "running" and job.members == ("a", "c")


# ------------------------------------------------------------------ notices


def last_worker(**changes: Any) -> tuple[JobDriver, effects.Checkpoint]:
    """The last worker drains with a notice of 20 s, and writes its checkpoint."""
    job = JobDriver(settings(2, checkpoint_url="x", **changes))
    job.form("a")
    job.steps(0, 4)
    job.do(events.LeavingReported("a", "a-1", "spot notice", 20.0))
    job.take()
    job.step(4)
    message = job.take(effects.Prepared)["a"].then_checkpoint
    assert message is not None and message.step == 5
    job.step(5)  # done, and held back: it would not be in the checkpoint
    return job, message


def test_the_last_workers_checkpoint_is_saved_within_the_notice() -> None:
    job, message = last_worker()
    job.saved("a", message)
    job.saved("a", message, complete=True)
    job.ready("a", 5, holds=True)
    assert set(job.take(effects.Drain)) == {"a"} and job.state.checkpoints.saved_step == 5
    let_pass(job, job.now + 60)
    assert not job.noted("notice_over")


def test_a_checkpoint_that_takes_longer_than_the_notice_is_not_waited_for() -> None:
    job, _ = last_worker()
    noticed = job.now
    let_pass(job, noticed + 18.9)
    assert not job.noted("notice_over") and job.state.ring.stage == "running"
    let_pass(job, noticed + 19.1)
    [note] = job.noted("notice_over")
    assert note.worker == "a" and note.facts["lost"] == "5"
    assert "the checkpoint of step 5 was not saved" in note.reason
    assert job.noted("checkpoint_failed") and job.state.checkpoints.in_flight is None
    assert job.state.phase == "waiting"
    job.ready("a", 5, holds=True)
    assert set(job.take(effects.Drain)) == {"a"}, "it leaves before its node goes"


def test_a_long_step_is_not_ended_by_a_notice() -> None:
    """Nothing is gained by breaking it off: the others would do it again."""
    job = JobDriver(settings(2))
    job.form("a", "b")
    job.do(events.LeavingReported("b", "b-1", "spot notice", 5.0))
    let_pass(job, job.now + 6)
    [note] = job.noted("notice_over")
    assert note.worker == "b" and job.members == ("a", "b") and not job.closed
    job.step(0)
    assert job.take(effects.Prepared)["a"].then_prepare is not None


def test_a_shorter_notice_counts() -> None:
    job, _ = last_worker()
    at = job.now
    job.do(events.LeavingReported("a", "a-1", "sooner", 2.0))
    job.do(events.LeavingReported("a", "a-1", "later", 50.0))
    let_pass(job, at + 2.1)
    assert job.noted("notice_over")
