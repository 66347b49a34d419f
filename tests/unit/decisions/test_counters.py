"""What the counters of a job make of its decisions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from job_driver import JobDriver, settings

from elastane_master.decisions import effects, events
from elastane_master.metrics.counters import JobCounters
from elastane_proto.job_settings import JobSettings


class Tallied(JobDriver):
    """A job whose decisions are counted, as its host does."""

    def __init__(self, job: JobSettings) -> None:
        super().__init__(job)
        self.counters = JobCounters(self.machine.state)

    def do(self, event: events.Event, *, after: float = 0.001) -> effects.Decision:
        decision = super().do(event, after=after)
        if isinstance(event, events.StepReported):
            self.counters.reported(event.step, self.now)
        for effect in decision.effects:
            if isinstance(effect, effects.Note):
                self.counters.noted(effect, self.machine.state, self.now)
            elif isinstance(effect, effects.Commit):
                self.counters.committed(effect, self.now)
        return decision


def running(*workers: str, ests: int = 4, **changes: Any) -> Tallied:
    job = Tallied(settings(ests, **changes))
    job.form(*workers)
    return job


def test_the_first_ring_is_a_start_and_replays_nothing() -> None:
    job = running("a", "b")
    assert job.counters.ring_changes == Counter(start=1)
    assert job.counters.steps_replayed == 0
    assert job.counters.events["ring_formed"] == 1 and job.counters.events["worker_joined"] == 2


def test_committed_steps_and_their_times() -> None:
    job = running("a", "b")
    for step in range(3):
        job.report("a", step)
        job.now += 0.5
        job.report("b", step)
    job.report("a", 3)
    job.report("b", 3)
    counters = job.counters
    assert counters.steps_committed == job.state.steps.committed == 3
    assert counters.commit_seconds.count == 3 and counters.commit_seconds.sum > 3 * 0.5
    # From commit to commit: one fewer than there are commits.
    assert counters.step_seconds.count == 2
    assert counters.step_seconds.distribution().buckets[-1] == ("+Inf", 2.0)


def test_a_death_is_a_loss_and_the_step_in_flight_is_done_again() -> None:
    job = running("a", "b", "c")
    job.steps(0, 3)
    job.lose("b")
    assert job.counters.losses == Counter(death=1)
    assert job.counters.ring_changes == Counter(start=1, loss=1)
    job.all_ready(3)
    assert job.counters.steps_replayed == 1  # step 3 had begun
    job.steps(3, 5)
    assert job.counters.steps_replayed == 1


def test_a_second_death_before_the_ring_forms_repeats_nothing_more() -> None:
    job = running("a", "b", "c")
    job.steps(0, 3)
    job.lose("b")
    job.lose("c")
    job.all_ready(3)
    assert job.counters.steps_replayed == 1
    assert job.counters.losses == Counter(death=2) and job.counters.ring_changes == Counter(start=1, loss=2)


def test_planned_changes_have_their_cause_and_replay_nothing() -> None:
    job = running("a", "b")
    job.steps(0, 2)
    job.join("c")
    job.step(2)
    assert job.counters.ring_changes == Counter(start=1, join=1)
    job.all_ready(3)
    job.do(events.LeavingReported("c", job.session("c"), "SIGTERM", 30.0))
    job.step(3)
    assert job.counters.ring_changes == Counter(start=1, join=1, drain=1)
    assert job.counters.drains == Counter(signal=1)
    job.all_ready(4)
    job.do(events.ScaleRequested("r", 1, 1))
    job.step(4)
    assert job.counters.ring_changes == Counter(start=1, join=1, drain=1, scale=1)
    job.all_ready(5)
    assert job.counters.steps_replayed == 0


def test_an_announced_reclaim_is_told_from_a_signal_and_from_an_operator() -> None:
    job = running("a", "b", "c")
    job.do(events.LeavingReported("a", "a-1", "spot notice of aws: spot terminate", 120.0))
    job.do(events.DrainRequested("r", "b"))
    assert job.counters.drains == Counter(reclaim=1, operator=1)
    # An agent that drains a worker on another host says why; for people it is a wish like an operator's.
    job.do(events.DrainRequested("s", "c", "asked for by its agent: the job wants 1 worker"))
    assert job.counters.drains == Counter(reclaim=1, operator=2)
    drains = [note.event for note in job.noted("worker_draining")]
    assert [event.by for event in drains] == ["reclaim", "operator", "agent"]  # type: ignore[union-attr]


def test_steps_after_the_newest_checkpoint_are_counted_when_history_goes_back() -> None:
    job = running("a", ests=2, checkpoint_url="file:///c")
    job.steps(0, 4)
    job.applied("a", 4)
    assert job.state.steps.committed == 4
    job.lose("a")
    job.join("b")
    job.tick_due()
    job.ready("b")
    job.loaded("b", 0)
    # Steps 0 to 3 were committed and step 4 had begun.
    assert job.counters.steps_replayed == 5


def test_checkpoints_by_outcome_and_their_time() -> None:
    job = running("a", ests=2, checkpoint_url="file:///c", checkpoint_interval_steps=2)
    job.steps(0, 2)
    message = job.take(effects.Prepared)["a"].then_checkpoint
    assert message is not None
    job.saved("a", message)
    job.now += 3.0
    job.saved("a", message, complete=True)
    counters = job.counters
    assert counters.checkpoints == Counter(saved=1) and counters.checkpoint_bytes == 8
    assert counters.checkpoint_seconds.count == 1 and counters.checkpoint_seconds.sum > 3.0
    job.steps(2, 4)
    message = job.take(effects.Prepared)["a"].then_checkpoint
    assert message is not None
    job.saved("a", message, error="no space")
    assert counters.checkpoints == Counter(saved=1, failed=1)


def test_a_tally_of_a_ring_that_runs_already_counts_from_there() -> None:
    job = running("a", "b")
    job.steps(0, 3)
    later = JobCounters(job.machine.state)
    job.counters = later
    job.lose("b")
    job.all_ready(3)
    assert later.ring_changes == Counter(loss=1) and later.steps_replayed == 1
    assert later.steps_committed == 1  # step 2, which was prepared before
