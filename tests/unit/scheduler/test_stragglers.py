"""Which workers are slower than their like: soon enough, never by noise, and why."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_scheduler.autoscaling.stragglers import (
    FIRST_SAMPLES,
    RateRatio,
    Report,
    StragglerWatch,
    Usual,
    Verdict,
)


def flagged_after(ratios: Iterator[float], most: int, known: RateRatio | None = None) -> int | None:
    """Return after how many samples a worker is a straggler; None: not within `most`."""
    known = known or RateRatio()
    for count in range(1, most + 1):
        known.add(next(ratios))
        if known.is_straggler:
            return count
    return None


def noisy(ratio: float, noise: float, seed: int, others: int = 3) -> Iterator[float]:
    """Ratios of a worker whose seconds, as those of the others, have normal noise of this share."""
    rng = random.Random(f"{ratio} {noise} {seed}")

    def seconds() -> float:
        return max(0.05, rng.gauss(1.0, noise))

    while True:
        own = seconds() / ratio
        yield sorted([own, *(seconds() for _ in range(others))])[others // 2] / own


def constant(ratio: float) -> Iterator[float]:
    while True:
        yield ratio


def good() -> RateRatio:
    known = RateRatio()
    known.add(1.0, 50)
    return known


# ---------------------------------------------------------------- one worker


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("start", [RateRatio, good])
def test_three_quarters_of_the_rate_is_found_within_forty_samples(
    noise: float, start: Callable[[], RateRatio]
) -> None:
    for seed in range(50):
        found = flagged_after(noisy(0.75, noise, seed), 40, start())
        assert found is not None
        assert found > 5


def test_a_worker_at_five_sixths_is_none_in_ten_thousand_steps() -> None:
    for seed in range(50):
        assert flagged_after(noisy(1 / 1.2, 0.05, seed), 10_000) is None


def test_half_the_rate_after_a_good_start_is_found_after_five_samples() -> None:
    assert flagged_after(constant(0.5), 10, good()) == 5


def test_half_the_rate_from_the_first_sample_is_found_at_once() -> None:
    assert flagged_after(constant(0.5), 10) == 1


def test_among_the_first_ten_samples_only_a_ratio_below_six_tenths_counts() -> None:
    assert flagged_after(constant(0.62), FIRST_SAMPLES) is None
    assert flagged_after(constant(0.59), 1) == 1


def test_noise_of_thirty_percent_makes_nobody_a_straggler() -> None:
    for seed in range(20):
        known = RateRatio()
        known.add(1.0, FIRST_SAMPLES + 1)  # one of the first samples alone may be below 0.6
        assert flagged_after(noisy(1.0, 0.3, seed), 5000, known) is None


def test_pauses_make_nobody_a_straggler() -> None:
    known = good()
    for _ in range(200):
        for ratio in (1e-4, 1e-4, *[1.0] * 8):
            known.add(ratio)
            assert not known.is_straggler


def test_one_that_recovers_is_a_straggler_no_more_and_one_that_does_not_quite_is() -> None:
    known = good()
    for _ in range(20):
        known.add(0.5)
    assert known.is_straggler
    for _ in range(500):
        known.add(0.85)
        assert known.is_straggler
    for _ in range(15):
        known.add(1.0)
        assert known.is_straggler
    known.add(1.0, 10)
    assert not known.is_straggler
    assert known.is_usual


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), -float("inf"), -1.0, 0.0])
def test_what_is_no_ratio_changes_nothing(ratio: float) -> None:
    known = good()
    before = msgspec.structs.replace(known)
    known.add(ratio)
    known.add(1.0, 0)
    known.add(1.0, -3)
    assert known == before


def test_one_ratio_far_too_high_hides_a_slow_worker_for_a_moment_only() -> None:
    known = good()
    known.add(1e300)
    assert flagged_after(constant(0.5), 12, known) is not None


@given(st.lists(st.tuples(st.floats(0.1, 1.9), st.integers(1, 40)), min_size=1, max_size=20))
def test_a_report_of_many_steps_weighs_as_much_as_they_do(reports: list[tuple[float, int]]) -> None:
    together, alone = RateRatio(), RateRatio()
    for ratio, samples in reports:
        together.add(ratio, samples)
        for _ in range(samples):
            alone.add(ratio)
        assert together.value == pytest.approx(alone.value)
        assert together.very_slow == alone.very_slow
        assert together.slow <= alone.slow
        assert together.usual <= alone.usual


# ---------------------------------------------------------------- a ring


class Ring:
    """Workers that run steps together and report them, some at a time."""

    def __init__(self, *workers: str, device_type: str = "t4", ests: int = 4) -> None:
        self.watch = StragglerWatch()
        self.workers = workers
        self.types = dict.fromkeys(workers, device_type)
        self.ests = ests
        self.rates = dict.fromkeys(workers, 0.0)
        self.samples = dict.fromkeys(workers, 0)
        self.generation = 1
        self.verdicts: dict[str, Verdict | None] = {}

    def steps(
        self,
        seconds: Sequence[float],
        count: int = 1,
        *,
        data: Sequence[float] = (),
        late: Sequence[float] = (),
        usual_steps: int = 31,
        network: float = 0.0,
    ) -> None:
        """Run so many steps of these seconds per EST, of which `data` wait for batches; then all report.

        late: seconds per step that a worker takes its share of beyond its ESTs, for which the others wait.
        """
        late = late or [0.0] * len(seconds)
        ends = [self.ests * each + more for each, more in zip(seconds, late, strict=True)]
        for place, worker in enumerate(self.workers):
            self.rates[worker] += count / seconds[place]
            self.samples[worker] += count
            usual = Usual(
                self.generation,
                usual_steps,
                self.ests * seconds[place],
                self.ests * data[place] if data else 0.0,
                max(ends) - ends[place] + network,
            )
            self.report(worker, usual)

    def report(self, worker: str, usual: Usual = Usual(), **changes: object) -> Verdict | None:  # noqa: B008
        report = Report(self.types[worker], self.ests, self.rates[worker], self.samples[worker], usual)
        report = msgspec.structs.replace(report, **changes)
        verdict = self.watch.heard(worker, f"{worker}-1", report, lambda: self.workers, self.generation)
        self.verdicts[worker] = verdict
        return verdict

    @property
    def slow(self) -> dict[str, str]:
        return {name: found.cause for name, found in self.verdicts.items() if found and found.cause}


@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_slow_worker_of_four_is_found_whether_steps_are_reported_alone_or_together(count: int) -> None:
    ring = Ring("a", "b", "c", "d")
    ring.steps([0.1, 0.1, 0.1, 0.1], 20)
    assert ring.slow == {}
    for _ in range(50):
        ring.steps([0.1, 0.1, 0.1, 0.2], count)
    assert ring.slow == {"d": "compute"}
    assert ring.verdicts["d"] is not None
    assert ring.verdicts["d"].ratio == pytest.approx(0.5, abs=0.02)


def test_all_equally_slow_are_none_and_neither_are_unlike_device_types() -> None:
    ring = Ring("a", "b", "c")
    ring.steps([0.1] * 3, 20)
    ring.steps([5.0] * 3, 200)
    assert ring.slow == {}
    ring = Ring("a", "b", "c", "d")
    ring.types |= {"c": "p100", "d": "p100"}
    ring.steps([0.1, 0.1, 0.4, 0.4], 200)
    assert ring.slow == {}


def test_with_two_slow_of_three_the_slow_are_the_usual_ones_and_of_two_the_faster_is() -> None:
    ring = Ring("a", "b", "c")
    ring.steps([0.1, 0.2, 0.2], 200)
    ring.steps([0.1, 0.2, 0.2], 200)
    assert ring.slow == {}
    ring = Ring("a", "b")
    ring.steps([0.1, 0.2], 200)
    ring.steps([0.1, 0.2], 200)
    assert ring.slow == {"b": "compute"}


def test_a_worker_without_its_like_is_none() -> None:
    ring = Ring("a", "b")
    ring.types["b"] = "p100"
    ring.steps([0.1, 9.0], 200)
    assert ring.slow == {}
    ring = Ring("a")
    ring.steps([9.0], 200)
    assert ring.slow == {}


def test_a_worker_whose_batches_come_late_is_slow_by_its_data() -> None:
    ring = Ring("a", "b", "c")
    for _ in range(5):
        ring.steps([0.1, 0.2, 0.1], 20, data=[0.01, 0.1, 0.01])
    assert ring.slow == {"b": "data"}


def test_a_worker_for_which_the_others_wait_though_it_computes_as_fast_is_slow_by_its_network() -> None:
    ring = Ring("a", "b", "c")
    for _ in range(5):
        ring.steps([0.1, 0.1, 0.1], 20, late=[0.0, 0.3, 0.0])
    assert ring.slow == {"b": "network"}


def test_a_worker_that_computes_slowly_is_not_slow_by_its_network_and_the_others_wait_is_no_fault() -> None:
    ring = Ring("a", "b", "c", "d")
    for _ in range(20):
        ring.steps([0.1, 0.1, 0.1, 0.2], 20, network=0.05)
    assert ring.slow == {"d": "compute"}


def test_a_slow_network_of_all_is_nobodys_fault() -> None:
    ring = Ring("a", "b", "c", "d")
    for _ in range(20):
        ring.steps([0.1] * 4, 20, network=5.0)
    assert ring.slow == {}


def test_code_between_steps_is_no_slow_network() -> None:
    ring = Ring("a", "b")
    for _ in range(20):
        for worker, waits, between in (("a", 0.0, 0.3), ("b", 0.3, 0.0)):
            ring.rates[worker] += 10 / 0.1
            ring.samples[worker] += 10
            ring.report(worker, Usual(1, 31, 0.4, 0.0, waits, between))
    assert ring.slow == {}


def test_code_after_backward_of_a_worker_with_more_ests_is_no_slow_network() -> None:
    """Three turns of 50 ms beside 3 ms of computing, for which a worker with one EST waits."""
    ring = Ring("a", "b", "c")
    for _ in range(20):
        for worker, ests, waits in (("a", 4, 0.0), ("b", 1, 0.159), ("c", 1, 0.159)):
            ring.rates[worker] += 10 / 0.003
            ring.samples[worker] += 10
            usual = Usual(1, 31, ests * 0.003, 0.0, waits, 0.0, ests * 0.05)
            ring.report(worker, usual, ests=ests)
    assert ring.slow == {}


def test_a_leader_that_logs_after_each_step_has_no_slow_network() -> None:
    ring = Ring("a", "b")
    for _ in range(20):
        for worker, waits, after in (("a", 0.0, 0.3), ("b", 0.3, 0.0)):
            ring.rates[worker] += 10 / 0.1
            ring.samples[worker] += 10
            ring.report(worker, Usual(1, 31, 0.4, 0.0, waits, 0.0, after))
    assert ring.slow == {}


def test_a_change_of_all_that_is_seen_first_of_one_makes_no_straggler() -> None:
    ring = Ring("a", "b", "c")
    ring.steps([0.1] * 3, 20)
    for now, later in ((0.1, 0.3), (0.3, 0.1)) * 3:
        ring.steps([later, now, now], 20)
        assert ring.slow == {}
        for _ in range(2):
            ring.steps([later] * 3, 20)
            assert ring.slow == {}


def test_a_little_lateness_is_not_added_to_a_little_slowness() -> None:
    ring = Ring("a", "b", "c")
    for _ in range(20):
        ring.steps([0.1, 0.115, 0.1], 20, late=[0.0, 0.06, 0.0])
    assert ring.slow == {}


def test_where_no_wait_is_measured_nobody_is_late() -> None:
    """As on GPUs, where the host does not wait for the sums: a worker with fewer ESTs is done sooner."""
    ring = Ring("a", "b", "c")
    for _ in range(20):
        for worker, ests in (("a", 4), ("b", 1), ("c", 4)):
            ring.rates[worker] += 10 / 0.1
            ring.samples[worker] += 10
            ring.report(worker, Usual(1, 31, ests * 0.1), ests=ests)
    assert ring.slow == {}


def test_times_of_a_ring_before_blame_nobody_for_the_network() -> None:
    ring = Ring("a", "b", "c")
    ring.steps([0.1] * 3, 20)
    for steps in (0, 3):
        for _ in range(20):
            ring.steps([0.1] * 3, 20, late=[0.0, 0.3, 0.0], usual_steps=steps)
    ring.generation = 2
    for worker in ring.workers:
        ring.samples[worker] += 20
        ring.rates[worker] += 200
        ring.report(worker, Usual(1, 31, 0.4, 0.0, 9.0 if worker == "a" else 0.0))
    assert ring.slow == {}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, -float("inf")])
def test_times_that_cannot_be_change_nothing(wrong: float) -> None:
    ring = Ring("a", "b", "c")
    ring.steps([0.1] * 3, 20)
    for _ in range(20):
        assert ring.report("a", est_rates=wrong, est_samples=1000) == ring.verdicts["a"]
        ring.report("b", Usual(1, 31, 0.4, wrong))
        ring.report("c", Usual(1, 31, 0.4, 0.0, wrong))
        ring.report("c", Usual(1, 31, 0.4, 0.0, 0.1, 0.0, wrong))
    ring.report("a", ests=0)
    ring.report("a", est_samples=-1)
    ring.steps([0.1] * 3, 20)
    assert ring.slow == {}
    assert ring.verdicts["a"] == Verdict(None, pytest.approx(1.0))


def test_a_liar_that_says_to_be_a_million_times_as_fast_makes_no_straggler_of_two_others() -> None:
    ring = Ring("a", "b", "c")
    for _ in range(20):
        ring.steps([0.1, 1e-6, 0.1], 20)
    assert ring.slow == {}


def test_what_a_worker_did_long_before_it_is_first_heard_is_no_sample() -> None:
    ring = Ring("a", "b", "c")
    ring.steps([0.1, 0.1, 0.9], 5000)
    assert ring.slow == {}
    ring.steps([0.1, 0.1, 0.1], 30)
    assert ring.slow == {}


def test_a_new_session_of_a_worker_begins_anew_and_an_old_one_is_not_forgotten_by_the_end_of_another() -> (
    None
):
    ring = Ring("a", "b", "c")
    ring.steps([0.1, 0.1, 0.3], 30)
    assert ring.slow == {"c": "compute"}
    ring.watch.forget("c", "another")
    assert ring.report("c") is not None
    ring.watch.forget("c", "c-1")
    assert ring.report("c", est_samples=0, est_rates=0.0) is None


def test_a_worker_outside_the_ring_is_no_measure_and_gets_no_sample() -> None:
    ring = Ring("a", "b")
    ring.steps([0.1, 0.1], 20)
    fast = Report("t4", 4, 20 / 0.01, 20)
    assert ring.watch.heard("z", "z-1", fast, lambda: ring.workers, 1) is None
    ring.steps([0.1, 0.1], 20)
    assert ring.slow == {}


def test_a_large_ring_is_compared_after_some_of_its_reports() -> None:
    ring = Ring(*(f"w{n}" for n in range(200)))
    seconds = [0.1] * 199 + [0.2]
    for _ in range(8):
        ring.steps(seconds, 20)
    assert ring.slow == {"w199": "compute"}
