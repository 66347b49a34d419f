"""Runs with restores, forks and pulls at different moments, in numbers, computed again by `ReplayOrder`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from elastane.tables.journal_records import JournalEntry, JournalError, LifeBegun, Record
from elastane.tables.replay_order import History, ReplayOrder, SlotState, Step

SLOTS = 4


def mixed(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def gradient(task: int, pulls: list[dict[int, str]]) -> str:
    return mixed(task, [sorted(asked.items()) for asked in pulls])


@dataclass
class Attempt:
    """A worker's task under one lease. pulls: the first of each slot, then those of a second request."""

    task: int
    lease: int
    pulls: list[dict[int, SlotState]] = field(default_factory=lambda: [{}, {}])
    to_pull: list[tuple[int, int]] = field(default_factory=list)
    to_push: list[int] = field(default_factory=list)


class Run:
    """A weight is the digest of all that made it, so another order or another pull has another one."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = {slot: SlotState(slot, 0, 0) for slot in range(SLOTS)}
        self.values = {state: mixed(state.slot) for state in self.now.values()}
        self.applied: dict[SlotState, frozenset[int]] = {state: frozenset() for state in self.values}
        self.initial = dict(self.values)
        self.records: list[Record] = []
        self.generation = self.lease = 0
        self.todo = list(range(40))
        self.attempts: list[Attempt] = []

    def go(self, deaths: float = 0.02) -> Run:
        while self.todo or self.attempts:
            draw, slot = self.random.random(), self.random.randrange(SLOTS)
            if draw < deaths / 2:
                self.restore(slot)
            elif draw < deaths:
                self.fork(slot)
            elif self.todo and len(self.attempts) < 5:
                self.attempts.append(self.attempt(self.todo.pop(self.random.randrange(len(self.todo)))))
            elif self.attempts:
                self.work(self.random.choice(self.attempts))
        return self

    def attempt(self, task: int) -> Attempt:
        self.lease += 1
        slots = self.random.sample(range(SLOTS), SLOTS)
        again = [(1, slot) for slot in slots if self.random.random() < 0.3]
        to_pull = [(0, slot) for slot in slots] + again
        return Attempt(task, self.lease, to_pull=to_pull, to_push=self.random.sample(slots, SLOTS))

    def work(self, attempt: Attempt) -> None:
        """Pull a slot more, or push to one."""
        if attempt.to_pull:
            number, slot = attempt.to_pull.pop(0)
            attempt.pulls[number][slot] = self.now[slot]
            return
        slot = attempt.to_push.pop()
        there = attempt.task in self.applied[self.now[slot]]
        if not there and attempt.pulls[0][slot].life != self.now[slot].life:
            self.attempts.remove(attempt)  # restored: given back, though other slots have it
            self.todo.append(attempt.task)
            return
        if not there:
            self.apply(attempt, slot)
        if not attempt.to_push:
            self.attempts.remove(attempt)
            if any(attempt.task not in self.applied[state] for state in self.now.values()):
                self.todo.append(attempt.task)

    def apply(self, attempt: Attempt, slot: int) -> None:
        before = self.now[slot]
        after = before._replace(version=before.version + 1)
        self.records.append(self.entry(attempt, after))
        pulled = [{one.slot: self.values[one] for one in asked.values()} for asked in attempt.pulls]
        self.values[after] = mixed(self.values[before], gradient(attempt.task, pulled), after.version / 7)
        self.applied[after] = self.applied[before] | {attempt.task}
        self.now[slot] = after

    def entry(self, attempt: Attempt, made: SlotState) -> JournalEntry:
        return JournalEntry(
            *made,
            dataset="clicks",
            epoch=0,
            task=attempt.task,
            attempt=1,
            lease=attempt.lease,
            pulls=[attempt.pulls[0][slot][1:] for slot in range(SLOTS)],
            rates=[],
            scale=made.version / 7,
            generation=self.generation,
            later=[[(one.slot, one.life, one.version) for one in attempt.pulls[1].values()]],
        )

    def restore(self, slot: int) -> None:
        """A slot goes back to any state that it has had; what it lacks is done again."""
        source = self.random.choice([state for state in self.values if state.slot == slot])
        self.generation += 1
        begun = SlotState(slot, self.now[slot].life + 1, source.version)
        self.records.append(LifeBegun(*begun, before=source.life))
        leased = {attempt.task for attempt in self.attempts}
        lacks = self.applied[self.now[slot]] - self.applied[source] - leased - set(self.todo)
        self.todo += sorted(lacks)
        self.values[begun], self.applied[begun] = self.values[source], self.applied[source]
        self.now[slot] = begun

    def fork(self, slot: int) -> None:
        """The owner dies with pushes that its backup never got, and that nobody has seen."""
        state = self.now[slot]
        for number in range(1, self.random.randrange(1, 4)):
            self.lease += 1
            nobody = Attempt(1000 + number, self.lease, [dict(self.now), {}])
            self.records.append(self.entry(nobody, state._replace(version=state.version + number)))
        self.generation += 1

    def order(self) -> ReplayOrder:
        history = History()
        self.random.shuffle(self.records)
        for record in [*self.records, *self.records[::3]]:  # owner and backup write the same
            history.add(record)
        return history.order(self.now.values())


def computed(order: ReplayOrder, initial: Mapping[SlotState, str]) -> tuple[dict[SlotState, str], int]:
    """Compute in this order. Return the weights that are left, and how often one had to be copied."""
    weights = {state: initial[state] for state in order.initial}
    gradients: dict[int, str] = {}
    copies = 0

    def make(step: Step) -> None:
        value = weights[step.before] if step.keep else weights.pop(step.before)
        weights[step.state] = mixed(value, gradients[step.update.lease], step.update.scale)
        order.made(step.state)

    while True:
        for step in order.free():
            make(step)
        if (execution := order.next("clicks")) is not None:
            pulled = [
                {state.slot: weights[order.origin(state)] for state in asked.values()}
                for asked in execution.pulls
            ]
            gradients[execution.lease] = gradient(execution.task, pulled)
            for state in order.done(execution.lease):
                del weights[state]
        elif (step := order.forced()) is not None:
            copies += 1
            make(step)
        else:
            return weights, copies


@pytest.mark.parametrize("seed", range(60))
def test_a_run_is_computed_again(seed: int) -> None:
    run = Run(seed).go()
    order = run.order()
    weights, copies = computed(order, run.initial)
    assert not order.left and not order.datasets()
    assert {end: weights[state] for end, state in order.ends.items()} == {
        state: run.values[state] for state in run.now.values()
    }
    assert len(weights) == SLOTS, "nothing else is kept"
    assert copies < sum(map(len, order.makes.values())) / 2, "most is made in place"


def test_what_is_missing_is_named() -> None:
    run = Run(1).go()
    end = run.now[2]
    run.records = [
        one
        for one in run.records
        if isinstance(one, LifeBegun) or (one.slot, one.life, one.version) != (2, end.life, end.version)
    ]
    with pytest.raises(JournalError, match=f"what made version {end.version} of slot 2"):
        run.order()


def test_journals_of_two_runs_are_refused() -> None:
    run, other = Run(1).go(deaths=0), Run(2).go(deaths=0)
    run.records += other.records
    with pytest.raises(JournalError, match="of two tasks"):
        run.order()


def test_another_push_of_the_same_version_is_refused() -> None:
    run = Run(3).go(deaths=0)
    attempt = run.attempt(99)
    attempt.pulls[0] = dict(run.now)
    run.records.append(run.entry(attempt, run.now[1]))
    with pytest.raises(JournalError, match="two pushes made"):
        run.order()


def test_a_life_that_began_twice_is_refused() -> None:
    history = History()
    history.add(LifeBegun(0, 1, 5, 0))
    history.add(LifeBegun(0, 1, 5, 0))
    with pytest.raises(JournalError, match="life 1 of slot 0 began twice"):
        history.add(LifeBegun(0, 1, 6, 0))


def test_data_sets_come_one_after_the_other() -> None:
    history = History()
    for number, dataset in enumerate(["b", "a"], 1):
        pulls = [(0, number - 1)]
        history.add(JournalEntry(0, 0, number, dataset, 0, 0, 1, number, pulls, []))
    order = history.order([SlotState(0, 0, 2)])
    assert order.next("a") is None and order.datasets() == ["a", "b"]
    first = order.next("b")
    assert first is not None and first.lease == 1
    order.done(1)
    for step in order.free():
        order.made(step.state)
    assert order.next("a") is not None
