"""Ranges of workers of unlike speed: when they are made unequal, and what happens if that was wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_master.decisions import balance, effects, events
from elastane_master.decisions.assignment import Capacity, balanced_ranges, even_ranges
from elastane_master.decisions.state import CheckpointInFlight, WorkerRecord
from unit.decisions.job_driver import SIGNATURE, JobDriver, settings

LONG = msgspec.structs.replace(SIGNATURE, steps_per_epoch=1000, epochs=2)


def splits(ests: int, places: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each place one EST or more."""
    if places == 1:
        yield (ests,)
        return
    for first in range(1, ests - places + 2):
        for rest in splits(ests - first, places - 1):
            yield (first, *rest)


# ---------------------------------------------------------------- ranges

PLENTY = 1_000_000


def carried(seconds: Iterable[float], ests_max: int = PLENTY) -> list[Capacity]:
    return [Capacity(each, ests_max) for each in seconds]


@given(st.integers(1, 8), st.lists(st.sampled_from((1.0, 1.3, 2.0, 5.0)), min_size=1, max_size=4))
def test_no_other_split_is_faster(ests: int, seconds: list[float]) -> None:
    seconds = seconds[:ests]
    found = balanced_ranges(ests, carried(seconds))
    assert found[0][0] == 0
    assert found[-1][1] == ests
    assert all(before[1] == after[0] for before, after in pairwise(found))
    counts = [end - start for start, end in found]
    assert min(counts) >= 1
    best = min(max(map(float.__mul__, map(float, split), seconds)) for split in splits(ests, len(seconds)))
    assert max(n * c for n, c in zip(counts, seconds, strict=True)) == pytest.approx(best)


@given(st.integers(2, 8), st.lists(st.sampled_from((1.0, 2.0, 3.0)), min_size=2, max_size=4))
def test_of_equally_fast_splits_one_that_moves_few_ests_is_taken(ests: int, seconds: list[float]) -> None:
    seconds = seconds[:ests]
    before = even_ranges(ests, len(seconds))
    found = balanced_ranges(ests, carried(seconds), before)
    longest = max(n * c for (a, b), c in zip(found, seconds, strict=True) for n in (b - a,))

    def stay(ranges: list[tuple[int, int]]) -> int:
        both = zip(ranges, before, strict=True)
        return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in both)

    for split in splits(ests, len(seconds)):
        if max(n * c for n, c in zip(split, seconds, strict=True)) <= longest * (1 + 1e-9):
            ends = [sum(split[: place + 1]) for place in range(len(split))]
            other = [(end - n, end) for end, n in zip(ends, split, strict=True)]
            assert stay(other) <= stay(found)


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from((1.0, 2.0, 5.0)), st.integers(1, 8)), min_size=1, max_size=4),
    st.booleans(),
)
def test_no_place_gets_more_than_it_has_memory_for(
    ests: int, places: list[tuple[float, int]], has_history: bool
) -> None:
    seconds, limits = zip(*places[:ests], strict=True)
    known = list(map(Capacity, seconds, limits))
    found = balanced_ranges(ests, known, even_ranges(ests, len(known)) if has_history else ())
    counts = [end - start for start, end in found]
    if sum(limits) < ests:  # the job would not train if anybody was spared
        assert (
            counts == [end - start for start, end in balanced_ranges(ests, carried(seconds))] or has_history
        )
        return
    assert all(n <= limit for n, limit in zip(counts, limits, strict=True))
    fitting = [split for split in splits(ests, len(known)) if all(map(int.__le__, split, limits))]
    if len(set(seconds)) > 1:
        best = min(max(map(float.__mul__, map(float, split), seconds)) for split in fitting)
        assert max(n * c for n, c in zip(counts, seconds, strict=True)) == pytest.approx(best)


@pytest.mark.parametrize("fastest", [balance.SECONDS_MIN, 1.0])
def test_speeds_as_far_apart_as_can_be_are_split_too(fastest: float) -> None:
    assert balanced_ranges(6, carried([fastest, balance.SECONDS_MAX]), [(0, 3), (3, 6)]) == [(0, 5), (5, 6)]


def test_ten_thousand_ests_are_split_without_a_long_search() -> None:
    found = balanced_ranges(10_000, carried([1.0, 2.0] * 500), even_ranges(10_000, 1000))
    sizes = {end - start for start, end in found}
    assert max(sizes) <= 14
    assert min(sizes) >= 6


# ---------------------------------------------------------------- speeds


def record(worker: str, device_type: str, est_seconds: float) -> WorkerRecord:
    found = WorkerRecord(worker, f"{worker}-1", "ring", 0.0, 0)
    found.device_type, found.est_seconds = device_type, est_seconds
    return found


def test_noise_among_workers_of_one_type_is_no_difference() -> None:
    found = balance.speeds([record("a", "t4", 0.10), record("b", "t4", 0.14), record("c", "t4", 0.08)])
    assert found == {"a": 0.1, "b": 0.1, "c": 0.1}
    assert len(set(balance.speeds([record("a", "t4", 0.1), record("b", "h100", 0.104)]).values())) == 1


def test_a_worker_far_from_its_type_counts_by_itself() -> None:
    found = balance.speeds([record("a", "t4", 0.1), record("b", "t4", 0.11), record("c", "t4", 0.2)])
    assert found == {"a": 0.1, "b": 0.1, "c": 0.2} or found == {"a": 0.11, "b": 0.11, "c": 0.2}


def test_code_after_each_est_takes_as_long_on_a_fast_device() -> None:
    """A device that computes twice as fast does not take twice the share."""
    known = [record("a", "t4", 0.2), record("b", "h100", 0.1)]
    assert balance.speeds(known) == {"a": 0.2, "b": 0.1}
    for one in known:
        one.after_est_seconds = 0.2
    assert balance.speeds(known) == pytest.approx({"a": 0.4, "b": 0.3})
    fresh = record("new", "h100", 0.0)
    assert balance.speeds([*known, fresh]) == pytest.approx({"a": 0.4, "b": 0.3, "new": 0.3})


def test_a_newcomer_of_a_known_type_is_as_fast_as_that_and_of_an_unknown_one_leaves_ranges_even() -> None:
    known = [record("a", "t4", 0.2), record("b", "h100", 0.05)]
    assert balance.speeds([*known, record("new", "t4", 0.0)]) == {"a": 0.2, "b": 0.05, "new": 0.2}
    assert balance.speeds([*known, record("new", "p100", 0.0)]) == {}
    assert balance.speeds([*known, record("new", "", 0.0)]) == {}
    assert balance.speeds([]) == {}


# ---------------------------------------------------------------- decisions


@pytest.fixture(autouse=True)
def looks_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "LOOK_STEPS", 1)


class Unlike(JobDriver):
    """A job of six ESTs on a fast and a slow worker, whose heartbeats say how fast."""

    def __init__(self, ests: int = 6) -> None:
        super().__init__(settings(ests), LONG)
        self.form("fast", "slow")
        self.next_step = 0

    def beat(self, worker: str, est_seconds: float, step_seconds: float = 0.0, **changes: object) -> bool:
        """Hear a heartbeat; return whether it is stored."""
        event = events.AppliedReported(
            worker,
            self.session(worker),
            self.generation,
            self.state.workers[worker].applied_step,
            device_type=worker,
            est_seconds=est_seconds,
            est_steps=balance.EST_STEPS_MIN,
            ring_generation=self.generation,
            ring_step_seconds=step_seconds,
            ring_steps=balance.RING_STEPS_MIN if step_seconds else 0,
        )
        return self.do(msgspec.structs.replace(event, **changes)).durable

    def beats(self, step_seconds: float, fast: float = 0.1, slow: float = 0.2) -> None:
        self.beat("fast", fast, step_seconds)
        self.beat("slow", slow, step_seconds)

    def go_on(self, steps: int = 1) -> None:
        """All members report steps, and answer where the ring changes."""
        for _ in range(steps):
            generation = self.generation
            self.step(self.next_step)
            self.next_step += 1
            if self.generation != generation:
                self.all_ready(self.next_step)

    @property
    def counts(self) -> list[int]:
        return [member.end - member.start for member in self.state.ring.members]

    @property
    def reason(self) -> str:
        return str(self.state.ring.reason)


def balanced() -> Unlike:
    """A job whose ranges have been made unequal at step 1; its steps took 0.65 s before."""
    job = Unlike()
    assert job.counts == [3, 3]
    job.beats(0.65)
    job.go_on()
    return job


def test_a_slow_worker_gets_fewer_ests_at_a_step_boundary() -> None:
    job = balanced()
    assert job.counts == [4, 2]
    assert job.state.ring.planned
    assert "ESTs are spread by the speed of the devices: 0.6 s a step become 0.4 s" in job.reason
    assert job.state.ring.stage == "running"
    job.take()
    job.go_on(3)
    assert job.state.steps.committed >= 2


def test_nothing_changes_before_steps_of_this_ring_were_measured() -> None:
    job = Unlike()
    job.beats(0.0)
    job.go_on()
    job.beat("fast", 0.1, 0.65, ring_steps=balance.RING_STEPS_MIN - 1)
    job.beat("slow", 0.2, 0.65, ring_generation=job.generation - 1)  # still of the ring before
    job.go_on()
    assert job.counts == [3, 3]


def test_a_gain_below_five_percent_of_the_step_or_below_its_cost_is_none() -> None:
    job = Unlike()
    job.beats(4.1)  # of which 0.2 s could be saved
    job.go_on()
    assert job.counts == [3, 3]
    job = Unlike()
    job.state.balance.change_seconds = 1999 * 0.2 / balance.COST_FACTOR + 1
    job.beats(0.65)
    job.go_on()
    assert job.counts == [3, 3]


def test_the_next_change_waits_half_a_minute() -> None:
    job = balanced()
    job.now += balance.UPDATE_SECONDS
    job.beats(0.45, fast=0.2, slow=0.1)  # the other way round
    job.go_on()
    assert job.counts == [4, 2]
    job.now += balance.PAUSE_SECONDS - balance.UPDATE_SECONDS
    job.go_on()
    assert job.counts == [2, 4]


def test_steps_that_become_longer_bring_the_ranges_back_and_bar_others() -> None:
    job = balanced()
    job.beats(0.66)  # not longer than noise
    job.go_on()
    assert job.counts == [4, 2]
    job = balanced()
    job.beats(0.7)
    job.go_on()
    assert job.counts == [3, 3]
    assert "steps have become longer" in job.reason
    bar = balance.BACKOFF_SECONDS
    for _ in range(2):
        job.beats(0.65)
        job.now += bar - 1
        job.go_on()
        assert job.counts == [3, 3], "barred"
        job.now += 2
        job.go_on()
        assert job.counts == [4, 2], "tried again"
        job.beats(0.7)
        job.go_on()
        assert job.counts == [3, 3]
        bar *= 2


def test_while_barred_a_ring_that_changes_anyway_is_even() -> None:
    job = balanced()
    job.beats(0.7)
    job.go_on()
    job.join("third")
    job.beat("third", 0.1)
    job.go_on()
    assert job.counts == [2, 2, 2]


def test_workers_that_are_alike_again_get_even_ranges() -> None:
    job = balanced()
    job.now += balance.PAUSE_SECONDS
    job.beats(0.45, fast=0.1, slow=0.1)
    job.go_on()
    assert job.counts == [3, 3]
    assert "0.4 s a step become 0.3 s" in job.reason


def test_each_change_doubles_the_pause_until_the_workers_change() -> None:
    job = balanced()
    slow, pause, changes = ["fast", "slow"], balance.PAUSE_SECONDS, 1
    for _ in range(4):
        slow.reverse()
        job.now += pause - 1
        job.beats(0.3, **{slow[0]: 0.1, slow[1]: 0.2})
        before = job.counts
        job.go_on()
        assert job.counts == before
        job.now += 1
        job.go_on()
        assert job.counts == before[::-1]
        changes, pause = changes + 1, 2 * pause
    assert job.state.balance.changes == changes
    job.join("third")
    job.go_on()
    assert job.state.balance.changes == 0


def test_ranges_wait_for_newcomers_that_are_gathered_and_for_a_checkpoint_in_flight() -> None:
    job = Unlike()
    job.state.settings = msgspec.structs.replace(job.state.settings, join_window_seconds=60.0)
    job.beats(0.65)
    job.join("third")
    job.now -= 0.02
    job.go_on()
    assert job.counts == [3, 3]
    assert job.state.join_due is not None
    job = Unlike()
    job.beats(0.65)
    job.state.checkpoints.in_flight = CheckpointInFlight("c", 1, ("fast", "slow"), job.now)
    job.go_on()
    assert job.counts == [3, 3]
    job.state.checkpoints.in_flight = None
    job.go_on()
    assert job.counts == [4, 2]


def test_a_worker_that_stands_by_has_no_say() -> None:
    job = Unlike(ests=2)
    job.join("third")
    job.go_on()
    assert job.members == ("fast", "slow")
    job.beat("third", 0.1, 0.65)
    assert balance.ring_step_seconds(job.state) is None
    job.beat("fast", 0.1, 0.3)
    assert balance.ring_step_seconds(job.state) == 0.3


def test_ranges_alone_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "LOOK_STEPS", 5)
    job = Unlike()
    job.go_on()
    job.beats(0.65)
    job.go_on(4)
    assert job.counts == [3, 3]
    job.go_on()
    assert job.counts == [4, 2]


@pytest.mark.parametrize("steps_per_epoch", range(1, 13))
def test_no_length_of_an_epoch_hides_every_look(
    monkeypatch: pytest.MonkeyPatch, steps_per_epoch: int
) -> None:
    """At the first step of an epoch no ring is changed."""
    monkeypatch.setattr(balance, "LOOK_STEPS", 5)
    job = Unlike()
    job.state.signature = msgspec.structs.replace(LONG, steps_per_epoch=steps_per_epoch)
    looks = 0
    for step in range(1, 121):
        job.state.steps.prepared = step - 1
        assert job.state.steps.current == step
        looks += balance.may_change(job.state, job.now) and not job.state.begins_epoch(step)
    assert looks >= 120 / balance.LOOK_STEPS / 2


def test_a_change_that_has_paid_is_kept_and_the_next_bar_is_short_again() -> None:
    job = balanced()
    job.state.balance.backoff_seconds = 8 * balance.BACKOFF_SECONDS
    job.beats(0.45)
    job.go_on()
    assert job.counts == [4, 2]
    assert job.state.balance.tried == ()
    assert job.state.balance.backoff_seconds == 0.0


def test_a_ring_that_changes_anyway_gets_the_best_ranges_at_once() -> None:
    job = Unlike()
    job.beats(0.0)
    job.join("third")
    job.beat("third", 0.1)
    job.go_on()
    assert job.counts == [3, 1, 2] or job.counts == [2, 1, 3] or job.counts == [3, 2, 1]
    longest = max(n * c for n, c in zip(job.counts, (0.1, 0.2, 0.1), strict=True))
    assert longest == pytest.approx(0.3)


def test_a_loss_after_a_change_forgets_what_was_tried() -> None:
    job = balanced()
    job.beats(0.7)
    job.lose("slow")
    job.ready("fast", job.next_step, holds=True)
    job.take()
    job.go_on(3)
    assert job.members == ("fast",)
    assert job.state.balance.tried == ()


def test_a_worker_hosts_no_more_ests_than_it_has_memory_for() -> None:
    job = Unlike()
    job.beat("fast", 0.1, 0.65, ests_max=3)
    job.beat("slow", 0.2, 0.65)
    job.go_on(3)
    assert job.counts == [3, 3]
    job.now += balance.UPDATE_SECONDS
    job.beat("fast", 0.1, 0.65, ests_max=100)
    job.go_on()
    assert job.counts == [4, 2]


def test_memory_limits_ranges_of_workers_that_are_equally_fast() -> None:
    job = Unlike()
    job.beat("fast", 0.1, ests_max=2)
    job.beat("slow", 0.1)
    job.join("third")
    job.lose("third")
    assert job.counts == [3, 3]
    job.join("fourth")
    job.go_on()
    assert sorted(job.counts) == [2, 2, 2]
    job.lose("fourth")
    for worker in ("fast", "slow"):
        job.ready(worker, job.next_step, holds=True)
    assert dict(zip(job.members, job.counts, strict=True)) == {"fast": 2, "slow": 4}


def test_a_device_type_on_which_memory_ran_out_hosts_fewer() -> None:
    job = balanced()
    assert dict(zip(job.members, job.counts, strict=True)) == {"fast": 4, "slow": 2}
    job.do(
        events.ByeReported("fast", job.session("fast"), "failed", "OutOfMemoryError: 4 copies", 1, None, True)
    )
    assert job.state.balance.ests_max == {"fast": 3}
    job.join("fast")
    job.beat("fast", 0.1)
    job.all_ready(job.next_step)
    job.go_on(3)
    assert dict(zip(job.members, job.counts, strict=True)) == {"slow": 3, "fast": 3}


def test_a_worker_that_is_exhausted_before_its_first_heartbeat_says_its_type_itself() -> None:
    for said, known in (("t4", {"t4": 2}), ("", {})):
        job = Unlike()
        job.do(events.ByeReported("fast", job.session("fast"), "failed", "MemoryError", 0, None, True, said))
        assert job.state.balance.ests_max == known


def test_an_exhausted_worker_with_one_est_limits_nobody() -> None:
    job = Unlike(2)
    job.do(events.ByeReported("fast", job.session("fast"), "failed", "MemoryError", 0, None, True))
    assert job.state.balance.ests_max == {}


def test_only_news_is_stored() -> None:
    job = Unlike()
    assert job.beat("fast", 0.1)
    assert not job.beat("fast", 0.1)
    job.now += balance.UPDATE_SECONDS
    assert not job.beat("fast", 0.109)
    assert job.beat("fast", 0.12)
    assert not job.beat("fast", 0.2), "so soon"
    assert job.beat("fast", 0.12, 0.5)
    assert not job.beat("fast", 0.12, 0.9), "one time for each ring"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0.0, 2.0**63, 5e-324])
def test_what_cannot_be_a_time_is_no_news(seconds: float) -> None:
    job = Unlike()
    job.beats(0.0)
    assert not job.beat("fast", seconds, seconds)
    job.now += balance.UPDATE_SECONDS
    if seconds:
        assert not job.beat("fast", 0.1, after_est_seconds=seconds)
    assert job.state.workers["fast"].est_seconds == 0.1
    assert job.state.workers["fast"].step_seconds == 0.0


def test_a_job_of_the_version_before_has_even_ranges_and_no_history_of_changes() -> None:
    job = Unlike()
    stored = msgspec.msgpack.decode(job.machine.snapshot())
    state = stored[1]
    del state["balance"]
    for worker in state["workers"].values():
        for name in (
            "device_type",
            "est_seconds",
            "after_est_seconds",
            "measured_at",
            "step_seconds",
            "step_generation",
            "ests_max",
        ):
            worker.pop(name, None)
    restored = type(job.machine).restore(msgspec.msgpack.encode(stored))
    assert restored.state == job.state


def test_members_are_told_their_new_ranges() -> None:
    job = balanced()
    told = job.take(effects.Go)
    assert {worker: [m.end - m.start for m in go.members] for worker, go in told.items()} == {
        "fast": [4, 2],
        "slow": [4, 2],
    }
