"""Hangs, and who is blamed for them."""

from __future__ import annotations

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events


def running(*workers: str, **changes: object) -> JobDriver:
    job = JobDriver(settings(4, **{"lease_min_seconds": 30.0, "idle_max_seconds": 600.0, **changes}))
    job.form(*workers)
    return job


def in_second_step(*workers: str) -> JobDriver:
    """All have applied two steps, and all but the last have reported the third."""
    job = running(*workers)
    job.steps(0, 2)
    for worker in workers:
        job.applied(worker, 2)
    for worker in workers[:-1]:
        job.report(worker, 2)
    job.take()
    return job


def test_a_trainer_that_does_not_report_is_evicted_when_its_lease_ends() -> None:
    job = in_second_step("a", "b")
    job.tick(after=29.0)
    assert job.closed == []
    job.tick_due()
    assert job.closed == ["b"]
    assert [note.worker for note in job.noted("worker_evicted")] == ["b"]
    assert [m.worker for m in job.take(effects.Prepare)["a"].members] == ["a"]
    assert job.machine.queues.training.progress(job.now).timed_out == 2


def test_in_user_code_a_member_holds_no_lease_but_not_for_ever() -> None:
    job = in_second_step("a", "b")
    job.applied("b", 2, between=True)
    job.tick(after=500.0)
    assert job.closed == []
    job.tick_due()
    assert job.closed == ["b"]


def test_back_from_user_code_the_lease_starts_anew() -> None:
    job = in_second_step("a", "b")
    job.applied("b", 2, between=True)
    job.do(events.Tick(), after=100.0)
    job.applied("b", 2, between=False)
    job.tick(after=29.0)
    assert job.closed == []
    job.tick_due()
    assert job.closed == ["b"]


def test_a_collective_that_hangs_forms_the_ring_anew_without_blaming_anybody() -> None:
    job = running("a", "b")
    job.steps(0, 2)
    job.applied("a", 2)
    job.take()
    job.tick_due()
    assert job.closed == []
    prepare = job.take(effects.Prepare)["a"]
    assert [m.worker for m in prepare.members] == ["a", "b"]
    assert "did not apply step 1" in prepare.reason


def test_a_trainer_that_hangs_after_its_report_is_the_only_one_evicted() -> None:
    """It does not answer Prepare, as a script that waits for it does: two leases, and nobody else goes."""
    job = in_second_step("a", "b")
    job.report("b", 2)
    began = job.now
    job.tick_due()
    assert job.closed == []
    job.ready("a", 2, holds=True)
    job.tick_due()
    assert job.closed == ["b"]
    assert job.now - began == pytest.approx(60.0, abs=0.1)
    assert [m.worker for m in job.take(effects.Prepare)["a"].members] == ["a"]


def test_a_ring_that_does_not_start_evicts_the_one_that_was_silent_for_longest() -> None:
    job = running("a", "b", "c")
    job.steps(0, 3)
    for _ in range(2):
        job.do(events.RingBrokenReported("a", "a-1", job.generation, 3, "timeout"), after=20.0)
        job.do(events.RingBrokenReported("c", "c-1", job.generation, 3, "timeout"))
        job.tick_due()
        job.all_ready(3)
    assert job.closed == []
    while not job.closed:
        job.tick_due()
    assert job.closed == ["b"], "a and c have shown life since"
    assert job.members == ("a", "c")


def test_a_member_in_user_code_excuses_the_others_in_a_ring_that_starts() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    job.applied("a", 3, between=True)
    job.join("c")
    job.lose("b")
    job.ready("a", 3, holds=True)
    job.ready("c")
    job.tick(after=500.0)
    assert job.closed == ["b"], "only the one that was lost"


def test_prepare_that_is_not_answered() -> None:
    job = running("a", "b", "c")
    job.lose("c")
    job.ready("a", 0, holds=True)
    job.tick_due()
    assert job.closed == ["c", "b"]
    assert job.members == ("a",)


def test_a_planned_change_that_hangs_becomes_an_unplanned_one_first() -> None:
    job = running("a", "b")
    job.join("c")
    job.step(0)
    job.ready("a", 1, holds=True)
    job.ready("c")
    job.take()
    job.tick_due()
    assert job.closed == []
    assert set(job.take(effects.Prepare)) == {"a", "b", "c"}


def test_a_leaver_that_does_not_stop_is_evicted_without_another_change() -> None:
    job = running("a", "b")
    job.do(events.LeavingReported("b", "b-1", "spot notice"))
    job.step(0)
    job.ready("a", 1, holds=True)
    generation = job.generation
    job.report("a", 1)
    while job.closed == []:
        job.tick_due()
    assert job.closed == ["b"] and job.generation == generation


def test_further_changes_of_the_ring_give_no_more_time_to_a_member_that_hangs() -> None:
    job = running("a", "b", "c", "d")
    job.lose("a")
    asked = job.now
    for worker in ("b", "c"):
        job.ready(worker, 0, holds=True)
    job.tick(after=20.0)
    job.lose("b")
    job.ready("c", 0, holds=True)
    job.tick_due()
    assert job.closed == ["a", "b", "d"] and job.members == ("c",)
    assert job.now == pytest.approx(asked + 30.0, abs=0.1)


def test_a_leaver_that_hangs_is_evicted_although_the_job_halts_and_resumes_before() -> None:
    """It is one of the workers that its agent keeps alive, so that no other takes its place."""
    job = running("a", "b", "c", recovery="fixed", workers_max=3, max_wait_seconds=12.0)
    job.do(events.LeavingReported("b", "b-1", "spot notice"))
    job.lose("a")
    asked = job.now
    job.ready("c", 0, holds=True)
    for number in range(3):
        while job.state.phase == "waiting" and job.closed == ["a"]:
            job.tick_due()
        if job.closed != ["a"]:
            break
        for worker in [name for name in job.state.workers if name != "b"]:
            job.bye(worker, "drained")
        job.do(events.ResumeRequested(f"r{number}"))
        for worker in (f"x{number}", f"y{number}"):
            job.join(worker)
    assert job.closed == ["a", "b"] and job.state.phase == "waiting"
    assert job.now == pytest.approx(asked + 30.0, abs=0.1)


def test_an_answer_that_a_newer_change_overtook_shows_life() -> None:
    job = running("a", "b", "c")
    job.lose("a")
    late = events.ReadyReported("c", "c-1", job.generation, 0, True)
    job.tick(after=20.0)
    job.lose("b")
    job.do(late)
    job.tick(after=29.0)
    assert job.closed == ["a", "b"]
    job.tick_due()
    assert job.closed == ["a", "b", "c"]


def test_the_time_without_a_master_does_not_count_for_an_answer() -> None:
    job = running("a", "b", "c")
    job.lose("a")
    job.do(events.MasterStarted("next"), after=100.0)
    for worker in ("b", "c"):
        job.rejoin(worker, 1, 0, session=f"{worker}-2")
    job.tick(after=29.0)
    assert job.closed == ["a"]
    job.tick_due()
    assert job.closed == ["a", "b", "c"]


def test_a_load_that_takes_too_long() -> None:
    job = JobDriver(settings(2, idle_max_seconds=50.0))
    job.join("a")
    job.gather()
    job.ready("a")
    assert job.machine.next_deadline() == pytest.approx(job.now + 50.0)
    job.tick_due()
    assert job.closed == ["a"]


def test_the_lease_follows_the_median_step() -> None:
    job = running("a", lease_min_seconds=1.0, lease_factor=10.0)
    for step in range(6):
        job.now += 5.0
        job.report("a", step)
    job.applied("a", 6)
    due = job.machine.next_deadline()
    assert due == pytest.approx(job.now + 50.0, abs=0.1)


def test_nothing_is_overdue_when_all_steps_are_committed() -> None:
    job = running("a", "b")
    job.steps(0, 20)
    for worker in ("a", "b"):
        job.applied(worker, 20)
    assert job.machine.next_deadline() is None
