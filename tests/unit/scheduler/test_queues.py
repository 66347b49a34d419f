"""Queues: guarantees, borrowing, weights; and policies over queues."""

from __future__ import annotations

import math
import random

import pytest

from elastane_scheduler.costs import Costs
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.execution import change
from elastane_scheduler.jobs import Job, JobState, arrived
from elastane_scheduler.plan import Shape
from elastane_scheduler.policies.catalogue import POLICIES, make_policy
from elastane_scheduler.policies.queued import QueuedPolicy
from elastane_scheduler.pool import Pool
from elastane_scheduler.queues import Queue, entitlements
from elastane_scheduler.view import View

POOL = Pool(("v100",), (8,))
COSTS = Costs(2, 0.5, 1)


def job(name: str, queue: str, ests: int = 8, arrival: float = 0.0) -> JobState:
    return arrived(Job(name, Shape(ests, (1.0,)), 100, arrival, (min(8, ests),), queue))


def test_weights_and_borrowing() -> None:
    queues = [Queue("a", 3), Queue("b", 1)]
    assert entitlements(queues, {"a": (8,), "b": (8,)}, (8,)) == {"a": (6,), "b": (2,)}
    assert entitlements(queues, {"a": (1,), "b": (8,)}, (8,)) == {"a": (1,), "b": (7,)}
    assert entitlements(queues, {"b": (8,)}, (8,)) == {"a": (0,), "b": (8,)}


def test_a_guarantee_comes_first() -> None:
    queues = [Queue("a", 1000), Queue("b", 1, (4,))]
    assert entitlements(queues, {"a": (8,), "b": (8,)}, (8,)) == {"a": (4,), "b": (4,)}
    assert entitlements(queues, {"a": (8,), "b": (1,)}, (8,)) == {"a": (7,), "b": (1,)}
    assert entitlements(queues, {"a": (8,), "b": (8,)}, (3,)) == {"a": (0,), "b": (3,)}


def test_nothing_is_given_twice_and_nothing_is_idle() -> None:
    rng = random.Random(1)
    for _ in range(500):
        offered = (rng.randint(0, 9), rng.randint(0, 9))
        queues = [
            Queue(name, rng.uniform(0.1, 5), rng.choice([(), (rng.randint(0, 4), rng.randint(0, 4))]))
            for name in "abc"
        ]
        demands = {name: (rng.randint(0, 9), rng.randint(0, 9)) for name in "abc"}
        found = entitlements(queues, demands, offered)
        for i, most in enumerate(offered):
            given = sum(counts[i] for counts in found.values())
            assert given == min(most, sum(demand[i] for demand in demands.values()))
            assert all(found[name][i] <= demands[name][i] for name in found)


@pytest.mark.parametrize("name", POLICIES)
def test_guaranteed_work_takes_its_devices_back_at_once(name: str) -> None:
    queues = [Queue("spare"), Queue("paid", 1, (6,))]
    policy = QueuedPolicy(queues, lambda: make_policy(name), POOL.counts)
    borrower = job("borrower", "spare")
    now = 0.0
    for _ in range(12):  # EasyScale's greedy grows once in each decision
        decision = policy.decide(View(now, [borrower], POOL, POOL.counts, COSTS))
        change(borrower, decision.allocation[0], now, COSTS)
        now += 10
    assert borrower.devices == (8,)
    owner = job("owner", "paid", ests=6, arrival=now)
    decision = policy.decide(View(now, [borrower, owner], POOL, POOL.counts, COSTS))
    assert any(decision.allocation[1])
    assert decision.allocation[0][0] <= 2
    assert "queue paid has 6 v100" in decision.choice


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, 2.0**63])
def test_weights_that_are_refused(weight: float) -> None:
    with pytest.raises(InvalidSettings):
        Queue("a", weight)


def test_a_pool_below_its_guarantees_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="9 devices"):
        QueuedPolicy([Queue("a", 1, (5,)), Queue("b", 1, (4,))], lambda: make_policy("fifo"), POOL.counts)
