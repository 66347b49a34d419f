"""DynamicQueue against a second implementation that keeps every task as an object, under any calls."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import InvalidRequest
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome, QueueStatus, TaskState

WORKERS = st.sampled_from(["a", "b", "c"])


@dataclass
class Task:
    epoch: int
    index: int
    samples: int
    state: TaskState = TaskState.TODO
    worker: str = ""
    attempt: int = 0
    deadline: float = 0.0
    rng: dict[str, bytes] | None = None
    errors: list[tuple[int, str]] = field(default_factory=list)
    #: Of TODO: returned tasks first, then those opened again, then new ones.
    rank: tuple[int, int, int] = (2, 0, 0)
    reopened: int = 0


class Model:
    """Lists and loops only; the order of TODO is that of the ranks."""

    def __init__(self, given: QueueSettings) -> None:
        self.given = given
        self.size = given.size if given.size is not None else given.watermark or 0
        self.closed = given.closed or given.watermark is None
        self.past: list[Task] = []
        self.epoch = 0
        self.returns = 0
        self.todo: list[Task] = []
        self.doing: list[Task] = []
        self.tasks: list[Task] = []
        self.grow()

    def grow(self) -> None:
        step = self.given.task_size
        while len(self.tasks) * step + (1 if self.closed else step) <= self.size:
            start = len(self.tasks) * step
            task = Task(self.epoch, len(self.tasks), min(step, self.size - start))
            task.rank = (2, self.epoch, task.index)
            self.tasks.append(task)
            self.todo.append(task)

    def turn(self) -> None:
        while (
            self.closed
            and self.epoch < self.given.epochs - 1
            and all(task.state in (TaskState.DONE, TaskState.FAILED) for task in self.tasks)
        ):
            self.past += self.tasks
            self.tasks = []
            self.epoch += 1
            self.grow()

    def lease(self, worker: str, most: int, now: float, rng: dict[str, bytes]) -> list[Task]:
        self.todo.sort(key=lambda task: task.rank)
        taken, self.todo = self.todo[:most], self.todo[most:]
        for task in taken:
            task.state, task.worker, task.attempt = TaskState.DOING, worker, task.attempt + 1
            task.deadline = now + self.given.lease_seconds
            task.rng = rng if task.rng is None else task.rng
        self.doing += taken
        return taken

    def end(self, ended: list[Task], counts: bool = True) -> None:
        back = []
        for task in ended:
            self.doing.remove(task)
            if counts:
                task.errors.append((task.attempt, task.worker))
            task.state = TaskState.TODO
            if len(task.errors) == self.given.max_attempts:
                task.state = TaskState.FAILED
            else:
                back.append(task)
        for task in reversed(back):
            self.returns += 1
            task.rank = (0, task.epoch, -self.returns)
        self.todo += back
        self.turn()

    def reopen(self, tasks: list[Task]) -> None:
        for task in tasks:
            task.state, task.rank, task.reopened = (
                TaskState.TODO,
                (1, task.epoch, task.index),
                task.reopened + 1,
            )
            task.worker, task.attempt, task.rng, task.errors = "", 0, None, []
        self.todo += tasks

    def report(self, worker: str, task: Task, attempt: int, error: str) -> Outcome:
        if task.state is TaskState.DOING and (task.worker, task.attempt) == (worker, attempt):
            if error:
                self.end([task])
                return Outcome.ACCEPTED
            self.doing.remove(task)
        elif task.state is TaskState.TODO and attempt <= task.attempt and not error:
            self.todo.remove(task)
        else:
            return Outcome.STALE
        task.state = TaskState.DONE
        self.turn()
        return Outcome.ACCEPTED


class QueueMachine(RuleBasedStateMachine):
    @initialize(
        task_size=st.integers(1, 3),
        size=st.integers(1, 12),
        stream=st.booleans(),
        closed=st.booleans(),
        epochs=st.integers(1, 3),
        max_attempts=st.integers(1, 3),
    )
    def begin(
        self, task_size: int, size: int, stream: bool, closed: bool, epochs: int, max_attempts: int
    ) -> None:
        self.given = QueueSettings(
            task_size=task_size,
            size=None if stream else size,
            watermark=size // 2 if stream else None,
            closed=stream and closed,
            epochs=epochs,
            lease_seconds=10.0,
            max_attempts=max_attempts,
        )
        self.queue, self.model, self.now = DynamicQueue(self.given), Model(self.given), 0.0
        self.model.turn()
        self.leased: list[tuple[str, Task, int]] = []
        self.requests = 0

    @rule(
        worker=WORKERS,
        most=st.integers(0, 5),
        runs=st.booleans(),
        fresh_max=st.one_of(st.none(), st.integers(0, 3)),
    )
    def lease(self, worker: str, most: int, runs: bool, fresh_max: int | None = None) -> None:
        self.requests += 1
        rng = {"rng/python": str(self.requests).encode()}
        returned = sum(task.rank[0] == 0 for task in self.model.todo)
        if fresh_max is not None:
            most, runs = min(most, returned + fresh_max), False
        again = any(task.rank[0] == 1 for task in self.model.todo)
        again = again or any(task.state in (TaskState.TODO, TaskState.DOING) for task in self.model.past)
        order = sorted(self.model.todo, key=lambda task: task.rank)[:most]
        fresh = 0 if again else sum(task.rank[0] == 2 for task in order)
        real = self.queue.lease(worker, most, self.now, rng, runs=runs, fresh_max=fresh_max)
        model = self.model.lease(worker, most, self.now, rng)
        assert [
            (r.epoch, r.index + i, r.worker, r.attempt, r.deadline, r.rng)
            for r in real
            for i in range(r.count)
        ] == [(m.epoch, m.index, worker, m.attempt, m.deadline, m.rng) for m in model]
        assert sum(r.end - r.start for r in real) == sum(m.samples for m in model)
        if runs and fresh:
            assert real[-1].count == fresh
        self.leased += [(worker, task, task.attempt) for task in model]

    @rule(choice=st.integers(0, 10**6), newest=st.booleans(), count=st.integers(1, 5))
    def report_run(self, choice: int, newest: bool, count: int) -> None:
        """Of the tasks from any lease's on, as if all were its worker's."""
        if not self.leased:
            return
        recent = self.leased[-4:] if newest else self.leased
        worker, task, attempt = recent[choice % len(recent)]
        tasks = [
            other
            for other in (self.model.past + self.model.tasks)
            if other.epoch == task.epoch and task.index <= other.index < task.index + count
        ]
        tasks = list(itertools.takewhile(lambda other: other.attempt, tasks))
        if not tasks:
            return
        real = self.queue.report_run(worker, task.epoch, task.index, len(tasks), attempt, self.now)
        outcomes = [outcome for first, number, outcome in real for _ in range(number)]
        assert [first for first, _, _ in real] == [
            task.index + sum(number for _, number, _ in real[:i]) for i in range(len(real))
        ]
        assert outcomes == [self.model.report(worker, other, attempt, "") for other in tasks]

    @rule(choice=st.integers(0, 10**6), newest=st.booleans(), error=st.sampled_from(["", "", "bad"]))
    def report(self, choice: int, newest: bool, error: str) -> None:
        """Of any lease ever given, as often as it likes."""
        if not self.leased:
            return
        recent = self.leased[-4:] if newest else self.leased
        worker, task, attempt = recent[choice % len(recent)]
        real = self.queue.report(worker, task.epoch, task.index, attempt, error, self.now)
        assert real is self.model.report(worker, task, attempt, error)

    @rule(worker=WORKERS, counts=st.booleans())
    def abandon(self, worker: str, counts: bool) -> None:
        mine = [task for task in self.model.doing if task.worker == worker]
        mine.sort(key=lambda task: task.epoch)
        real = self.queue.abandon(worker, self.now, counts=counts)
        self.model.end(mine, counts)
        assert [(r.epoch, r.index, r.state) for r in real] == [(m.epoch, m.index, m.state) for m in mine]

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        overdue = [task for task in self.model.doing if task.deadline <= self.now]
        overdue.sort(key=lambda task: (task.deadline, task.epoch))
        real = self.queue.expire(self.now)
        self.model.end(overdue)
        assert [(r.epoch, r.index, r.state) for r in real] == [(m.epoch, m.index, m.state) for m in overdue]

    @rule(choice=st.integers(0, 10**6))
    def give_back(self, choice: int) -> None:
        if not self.leased:
            return
        worker, task, attempt = self.leased[choice % len(self.leased)]
        real = self.queue.give_back(worker, task.epoch, task.index, attempt, "a slot went back", self.now)
        holds = task.state is TaskState.DOING and (task.worker, task.attempt) == (worker, attempt)
        assert real is (Outcome.ACCEPTED if holds else Outcome.STALE)
        if holds:
            self.model.end([task], counts=False)

    @rule(choice=st.integers(0, 10**6), count=st.integers(1, 4))
    def reopen(self, choice: int, count: int) -> None:
        """Of any epoch; and runs with a task that is not DONE are refused whole."""
        tasks = self.model.past + self.model.tasks
        if not tasks:
            return
        first = tasks[choice % len(tasks)]
        run = [
            task
            for task in tasks
            if task.epoch == first.epoch and first.index <= task.index < first.index + count
        ]
        before = self.queue.snapshot()
        runs = [(first.epoch, first.index, first.index + len(run))]
        if any(task.state is not TaskState.DONE for task in run):
            with pytest.raises(InvalidRequest):
                self.queue.reopen(runs)
            assert self.queue.snapshot() == before
            return
        assert self.queue.reopen(runs) == len(run)
        self.model.reopen(run)

    @rule()
    def clock_goes_back(self) -> None:
        self.now -= 3.0
        self.queue.expire(self.now)
        for task in self.model.doing:
            task.deadline = min(task.deadline, self.now + 10.0)

    @rule(more=st.integers(0, 5), close=st.sampled_from([False, False, True]))
    def extend(self, more: int, close: bool) -> None:
        if self.given.watermark is None or self.model.closed:
            return
        self.model.size += more
        self.model.closed = close
        self.model.grow()
        self.model.turn()
        self.queue.extend(self.model.size, close)

    @rule(with_settings=st.booleans())
    def restore(self, with_settings: bool) -> None:
        """The master restarts: from here on a restored queue goes on in the old one's place."""
        snapshot = self.queue.snapshot(with_settings=with_settings)
        self.queue = DynamicQueue.restore(snapshot, None if with_settings else self.given)
        assert self.queue.snapshot(with_settings=with_settings) == snapshot
        assert self.queue.settings == self.given

    @invariant()
    def equal(self) -> None:
        queue, model = self.queue, self.model
        queue.validate()
        progress = queue.progress(self.now)
        counted = {state: sum(task.state is state for task in model.tasks) for state in TaskState}
        for state in (TaskState.TODO, TaskState.DOING):
            counted[state] += sum(task.state is state for task in model.past)
        assert progress.reopened == sum(task.reopened for task in model.past + model.tasks)
        assert progress.failed_before == sum(task.state is TaskState.FAILED for task in model.past)
        epoch, known, number, not_done = queue.done_tasks()
        for task in model.past + model.tasks:
            assert queue.times_reopened(task.epoch, task.index) == task.reopened
            if task.epoch == epoch:
                is_done = task.index in known
            else:
                is_done = task.index not in not_done.get(task.epoch, ())
            assert is_done is (task.state is TaskState.DONE) and task.index < number
        assert (progress.todo, progress.doing, progress.done, progress.failed) == (
            counted[TaskState.TODO],
            counted[TaskState.DOING],
            counted[TaskState.DONE],
            counted[TaskState.FAILED],
        )
        assert progress.total == (len(model.tasks) if model.closed else 0)
        done = [task for task in model.past + model.tasks if task.state is TaskState.DONE]
        assert progress.samples_done == sum(task.samples for task in done)
        complete = model.closed and model.epoch == self.given.epochs - 1
        complete = complete and counted[TaskState.TODO] + counted[TaskState.DOING] == 0
        assert (progress.complete, progress.epoch) == (complete, model.epoch)
        status = QueueStatus.HAS_TODO if model.todo else QueueStatus.WAIT
        assert queue.status(self.now) is (QueueStatus.COMPLETE if complete else status)
        assert queue.next_deadline() == min((task.deadline for task in model.doing), default=None)
        for state in (None, *TaskState):
            self.pages_equal(state)

    def pages_equal(self, state: TaskState | None) -> None:
        listed = [task for task in self.model.past if task.state is not TaskState.DONE]
        listed = [task for task in listed + self.model.tasks if state is None or task.state is state]
        found, after = [], None
        while page := self.queue.list_tasks(state, after, limit=3):
            found += page
            after = (page[-1].epoch, page[-1].index)
        assert [(f.epoch, f.index, f.state) for f in found] == [(t.epoch, t.index, t.state) for t in listed]
        held = (TaskState.DOING, TaskState.FAILED)
        for info, task in zip(found, listed, strict=True):
            assert info.end - info.start == task.samples
            if task.state in held:
                assert (info.worker, info.attempt) == (task.worker, task.attempt)
            if task.state is not TaskState.DONE:
                assert [(e.attempt, e.worker) for e in info.errors] == task.errors


QueueMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_queue = QueueMachine.TestCase


@pytest.mark.parametrize("seed", range(60))
def test_long_lives_of_a_queue(seed: int) -> None:
    """The same machine by a seeded walk, over whole datasets rather than their first tasks."""
    chance = random.Random(seed)
    life = QueueMachine()
    life.begin(
        task_size=chance.randint(1, 3),
        size=chance.randint(1, 60),
        stream=chance.random() < 0.3,
        closed=chance.random() < 0.3,
        epochs=chance.randint(1, 3),
        max_attempts=chance.randint(1, 4),
    )
    actions: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: life.lease(chance.choice("abc"), chance.randrange(5), chance.random() < 0.5)),
        (16, lambda: life.report(choice=chance.randrange(10**6), newest=True, error="")),
        (4, lambda: life.report(choice=chance.randrange(10**6), newest=False, error="")),
        (3, lambda: life.report(choice=chance.randrange(10**6), newest=True, error="bad")),
        (4, lambda: life.report_run(chance.randrange(10**6), chance.random() < 0.7, chance.randint(1, 5))),
        (2, lambda: life.give_back(chance.randrange(10**6))),
        (2, lambda: life.reopen(chance.randrange(10**6), chance.randint(1, 4))),
        (2, lambda: life.lease(chance.choice("abc"), chance.randrange(5), False, chance.randrange(3))),
        (1, lambda: life.abandon(worker=chance.choice("abc"), counts=chance.random() < 0.5)),
        (2, lambda: life.time_passes(seconds=chance.choice([0.5, 4.0, 11.0]))),
        (1, life.clock_goes_back),
        (1, lambda: life.extend(more=chance.randrange(9), close=chance.random() < 0.1)),
        (2, lambda: life.restore(with_settings=chance.random() < 0.5)),
    ]
    for action in chance.choices([a for _, a in actions], [weight for weight, _ in actions], k=200):
        action()
        life.equal()
