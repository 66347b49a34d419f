"""A job that scales by itself: its targets at step boundaries, its events and budget, operators' wishes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from elastane_master.decisions import autoscaling, budget, effects, events, views
from elastane_master.decisions.events import Rejection, ResumeRequested, ScaleRequested, SuspendRequested
from elastane_master.decisions.machine import JobMachine
from elastane_proto.history import events as history
from elastane_proto.history.describe import describe
from elastane_scheduler.autoscaling.autoscaler import decide
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=100_000, epochs=1)
Law = Callable[[int], float]


def staircase(workers: int) -> float:
    return float(-(-16 // workers))


class Scaled(JobDriver):
    """A job whose ring always gets the workers it asks for, as an agent does, and whose steps take `law`."""

    def __init__(self, mode: str, law: Law, *, workers: int = 8, **changes: object) -> None:
        super().__init__(settings(16, **changes), LONG)
        self.law, self.names = law, 0
        self.form(*(self._name() for _ in range(workers)))
        if mode:  # set while it trains, it begins with the workers that are there
            self.do(ScaleRequested("", 0, 0, scaling=mode))

    def do(self, event: events.Event, *, after: float = 0.0) -> effects.Decision:
        return super().do(event, after=after)

    def _name(self) -> str:
        self.names += 1
        return f"w{self.names}"

    def steps(self, count: int) -> Scaled:
        """Do steps; between them workers are started and released as the target says."""
        done = 0
        while done < count:
            if self.state.phase != "running":
                return self
            if self.state.ring.stage != "running":
                self._form_next()
                continue
            step = self.state.steps.current
            for place, worker in enumerate(self.state.ring.names()):
                self.now += self.law(len(self.state.ring.names())) if place == 0 else 0.0
                self.report(worker, step)
            done += 1
            for worker in self.state.ring.names():
                if worker in self.state.workers:
                    self.applied(worker, step + 1)
            self._follow()
        return self

    def _follow(self) -> None:
        if not self.state.settings.scaling:
            return
        target = self.target
        there = [record for record in self.state.workers.values() if not record.draining]
        for _ in range(target - len(there)):
            self.join(self._name())
        if target < len(there) and self.state.ring.stage == "running":
            for record in there:
                if self.state.ring.member(record.worker) is None:
                    self.do(events.ByeReported(record.worker, self.session(record.worker), "drained", "", 0))

    def _form_next(self) -> None:
        ring = self.state.ring
        step = self.state.steps.prepared + 1
        for member in ring.members:
            record = self.state.workers[member.worker]
            self.ready(member.worker, step if record.holds_state else 0, holds=record.holds_state)

    @property
    def target(self) -> int:
        return autoscaling.workers_target(self.state)

    def scaled(self, kind: type[history.HistoryEvent] = history.JobAutoscaled) -> list[history.HistoryEvent]:
        return [note.event for note in self.notes if isinstance(note.event, kind)]


def test_a_job_climbs_the_staircase_and_tells_of_it_with_rates() -> None:
    job = Scaled("efficiency", staircase, workers=4).steps(120)
    assert len(job.state.ring.members) == job.target == 16
    first = job.scaled()[0]
    assert isinstance(first, history.JobAutoscaled)
    assert (first.workers_before, first.workers, first.mode) == (4, 16, "efficiency=0.1")
    assert first.rate_before == pytest.approx(0.25, rel=0.01) and first.rate_predicted == pytest.approx(
        1.0, rel=0.01
    )
    assert [type(event) for event in job.scaled(history.ScaleRolledBack)] == []


def test_a_slow_rung_is_left_within_thirty_steps_and_barred() -> None:
    job = Scaled("efficiency", lambda k: 4.0 if k == 16 else staircase(k)).steps(20)
    assert len(job.state.ring.members) == 16
    job.steps(12)
    assert len(job.state.ring.members) == 8
    (event,) = job.scaled(history.ScaleRolledBack)
    assert isinstance(event, history.ScaleRolledBack)
    assert (event.workers_tried, event.workers, event.barred_seconds) == (16, 8, 600.0)
    assert event.rate_before == pytest.approx(0.5, rel=0.01) and event.rate_after == pytest.approx(
        0.25, rel=0.01
    )
    at = job.now
    while len(job.scaled()) == 1:
        job.steps(1)
    assert job.now - at >= 560 and job.scaled()[1].workers == 16  # type: ignore[attr-defined]


def test_a_target_that_falls_since_nobody_comes_is_told() -> None:
    job = Scaled("efficiency", staircase, workers=4, workers_min=4, workers_max=6)
    job._follow = lambda: None  # type: ignore[method-assign]  # nobody can start a worker
    job.steps(120)
    assert job.target == 4
    told = [(event.workers_before, event.workers) for event in job.scaled()]  # type: ignore[attr-defined]
    assert told == [(4, 6), (6, 4)]


def test_workers_beyond_the_target_stand_by_and_the_bounds_hold() -> None:
    job = Scaled("efficiency", lambda k: 1.0, workers=8, workers_max=12, workers_min=2).steps(200)
    assert len(job.state.ring.members) == job.target <= 4
    job.do(ScaleRequested("", 3, 4))
    assert 3 <= job.target <= 4 and job.state.settings.scaling == "efficiency=0.1"


def test_the_state_survives_its_stored_form_and_older_stores_have_none() -> None:
    job = Scaled("efficiency", staircase, workers=4).steps(30)
    again = JobMachine.restore(job.machine.snapshot())
    assert again.state.scaling == job.state.scaling and again.state.scaling.autoscaler.rungs


def test_a_job_that_is_created_so_asks_for_as_many_as_may_train() -> None:
    machine = JobMachine.create("job", settings(16, scaling="efficiency", workers_max=12), 0.0)
    shown = views.job_view(machine).scaling
    assert shown is not None and shown.workers_target == 12 and "nothing is measured yet" in shown.reason


def test_measuring_is_off_for_jobs_that_do_not_scale() -> None:
    job = Scaled("", staircase).steps(30)
    assert job.state.scaling == type(job.state.scaling)() and views.job_view(job.machine).scaling is None


def test_a_deadline_is_told_of_with_the_predicted_end() -> None:
    job = Scaled("deadline=+30d", staircase, workers=16).steps(100)
    shown = views.job_view(job.machine).scaling
    assert shown is not None and shown.deadline_at == pytest.approx(30 * 86_400, abs=200)
    assert shown.predicted_finish_at is not None and shown.predicted_finish_at <= shown.deadline_at
    assert shown.workers_target == len(job.state.ring.members) < 16


def test_a_deadline_that_is_past_is_said_at_once_and_trains_at_full_width() -> None:
    job = Scaled("deadline=1970-01-01T00:00:50Z", staircase)
    shown = views.job_view(job.machine).scaling
    assert shown is not None and "is past" in shown.reason and shown.workers_target == 8
    job.steps(60)
    assert "the earliest is 1970-01-0" in job.state.scaling.reason and job.target == 16


PRICED = {"spot_price_micros": 3_600_000, "checkpoint_url": "file:///x"}


def test_a_spent_budget_suspends_the_job_if_its_user_wants_that() -> None:
    job = Scaled("budget=0.5", staircase, over_budget="suspend", **PRICED).steps(60)
    assert job.state.suspending or job.state.phase == "suspended"
    assert autoscaling.why_suspended(job.state) == "the budget of 0.50 USD is spent"


def test_a_budget_that_is_raised_while_the_job_suspends_itself_calls_that_off() -> None:
    job = Scaled("budget=0.5", staircase, over_budget="suspend", **PRICED).steps(60)
    assert job.state.suspending
    job.do(ScaleRequested("", 0, 0, scaling="budget=500"))
    assert not job.state.suspending and job.scaled(history.SuspensionCalledOff)
    job.do(SuspendRequested("s"))
    job.do(ScaleRequested("", 0, 0, scaling="budget=600"))
    assert job.state.suspending, "what an operator asked for is not called off"


def test_the_same_scaling_asked_for_again_goes_on_as_it_was() -> None:
    job = Scaled("efficiency", lambda k: 4.0 if k == 16 else staircase(k)).steps(32)
    known = job.state.scaling.autoscaler
    assert known.barred and job.target == 8
    job.do(ScaleRequested("", 0, 0, scaling="efficiency=0.1"))
    assert job.state.scaling.autoscaler == known, "a rung that was left is not tried again for that"


def test_a_spent_budget_takes_the_cheapest_number_otherwise() -> None:
    job = Scaled("budget=0.5", lambda k: 16 / k + (k > 1), **PRICED).steps(60)
    assert job.target == 1 and "the budget is spent" in job.state.scaling.reason


def test_an_operator_sets_and_ends_the_scaling() -> None:
    job = Scaled("", staircase, workers=4).steps(5)
    job.do(ScaleRequested("a", 0, 0, scaling="efficiency=0.2"))
    assert job.state.settings.scaling == "efficiency=0.2" and job.target == 4
    (event,) = job.scaled(history.ScalingSet)
    assert event == history.ScalingSet("efficiency=0.2", 1, 16)
    job.steps(60)
    assert job.target == 16
    job.do(ScaleRequested("b", 0, 0, scaling="off"))
    assert job.state.settings.scaling == "" and views.job_view(job.machine).scaling is None


def test_the_event_of_a_deadline_shows_a_time() -> None:
    job = Scaled("", staircase, workers=4).steps(5)
    job.do(ScaleRequested("a", 0, 0, scaling="deadline=2026-12-04T18:00+01:00"))
    (event,) = job.scaled(history.ScalingSet)
    assert event.mode == "deadline=1796403600"
    assert describe(event).endswith("within 1 to 16 workers: deadline=2026-12-04T17:00:00Z")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scaling": "efficiency=0"}, "theta is 0"),
        ({"scaling": "deadline=18:00"}, "no time zone"),
        ({"scaling": "budget=5 EUR"}, "prices are in USD"),
        ({"scaling": "budget=nan"}, "the budget is"),
        ({"on_demand_workers": 10**6}, "on_demand_workers is 1000000"),
        ({"cold_start_seconds": -1.0}, "cold_start_seconds is -1"),
    ],
)
def test_a_bad_scaling_is_refused_and_changes_nothing(changes: dict[str, object], words: str) -> None:
    job = Scaled("efficiency", staircase)
    with pytest.raises(Rejection, match=words):
        job.do(ScaleRequested("", 0, 0, **changes))  # type: ignore[arg-type]
    with pytest.raises(Rejection, match=words):
        JobMachine.create("job", msgspec.structs.replace(job.state.original, **changes), 0.0)


def test_fixed_recovery_cannot_scale() -> None:
    with pytest.raises(Rejection, match="fixed recovery"):
        JobMachine.create("job", settings(4, scaling="efficiency", recovery="fixed"), 0.0)


@pytest.mark.parametrize("mode", ["efficiency", "utility=100,1000000", "deadline=+20d", "budget=100"])
@pytest.mark.parametrize(
    ("start", "law"),
    [(4, staircase), (1, staircase), (16, staircase), (8, lambda k: staircase(k) + 0.5 * (k > 1))],
)
def test_the_dry_run_prints_the_decisions_that_the_live_run_takes(mode: str, start: int, law: Law) -> None:
    job = Scaled("", law, workers=start, spot_price_micros=1_000_000).steps(20)
    for worker in job.state.ring.names():  # as their heartbeats say it
        figures = {"ring_generation": 1, "ring_step_seconds": law(start), "ring_steps": 20}
        applied = events.AppliedReported(worker, job.session(worker), 1, 20, False)
        job.do(msgspec.structs.replace(applied, **figures))
    asked = msgspec.structs.replace(job.state.settings, scaling=mode)
    before = job.machine.snapshot()
    told = autoscaling.preview(job.state, asked, job.now)
    assert job.machine.snapshot() == before
    job.do(ScaleRequested("", 0, 0, scaling=mode))
    job.steps(200)
    taken = [
        event.workers
        for note in job.notes
        if isinstance(event := note.event, history.JobAutoscaled | history.ScaleRolledBack)
    ]
    expected = [one.target for one in told if one.action in ("scale", "roll_back")]
    assert taken[:1] == expected[:1]
    if law is staircase:  # else the exchange, which nobody has measured yet, makes another prediction
        assert taken == expected and told[-1].target == job.target


def test_measurements_replayed_give_the_same_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a live run decides depends on its measurements alone: the same log gives the same decisions."""
    log = []

    def logged(state, mode, bounds, seen):  # type: ignore[no-untyped-def]
        decision = decide(state, mode, bounds, seen)
        log.append((state, mode, bounds, seen, decision))
        return decision

    monkeypatch.setattr(autoscaling, "decide", logged)
    Scaled("utility=100,1000000", lambda k: 16 / k + 0.3 * (k > 1), workers=4).steps(200)
    assert len(log) >= 10
    for state, mode, limits, seen, decision in log:
        assert decide(state, mode, limits, seen) == decision


# ---------------------------------------------------------------- what must not make a verdict


class Settling:
    """A law by which the first steps of every ring take three times as long."""

    def __init__(self, law: Law, first: int) -> None:
        self.law, self.first, self.done = law, first, 0
        self.job: Scaled | None = None
        self.generation = 0

    def __call__(self, workers: int) -> float:
        assert self.job is not None
        generation = self.job.state.ring.generation
        self.done = self.done + 1 if generation == self.generation else 1
        self.generation = generation
        return self.law(workers) * (3.0 if self.done <= self.first else 1.0)


@pytest.mark.parametrize("first", [1, 2, 4, 5])
@pytest.mark.parametrize("mode", ["efficiency", "utility=100,1000000"])
def test_a_rung_that_was_measured_while_its_ring_settled_is_not_believed(first: int, mode: str) -> None:
    law = Settling(staircase, first)
    job = Scaled("", law, workers=4, workers_max=4)
    law.job = job
    job.do(ScaleRequested("", 0, 0, scaling=mode))
    job.steps(120)
    assert len(job.state.ring.members) == job.target == 4


class Hindered(Scaled):
    """A job one of whose workers is slow while `slow` is set, and known to be while it is flagged."""

    def __init__(self, law: Law, **changes: object) -> None:
        self.slow = False
        super().__init__("efficiency", lambda k: law(k) * (2.0 if self.slow else 1.0), **changes)  # type: ignore[arg-type]

    def hinder(self, *, slow: bool, flagged: bool) -> None:
        self.slow = slow
        self.state.workers[self.state.ring.names()[0]].straggler = "compute" if flagged else ""

    def verifying(self) -> Hindered:
        """Do steps until sixteen workers have been tried for five steps."""
        while len(self.state.ring.members) < 16 or self.state.scaling.steps < 5:
            self.steps(1)
        assert self.state.scaling.autoscaler.before == 8
        return self


def test_a_straggler_that_appears_while_a_rung_is_verified_makes_no_verdict() -> None:
    job = Hindered(staircase).verifying()
    job.hinder(slow=True, flagged=False)
    job.steps(5)
    job.hinder(slow=True, flagged=True)
    job.steps(60)
    assert "is a straggler: nothing is measured" in job.state.scaling.reason
    job.hinder(slow=False, flagged=False)
    job.steps(30)
    assert job.scaled(history.ScaleRolledBack) == []
    known = job.state.scaling.autoscaler
    assert (job.target, known.before, known.barred) == (16, 0, {})
    assert known.rungs[16].step_seconds == 1.0, "steps with the straggler are no measure"


def test_steps_that_become_longer_while_a_rung_is_verified_are_seen_longer() -> None:
    job = Hindered(staircase).verifying()
    job.steps(3)
    job.hinder(slow=True, flagged=False)  # it takes some thirty steps to be sure that a worker is one
    job.steps(20)
    assert "steps became longer while it was verified" in job.state.scaling.reason
    job.hinder(slow=True, flagged=True)
    job.steps(10)
    job.hinder(slow=False, flagged=False)
    job.steps(30)
    assert job.scaled(history.ScaleRolledBack) == [] and job.target == 16


def test_a_straggler_that_stays_ends_the_verification_and_counts_as_the_jobs_own_speed() -> None:
    job = Hindered(lambda k: 10 * staircase(k)).verifying()
    job.hinder(slow=True, flagged=True)
    job.steps(10)
    assert job.state.scaling.autoscaler.before == 8
    job.steps(15)
    known = job.state.scaling.autoscaler
    assert known.before == 16 and known.barred == {} and job.scaled(history.ScaleRolledBack) == []
    assert {rung: one.step_seconds for rung, one in known.rungs.items()} == {16: 20.0}, "measured anew"
    job.steps(60)
    assert [one.workers for one in job.scaled(history.ScaleRolledBack)] == [16], "eight are slower"


def test_workers_of_before_stand_by_while_fewer_are_tried_for_as_long_as_a_start_takes() -> None:
    job = Scaled("deadline=+30d", staircase, workers=16, cold_start_seconds=30.0)
    while job.target == 16:
        job.steps(1)
    tried = job.target
    asked = views.job_view(job.machine).scaling
    assert tried < 16 and asked is not None and asked.workers_target == 16
    at = job.now
    while autoscaling.workers_asked(job.state) == 16:
        job.steps(1)
    is_verified = job.state.scaling.autoscaler.before == 0
    assert is_verified or job.now - at == pytest.approx(30.0, abs=2 * staircase(tried))
    assert autoscaling.workers_asked(job.state) == job.target


# ---------------------------------------------------------------- a budget between boundaries


def until(job: Scaled, at: float) -> None:
    """Let time pass, with every Tick that is due."""
    for _ in range(20):
        due = job.machine.next_deadline()
        if due is None or due >= at:
            job.now = at
            return
        job.do(events.Tick(), after=max(0.0, due - job.now))
    raise AssertionError(f"the master does not come to rest: {due}, it is {job.now}")


def test_a_budget_is_spent_while_workers_only_wait() -> None:
    """Two of three workers attend, at one unit an hour each: three units last for an hour and a half."""
    job = Scaled("", staircase, workers=3, workers_min=3, **{**PRICED, "spot_price_micros": 1_000_000})
    job.do(ScaleRequested("", 0, 0, scaling="budget=3", over_budget="suspend"))
    job.lose(job.state.ring.names()[0])
    for worker in list(job.state.workers):
        job.applied(worker, 0)
    assert job.state.phase == "waiting" and job.machine.next_deadline() is not None
    until(job, 100 + 5390)
    assert job.state.phase == "waiting"
    until(job, 100 + 5410)
    assert job.state.phase == "suspended" and "the budget of 3.00 USD is spent" in job.state.reason
    spent = views.job_view(job.machine).cost.spent_micros  # type: ignore[union-attr]
    assert spent == pytest.approx(3_000_000, abs=2_000)


def test_a_job_whose_budget_is_spent_is_resumed_once_the_budget_is_raised() -> None:
    job = Scaled("", staircase, workers=3, workers_min=3, **PRICED)
    job.do(ScaleRequested("", 0, 0, scaling="budget=3", over_budget="suspend"))
    job.lose(job.state.ring.names()[0])
    for worker in list(job.state.workers):
        job.applied(worker, 0)
    until(job, 100 + 6000)
    assert job.state.phase == "suspended"
    before = job.machine.snapshot()
    with pytest.raises(Rejection, match=r"the budget of 3\.00 USD is spent: the job has cost 3\.00 USD"):
        job.do(ResumeRequested("r"))
    assert job.machine.snapshot() == before
    job.do(ScaleRequested("", 0, 0, scaling="budget=4"))
    job.do(ResumeRequested("s"))
    assert job.state.phase == "waiting"


def test_a_suspension_for_a_spent_budget_is_not_called_off_without_a_higher_one() -> None:
    job = Scaled("budget=0.5", staircase, over_budget="suspend", **PRICED).steps(60)
    assert job.state.suspending
    with pytest.raises(Rejection, match="is spent"):
        job.do(ResumeRequested("r"))
    job.do(ScaleRequested("", 0, 0, scaling="budget=0.5", over_budget="cheapest"))
    job.do(ResumeRequested("s"))
    assert not job.state.suspending


def test_a_budget_that_is_spent_in_a_long_step_suspends_the_job_at_its_end() -> None:
    job = Scaled("budget=500", staircase, over_budget="suspend", **PRICED).steps(8)
    due = job.machine.next_deadline()
    assert due is not None
    job.do(ScaleRequested("", 0, 0, scaling="budget=0.3"))
    spent_at = budget.spent_at(job.state)
    assert spent_at is not None and spent_at > job.now
    job.do(events.Tick(), after=spent_at - job.now - 0.01)
    assert not job.state.suspending
    job.do(events.Tick(), after=0.02)
    assert job.state.suspending and autoscaling.why_suspended(job.state)
    assert budget.spent_at(job.state) is None


def test_a_budget_that_is_spent_in_a_long_step_takes_the_cheapest_number_at_once() -> None:
    job = Scaled("budget=5000", lambda k: 16 / k + (k > 1), **PRICED).steps(60)
    assert job.target > 1
    spent = views.job_view(job.machine).cost.spent_micros / 1e6
    job.do(ScaleRequested("", 0, 0, scaling=f"budget={spent + 0.05:.4f}"))
    spent_at = budget.spent_at(job.state)
    assert spent_at is not None and spent_at > job.now and job.target > 1
    job.do(events.Tick(), after=spent_at - job.now + 0.01)
    assert job.target == 1 and "the budget is spent" in job.state.scaling.reason
    assert budget.spent_at(job.state) is None


def test_a_spent_budget_without_a_checkpoint_is_noticed_once() -> None:
    job = Scaled("", staircase, workers=3, workers_min=3, spot_price_micros=1_000_000)
    job.do(ScaleRequested("", 0, 0, scaling="budget=0.5", over_budget="suspend"))
    job.lose(job.state.ring.names()[0])
    until(job, 100_000)
    assert job.state.phase == "waiting" and budget.spent_at(job.state) is None
    assert "without a checkpoint_url" in job.state.scaling.reason


def test_without_prices_or_workers_a_budget_lasts() -> None:
    assert budget.spent_at(Scaled("budget=5", staircase).state) is None
    machine = JobMachine.create("job", settings(16, scaling="budget=5", **PRICED), 0.0)
    assert budget.spent_at(machine.state) is None and machine.next_deadline() is None
