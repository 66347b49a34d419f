"""Which hosts are left out, and for how long."""

from __future__ import annotations

from elastane_agent.hosts.exclusions import (
    EXCLUDED_SECONDS,
    FAILURES_MAX,
    UNREACHABLE_MIN_SECONDS,
    HostExclusions,
)


def test_a_host_that_fails_again_and_again_rests_unless_it_is_alone() -> None:
    exclusions = HostExclusions()
    for now in range(FAILURES_MAX - 1):
        assert exclusions.failed(float(now), "a", alone=False) == 0
    assert exclusions.failed(9.0, "a", alone=True) == 0
    assert exclusions.failed(10.0, "a", alone=False) == EXCLUDED_SECONDS
    assert exclusions.excluded(10.0) == {"a"} and exclusions.next_due() == 10.0 + EXCLUDED_SECONDS
    assert exclusions.excluded(10.0 + EXCLUDED_SECONDS) == frozenset() and exclusions.next_due() is None


def test_what_lasted_clears_what_failed_before() -> None:
    exclusions = HostExclusions()
    for now in range(FAILURES_MAX - 1):
        exclusions.failed(float(now), "a", alone=False)
    exclusions.clear(["a"])
    assert exclusions.failed(9.0, "a", alone=False) == 0


def test_an_unreachable_host_is_tried_less_and_less_often() -> None:
    exclusions, now, waits = HostExclusions(), 0.0, []
    for _ in range(9):
        waits.append(exclusions.unreachable(now, "a"))
        now += waits[-1]
    assert waits[:3] == [UNREACHABLE_MIN_SECONDS * factor for factor in (1, 2, 4)]
    assert waits[-1] == EXCLUDED_SECONDS
    exclusions.clear(["a"])
    assert exclusions.unreachable(now, "a") == UNREACHABLE_MIN_SECONDS


def test_the_slots_of_one_host_that_cannot_be_reached_count_once() -> None:
    exclusions = HostExclusions()
    assert exclusions.unreachable(0.0, "a") == UNREACHABLE_MIN_SECONDS
    assert exclusions.unreachable(1.0, "a") == UNREACHABLE_MIN_SECONDS - 1.0
    assert exclusions.unreachable(UNREACHABLE_MIN_SECONDS, "a") == 2 * UNREACHABLE_MIN_SECONDS
