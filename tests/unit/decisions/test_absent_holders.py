"""Units of a pipeline whose holders' streams have broken: who is awaited, and what it applies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from job_driver import JobDriver, settings
from test_pipelines import PipelineDriver, three

from elastane_master.decisions import absent_holders, effects, events, unit_holders
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import SavedCheckpoint

GRACE_SECONDS = 10.0
SAVED = {"checkpoint_url": "file:///saved", "return_grace_seconds": GRACE_SECONDS}


def without(worker: str, **changes: Any) -> PipelineDriver:
    """A job after three steps, the last prepared, whose worker is cut off; the others have answered."""
    job = three(**(SAVED | changes))
    job.now += 60.0
    job.lose(worker)
    for other in job.members:
        job.ready_at(other, 3)
    return job


def returns(job: PipelineDriver, worker: str, applied: int, **changes: Any) -> effects.Welcome:
    """A process says Hello as it does once its stream has broken; it trained in the first ring."""
    job.join(
        worker,
        **{"session": f"{worker}-2", "generation": 1, "applied_step": applied, "holds_state": True} | changes,
    )
    return job.take(effects.Welcome)[worker]


def test_history_is_not_given_up_while_who_held_the_units_may_return() -> None:
    job = without("b")
    assert job.state.ring.stage == "preparing" and not job.take(effects.Load)
    [note] = job.noted("units_awaited")
    assert note.reason == (
        "no connected worker holds units 2 to 3 after 3 steps: b, whose stream broke, may return for 10 s; "
        "--shadow 1 would have kept a second copy"
    )
    welcome = returns(job, "b", 2)
    assert not welcome.resumed and welcome.prepared_until == 3
    assert set(job.members) == {"a", "b", "c"}, "it is asked what it holds"
    for worker in job.members:
        job.ready_at(worker, 3)
    go = job.take(effects.Go)["a"]
    assert go.resume_step == 3 and not go.receivers and not job.noted("units_lost")
    assert len(job.noted("units_awaited")) == 1
    assert not job.state.pipeline.absent


def test_after_the_grace_all_go_back_to_the_newest_checkpoint() -> None:
    job = without("b")
    job.tick(after=GRACE_SECONDS - 0.1)
    assert job.state.ring.stage == "preparing"
    due = job.machine.next_deadline()
    assert due is not None and due <= job.now + 0.11
    job.tick_due()
    assert job.state.ring.stage == "loading" and set(job.take(effects.Load)) == {"a"}
    assert "units 2 to 3 after 3 steps" in job.noted("units_lost")[0].reason


def test_nobody_waits_longer_than_the_steps_took_that_would_be_run_again() -> None:
    job = three(**SAVED)
    job.now += 60.0
    saved = SavedCheckpoint("step-1", 1, "file:///saved", job.now - 5.0)
    job.machine.state.checkpoints.saved = (saved,)
    job.lose("b")
    assert job.state.pipeline.absent["b"].until == pytest.approx(job.now + 5.0, abs=0.1)
    job.machine.state.checkpoints.saved = (msgspec.structs.replace(saved, saved_at=job.now),)
    job.lose("c")
    least = job.now + absent_holders.GRACE_SECONDS_MIN
    assert job.state.pipeline.absent["c"].until == pytest.approx(least, abs=0.1)


@pytest.mark.parametrize("early", [True, False])
def test_nobody_waits_for_a_process_whose_end_its_agent_reports(early: bool) -> None:
    job = three(**SAVED)
    if early:
        job.do(events.ExitReported("b", "killed by SIGKILL"))
    job.lose("b")
    job.ready_at("a", 3)
    job.ready_at("c", 3)
    if not early:
        assert job.state.ring.stage == "preparing"
        job.do(events.ExitReported("b", "killed by SIGKILL"))
    assert job.state.ring.stage == "loading"
    assert len(job.noted("units_awaited")) == (0 if early else 1)


def test_nobody_waits_for_a_process_in_whose_place_another_has_come() -> None:
    job = three(**SAVED)
    job.lose("b")
    returns(job, "b", 0, holds_state=False, generation=0, pid=77, process=b"another")
    del job.held["b"]
    for members in (("a", "c"), ("a", "c", "b")):
        assert job.members == members
        for worker in members:
            job.ready_at(worker, 3 if worker != "b" else 0)
    assert job.state.ring.stage == "loading" and not job.noted("units_awaited")


def test_nobody_waits_where_a_checkpoint_has_as_much() -> None:
    job = three(**SAVED)
    job.machine.state.checkpoints.saved_step = 3
    job.lose("b")
    for worker in job.members:
        job.ready_at(worker, 3)
    assert job.state.ring.stage == "loading" and not job.noted("units_awaited")


def test_nobody_waits_where_the_absent_ones_do_not_complete_the_units() -> None:
    job = three(**SAVED)
    job.lose("b")
    job.do(events.ExitReported("b", "killed by SIGKILL"))
    job.lose("c")
    job.ready_at("a", 3)
    assert job.state.ring.stage == "loading" and not job.noted("units_awaited")


def test_all_streams_broke_at_once_and_all_return() -> None:
    job = three(workers_min=3, **SAVED)
    for worker in "bac":
        job.lose(worker)
    assert returns(job, "a", 3).prepared_until is None, "it had got Prepared"
    assert returns(job, "b", 2).prepared_until == 3
    assert returns(job, "c", 2).prepared_until == 3
    job.gather()
    for worker in job.members:
        job.ready_at(worker, 3)
    assert job.take(effects.Go)["a"].resume_step == 3 and not job.noted("units_lost")


def test_the_first_that_returns_waits_for_the_others_even_if_it_could_train_alone() -> None:
    job = three(**SAVED)
    for worker in "bac":
        job.lose(worker)
    returns(job, "a", 2)
    job.gather()
    job.ready_at("a", 3)
    assert job.members == ("a",) and job.state.ring.stage == "preparing"
    returns(job, "c", 2)
    assert set(job.members) == {"a", "c"}
    returns(job, "b", 2)
    for members in ({"a", "c"}, {"a", "b", "c"}):
        assert set(job.members) == members
        for worker in job.members:
            job.ready_at(worker, 3)
    assert job.take(effects.Go)["a"].resume_step == 3 and not job.noted("units_lost")


def test_who_is_cut_off_again_before_it_has_answered_is_awaited_again() -> None:
    job = without("b")
    job.tick(after=GRACE_SECONDS - 1)
    returns(job, "b", 2)
    job.lose("b")
    for worker in job.members:
        job.ready_at(worker, 3)
    job.tick(after=GRACE_SECONDS - 1)
    assert job.state.ring.stage == "preparing"
    job.tick(after=2.0)
    assert job.state.ring.stage == "loading"


def test_a_restarted_master_waits_anew() -> None:
    job = without("b")
    job.machine = JobMachine.restore(job.machine.snapshot())
    job.do(events.MasterStarted("m2"), after=GRACE_SECONDS - 1)
    for worker in job.members:
        job.rejoin(worker, job.generation, 3, session=f"{worker}-2")
    for worker in job.members:
        job.ready_at(worker, 3)
    job.tick(after=GRACE_SECONDS - 1)
    assert job.state.ring.stage == "preparing"
    assert returns(job, "b", 2).prepared_until == 3


def test_a_worker_that_was_evicted_is_not_awaited() -> None:
    job = three(**SAVED)
    job.lose("b")
    job.ready_at("a", 3)
    for _ in range(2):
        job.tick(after=60.0)  # c does not answer
    assert "c" not in job.state.workers and "c" not in job.state.pipeline.absent


# ------------------------------------------------------------------ what it applies


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": 2},
        {"applied_step": 1},
        {"applied_step": 3},
        {"holds_state": False},
        {"history_generation": 7},
    ],
)
def test_only_a_step_that_was_prepared_in_its_ring_is_applied(changes: dict[str, Any]) -> None:
    job = three(**SAVED)
    job.lose("b")
    assert returns(job, "b", 2, **changes).prepared_until is None


def test_a_step_that_was_not_prepared_or_reported_by_others_is_not_applied() -> None:
    job = three(**SAVED)
    job.report("b", 3)
    job.lose("b")
    assert returns(job, "b", 3).prepared_until is None, "the others have not reported step 3"
    assert returns(job, "d", 2).prepared_until is None, "d was not in the ring"


def test_ordinary_jobs_drop_the_step_and_wait_for_nobody() -> None:
    job = JobDriver(settings(4, **SAVED))
    job.form("a", "b")
    job.steps(0, 3)
    job.lose("b")
    job.take()
    job.rejoin("b", 1, 2, session="b-2")
    assert job.take(effects.Welcome)["b"].prepared_until is None and not job.state.pipeline.absent


def test_who_applies_a_step_first_is_counted_as_a_holder_of_what_it_will_hold() -> None:
    job = without("b")
    returns(job, "b", 2)
    assert job.state.workers["b"].finishes
    assert unit_holders.step_soon(job.state, job.state.workers["b"]) == 3
    job.ready_at("b", 3)
    assert not job.state.workers["b"].finishes and job.state.workers["b"].applied_step == 3
