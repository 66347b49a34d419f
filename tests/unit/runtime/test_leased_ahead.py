"""Tasks that are leased ahead of their turn: what is asked for when, and what is told of them."""

from __future__ import annotations

import random

import pytest

from elastane.runtime.leased_ahead import LeasedAhead
from elastane_proto.v1 import common_pb2, shard_pb2
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.settings import QueueSettings

TASK_SIZE = 10
SIZE = 995


def task(index: int, count: int = 1, attempt: int = 1) -> shard_pb2.Task:
    end = min((index + count) * TASK_SIZE, SIZE)
    span = common_pb2.Range(start=index * TASK_SIZE, end=end)
    return shard_pb2.Task(index=index, count=count, range=span, attempt=attempt)


def fresh(prefetch: int, lease_seconds: float = 60.0) -> LeasedAhead:
    return LeasedAhead(prefetch, TASK_SIZE, lease_seconds)


def ahead(prefetch: int) -> LeasedAhead:
    """One that knows that tasks take no time."""
    tasks = fresh(prefetch)
    tasks._longest_seconds = 0.0
    return tasks


def test_the_first_request_asks_for_what_fits() -> None:
    tasks = ahead(4)
    assert tasks.take(0.0) is None
    assert tasks.ask(0.0, in_hand=False) == (5, [])
    assert tasks.ask(0.0, in_hand=False) is None, "one answer is waited for"


def test_none_is_leased_ahead_until_it_is_known_how_long_a_task_takes() -> None:
    tasks = fresh(16)
    assert tasks.ask(0.0, in_hand=False) == (1, [])
    tasks.answered([task(0)])
    one = tasks.take(1.0)
    assert one is not None and tasks.ask(1.0, in_hand=True) is None
    tasks.finish(one, 1.5)
    assert tasks.take(1.5) is None
    asked = tasks.ask(1.5, in_hand=False)
    assert asked is not None and asked[0] == 17


@pytest.mark.parametrize(
    ("task_seconds", "most"), [(1.8, 16), (2.0, 15), (10.0, 3), (29.0, 1), (31.0, 0), (500.0, 0)]
)
def test_no_more_are_held_than_are_begun_in_half_their_lease(task_seconds: float, most: int) -> None:
    tasks = fresh(16)
    tasks.ask(0.0, in_hand=False)
    tasks.answered([task(0)])
    one = tasks.take(0.0)
    assert one is not None
    tasks.finish(one, task_seconds)
    assert tasks.ahead == most
    # With none ahead, each is told as soon as it is done.
    assert tasks.ask(task_seconds, in_hand=False) is not None


@pytest.mark.parametrize(
    ("prefetch", "task_seconds"), [(1, 10.0), (8, 10.0), (16, 5.0), (60, 2.0), (4, 31.0)]
)
def test_slow_tasks_do_not_time_out_unbegun(prefetch: int, task_seconds: float) -> None:
    queue = DynamicQueue(QueueSettings(task_size=1, size=100, lease_seconds=60.0, max_attempts=3))
    tasks, now, answers = LeasedAhead(prefetch, 1, 60.0), 0.0, []
    while not queue.complete:
        one = tasks.take(now)
        if (asked := tasks.ask(now, one is not None)) is not None:
            queue.expire(now)
            for report in asked[1]:
                queue.report_run("w", report.epoch, report.index, report.count, report.attempt, now)
            leases = queue.lease("w", asked[0], now, runs=asked[0] > 1)
            answers.append(
                [
                    shard_pb2.Task(
                        index=lease.index,
                        range=common_pb2.Range(start=lease.start, end=lease.end),
                        attempt=lease.attempt,
                        count=lease.count,
                    )
                    for lease in leases
                ]
            )
        if one is None:
            if answers:
                tasks.answered(answers.pop(0))
            continue
        now += task_seconds
        tasks.finish(one, now)
    assert queue.progress(now).timed_out == 0


def test_a_run_comes_apart_into_its_tasks() -> None:
    tasks = ahead(4)
    tasks.ask(0.0, in_hand=False)
    tasks.answered([task(97, 3)])
    taken = [tasks.take(1.0) for _ in range(3)]
    assert [(one.index, one.indices) for one in taken if one] == [
        (97, range(970, 980)),
        (98, range(980, 990)),
        (99, range(990, 995)),
    ]


def test_finished_tasks_are_told_together_in_runs_with_the_next_request() -> None:
    tasks = ahead(8)
    tasks.ask(0.0, in_hand=False)
    tasks.answered([task(0, 9)])
    for _ in range(2):
        one = tasks.take(1.0)
        assert one is not None
        tasks.ask(1.0, in_hand=True)
        tasks.finish(one, 0.0)
    assert tasks.take(1.0) is not None
    asked = tasks.ask(1.0, in_hand=True)
    assert asked is not None
    most, finished = asked
    assert most == 2
    assert [(one.index, one.count) for one in finished] == [(0, 2)]


def test_what_is_done_is_told_before_it_is_waited_for_more() -> None:
    """The dataset ends: fewer come than were asked for, and the last report may be the one all wait for."""
    tasks = ahead(8)
    tasks.ask(0.0, in_hand=False)
    tasks.answered([task(0)])
    one = tasks.take(1.0)
    assert one is not None
    assert tasks.ask(1.0, in_hand=True) == (8, [])
    tasks.finish(one, 0.0)
    assert tasks.take(2.0) is None
    asked = tasks.ask(2.0, in_hand=False)
    assert asked is not None and asked[0] == 1
    assert [one.index for one in asked[1]] == [0]


def test_a_task_that_waited_longer_than_its_lease_is_not_begun() -> None:
    tasks = ahead(2)
    tasks.ask(5.0, in_hand=False)
    tasks.answered([task(0, 3)])
    assert tasks.take(64.9) is not None
    assert tasks.take(65.0) is None, "the lease counts from before the request was sent"
    assert tasks.ask(65.0, in_hand=False) is not None


@pytest.mark.parametrize("prefetch", [1, 3, 4, 16, 60])
def test_every_task_is_taken_and_told_once_and_no_more_are_held_than_allowed(prefetch: int) -> None:
    rng = random.Random(prefetch)
    tasks, total, leased = ahead(prefetch), 99, 0
    on_the_way: list[int] = []
    done: list[int] = []
    told: list[int] = []

    def answer() -> None:
        nonlocal leased
        count = min(on_the_way.pop(0), total - leased, rng.randint(1, 60))
        tasks.answered([task(leased, count)] if count else [])
        leased += count

    while len(told) < total:
        one = tasks.take(0.0)
        if (asked := tasks.ask(0.0, one is not None)) is not None:
            on_the_way.append(asked[0])
            for report in asked[1]:
                told += range(report.index, report.index + report.count)
        assert sum(on_the_way) == tasks.on_the_way <= prefetch + 1
        if one is not None:
            done.append(one.index)
            tasks.finish(one, 0.0)
            if on_the_way and rng.random() < 0.5:
                answer()
        elif len(told) < total:
            answer()
    assert done == told == list(range(total))
