"""A store that lost the end of what it acknowledged, and a master that did not live to remember it."""

from __future__ import annotations

import random

import pytest
from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.decisions.machine import JobMachine
from ring_of_protocols import RingOfProtocols, standing


def trained(until: int = 6) -> RingOfProtocols:
    """A job of three workers, one of which dies on the way, and another comes."""
    job = RingOfProtocols()
    for name in "abc":
        job.start(name)
    job.attend("a", "b", "c")
    job.run(until // 2)
    job.lose("c")
    job.start("d")
    job.attend("d")
    job.run(until)
    return job


def begun(job: RingOfProtocols) -> int:
    """The first decision after which the job has a history to go on with."""
    return next(
        number
        for number, (snapshot, _) in enumerate(job.stored)
        if JobMachine.restore(snapshot).state.history_generation
    )


def test_wherever_the_end_is_cut_off_the_workers_make_the_history_whole() -> None:
    first, last = begun(trained()), len(trained().stored)
    restored = 0
    for decisions in range(first, last):
        job = trained()
        before, applied, ring = job.history, job.applied, job.machine.state.ring.generation
        job.forget(decisions)
        names = sorted(job.workers)
        random.Random(decisions).shuffle(names)
        job.attend(*names)
        job.run()
        job.finish()
        where = f"cut behind decision {decisions} of {last}"
        commits = standing(job.history)
        assert len(commits) == job.steps, where
        restored += len(job.noted("history_restored"))
        if not job.noted("history_forgotten"):
            assert [c.tasks for c in commits[: len(before)]] == [c.tasks for c in before], where
            assert max(commit.generation for commit in commits[:applied]) <= ring, f"{where}: done again"
        else:
            # Its dead member took a step with it: nobody else can say what c did.
            assert "virtual ranks" in job.noted("history_forgotten")[0], where
    assert restored > 15


def test_a_member_that_is_away_is_waited_for_and_then_its_step_is_done_again() -> None:
    for comes_back in (True, False):
        job = RingOfProtocols()
        for name in "ab":
            job.start(name)
        job.attend("a", "b")
        job.run(2)
        stored = len(job.stored) - 1
        job.run(5)
        job.start("c")  # the store does not know it, so nobody awaits it
        job.attend("c")
        job.run(7)
        job.forget(stored)
        job.attend("a", "b")
        for _ in range(50):
            for name in "ab":
                job.turn(job.workers[name])
        assert job.machine.state.ring.stage == "preparing", "b and a hold more than is whole without c"
        if comes_back:
            job.attend("c")
        else:
            del job.workers["c"]
        job.run()
        job.finish()
        assert len(standing(job.history)) == job.steps
        assert bool(job.noted("history_forgotten")) is not comes_back
        if not comes_back:
            assert "nobody brought step 6 of virtual ranks" in job.noted("history_forgotten")[0]


def test_the_scripts_ends_are_believed_once_all_have_brought_their_last_steps() -> None:
    job = RingOfProtocols(steps=4)
    for name in "ab":
        job.start(name)
    job.attend("a", "b")
    job.run(2)
    stored = len(job.stored) - 1
    job.run()
    job.forget(stored)
    for name in "ab":
        job.attend(name)
        worker = job.workers[name]
        job.turn(worker)  # it is welcome, brings its reports, and says Bye before it has heard more
        job.handle(events.ByeReported(name, worker.session, "finished", "", 4))
        del job.workers[name]
    assert job.machine.state.phase == "succeeded"
    assert len(standing(job.history)) == 4


def forgetful(job: JobDriver, stored: bytes) -> None:
    job.machine = JobMachine.restore(stored)
    job.do(events.MasterStarted("master-2"))
    job.take()
    job.notes.clear()


def running(*workers: str, **changes: object) -> JobDriver:
    job = JobDriver(settings(4, **changes))
    job.form(*workers)
    return job


def test_no_checkpoint_of_a_step_that_the_history_does_not_lead_up_to_is_loaded() -> None:
    job = running("a", checkpoint_url="file:///c")
    job.steps(0, 3)
    stored = job.machine.snapshot()
    job.steps(3, 5)
    forgetful(job, stored)
    job.tick_due()
    job.join("b", pid=2)
    job.gather()
    job.ready("b")
    assert job.take(effects.Load)["b"].step_max == 3
    before = job.machine.snapshot()
    with pytest.raises(events.Rejection, match="knows the steps before 3 only"):
        job.loaded("b", 5, "step-5")
    assert job.machine.snapshot() == before
    job.loaded("b", 3, "step-3")
    assert job.state.ring.stage == "running" and job.state.steps.committed == 3


def test_a_job_may_begin_with_the_checkpoint_of_another_and_says_so() -> None:
    job = JobDriver(settings(4, checkpoint_url="file:///c"))
    job.join("a")
    job.gather()
    job.ready("a")
    assert job.take(effects.Load)["a"].step_max is None
    job.loaded("a", 5, "step-5")
    assert "the history of this job begins with step 5" in job.noted("checkpoint_loaded")[0].reason


def test_weights_of_a_history_that_the_store_has_forgotten_are_not_believed() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    stored = job.machine.snapshot()
    job.lose("a")
    job.lose("b")
    job.join("a")
    job.gather()
    job.ready("a")
    job.loaded("a")  # history begins anew: these are other weights
    job.steps(0, 3)
    history = job.state.history_generation
    assert history == job.generation
    forgetful(job, stored)
    job.join(
        "a", session="a-9", generation=history, applied_step=3, holds_state=True, history_generation=history
    )
    assert job.noted("store_behind")
    job.tick_due()
    job.ready("a", 3, holds=True)
    assert set(job.take(effects.Load)) == {"a"}


def test_what_is_brought_must_be_the_steps_of_this_job() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    stored = job.machine.snapshot()
    job.steps(3, 5)
    forgetful(job, stored)
    history = job.state.history_generation
    job.join("a", session="a-2", generation=1, applied_step=5, holds_state=True, history_generation=history)
    before = job.machine.snapshot()
    part = events.StepReported("a", "a-2", 1, 3, 0, job.deltas(4, 0, 2), (events.StepTask(0, 6, 8),))
    with pytest.raises(events.Rejection):
        job.do(part)
    for step, generation in ((20, 1), (3, 9)):
        tasks = (events.StepTask(0, 6, 8), events.StepTask(1, 6, 8))
        with pytest.raises(events.Rejection, match="brings step"):
            job.do(events.StepReported("a", "a-2", generation, step, 0, job.deltas(4, 0, 2), tasks))
    assert job.machine.snapshot() == before
