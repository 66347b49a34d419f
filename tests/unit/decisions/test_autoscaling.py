"""A job that scales by itself: its targets at step boundaries, its events and budget, operators' wishes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from elastane_master.decisions import autoscaling, effects, events, views
from elastane_master.decisions.events import Rejection, ScaleRequested, SuspendRequested
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
