"""All policies: none gives out more than is offered, gangs are whole, equal input gives equal decisions."""

from __future__ import annotations

import copy
import os
import random

import pytest

from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.policies.catalogue import POLICIES, make_policy
from slow import further
from unit.scheduler.worlds import decisions, given

QUICK = 40
FURTHER = int(os.environ.get("SEQUENCES", "300"))
"""With SEQUENCES=10000 it takes about ten minutes of a core, half of it for foresight."""
EVENTS = 15


def check(name: str, seeds: range) -> int:
    made = 0
    for seed in seeds:
        for view, decision in decisions(make_policy(name), random.Random(seed), EVENTS):
            made += 1
            where = (name, seed, view.now)
            used = given(decision, len(view.offered))
            assert all(a <= b for a, b in zip(used, view.offered, strict=True)), where
            assert decision.choice, where
            assert decision.wake_seconds > view.now, where
            for state, devices in zip(view.jobs, decision.allocation, strict=True):
                assert min(devices) >= 0, where
                assert sum(devices) == 0 or sum(devices) >= state.shape.workers_min, where
                assert not any(devices[i] for i in range(len(devices)) if i not in state.shape.usable), where
    return made


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_gives_more_than_is_offered(name: str) -> None:
    assert check(name, range(QUICK)) == QUICK * EVENTS


@further  # the sequences of the test above, and more
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_gives_more_in_many_sequences(name: str) -> None:
    assert check(name, range(FURTHER)) == FURTHER * EVENTS


@pytest.mark.parametrize("name", POLICIES)
def test_equal_views_give_equal_decisions(name: str) -> None:
    first = [decision for _, decision in decisions(make_policy(name), random.Random(7), 40)]
    again = [decision for _, decision in decisions(make_policy(name), random.Random(7), 40)]
    assert first == again


@pytest.mark.parametrize("name", POLICIES)
def test_a_decision_changes_nothing(name: str) -> None:
    policy = make_policy(name)
    for view, _ in decisions(policy, random.Random(9), 20):
        before = [copy.copy(state) for state in view.jobs]
        make_policy(name).decide(view)
        for old, state in zip(before, view.jobs, strict=True):
            assert (old.devices, old.segments, old.remaining) == (
                state.devices,
                state.segments,
                state.remaining,
            )


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_that_fits_gets_devices_when_it_is_alone(name: str) -> None:
    for seed in range(200):
        _, decision = next(iter(decisions(make_policy(name), random.Random(seed), 1)))
        assert any(decision.allocation[0]), seed


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidSettings) as refused:
        make_policy("lottery")
    assert "foresight" in refused.value.hint
