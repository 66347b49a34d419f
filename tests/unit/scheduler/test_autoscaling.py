"""Autoscaling: the fitted model, the objectives, and the decisions step by step."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from itertools import pairwise

import autoscaling as study
import msgspec
import pytest

from elastane_scheduler.autoscaling.autoscaler import (
    BAR_SECONDS,
    CHANGES_MAX,
    MEASURE_STEPS,
    PAUSE_SECONDS,
    REACH_SECONDS,
    VERIFY_STEPS,
    AutoscalerState,
    Bar,
    Decision,
    Measurement,
    Rung,
    decide,
)
from elastane_scheduler.autoscaling.modes import MICROS, Budget, Deadline, Efficiency, Mode, Utility
from elastane_scheduler.autoscaling.objectives import Bounds, Situation, best, efficiency, rungs_within
from elastane_scheduler.autoscaling.speed_model import Sample, SpeedModel, possible
from elastane_scheduler.plan import ladder

WORTH = Utility(((0.0, 100.0), (1e6, 0.0)), linear=True)
FLAT = Utility(((0.0, 5.0), (100.0, 5.0)))
Law = Callable[[int], float]


def staircase(ests: int) -> Law:
    return lambda workers: float(-(-ests // workers))


class Job:
    """A job under the autoscaler in virtual time: `run` plays steps, every look of which is in `looks`."""

    def __init__(self, mode: Mode, law: Law, bounds: Bounds, workers: int, **facts: object) -> None:
        self.mode, self.law, self.bounds, self.workers = mode, law, bounds, workers
        self.noise = float(facts.pop("noise", 0.0))  # type: ignore[arg-type]
        self.total = facts.pop("total", 5000)
        self.most = int(facts.pop("most", bounds.ests))  # type: ignore[call-overload]
        self.facts = facts
        self.rng = random.Random(1)
        self.state, self.now, self.step = AutoscalerState(), 0.0, 0
        self.taken: list[float] = []
        self.looks: list[tuple[int, Decision]] = []

    def run(self, steps: int) -> Job:
        for _ in range(steps):
            seconds = self.law(self.workers) * max(0.2, self.rng.gauss(1.0, self.noise))
            self.now, self.step = self.now + seconds, self.step + 1
            self.taken.append(seconds)
            if len(self.taken) % 10 == MEASURE_STEPS:
                self.look()
        return self

    def look(self, **facts: object) -> Decision:
        left = None if self.total is None else max(0, int(self.total) - self.step)  # type: ignore[call-overload]
        window = self.taken[-40:]
        seen = Measurement(
            self.now, self.now, self.workers, statistics.median(window), len(window), left, change_seconds=0.5
        )
        seen = msgspec.structs.replace(seen, **{**self.facts, **facts})
        decision = decide(self.state, self.mode, self.bounds, seen)
        self.state = decision.state
        self.looks.append((self.step, decision))
        if min(decision.target, self.most) != self.workers:
            self.workers, self.taken = min(decision.target, self.most), []
        return decision

    @property
    def changes(self) -> list[tuple[int, str, int]]:
        return [
            (step, one.action, one.target) for step, one in self.looks if one.action in ("scale", "roll_back")
        ]

    @property
    def last(self) -> Decision:
        return self.looks[-1][1]


# ------------------------------------------------------------------ the model


@pytest.mark.parametrize(("al", "be"), [(0.0, 0.0), (0.7, 0.0), (0.0, 0.05), (0.4, 0.03)])
def test_three_exact_rungs_give_the_law_itself(al: float, be: float) -> None:
    law = SpeedModel(24, 0.3, al, be)
    [model] = possible(24, [Sample(rung, law.step_seconds(rung), 20) for rung in (2, 6, 24)])
    assert (
        model.compute_seconds,
        model.exchange_seconds,
        model.exchange_per_worker_seconds,
    ) == pytest.approx((0.3, al, be), abs=1e-9)


def test_terms_come_in_as_rungs_are_measured() -> None:
    law = SpeedModel(16, 1.0, 0.5, 0.1)
    samples = [Sample(rung, law.step_seconds(rung)) for rung in (16, 4, 1)]
    one, two, three = (possible(16, samples[:count])[0] for count in (1, 2, 3))
    assert (one.exchange_seconds, one.exchange_per_worker_seconds) == (0.0, 0.0)
    assert two.exchange_seconds > 0 and two.exchange_per_worker_seconds == 0.0
    assert three.exchange_per_worker_seconds == pytest.approx(0.1)
    assert possible(16, []) == ()
    assert {model.exchange_per_worker_seconds > 0 for model in possible(16, samples[:2])} == {True, False}


def test_no_term_is_negative_and_no_other_choice_of_terms_fits_better() -> None:
    rng = random.Random(5)
    for _ in range(300):
        rungs = rng.sample(ladder(24), 4)
        samples = [Sample(rung, rng.uniform(0.1, 5.0), rng.randint(1, 40)) for rung in rungs]
        [model] = possible(24, samples)
        terms = [model.compute_seconds, model.exchange_seconds, model.exchange_per_worker_seconds]
        least = 0.1 * min(one.step_seconds / -(-24 // one.workers) for one in samples)
        assert min(terms) >= 0 and terms[0] >= least

        def error(c: float, al: float, be: float, samples: list[Sample] = samples) -> float:
            other = SpeedModel(24, c, al, be)
            return sum(
                one.steps * (other.step_seconds(one.workers) / one.step_seconds - 1) ** 2 for one in samples
            )

        for _ in range(30):
            c, al, be = (max(0.0, term + rng.gauss(0, 0.05)) for term in terms)
            assert error(max(c, least), al, be) >= error(*terms) - 1e-9


# ------------------------------------------------------------------ the objectives


def test_only_numbers_that_pay_are_chosen_from_and_the_least_allowed() -> None:
    assert rungs_within(Bounds(16, 1, 16)) == (1, 2, 3, 4, 6, 8, 16)
    assert rungs_within(Bounds(16, 5, 12)) == (5, 6, 8)
    assert rungs_within(Bounds(16, 9, 15)) == (9,)
    assert rungs_within(Bounds(1, 1, 1)) == (1,)
    assert rungs_within(Bounds(13, 1, 13)) == (1, 2, 3, 4, 5, 7, 13)


def chosen(
    mode: Mode, law: Law, steps: int | None = 1000, price: float = 0.0, spent: int = 0, ests: int = 16
) -> int:
    situation = Situation(0.0, 0.0, steps, price * MICROS, spent)
    return best(mode, rungs_within(Bounds(ests, 1, ests)), law, situation).workers


def test_efficiency_takes_the_last_rung_that_gains_enough() -> None:
    assert chosen(Efficiency(0.1), staircase(16), None) == 16
    assert chosen(Efficiency(0.3), lambda k: 16 / k + 4 * (k > 1), None) == 8
    assert efficiency(4, 8.0, 8, 4.0) == 1.0 and efficiency(4, 8.0, 8, 8.0) == 0.0


def test_a_budget_buys_the_earliest_end_within_it_or_the_cheapest() -> None:
    law: Law = lambda k: 16 / k + 1.0 * (k > 1)  # noqa: E731
    costs = {k: 1000 * law(k) * k / 3600 for k in ladder(16)}
    assert chosen(Budget(round(costs[16] * 1.1 * MICROS)), law, price=1.0) == 16
    assert chosen(Budget(round(costs[4] * 1.1 * MICROS)), law, price=1.0) == 4
    assert chosen(Budget(MICROS), law, price=1.0) == 1
    assert chosen(Budget(MICROS), law, price=1.0, spent=2 * MICROS) == 1
    assert chosen(Budget(MICROS), law, price=0.0) == 16  # nothing costs anything


def test_a_deadline_takes_the_cheapest_end_in_time_or_the_earliest() -> None:
    law: Law = lambda k: 16 / k + 1.0 * (k > 1)  # noqa: E731
    for price in (0.0, 1.0):  # without a price the time of workers is what costs
        assert chosen(Deadline(1000 * law(4) * 1.1), law, price=price) == 4
        assert chosen(Deadline(1e9), law, price=price) == 1
        assert chosen(Deadline(5.0), law, price=price) == 16


def test_a_higher_price_never_asks_for_more_workers() -> None:
    rng = random.Random(3)
    for _ in range(200):
        model = SpeedModel(24, 1.0, rng.choice((0.0, 0.5)), rng.choice((0.0, 0.05)))
        mode = Utility(((0.0, 100.0), (rng.uniform(5e3, 3e4), 0.0)), linear=True)
        counts = [
            chosen(mode, model.step_seconds, price=price, ests=24) for price in (0.0, 0.1, 1.0, 10.0, 100.0)
        ]
        assert counts == sorted(counts, reverse=True)


# ------------------------------------------------------------------ decisions


@pytest.mark.parametrize("start", [1, 4, 8, 16])
def test_a_staircase_is_climbed_to_its_end_where_the_step_one_rule_stays(start: int) -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), start, noise=0.02).run(400)
    assert job.workers == 16
    case = study.Case(16, start, "computing alone", 0.0, "linear", 2000, 1)
    assert study.step_one_rule(case) == {1: 4, 4: 4, 8: 8, 16: 16}[start]


def test_two_rungs_are_measured_then_the_best_is_jumped_to_and_verified() -> None:
    law: Law = lambda k: -(-16 // k) + 1.5 * (k > 1) + 0.2 * (k - 1)  # noqa: E731
    job = Job(WORTH, law, Bounds(16, 1, 16), 1).run(600)
    assert [action for _, action, _ in job.changes] == ["scale"] * len(job.changes)
    assert job.changes[0][2] == 16 and len(job.changes) <= 3
    assert job.workers == min(ladder(16), key=law)


def test_a_rung_that_is_slow_is_left_within_thirty_steps_and_not_tried_for_ten_minutes() -> None:
    slow: Law = lambda k: 4.0 if k == 16 else 16 / k  # noqa: E731
    job = Job(WORTH, slow, Bounds(16, 1, 16), 8, total=100_000).run(2000)
    (first, _, to), (back, action, home) = job.changes[:2]
    assert (to, action, home) == (16, "roll_back", 8) and back - first <= 30
    begun = [(step, one) for step, one in job.looks if one.action == "roll_back"]
    assert begun[0][1].barred_seconds == BAR_SECONDS
    assert (begun[0][1].seconds_before, begun[0][1].seconds_after) == (2.0, 4.0)
    tried = [step for step, _, target in job.changes if target == 16]
    # 2 s a step: ten minutes are 300 of them, then twenty are 600.
    assert tried[1] - back >= 300 and tried[2] - tried[1] >= 600 and len(tried) == 3


def test_without_the_slow_rung_being_barred_it_would_be_tried_again_at_once() -> None:
    slow: Law = lambda k: 4.0 if k == 16 else 16 / k  # noqa: E731
    job = Job(WORTH, slow, Bounds(16, 1, 16), 8, total=100_000).run(60)
    assert job.workers == 8
    job.state = msgspec.structs.replace(job.state, barred={}, rungs={8: job.state.rungs[8]})
    job.run(40)
    assert [target for _, _, target in job.changes] == [16, 8, 16, 8]


def test_noise_of_thirty_percent_stays_within_the_limits() -> None:
    for seed in range(10):
        job = Job(WORTH, lambda k: 16 / k + 0.5, Bounds(16, 1, 16), 4, noise=0.3, total=50_000)
        job.rng = random.Random(seed)
        job.run(5000)
        assert_bounded(job)
        assert job.workers >= 8


def assert_bounded(job: Job) -> None:
    """At most 8 voluntary changes in any hour, half a minute apart, within the bounds."""
    times = [decision.state.now for _, decision in job.looks if decision.action == "scale"]
    assert all(later - earlier >= PAUSE_SECONDS for earlier, later in pairwise(times))
    for place, at in enumerate(times):
        assert sum(1 for other in times[place:] if other < at + 3600) <= CHANGES_MAX
    assert all(job.bounds.workers_min <= one.target <= job.bounds.workers_max for _, one in job.looks)


def test_measurements_that_lie_are_bounded_too() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        mode = rng.choice((WORTH, Efficiency(), Budget(5 * MICROS), Deadline(3000.0)))
        job = Job(mode, lambda k, rng=rng: rng.choice((0.01, 1.0, 30.0)), Bounds(16, 2, 12), 4, total=20_000)
        job.facts = {"worker_hour_micros": 1e6}
        job.run(3000)
        assert_bounded(job)


def test_pauses_and_evaluation_between_steps_do_not_count() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 16)
    steps = iter(range(10_000))
    job.law = lambda k: staircase(16)(k) + (500.0 if next(steps) % 25 == 0 else 0.0)
    job.run(600)
    assert job.workers == 16 and len(job.changes) <= 2


def test_flat_utility_never_grows_and_with_a_price_takes_the_cheapest() -> None:
    job = Job(FLAT, staircase(16), Bounds(16, 1, 16), 4).run(500)
    assert job.workers <= 4
    job = Job(FLAT, lambda k: 16 / k + (k > 1), Bounds(16, 1, 16), 4, worker_hour_micros=1e6).run(500)
    assert job.workers == 1


def test_with_one_number_the_end_is_still_foreseen_and_a_deadline_that_it_misses_is_said() -> None:
    job = Job(Deadline(1e12), staircase(16), Bounds(16, 4, 4), 4, total=1000)
    found = job.run(20).last
    assert found.met and found.predicted_finish_at is not None
    missed = Job(Deadline(1.0), staircase(16), Bounds(16, 4, 4), 4, total=1000).run(20).last
    assert not missed.met and len(missed.reason) > len(found.reason)


@pytest.mark.parametrize("bounds", [Bounds(1, 1, 1), Bounds(16, 4, 4), Bounds(16, 9, 15)])
def test_one_possible_number_is_kept(bounds: Bounds) -> None:
    job = Job(WORTH, staircase(bounds.ests), bounds, bounds.workers_min).run(100)
    assert job.changes == [] and job.last.target == bounds.workers_min and "only" in job.last.reason


def test_a_prime_number_of_ests() -> None:
    assert Job(WORTH, staircase(13), Bounds(13, 1, 13), 5, noise=0.02).run(300).workers == 13


def test_unknown_steps_allow_efficiency_alone() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 4, total=None).run(100)
    assert job.last.action == "none" and "only efficiency" in job.last.reason and job.changes == []
    assert Job(Efficiency(), staircase(16), Bounds(16, 1, 16), 4, total=None).run(300).workers == 16


def test_a_deadline_out_of_reach_is_said_at_once_with_the_earliest_time() -> None:
    for at in (5.0, -100.0):  # out of reach, and past
        job = Job(Deadline(at), staircase(16), Bounds(16, 1, 16), 8, total=1000)
        job.run(3)
        assert job.last.action == "scale" and job.last.target == 16 and not job.last.met
        assert "is missed, the earliest is 1970-01-01T00:" in job.last.reason
        assert job.run(200).workers == 16


def test_a_deadline_in_reach_is_met_with_few_workers() -> None:
    job = Job(
        Deadline(1000 * 4.5), lambda k: 16 / k + 0.5 * (k > 1), Bounds(16, 1, 16), 16, noise=0.05, total=1000
    )
    job.run(1000)
    assert job.now <= 4500 and job.workers < 6


def test_a_budget_without_prices_is_said_not_to_be_kept() -> None:
    job = Job(Budget(MICROS), staircase(16), Bounds(16, 1, 16), 8).run(40)
    assert all("the budget cannot be kept" in one.reason for _, one in job.looks)
    job.facts["worker_hour_micros"] = 1e6
    assert "cannot be kept" not in job.look().reason


def test_a_budget_that_is_spent_takes_the_cheapest_rung() -> None:
    job = Job(Budget(MICROS), lambda k: 16 / k + (k > 1), Bounds(16, 1, 16), 8, worker_hour_micros=1e6)
    job.facts["spent_micros"] = 2 * MICROS
    job.run(200)
    assert job.workers == 1 and not job.last.met and "the budget is spent" in job.last.reason


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_times_that_are_none_decide_nothing(seconds: float) -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 8).run(9)
    before = len(job.changes)
    assert job.look(step_seconds=seconds).action == "none" and len(job.changes) == before


def test_a_clock_that_steps_back_stands_still() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 8).run(30)
    latest = job.state.now
    job.now -= 1000
    job.run(20)
    assert job.state.now == latest and len(job.state.changes) == 1


def test_few_steps_left_change_nothing() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 8, total=20).run(20)
    assert job.changes == []


def test_a_short_job_whose_first_ring_is_small_still_asks_for_all() -> None:
    seen = Measurement(10.0, 10.0, 1, 1.0, MEASURE_STEPS, 20)
    decision = decide(AutoscalerState(), WORTH, Bounds(16, 1, 16), seen)
    assert (decision.target, decision.state.target) == (16, 0) and "as many as may train" in decision.reason


def test_a_rung_that_is_reached_and_good_is_barred_as_for_the_first_time_again() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 4, total=500_000).run(100)
    assert job.workers == 16
    for _ in range(3):  # workers go missing for longer than a target may stay out of reach, and come back
        job.most = job.workers = 8
        job.taken = []
        job.run(round(REACH_SECONDS / 2) + 40)
        assert job.state.barred[16].seconds == BAR_SECONDS and job.last.target == 8
        job.most = 16
        job.run(round(BAR_SECONDS) + 40)
        assert job.workers == 16 and 16 not in job.state.barred


def test_a_target_that_is_not_reached_is_left_for_a_while() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 4, most=8, total=50_000).run(30)
    assert job.last.target == 16 and job.workers == 8
    job.run(round(REACH_SECONDS / 2) + 20)
    assert job.last.target == 8 and job.state.barred[16].seconds == BAR_SECONDS
    assert any("8 of 16 workers train after" in one.reason for _, one in job.looks)


def test_a_drift_counts_for_its_ring_alone_and_a_ring_of_another_size_is_measured() -> None:
    known = AutoscalerState(
        target=1, rungs={2: Rung(3.0, 25, 10.0)}, barred={2: Bar(900.0, 600.0)}, drifts=1, now=500.0
    )
    seen = Measurement(1000.0, 1000.0, 1, 2.0, 25, 100)
    for target in (1, 2):  # as wanted, and short
        state = msgspec.structs.replace(known, target=target, short_since=0.0)
        assert decide(state, Budget(MICROS), Bounds(2, 1, 2), seen).state.rungs[1].step_seconds == 2.0


def test_a_ring_of_a_number_that_does_not_pay_stays_while_all_others_are_barred() -> None:
    barred = {rung: Bar(1000.0, 600.0) for rung in (4, 6)}
    state = AutoscalerState(target=6, barred=barred, rungs={4: Rung(4.0, 25, 0.0)}, now=500.0)
    seen = Measurement(600.0, 600.0, 5, 4.0, 25, 1000)
    state = msgspec.structs.replace(state, short_since=0.0)
    for mode in (WORTH, Efficiency(0.1), Budget(MICROS)):
        assert decide(state, mode, Bounds(16, 4, 6), seen).target == 5


def beside_a_straggler() -> Job:
    """A job of eight workers, of which one has been a straggler for five minutes; sixteen are slow."""
    slow: Law = lambda k: 8.0 if k == 16 else 32 / k  # noqa: E731
    job = Job(WORTH, slow, Bounds(16, 1, 16), 8, total=100_000, straggler="w0")
    job.state = AutoscalerState(target=8)
    job.run(70)
    assert job.changes == [] and "w0 is a straggler: nothing is measured" in job.last.reason
    return job


def test_a_jump_beside_a_straggler_that_stayed_is_verified_as_any_other() -> None:
    job = beside_a_straggler().run(50)
    assert [change[1:] for change in job.changes[:2]] == [("scale", 16), ("roll_back", 8)]


def test_another_straggler_is_waited_for_and_one_that_was_gone() -> None:
    job = beside_a_straggler().run(30)
    assert job.changes and "is a straggler" not in job.last.reason
    assert "w1 is a straggler" in job.look(straggler="w1").reason
    assert "is a straggler" not in job.look(straggler="").reason
    assert "w0 is a straggler" in job.look().reason


def test_whatever_is_measured_a_decision_is_made() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ests, state, now, ring = rng.choice([1, 2, 3, 7, 13, 16]), AutoscalerState(), 0.0, 1
        most = rng.randint(1, ests)
        bounds = Bounds(ests, rng.randint(1, most), most)
        mode = rng.choice([WORTH, FLAT, Efficiency(0.1), Budget(MICROS), Deadline(5000.0)])
        for _ in range(40):
            now += rng.choice([1.0, 20.0, 400.0, 4000.0])
            seconds = -(-ests // ring) * rng.uniform(0.5, 2.0)
            left = rng.choice([None, 0, 10, 100_000])
            seen = Measurement(now, now, ring, seconds, rng.choice([2, 5, 25]), left, spent_micros=5)
            state = decide(state, mode, bounds, seen).state
            ring = state.target if state.target and rng.random() < 0.6 else rng.randint(1, ests)


def test_another_type_of_device_is_measured_anew() -> None:
    job = Job(WORTH, staircase(16), Bounds(16, 1, 16), 8, device_type="V100").run(200)
    assert set(job.state.rungs) == {8, 16}
    job.facts["device_type"] = "T4"
    job.look()
    assert set(job.state.rungs) == {16} and job.state.device_type == "T4"


def test_a_drift_of_a_fifth_is_measured_anew_and_less_is_not() -> None:
    for factor, anew in ((1.15, False), (1.3, True)):
        job = Job(WORTH, lambda k: 16 / k + 1, Bounds(16, 1, 16), 8).run(200)
        law = job.law
        job.law = lambda k, law=law, factor=factor: factor * law(k)
        changes = len(job.changes)
        job.run(300)
        assert (len(job.changes) > changes) is anew, factor


def test_a_decision_depends_on_its_input_alone() -> None:
    one = Job(WORTH, staircase(16), Bounds(16, 1, 16), 4, noise=0.05).run(300)
    again = Job(WORTH, staircase(16), Bounds(16, 1, 16), 4, noise=0.05).run(300)
    assert one.looks == again.looks
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(one.state), type=AutoscalerState)
    assert stored == one.state and VERIFY_STEPS == 20


# ------------------------------------------------------------------ the study


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_the_study_holds_on_a_part_of_its_runs(noise: float) -> None:
    """All 1,800 runs: benchmarks/autoscaling.py."""
    found = study.study(noise, every=20)
    assert found.runs >= 30
    assert found.near >= 0.97 and found.regret <= 0.03 and found.changes <= 3
    assert found.monotone and found.rising == 0


def test_bounds_that_change_while_a_rung_is_verified_end_the_verification() -> None:
    job = Job(Efficiency(), staircase(16), Bounds(16, 1, 16), 8).run(5)
    assert job.state.before == 8 and job.workers == 16
    job.bounds, job.workers, job.taken = Bounds(16, 1, 8), 8, []
    job.run(3)
    assert job.state.before == 0 and job.last.target == 8
    assert job.run(200).workers == 8
