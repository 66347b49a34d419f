"""Who is checked, who is found faulty, and what follows from it."""

from __future__ import annotations

from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_master.decisions import effects, events, sentinel
from elastane_master.decisions.effects import CheckOrder, Member
from elastane_master.decisions.events import Rejection, Signature
from elastane_master.decisions.state import SentinelBook
from unit.decisions.job_driver import JobDriver, settings

LONG = Signature((), 64, 2, 1000, 2, {"torch": "2"})
RIGHT, WRONG = "00", "ff"


class Checked(JobDriver):
    """Workers that say what they have when they are asked. wrong: worker -> steps in which it computes
    wrongly."""

    def __init__(self, ests: int, every: int, **changes: Any) -> None:
        super().__init__(settings(ests, sentinel_steps=every, **changes), LONG)
        self.wrong: dict[str, range] = {}
        self.orders: dict[str, CheckOrder] = {}
        self.asked: list[tuple[int, int, str, bool]] = []

    def do(self, event: events.Event, *, after: float = 0.001) -> effects.Decision:
        decision = super().do(event, after=after)
        for effect in decision.effects:
            if isinstance(effect, effects.Send) and isinstance(effect.message, effects.Go | effects.Prepared):
                order = effect.message.check
                self.orders.pop(effect.worker, None)
                if order is not None:
                    self.orders[effect.worker] = order
                    self.asked.append((order.step, order.rank, effect.worker, order.parts is None))
        return decision

    def say(self, worker: str, digest: str = "") -> None:
        """The worker answers what it was asked."""
        order = self.orders.pop(worker)
        wrong = order.step in self.wrong.get(worker, range(0))
        digest = digest or (WRONG if wrong else RIGHT)
        self.do(
            events.CheckReported(
                worker, self.session(worker), self.generation, order.step, order.rank, digest
            )
        )

    def say_all(self, step: int) -> None:
        for worker in [worker for worker, order in self.orders.items() if order.step == step]:
            if worker in self.members:
                self.say(worker)

    def train(self, step: int) -> None:
        """All members report a step, and whoever is asked answers."""
        self.step(step)
        self.say_all(step)

    def replay(self, step: int) -> None:
        """The step is done again by a ring that is being formed."""
        self.all_ready(step)
        self.train(step)


def start(ests: int, every: int, *workers: str, **changes: Any) -> Checked:
    driver = Checked(ests, every, **changes)
    driver.form(*workers)
    return driver


def members(*sizes: int) -> tuple[Member, ...]:
    found, first = [], 0
    for place, size in enumerate(sizes):
        found.append(Member(f"w{place}", first, first + size, ""))
        first += size
    return tuple(found)


# ------------------------------------------------------------------ who is checked


@given(st.lists(st.integers(1, 3), min_size=2, max_size=6), st.integers(1, 5))
def test_each_worker_is_checked_once_in_so_many_checks_and_each_of_its_ests_in_turn(
    sizes: list[int], every: int
) -> None:
    ring, hosted, clean = members(*sizes), {}, {}
    ranks: list[int] = []
    checks = [step for step in range(1, every * len(sizes) * 6 + 1) if step % every == 0]
    for number, step in enumerate(checks):
        check = sentinel.choose(ring, step, every, hosted, clean)
        assert check is not None and check.step == step
        host, other = check.workers
        assert host != other
        assert next(m for m in ring if m.worker == host).start <= check.rank
        assert check.rank < next(m for m in ring if m.worker == host).end
        hosted[host] = clean[host] = clean[other] = step
        ranks.append(check.rank)
        if number % len(sizes) == len(sizes) - 1:
            assert sorted(hosted.values()) == checks[number + 1 - len(sizes) : number + 1]
    assert set(ranks) == set(range(sum(sizes)))


def test_nobody_checks_a_worker_that_is_alone() -> None:
    assert sentinel.choose(members(1), 4, 2, {}, {}) is None


@pytest.mark.parametrize(
    ("every", "epoch_steps", "due"),
    [
        (0, 5, []),
        (2, 0, [2, 4, 6, 8, 10, 12]),
        (2, 100, [2, 4, 6, 8, 10, 12]),
        (5, 5, [6, 11]),
        (2, 5, [2, 4, 6, 8, 11, 12]),
        (1, 3, [1, 2, 4, 5, 7, 8, 10, 11]),
        (2, 1, []),
    ],
)
def test_the_first_step_of_an_epoch_leaves_its_check_to_the_next(
    every: int, epoch_steps: int, due: list[int]
) -> None:
    assert [step for step in range(13) if sentinel.is_due(step, every, epoch_steps)] == due


@pytest.mark.parametrize(
    ("votes", "found"),
    [
        ("aa", ""),
        ("ab", None),
        ("aba", "1"),
        ("baa", "0"),
        ("abc", None),
        ("aaba", "2"),
        ("aabb", None),
        ("aaabc", "34"),
    ],
)
def test_two_of_three_decide(votes: str, found: str | None) -> None:
    said = {str(place): vote for place, vote in enumerate(votes)}
    assert sentinel.faulty(said) == (None if found is None else tuple(found))


# ------------------------------------------------------------------ the step that is checked


def test_a_checked_step_is_applied_once_both_have_answered() -> None:
    driver = start(3, 2, "w0", "w1", "w2")
    driver.train(0)
    driver.train(1)
    assert set(driver.orders) == {"w0", "w1"}
    order, hosted = driver.orders["w1"], driver.orders["w0"]
    assert (hosted.rank, hosted.parts) == (0, None)
    assert (order.rank, order.parts) == (0, {"rng/python": b"0@2", "item/x": b"0"})
    driver.take()
    driver.step(2)
    assert not driver.take(effects.Prepared)
    driver.say("w1")
    assert not driver.take(effects.Prepared)
    driver.say("w0")
    prepared = driver.take(effects.Prepared)
    assert {worker: message.step for worker, message in prepared.items()} == dict.fromkeys(driver.members, 2)
    assert driver.state.sentinel.clean == {"w0": 2, "w1": 2, "w2": -1}
    driver.train(3)
    assert driver.orders["w1"].parts is None  # w1 is next
    driver.train(4)
    assert not driver.noted("sentinel_difference")


def test_answers_may_come_before_the_reports_and_twice() -> None:
    driver = start(2, 1, "w0", "w1")
    driver.train(0)
    again = dict(driver.orders)
    driver.say_all(1)
    driver.orders = again
    driver.say("w0", WRONG)  # repeated after a reconnect: the first counts
    driver.take()
    driver.step(1)
    assert driver.take(effects.Prepared)


def test_without_the_option_nobody_is_asked_and_with_it_one_worker_is_not() -> None:
    for every, workers in ((0, ("w0", "w1")), (1, ("w0",))):
        driver = start(2, every, *workers)
        for step in range(4):
            driver.train(step)
        assert driver.asked == []
        assert driver.state.steps.prepared == 3


def test_a_check_that_was_not_asked_for_is_refused() -> None:
    driver = start(3, 1, "w0", "w1", "w2")
    driver.train(0)
    with pytest.raises(Rejection, match="it was not asked for"):
        driver.do(events.CheckReported("w2", "w2-1", driver.generation, 1, 0, RIGHT))
    with pytest.raises(Rejection, match="it was not asked for"):
        driver.do(events.CheckReported("w0", "w0-1", driver.generation, 1, 2, RIGHT))


def test_who_does_not_answer_is_evicted_like_one_that_does_not_report() -> None:
    driver = start(3, 2, "w0", "w1", "w2")
    for step in range(4):
        driver.train(step)
        for worker in driver.members:
            driver.applied(worker, step + 1)
    driver.step(4)
    for worker in [worker for worker in driver.orders if worker != "w1"]:
        driver.say(worker)
    driver.tick_due()
    assert driver.closed == ["w1"]


def test_a_member_that_is_told_again_is_told_of_its_check() -> None:
    driver = start(3, 2, "w0", "w1", "w2")
    driver.train(0)
    driver.train(1)
    told = driver.take(effects.Prepared)["w1"]
    driver.report("w1", 1)  # it has not heard of it
    assert driver.take(effects.Prepared)["w1"] == told
    assert told.check is not None


# ------------------------------------------------------------------ who is faulty


def test_the_third_names_the_faulty_one_and_all_start_anew_from_before_it() -> None:
    driver = start(
        3, 2, "w0", "w1", "w2", checkpoint_url="file:///x", checkpoint_interval_steps=2, checkpoint_keep=1
    )
    driver.wrong = {"w1": range(3, 99)}
    step = 0
    while not driver.noted("sentinel_difference"):
        saves = driver.take(effects.Prepared)
        for worker, message in saves.items():
            if message.then_checkpoint is not None and driver.state.checkpoints.in_flight is not None:
                driver.saved(worker, message.then_checkpoint)
        for worker, message in driver.take(effects.Checkpoint).items():
            driver.saved(worker, message, complete=True)
        driver.train(step)
        step += 1
    # Nothing of the step is applied; w1 and w2 differ in it; it is done again, and w0 looks.
    checked = driver.noted("sentinel_difference")[0]
    assert (checked.facts["at_step"], driver.state.steps.prepared) == ("4", 3)
    before = driver.generation
    driver.all_ready(4)
    assert set(driver.orders) == {"w0"}
    driver.take()
    driver.train(4)
    (found,) = driver.noted("sentinel_faulty")
    assert (found.worker, found.facts["doubtful_from"]) == ("w1", "3")
    assert driver.closed == ["w1"]
    done = driver.take(effects.Done)
    assert {worker: message.phase for worker, message in done.items()} == {"w0": "restart", "w2": "restart"}
    assert driver.state.sentinel.doubts == (effects.Doubt(3, before),)
    assert [saved.step for saved in driver.state.checkpoints.saved] == [2]
    # A process of before is sent away whatever it says it holds; a new one is let in, but for the faulty
    # one's.
    driver.join("w1", session="w1-2", generation=before, applied_step=4, holds_state=True)
    assert driver.take(effects.Done)["w1"].phase == "restart"
    for worker in ("w0", "w2"):
        driver.bye(worker, "drained", 4)
    for worker in ("w1", "w0", "w2"):
        driver.join(worker, session=f"{worker}-3")
    driver.gather()
    assert driver.members == ("w0", "w2")
    assert "stands by permanently" in driver.state.workers["w1"].reason
    for worker in ("w0", "w1", "w2"):
        driver.ready(worker)
    assert driver.take(effects.Load)["w0"].doubts == driver.state.sentinel.doubts
    driver.loaded("w0", 2, "step-2")
    assert driver.state.steps.committed == 2
    assert driver.state.sentinel.clean["w0"] == 1  # what it was found right in is of no history any more
    for step in range(2, 9):
        driver.train(step)
    assert driver.state.steps.prepared == 8
    # It never comes back, however few are there.
    driver.lose("w0")
    driver.all_ready(9)
    driver.lose("w2")
    assert (driver.state.phase, driver.members) == ("waiting", ())
    assert driver.machine.next_deadline() is None


@pytest.mark.parametrize("workers", [("w0", "w1"), ("w0", "w1", "w2")])
def test_without_a_deciding_vote_the_job_pauses_and_names_them(workers: tuple[str, ...]) -> None:
    driver = start(4, 2, *workers)
    driver.train(0)
    driver.train(1)
    driver.step(2)
    for worker, digest in zip(list(driver.orders), ("aa", "bb"), strict=True):
        driver.say(worker, digest)
    if len(workers) == 3:
        driver.all_ready(2)
        driver.step(2)
        driver.say("w2", "cc")
    assert driver.state.phase == "suspended"
    (note,) = driver.noted("sentinel_undecided")
    assert " and ".join(", ".join(workers).rsplit(", ", 1)) in note.reason
    assert not driver.closed and not driver.noted("sentinel_faulty")
    assert driver.state.sentinel.doubts[-1].step_max == 0
    for worker in workers:
        driver.ready(worker, 2, holds=True)
    assert set(driver.take(effects.Drain)) == set(workers)
    for worker in workers:
        driver.bye(worker, "drained", 2)
    driver.do(events.ResumeRequested("r"))
    for worker in workers:
        driver.join(worker, session=f"{worker}-2")
    driver.gather()
    for worker in workers:
        driver.ready(worker)
    assert driver.take(effects.Load)["w0"].doubts


def test_a_dispute_outlives_the_third_and_the_suspects() -> None:
    driver = start(4, 2, "w0", "w1", "w2", "w3")
    driver.wrong = {"w1": range(99)}
    driver.train(0)
    driver.train(1)
    driver.train(2)
    assert driver.noted("sentinel_difference")
    driver.lose("w1")  # it dies before it is found
    driver.all_ready(2)
    assert set(driver.orders) == {"w2"}
    driver.lose("w2")
    driver.all_ready(2)
    assert set(driver.orders) - {"w2"} == {"w3"}
    driver.train(2)
    (found,) = driver.noted("sentinel_faulty")
    assert found.worker == "w1"
    assert driver.state.sentinel.faulty == {"w1": 2}


def test_a_dispute_with_nobody_left_to_decide_pauses() -> None:
    driver = start(3, 2, "w0", "w1", "w2")
    driver.wrong = {"w1": range(99)}
    for step in range(3):
        driver.train(step)
    driver.lose("w2")
    driver.all_ready(2)
    assert driver.state.phase == "suspended"
    assert "w0 and w1" in driver.state.reason


def test_two_that_lie_alike_are_found_by_three_others() -> None:
    votes = {"w0": RIGHT, "w1": WRONG, "w2": WRONG, "w3": RIGHT, "w4": RIGHT}
    assert sentinel.faulty(votes) == ("w1", "w2")


def test_a_master_that_takes_over_knows_the_check() -> None:
    driver = start(3, 2, "w0", "w1", "w2")
    for step in range(2):
        driver.train(step)
    driver.say("w1")
    driver.machine = type(driver.machine).restore(driver.machine.snapshot())
    driver.do(events.MasterStarted("m2"))
    for worker in ("w0", "w1", "w2"):
        driver.rejoin(worker, driver.generation, 2, session=f"{worker}-2")
    assert driver.orders["w0"].step == 2  # told again
    driver.take()
    driver.step(2)
    driver.say("w0")
    assert driver.take(effects.Prepared)


@given(st.integers(3, 6), st.integers(0, 3), st.integers(1, 4), st.data())
@hypothesis.settings(deadline=None, max_examples=50)
def test_a_faulty_worker_is_found_within_k_times_p_steps_and_nobody_else(
    workers: int, more: int, every: int, data: st.DataObject
) -> None:
    names = [f"w{place}" for place in range(workers)]
    driver = start(workers + more, every, *names)
    faulty = data.draw(st.sampled_from(names))
    first = data.draw(st.integers(0, 3 * every * workers))
    driver.wrong = {faulty: range(first, 10**6)}
    step = 0
    while not driver.noted("sentinel_faulty"):
        assert step < max(1, first) + every * workers, "not found"
        driver.train(step)
        if driver.state.ring.stage == "preparing":
            driver.replay(step)
        step += 1
    assert [note.worker for note in driver.noted("sentinel_faulty")] == [faulty]
    assert set(driver.state.sentinel.faulty) == {faulty}
    assert driver.closed == [faulty]
    assert driver.state.sentinel.doubts[-1].step_max <= max(first, 0)


@given(st.lists(st.tuples(st.sampled_from(["train", "lose", "join"]), st.integers(0, 9)), max_size=40))
@hypothesis.settings(deadline=None, max_examples=50)
def test_honest_workers_are_never_evicted_and_no_step_is_held_up(acts: list[tuple[str, int]]) -> None:
    driver = start(4, 1, "w0", "w1", "w2")
    step, count = 0, 3
    for act, number in acts:
        if act == "train":
            driver.train(step)
            step += 1
            assert driver.state.steps.prepared == step - 1
        elif act == "join":
            count += 1
            driver.join(f"w{count}")
        elif len(driver.members) > 1:
            driver.lose(driver.members[number % len(driver.members)])
        if driver.state.ring.stage == "preparing":
            driver.all_ready(step)
        if driver.state.ring.stage != "running":
            return
        step = driver.state.steps.current
    assert not driver.noted("sentinel_difference")


def test_books_of_before_are_read() -> None:
    kept = msgspec.msgpack.encode({"liars": {"w1": 2}})
    book = msgspec.msgpack.decode(kept, type=SentinelBook)
    assert book.faulty == {"w1": 2}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(book))["liars"] == {"w1": 2}
