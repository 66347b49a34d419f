"""A master that was killed takes its ring back."""

from __future__ import annotations

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.machine import JobMachine


def restarted(job: JobDriver) -> JobDriver:
    """A new master from the snapshot."""
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("master-2"))
    job.take()
    return job


def running(*workers: str, **changes: object) -> JobDriver:
    job = JobDriver(settings(4, **changes))
    job.form(*workers)
    return job


def come_back(job: JobDriver, worker: str, generation: int, applied: int, *, holds: bool = True) -> None:
    job.rejoin(worker, generation, applied, holds=holds, session=f"{worker}-2")


def test_all_return_and_the_generation_stays() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    restarted(job)
    assert {record.awaited for record in job.state.workers.values()} == {True}
    come_back(job, "a", 1, 3)
    assert job.take(effects.Welcome)["a"] == effects.Welcome(1, True, reports_from=3)
    come_back(job, "b", 1, 2)
    sent = [message for worker, message in job.sent if worker == "b"]
    assert isinstance(sent[0], effects.Welcome) and sent[0].resumed
    assert isinstance(sent[1], effects.Prepared) and sent[1].step == 2, "b has not applied step 2"
    job.take()
    job.step(3)
    assert set(job.take(effects.Prepared)) == {"a", "b"} and job.generation == 1


def test_go_is_sent_again_to_a_member_that_has_not_reported_since() -> None:
    job = running("a", "b")
    restarted(job)
    come_back(job, "b", 1, 0, holds=False)
    go = job.take(effects.Go)["b"]
    assert go.generation == 1 and [rank for rank, _ in go.contexts] == [2, 3]


def test_load_is_sent_again_to_the_leader() -> None:
    job = JobDriver(settings(2))
    job.join("a")
    job.gather()
    job.ready("a")
    restarted(job)
    come_back(job, "a", 1, 0, holds=False)
    assert set(job.take(effects.Load)) == {"a"}


def test_prepare_is_sent_again_to_who_has_not_answered() -> None:
    job = running("a", "b", "c")
    job.lose("c")
    job.ready("a", 0, holds=True)
    restarted(job)
    come_back(job, "a", 2, 0)
    assert job.take(effects.Prepare) == {}
    come_back(job, "b", 1, 0)
    assert set(job.take(effects.Prepare)) == {"b"}
    job.ready("b", 0, holds=True)
    assert set(job.take(effects.Go)) == {"a", "b"}


def test_a_planned_change_in_flight_is_sent_again_with_its_prepared() -> None:
    job = running("a")
    job.join("b")
    job.step(0)
    restarted(job)
    come_back(job, "a", 1, 0)
    prepared = job.take(effects.Prepared)["a"]
    assert (prepared.generation, prepared.step) == (1, 0)
    assert prepared.then_prepare is not None and prepared.then_prepare.generation == 2
    come_back(job, "b", 0, 0, holds=False)
    assert set(job.take(effects.Prepare)) == {"b"}


def test_who_does_not_return_within_the_grace_is_evicted() -> None:
    job = running("a", "b", return_grace_seconds=5.0)
    job.steps(0, 3)
    restarted(job)
    come_back(job, "a", 1, 3)
    assert job.generation == 1
    job.tick_due()
    assert job.now >= 105.0
    assert [m.worker for m in job.take(effects.Prepare)["a"].members] == ["a"]
    job.ready("a", 3, holds=True)
    assert job.take(effects.Go)["a"].resume_step == 3


def test_a_loss_during_the_grace_waits_for_the_others_to_return() -> None:
    job = running("a", "b", "c")
    job.steps(0, 3)
    restarted(job)
    come_back(job, "a", 1, 3)
    job.lose("a")
    assert job.generation == 1
    come_back(job, "b", 1, 3)
    assert job.generation == 1
    come_back(job, "c", 1, 2)
    assert job.generation == 2 and job.members == ("b", "c")


def test_a_step_that_a_lost_member_never_applied_is_committed_by_the_next_ring() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    before = job.state.steps.committed
    restarted(job)
    job.pids["a"] = 77  # its weights are gone
    come_back(job, "a", 0, 0, holds=False)
    come_back(job, "b", 1, 3)
    assert (before, job.state.steps.committed) == (2, 2), "b alone has applied the third step"
    job.ready("a", 0, holds=False)
    job.ready("b", 3, holds=True)
    assert job.take(effects.Go)["b"].resume_step == 3
    job.step(3)
    assert job.state.steps.committed == 3


def test_a_member_that_was_lost_and_added_again_before_the_restart_leaves_its_old_ring() -> None:
    """Its stream broke and it said Hello again, and no answer of that master has reached it."""
    job = running("a", "b", "c", workers_min=3)
    job.steps(0, 2)
    job.lose("c")
    joined = job.generation
    job.rejoin("c", 1, 2, session="c-2")
    job.gather()
    assert job.generation > joined and job.state.ring.member("c") is not None
    job.take()
    restarted(job)
    job.rejoin("c", 1, 2, session="c-3")
    welcome, *others = [message for worker, message in job.sent if worker == "c"]
    assert welcome == effects.Welcome(joined, False, reports_from=2)
    assert any(isinstance(message, effects.Prepare) for message in others)
    come_back(job, "a", 1, 2)
    assert job.take(effects.Welcome)["a"].resumed


def test_a_process_started_anew_under_the_name_is_not_the_member() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    restarted(job)
    job.pids["b"] = 77
    come_back(job, "b", 0, 0, holds=False)
    assert not job.take(effects.Welcome)["b"].resumed
    assert job.generation == 1, "a may still return"
    come_back(job, "a", 1, 3)
    assert job.generation == 2 and set(job.members) == {"a", "b"}
    job.all_ready(3)


def test_a_leaver_that_does_not_return_while_a_member_waits_for_it() -> None:
    job = running("a", "b")
    job.do(events.LeavingReported("b", "b-1", "spot notice"))
    job.step(0)
    restarted(job)
    come_back(job, "a", 1, 0)
    assert job.generation == 2
    job.tick_due()
    assert job.generation == 3, "a cannot complete step 0 without b"


def test_standbys_join_anew() -> None:
    job = running("a", "b", workers_max=1)
    restarted(job)
    assert set(job.state.workers) == {"a"}
    come_back(job, "b", 1, 0, holds=False)
    assert not job.take(effects.Welcome)["b"].resumed


def test_no_planned_change_while_members_are_awaited() -> None:
    job = running("a", "b")
    job.report("a", 0)
    restarted(job)
    job.join("c", session="c-2")
    come_back(job, "b", 1, 0)
    job.report("b", 0)
    assert job.take(effects.Prepared)["b"].then_prepare is None
    assert job.generation == 1


def test_a_checkpoint_in_flight_is_asked_for_again() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.do(events.CheckpointRequested("r"))
    job.step(0)
    restarted(job)
    assert job.state.checkpoints.in_flight is None and job.state.checkpoints.wanted == ("r",)
    come_back(job, "a", 1, 1)
    job.step(1)
    assert job.take(effects.Prepared)["a"].then_checkpoint is not None


def test_a_closing_checkpoint_in_flight_is_taken_at_the_next_boundary() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.do(events.SuspendRequested("r"))
    job.steps(0, 2)
    assert job.take(effects.Prepared)["a"].step == 0, "step 1 is held back"
    restarted(job)
    come_back(job, "a", 1, 1)
    prepared = job.take(effects.Prepared)["a"]
    assert prepared.step == 1 and job.state.suspending
    assert prepared.then_checkpoint is not None and prepared.then_checkpoint.step == 2


def test_the_hello_of_a_returning_member_says_what_it_applied() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    restarted(job)
    come_back(job, "a", 1, 3)
    come_back(job, "b", 1, 3)
    assert [commit.step for commit in job.commits] == [0, 1, 2]


# ------------------------------------------------- a store that forgot what was acknowledged


def forgetful(job: JobDriver, stored: bytes) -> JobDriver:
    """A new master from an older snapshot than what its predecessor had acknowledged."""
    job.machine = JobMachine.restore(stored)
    job.do(events.MasterStarted("master-2"))
    job.take()
    return job


def test_forgotten_steps_make_no_refusal_for_good() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    stored = job.machine.snapshot()
    job.steps(3, 5)
    forgetful(job, stored)
    come_back(job, "a", 1, 5)
    come_back(job, "b", 1, 5)
    before = job.machine.snapshot()
    with pytest.raises(events.Rejection) as refused:
        job.report("a", 5)
    assert refused.value.reason == "stale"  # the worker may join anew; invalid_argument would end it
    assert job.machine.snapshot() == before
    job.lose("a")
    come_back(job, "a", 0, 5)
    assert job.state.ring.stage == "preparing"
    for worker in ("a", "b", "a", "b"):  # all who are there are asked before history is given up
        job.ready(worker, 5, holds=True)
    # Nobody's weights have contexts in the store: the leader loads, and history is done again from there.
    assert set(job.take(effects.Load)) == {job.members[0]}


def test_number_of_a_forgotten_ring_is_not_given_to_another() -> None:
    job = running("a", "b", "c")
    job.steps(0, 2)
    stored = job.machine.snapshot()
    job.lose("c")
    assert job.generation == 2
    job.all_ready(2)
    job.step(2)
    forgetful(job, stored)
    assert job.generation == 1
    come_back(job, "a", 2, 3)
    assert job.noted("store_behind")
    come_back(job, "b", 2, 3)
    job.tick_due()  # c does not come back
    assert job.generation > 3
    assert all(message.generation > 3 for message in job.take(effects.Prepare).values())
    job.all_ready(3)
    assert job.state.ring.stage in ("running", "loading")


def test_a_newcomer_can_know_of_a_forgotten_ring_too() -> None:
    job = running("a", "b")
    job.steps(0, 2)
    job.rejoin("c", 4, 2, session="c-1")
    assert job.noted("store_behind") and job.generation == 6
    assert set(job.take(effects.Prepare)) == {"a", "b", "c"}
    job.all_ready(2)
    assert job.state.ring.stage == "running"


def test_report_of_a_forgotten_ring_is_not_taken_for_one_of_the_stored_ring() -> None:
    job = running("a", "b", "c")
    job.steps(0, 2)
    stored = job.machine.snapshot()
    job.lose("c")
    job.all_ready(2)
    forgetful(job, stored)
    come_back(job, "a", 2, 2)
    tasks = (events.StepTask(0, 4, 6), events.StepTask(1, 4, 6))
    job.do(events.StepReported("a", job.session("a"), 2, 2, 0, job.deltas(3, 0, 2), tasks))
    assert not job.state.steps.reports, "generation 2 is nobody's any more"
    assert [part.worker for part in job.state.steps.brought[2]] == ["a"]


@pytest.mark.parametrize("stage", ["preparing", "loading"])
def test_ring_whose_go_was_forgotten_is_formed_anew_at_once(stage: str) -> None:
    job = JobDriver(settings(4))
    job.join("a")
    job.join("b")
    job.tick_due()
    job.ready("a")
    if stage == "loading":
        job.ready("b")
    assert job.state.ring.stage == stage
    stored = job.machine.snapshot()
    if stage == "preparing":
        job.ready("b")
    job.loaded("a")
    forgetful(job, stored)
    come_back(job, "a", 1, 0)
    come_back(job, "b", 1, 0)
    tasks = (events.StepTask(0, 0, 2), events.StepTask(1, 0, 2))
    job.do(events.StepReported("a", job.session("a"), 1, 0, 0, job.deltas(1, 0, 2), tasks))
    assert job.generation == 2 and "forgotten" in job.state.ring.reason
    assert set(job.take(effects.Prepare)) == {"a", "b"}


def test_generation_from_another_world_is_refused() -> None:
    job = running("a", "b")
    before = job.machine.snapshot()
    with pytest.raises(events.Rejection) as refused:
        job.rejoin("c", 2**62, 0, session="c-1")
    assert refused.value.reason == "invalid_argument"
    assert job.machine.snapshot() == before
