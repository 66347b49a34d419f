"""The restart budget: a window for all workers, a streak for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastane_agent.supervisor.budget import RestartBudget


def test_allows_up_to_the_maximum_within_the_window() -> None:
    budget = RestartBudget(restarts_max=3, window_seconds=3600)
    assert budget.decide(10.0, [1.0, 2.0], []).allowed
    refused = budget.decide(10.0, [1.0, 2.0, 3.0], [])
    assert not refused.allowed
    assert "3 restarts within 1 h, 3 allowed" in refused.reason


def test_restarts_leave_the_window() -> None:
    budget = RestartBudget(restarts_max=3, window_seconds=3600)
    assert not budget.decide(3600.9, [1.0, 2.0, 3.0], []).allowed
    assert budget.decide(3601.0, [1.0, 2.0, 3.0], []).allowed


def test_no_restart_at_all() -> None:
    assert not RestartBudget(restarts_max=0).decide(0.0, [], []).allowed


def test_a_streak_doubles_the_delay_up_to_a_limit() -> None:
    budget = RestartBudget(restarts_max=100, delay_min_seconds=0.5, delay_max_seconds=3.0)
    own: list[float] = []
    delays = []
    for second in range(5):
        delays.append(budget.decide(float(second), own, own).delay_seconds)
        own.append(float(second))
    assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_another_workers_streak_does_not_count() -> None:
    budget = RestartBudget(delay_min_seconds=0.5)
    assert budget.decide(5.0, [1.0, 2.0, 3.0], []).delay_seconds == 0.5


def test_a_calm_time_ends_the_streak() -> None:
    budget = RestartBudget(delay_min_seconds=0.5, calm_seconds=60.0)
    assert budget.decide(63.0, [], [1.0, 2.0, 3.0]).delay_seconds == 0.5
    assert budget.decide(62.9, [], [1.0, 2.0, 3.0]).delay_seconds == 4.0


@given(
    times=st.lists(st.floats(0, 1e5), max_size=30).map(sorted),
    maximum=st.integers(0, 8),
    window=st.floats(1, 1e4),
)
def test_never_more_restarts_in_a_window_than_allowed(
    times: list[float], maximum: int, window: float
) -> None:
    budget = RestartBudget(restarts_max=maximum, window_seconds=window)
    granted: list[float] = []
    for now in times:
        decision = budget.decide(now, granted, granted)
        assert 0 <= decision.delay_seconds <= budget.delay_max_seconds
        if decision.allowed:
            granted.append(now)
    for end in granted:
        assert sum(1 for time in granted if 0 <= end - time < window) <= maximum
