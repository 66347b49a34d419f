"""The life of lockstep tasks: steps, ring changes, pauses, hangs, and history that goes back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elastane_shards.errors import (
    IllegalTransition,
    InvalidRequest,
    InvalidSettings,
    InvalidSnapshot,
    NotHolder,
)
from elastane_shards.lockstep import LockstepQueue
from elastane_shards.samplers import samples_per_rank, steps_per_epoch, task_bounds
from elastane_shards.steps import LockstepSettings

TWO = {0: "a", 1: "a", 2: "b", 3: "b"}
ONE = dict.fromkeys(range(4), "b")


def make(**changes: object) -> LockstepQueue:
    given: dict[str, object] = {
        "ests": 4,
        "steps_per_epoch": 3,
        "epochs": 2,
        "batch_size": 8,
        "dataset_size": 70,
    }
    return LockstepQueue(LockstepSettings(**(given | changes)))  # type: ignore[arg-type]


def report_all(queue: LockstepQueue) -> None:
    for rank, worker in queue.unreported():
        assert queue.report(rank, worker)


def run(queue: LockstepQueue, steps: int, now: float = 0.0, seconds: float = 1.0) -> float:
    """Commits that many steps, each `seconds` long; returns the time after."""
    for _ in range(steps):
        queue.begin(queue.committed, TWO, now)
        report_all(queue)
        now += seconds
        queue.commit(now)
    return now


def test_all_tasks_of_a_step_are_done_together() -> None:
    queue = make()
    assert queue.begin(0, TWO, now=0.0) == 1
    for rank in (2, 3, 0):
        assert queue.report(rank, TWO[rank])
    assert (queue.progress(0.0).doing, queue.progress(0.0).done, queue.all_reported) == (4, 0, False)
    with pytest.raises(IllegalTransition):
        queue.commit()
    assert queue.unreported() == [(1, "a")]
    assert queue.report(1, "a") and not queue.report(1, "a")
    assert queue.all_reported and queue.commit() == 0
    assert (queue.progress(0.0).doing, queue.progress(0.0).done, queue.committed) == (0, 4, 1)


def test_the_next_step_begins_while_the_last_waits_for_its_commit() -> None:
    queue = make()
    queue.begin(0, TWO, now=0.0)
    with pytest.raises(IllegalTransition):
        queue.begin(1, TWO, now=0.5)
    report_all(queue)
    queue.begin(1, TWO, now=1.0)
    assert (queue.step, queue.committed, queue.progress(1.0).doing) == (1, 0, 8)
    report_all(queue)
    with pytest.raises(IllegalTransition):
        queue.begin(2, TWO, now=2.0)  # step 0 is not committed
    assert queue.commit() == 0
    assert queue.begin(2, TWO, now=2.0) == 1
    assert (queue.commit(), queue.committed, queue.holders(2)) == (1, 2, TWO)


def test_a_ring_change_puts_tasks_back_and_attempts_grow() -> None:
    queue = make()
    queue.begin(0, TWO, now=0.0)
    queue.report(0, "a")
    assert queue.requeue() == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert (queue.step, queue.progress(0.0).todo, queue.progress(0.0).requeued) == (None, 12, 4)
    assert queue.begin(0, ONE, now=1.0) == 2
    with pytest.raises(NotHolder) as refusal:
        queue.report(0, "a")
    assert refusal.value.facts["holder"] == "b"
    assert refusal.value.reason == "stale"
    report_all(queue)
    queue.commit()
    assert (queue.attempt(0), queue.begin(1, ONE, now=2.0)) == (0, 1)


def test_a_ring_change_with_two_steps_in_doing() -> None:
    queue = make()
    queue.begin(0, TWO, now=0.0)
    report_all(queue)
    queue.begin(1, TWO, now=1.0)
    queue.commit()  # the resume step shows that 0 was applied by those who are left
    assert [step for step, _ in queue.requeue()] == [1] * 4
    assert queue.begin(1, ONE, now=2.0) == 2


def test_history_goes_back_and_replays_bear_new_attempts() -> None:
    queue = make()
    now = run(queue, 2)
    queue.begin(2, TWO, now)
    queue.requeue()
    queue.begin(2, TWO, now)
    assert queue.rewind(1) == [(2, rank) for rank in range(4)]
    assert (queue.committed, queue.progress(now).done, queue.progress(now).samples_done) == (1, 4, 32)
    assert queue.begin(1, ONE, now) == 3  # higher than any attempt before
    report_all(queue)
    assert queue.begin(2, ONE, now) == 3
    queue.commit()
    report_all(queue)
    queue.commit()
    assert queue.begin(3, ONE, now) == 1  # never begun before
    for step in (-1, 4):
        with pytest.raises(InvalidRequest):
            queue.rewind(step)


def test_history_goes_on_at_a_later_step() -> None:
    queue = make()
    queue.begin(0, TWO, now=0.0)
    assert queue.forward(4) == [(0, rank) for rank in range(4)]
    assert (queue.committed, queue.epoch, queue.progress(0.0).samples_done) == (4, 1, 72 + 32)
    assert queue.progress(0.0).requeued == 0  # its tasks are DONE
    queue.validate()
    assert queue.begin(4, TWO, now=1.0) == 1
    assert queue.forward(4) == [(4, rank) for rank in range(4)]
    assert queue.progress(0.0).requeued == 4
    assert queue.forward(4) == []
    assert queue.begin(4, TWO, now=2.0) == 2
    for step in (3, 7):
        with pytest.raises(InvalidRequest):
            queue.forward(step)
    queue.forward(6)
    assert queue.complete


def test_a_hung_worker_is_overdue_and_only_its_unreported_tasks_are() -> None:
    queue = make()
    queue.begin(0, TWO, now=100.0)
    assert queue.next_deadline() == 130.0
    for rank in (0, 1, 2):
        queue.report(rank, TWO[rank])
    assert queue.overdue(129.9) == []
    assert queue.overdue(130.0) == [(3, "b")]
    queue.requeue(timed_out=1)
    assert (queue.next_deadline(), queue.progress(130.0).timed_out) == (None, 1)


def test_the_lease_follows_the_median_of_the_last_steps() -> None:
    queue = make(steps_per_epoch=100)
    assert queue.lease_seconds == 30.0
    now = run(queue, 3, seconds=0.1)
    assert queue.lease_seconds == 30.0
    now = run(queue, 40, now, seconds=2.0)
    assert queue.lease_seconds == pytest.approx(40.0)
    now = run(queue, 1, now, seconds=500.0)
    assert queue.lease_seconds == pytest.approx(40.0)
    run(queue, 33, now, seconds=4.0)
    assert queue.lease_seconds == pytest.approx(80.0)


def test_steps_that_overlap_are_timed_from_begin_to_begin() -> None:
    queue = make(steps_per_epoch=10, lease_min_seconds=0.001, lease_factor=1.0)
    for step in range(4):
        queue.begin(step, TWO, now=step * 3.0)
        report_all(queue)
        if step:
            queue.commit(now=step * 3.0 + 0.5)
    assert queue.lease_seconds == pytest.approx(3.0)


def test_a_paused_worker_holds_no_lease_and_its_pause_is_not_timed() -> None:
    queue = make(lease_min_seconds=1.0, lease_factor=1.0)
    queue.begin(0, TWO, now=0.0)
    queue.pause("b")
    assert queue.overdue(5.0) == [(0, "a"), (1, "a")]
    report_all_of(queue, "a")
    assert queue.overdue(10**6) == []
    queue.resume("b", now=100.0)
    queue.resume("a", now=100.0)  # has reported: nothing of it runs
    assert queue.overdue(101.0) == [(2, "b"), (3, "b")]
    report_all(queue)
    queue.commit(now=101.0)
    assert queue.lease_seconds == 1.0  # 101 s of evaluation are no step
    queue.pause("a")
    queue.begin(1, TWO, now=102.0)
    assert queue.overdue(200.0) == [(2, "b"), (3, "b")]
    queue.report(0, "a")  # it is in the step after all
    queue.requeue()
    queue.begin(1, TWO, now=300.0)
    assert queue.next_deadline() == 301.0 and len(queue.overdue(301.0)) == 4


def report_all_of(queue: LockstepQueue, name: str) -> None:
    for rank, worker in queue.unreported():
        if worker == name:
            queue.report(rank, worker)


def test_a_worker_that_left_is_not_paused_for_ever() -> None:
    queue = make()
    queue.begin(0, TWO, now=0.0)
    queue.pause("a")
    queue.requeue()
    queue.begin(0, ONE, now=1.0)
    queue.requeue()
    queue.begin(0, TWO, now=2.0)
    assert queue.overdue(100.0) == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]


def test_progress_over_two_epochs() -> None:
    queue = make()
    now = run(queue, 4)
    progress = queue.progress(now)
    assert (progress.epoch, progress.done, progress.todo, progress.total) == (1, 4, 8, 12)
    assert progress.samples_done == 72 + 32  # 70 samples padded to 4 x 18, then one full step
    assert progress.samples_per_second == pytest.approx(104 / 4)
    assert progress.eta_seconds == pytest.approx((72 - 32) / progress.samples_per_second)
    run(queue, 2, now)
    assert (queue.complete, queue.progress(99.0).complete, queue.progress(99.0).eta_seconds) == (
        True,
        True,
        0,
    )
    with pytest.raises(IllegalTransition):
        queue.begin(6, TWO, now=9.0)


@pytest.mark.parametrize("drop_last", [False, True])
def test_bounds_are_those_of_the_samplers(drop_last: bool) -> None:
    samples = samples_per_rank(70, 4, drop_last=drop_last)
    steps = steps_per_epoch(samples, 8, drop_last=drop_last)
    queue = make(steps_per_epoch=steps, samples_per_rank=samples)
    for step in range(2 * steps):
        for rank in range(4):
            bounds = task_bounds(
                rank, step % steps, samples=samples, batch_size=8, num_replicas=4, drop_last=drop_last
            )
            assert queue.bounds(step, rank) == bounds
    with pytest.raises(InvalidRequest):
        queue.bounds(2 * steps, 0)


@pytest.mark.parametrize(
    "holders", [{0: "a"}, TWO | {4: "a"}, TWO | {1: ""}], ids=["too few", "too many", "nobody"]
)
def test_every_rank_has_a_holder(holders: dict[int, str]) -> None:
    queue = make()
    before = queue.snapshot()
    with pytest.raises(InvalidRequest):
        queue.begin(0, holders, now=1.0)
    with pytest.raises(IllegalTransition):
        queue.begin(1, TWO, now=1.0)
    with pytest.raises(IllegalTransition):
        queue.report(0, "a")
    assert queue.snapshot() == before


@pytest.mark.parametrize("name", ["ests", "steps_per_epoch", "epochs", "batch_size", "lease_factor"])
def test_bad_settings_make_no_queue(name: str) -> None:
    with pytest.raises(InvalidSettings):
        make(**{name: 0})


@settings(deadline=None)
@given(st.binary(max_size=40), st.integers(0, 300), st.integers(0, 255))
def test_damaged_snapshots_are_refused_or_read(junk: bytes, place: int, value: int) -> None:
    queue = make()
    queue.begin(0, TWO, now=0.0)
    queue.pause("a")
    snapshot = bytearray(queue.snapshot())
    snapshot[place % len(snapshot)] = value
    for damaged in (junk, bytes(snapshot), bytes(snapshot[:place])):
        try:
            LockstepQueue.restore(damaged).validate()
        except InvalidSnapshot:
            continue


class LockstepMachine(RuleBasedStateMachine):
    """Any life of a ring, with the master restarted at any moment, against three plain variables.

    done: committed steps. reported: for each step in DOING the ranks that reported. begun: attempts seen.
    """

    @initialize(epochs=st.integers(1, 2), steps=st.integers(1, 4), ests=st.integers(1, 4))
    def start(self, epochs: int, steps: int, ests: int) -> None:
        self.queue = LockstepQueue(LockstepSettings(ests, steps, epochs, lease_min_seconds=5.0))
        self.ests, self.total = ests, epochs * steps
        self.done, self.reported, self.now = 0, [], 0.0  # type: ignore[var-annotated]
        self.holders: list[str] = []
        self.highest: dict[int, int] = {}

    @rule(names=st.lists(st.sampled_from("abc"), min_size=4, max_size=4), seconds=st.floats(0, 9))
    def begin(self, names: list[str], seconds: float) -> None:
        self.now += seconds
        step = self.done + len(self.reported)
        possible = step < self.total and len(self.reported) < 2
        possible = possible and (not self.reported or len(self.reported[-1]) == self.ests)
        holders = dict(enumerate(names[: self.ests]))
        if not possible:
            with pytest.raises(IllegalTransition):
                self.queue.begin(step, holders, self.now)
            return
        attempt = self.queue.begin(step, holders, self.now)
        assert attempt > self.highest.get(step, 0)
        self.highest[step] = attempt
        self.reported.append(set())
        self.holders = names

    @rule(rank=st.integers(0, 3), all_of_them=st.booleans())
    def report(self, rank: int, all_of_them: bool) -> None:
        if not self.reported:
            return
        for r in range(self.ests) if all_of_them else [rank % self.ests]:
            assert self.queue.report(r, self.holders[r]) == (r not in self.reported[-1])
            self.reported[-1].add(r)

    @rule()
    def commit(self) -> None:
        if not self.reported or len(self.reported[0]) < self.ests:
            with pytest.raises(IllegalTransition):
                self.queue.commit(self.now)
            return
        assert self.queue.commit(self.now) == self.done
        self.reported.pop(0)
        self.done += 1

    @rule()
    def ring_changes(self) -> None:
        assert len(self.queue.requeue()) == len(self.reported) * self.ests
        self.reported.clear()

    @rule(back=st.integers(0, 3))
    def rewind(self, back: int) -> None:
        self.done = max(0, self.done - back)
        self.queue.rewind(self.done)
        self.reported.clear()

    @rule(ahead=st.integers(0, 2))
    def forward(self, ahead: int) -> None:
        self.done = min(self.total, self.done + ahead)
        self.queue.forward(self.done)
        self.reported.clear()

    @rule(name=st.sampled_from("abc"), pause=st.booleans())
    def pause_or_resume(self, name: str, pause: bool) -> None:
        if pause:
            self.queue.pause(name)
            assert name not in {worker for _, worker in self.queue.overdue(float("inf"))}
        else:
            self.queue.resume(name, self.now)
            assert name not in {worker for _, worker in self.queue.overdue(self.now + 4.9)}

    @rule()
    def restore(self) -> None:
        snapshot = self.queue.snapshot()
        self.queue = LockstepQueue.restore(snapshot)
        assert self.queue.snapshot() == snapshot

    @invariant()
    def equal(self) -> None:
        self.queue.validate()
        progress = self.queue.progress(self.now)
        assert progress.todo + progress.doing + progress.done == progress.total
        assert (self.queue.committed, self.queue.complete) == (self.done, self.done == self.total)
        assert progress.samples_done == self.done * self.ests
        waiting = [r for ranks in self.reported for r in range(self.ests) if r not in ranks]
        assert [rank for rank, _ in self.queue.unreported()] == waiting
        assert {rank for rank, _ in self.queue.overdue(float("inf"))} <= set(waiting)


LockstepMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_lockstep = LockstepMachine.TestCase


@pytest.mark.parametrize("seed", range(60))
def test_long_lives_of_a_ring(seed: int) -> None:
    """The same machine by a seeded walk, with fewer steps spent on what is refused."""
    chance = random.Random(seed)
    life = LockstepMachine()
    life.start(epochs=2, steps=chance.randint(1, 9), ests=chance.randint(1, 4))
    actions: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: life.begin(names=chance.choices("abc", k=4), seconds=chance.random() * 9)),
        (6, lambda: life.report(rank=chance.randrange(4), all_of_them=chance.random() < 0.3)),
        (4, life.commit),
        (1, life.ring_changes),
        (1, lambda: life.rewind(back=chance.randrange(4)) if chance.random() < 0.3 else None),
        (1, lambda: life.forward(ahead=chance.randrange(3)) if chance.random() < 0.1 else None),
        (3, lambda: life.pause_or_resume(name=chance.choice("abc"), pause=chance.random() < 0.5)),
        (2, life.restore),
    ]
    for action in chance.choices([a for _, a in actions], [weight for weight, _ in actions], k=200):
        action()
        life.equal()
