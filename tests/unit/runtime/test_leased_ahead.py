"""Tasks that are leased ahead of their turn: what is asked for when, and what is told of them."""

from __future__ import annotations

import random

import pytest

from elastane.runtime.leased_ahead import LeasedAhead
from elastane_proto.v1 import common_pb2, shard_pb2

TASK_SIZE = 10
SIZE = 995


def task(index: int, count: int = 1, attempt: int = 1) -> shard_pb2.Task:
    end = min((index + count) * TASK_SIZE, SIZE)
    span = common_pb2.Range(start=index * TASK_SIZE, end=end)
    return shard_pb2.Task(index=index, count=count, range=span, attempt=attempt)


def ahead(prefetch: int) -> LeasedAhead:
    return LeasedAhead(prefetch, TASK_SIZE, lease_seconds=60.0)


def test_the_first_request_asks_for_what_fits() -> None:
    tasks = ahead(4)
    assert tasks.take(0.0) is None
    assert tasks.ask(0.0, in_hand=False) == (5, [])
    assert tasks.ask(0.0, in_hand=False) is None, "one answer is waited for"


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
        tasks.finish(one)
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
    tasks.finish(one)
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
            tasks.finish(one)
            if on_the_way and rng.random() < 0.5:
                answer()
        elif len(told) < total:
            answer()
    assert done == told == list(range(total))
