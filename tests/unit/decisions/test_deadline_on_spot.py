"""A deadline with workers on demand: what the master asks for, when, and who trains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastane_master.decisions import autoscaling, balance, deadline_on_spot, effects, events
from elastane_master.decisions.deadline_on_spot import POLL_SECONDS
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.operators import scale_preview
from elastane_scheduler.autoscaling.spot_deadline import SpotRung
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=10_000, epochs=1)
DEADLINE = 1_800_000_000.0
COLD = 60.0
NEEDED = 10_000 * 0.5
"""10,000 steps of 0.5 s with four workers."""
LAST = DEADLINE - NEEDED - 2 * COLD - POLL_SECONDS


class Spot(JobDriver):
    """A job of four ESTs with a deadline; an EST's part of a step takes 0.4 s, and the rest 0.1 s."""

    def __init__(self, begins: float = DEADLINE - 20_000, **changes: Any) -> None:
        wanted = {"on_demand_workers": 4, "cold_start_seconds": COLD, "workers_min": 1, **changes}
        super().__init__(settings(4, scaling=f"deadline={DEADLINE:.0f}", **wanted), LONG)
        self.now = begins

    def attend(self, worker: str, capacity: str = "spot") -> None:
        self.join(worker, capacity=capacity)

    def train(self, *workers: str) -> None:
        """The first ring, of spot workers that have measured their steps."""
        self.form(*workers)
        self.measure()

    def measure(self) -> None:
        for worker in self.members:
            member = self.state.ring.member(worker)
            event = events.AppliedReported(
                worker,
                self.session(worker),
                self.generation,
                self.state.workers[worker].applied_step,
                device_type="t4",
                est_seconds=0.4,
                est_steps=balance.EST_STEPS_MIN,
                ring_generation=self.generation,
                ring_step_seconds=0.4 * (member.end - member.start) + 0.1,
                ring_steps=balance.RING_STEPS_MIN,
            )
            self.do(event)

    def look(self) -> None:
        """Time passes until the next decision, at the latest."""
        due = self.state.scaling.spot.look_at
        self.tick(after=max(0.0, due - self.now))

    @property
    def targets(self) -> tuple[int, int]:
        shown = autoscaling.view(self.state)
        assert shown is not None
        return shown.workers_target, shown.on_demand_target

    @property
    def reason(self) -> str:
        return str(self.state.scaling.reason)


def trained(*workers: str, **changes: Any) -> Spot:
    """A job that trains on these workers, on spot, and was looked at."""
    job = Spot(**changes)
    job.train(*(workers or ("a", "b")))
    job.look()
    return job


def test_rungs_are_those_within_the_bounds_as_measured() -> None:
    job = trained()
    assert [(rung.workers, pytest.approx(rung.step_seconds)) for rung in job.state.scaling.spot.rungs] == [
        (1, 1.7),
        (2, 0.9),
        (4, 0.5),
    ]
    bounded = trained(workers_min=2, workers_max=3)
    assert [rung.workers for rung in bounded.state.scaling.spot.rungs] == [2]


def test_no_rung_has_too_little_memory_for_the_ests() -> None:
    job = trained()
    job.state.balance.ests_max["t4"] = 2
    found = deadline_on_spot.measured(job.state, job.state.settings)
    assert [rung.workers for rung in found.rungs] == [2, 4]


def test_spot_is_asked_for_at_the_widest_rung_and_nothing_on_demand() -> None:
    job = trained()
    assert job.targets == (4, 0)
    assert "spot at the widest rung" in job.reason
    assert job.state.scaling.predicted_finish_at == pytest.approx(job.now + NEEDED + COLD, abs=1)


def test_the_last_moment_comes_also_while_nobody_trains() -> None:
    job = trained()
    job.lose("a")
    job.lose("b")
    assert job.state.phase == "waiting" and job.targets == (4, 0)
    while job.now < LAST - 1:
        job.now = min(LAST - 1, job.now + 3600)
        job.tick()
        assert job.targets == (4, 0)
    job.tick_due()  # as the server's clock would
    assert job.targets == (4, 4)
    assert LAST <= job.now <= LAST + POLL_SECONDS
    (note,) = [note for note in job.noted("scaled") if note.event.on_demand]  # type: ignore[attr-defined]
    assert (note.event.workers_before, note.event.workers) == (4, 4)  # type: ignore[attr-defined]
    assert "last moment" in note.event.why  # type: ignore[attr-defined]


def test_on_demand_fills_beside_the_spot_that_is_there() -> None:
    job = trained(begins=LAST)
    assert job.targets == (4, 2)
    job.lose("b")
    assert job.targets == (4, 3), "at once, not at the next poll"
    job.attend("c")  # spot that comes back releases nobody
    assert job.targets == (4, 3)


def test_workers_on_demand_take_the_place_of_spot_where_both_are_there() -> None:
    job = trained("a", "b", "c", "d", begins=DEADLINE - NEEDED - COLD)
    assert job.targets == (4, 4), "no loss of spot can be made good any more"
    assert job.members == ("a", "b", "c", "d"), "and it trains until they are there"
    job.attend("x", "on_demand")
    job.attend("y", "on_demand")
    job.step(0)
    job.all_ready(1)
    assert set(job.members) == {"a", "b", "x", "y"}
    job.attend("z", "on_demand")
    job.step(1)
    job.all_ready(2)
    assert set(job.members) == {"a", "x", "y", "z"}
    assert "stands by" in job.state.workers["d"].reason


def test_surplus_workers_on_demand_give_way_to_spot() -> None:
    job = trained("a", "b", "c")
    job.attend("x", "on_demand")
    job.step(0)
    job.all_ready(1)
    assert job.members == ("a", "b", "c", "x"), "as long as there is no other"
    job.attend("d")
    job.step(1)
    assert job.members == ("a", "b", "c", "d")


def test_steps_count_whole_also_in_a_ring_that_was_not_measured_yet() -> None:
    job = trained()
    job.lose("b")
    job.all_ready(0)
    job.look()
    assert [pytest.approx(rung.step_seconds) for rung in job.state.scaling.spot.rungs] == [1.7, 0.9, 0.5]


def test_what_a_step_needs_besides_its_ests_is_known_by_the_number_of_workers() -> None:
    job = trained()
    job.state.scaling.spot.rests = {4: 0.3}  # a wider ring has a dearer exchange
    job.look()
    assert [pytest.approx(rung.step_seconds) for rung in job.state.scaling.spot.rungs] == [1.9, 0.9, 0.7]


def test_the_first_measurement_counts_at_once() -> None:
    job = Spot()
    job.train("a", "b")
    job.lose("a")
    job.lose("b")
    assert len(job.state.scaling.spot.rungs) == 3


def test_no_rung_is_known_before_whole_steps_were_measured() -> None:
    job = Spot()
    job.form("a", "b")
    for worker in job.members:
        job.state.workers[worker].est_seconds = 0.4
    job.look()
    assert job.state.scaling.spot.rungs == () and job.targets == (4, 0)
    assert "no step was measured yet" in job.reason


def test_that_the_number_of_steps_is_unknown_is_said_and_not_that_nothing_was_measured() -> None:
    job = trained("a", "b", "c", "d")
    job.state.signature = msgspec.structs.replace(LONG, epochs=0)
    job.look()
    assert "the number of steps is unknown" in job.reason and job.targets == (4, 0)


def test_fewer_on_demand_than_may_train_are_said_to_be_too_few() -> None:
    job = trained("a", "b", "c", "d", workers_min=3, on_demand_workers=2)
    assert "only 2 may be on demand, and 3 are the fewest that train" in job.reason


def test_without_a_ring_one_worker_on_demand_measures_after_spot_had_its_time() -> None:
    job = Spot()
    job.tick(after=0.0)
    assert job.targets == (4, 0)
    while job.now < DEADLINE - 20_000 + COLD + POLL_SECONDS:
        job.look()
    assert job.targets == (4, 1)
    assert "one worker on demand measures it" in job.reason


def test_a_deadline_out_of_reach_is_said_at_once_and_trains_at_full_width() -> None:
    job = trained(begins=DEADLINE - 1000)
    assert job.targets == (4, 4)
    assert "out of reach" in job.reason and "at the earliest" in job.reason


def test_uniform_progress_can_be_chosen() -> None:
    job = trained(spot_policy="uniform", on_demand_workers=2)
    assert job.targets == (2, 0) and job.reason == "spot is there"
    job.lose("a")
    job.lose("b")
    job.now += 2000
    job.look()
    assert job.targets == (4, 2) and "on demand" in job.reason  # spot is asked for, too


@pytest.mark.parametrize(
    "changes", [{"on_demand_workers": 0}, {"scaling": ""}, {"scaling": "efficiency"}], ids=str
)
def test_other_jobs_are_left_alone(changes: dict[str, Any]) -> None:
    driver = JobDriver(
        settings(4, **{"scaling": f"deadline={DEADLINE:.0f}", "on_demand_workers": 2, **changes})
    )
    driver.now = LAST
    driver.form("a", "b")
    assert deadline_on_spot.next_look(driver.state) is None
    assert driver.state.scaling.spot.look_at is None and driver.state.scaling.on_demand_target == 0


def test_a_job_that_is_over_or_suspended_asks_for_nobody() -> None:
    job = trained()
    job.do(events.CancelRequested("r"))
    assert deadline_on_spot.next_look(job.state) is None


def test_once_every_step_is_done_the_targets_stay() -> None:
    job = trained(begins=LAST)
    assert job.targets == (4, 2)
    job.state.steps.committed = job.state.total_steps
    assert deadline_on_spot.next_look(job.state) is None
    job.lose("b")
    assert job.targets == (4, 2)


def test_a_clock_that_steps_back_takes_nothing_back() -> None:
    job = trained(begins=LAST)
    job.lose("a")
    job.lose("b")
    assert job.targets == (4, 4)
    job.now -= 10_000
    job.attend("c")
    assert job.targets == (4, 4)


def test_the_decision_survives_a_restart() -> None:
    job = trained(begins=LAST)
    before = job.state.scaling
    job.machine = JobMachine.restore(job.machine.snapshot())
    assert job.state.scaling == before and before.spot.memory.for_good
    job.do(events.MasterStarted("m"))
    assert deadline_on_spot.next_look(job.state) is None, "workers may return"


def test_another_deadline_is_decided_anew() -> None:
    job = trained(begins=LAST)
    assert job.targets == (4, 2)
    request = events.ScaleRequested("r", 0, 0, scaling=f"deadline={DEADLINE + 50_000:.0f}")
    (told,) = scale_preview(job.state, request, job.now)
    assert job.targets == (4, 2), "a dry run changes nothing"
    job.do(request)
    assert job.targets == (4, 0)
    assert (told.target, told.action, told.reason) == (4, "scale", job.reason)
    assert job.state.scaling.spot.rungs[-1] == SpotRung(4, pytest.approx(0.5))


def test_members_are_told_as_ever() -> None:
    job = trained()
    assert not job.take(effects.Drain), "targets change nobody's training by themselves"
