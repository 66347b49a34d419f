"""Which hosts are left out, and for how long."""

from __future__ import annotations

from elastane_agent.hosts.rests import FAILURES_MAX, REST_SECONDS, UNREACHABLE_MIN_SECONDS, HostRests


def test_a_host_that_fails_again_and_again_rests_unless_it_is_alone() -> None:
    rests = HostRests()
    for now in range(FAILURES_MAX - 1):
        assert rests.failed(float(now), "a", alone=False) == 0
    assert rests.failed(9.0, "a", alone=True) == 0
    assert rests.failed(10.0, "a", alone=False) == REST_SECONDS
    assert rests.resting(10.0) == {"a"} and rests.next_due() == 10.0 + REST_SECONDS
    assert rests.resting(10.0 + REST_SECONDS) == frozenset() and rests.next_due() is None


def test_what_lasted_clears_what_failed_before() -> None:
    rests = HostRests()
    for now in range(FAILURES_MAX - 1):
        rests.failed(float(now), "a", alone=False)
    rests.clear(["a"])
    assert rests.failed(9.0, "a", alone=False) == 0


def test_an_unreachable_host_is_tried_less_and_less_often() -> None:
    rests, now, waits = HostRests(), 0.0, []
    for _ in range(9):
        waits.append(rests.unreachable(now, "a"))
        now += waits[-1]
    assert waits[:3] == [UNREACHABLE_MIN_SECONDS * factor for factor in (1, 2, 4)]
    assert waits[-1] == REST_SECONDS
    rests.clear(["a"])
    assert rests.unreachable(now, "a") == UNREACHABLE_MIN_SECONDS


def test_the_slots_of_one_host_that_cannot_be_reached_count_once() -> None:
    rests = HostRests()
    assert rests.unreachable(0.0, "a") == UNREACHABLE_MIN_SECONDS
    assert rests.unreachable(1.0, "a") == UNREACHABLE_MIN_SECONDS - 1.0
    assert rests.unreachable(UNREACHABLE_MIN_SECONDS, "a") == 2 * UNREACHABLE_MIN_SECONDS
