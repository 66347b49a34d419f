"""The decisions' clock: never back, never far ahead at once, still while the store is away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastane_master.jobs.clock import STEP_SECONDS_MAX, Clock


class Sources:
    """A wall clock and a monotonic one, set by hand."""

    def __init__(self) -> None:
        self.wall_now = 1000.0
        self.monotonic_now = 5.0
        self.clock = Clock(lambda: self.wall_now, lambda: self.monotonic_now)

    def pass_time(self, seconds: float) -> float:
        self.monotonic_now += seconds
        return self.clock()


def test_it_begins_with_the_wall_clock_and_then_ignores_it() -> None:
    sources = Sources()
    assert sources.clock() == 1000.0
    sources.wall_now = 9000.0
    assert sources.pass_time(0.5) == 1000.5


def test_a_long_gap_counts_as_a_short_one() -> None:
    sources = Sources()
    assert sources.pass_time(3600) == 1000.0 + STEP_SECONDS_MAX


def test_it_stands_still_while_it_is_paused_by_anybody() -> None:
    sources = Sources()
    sources.clock.pause()
    sources.clock.pause()
    assert sources.pass_time(0.5) == 1000.0
    sources.clock.resume()
    assert sources.pass_time(0.5) == 1000.0
    sources.clock.resume()
    assert sources.pass_time(0.5) == 1000.5


def test_it_goes_on_from_what_was_stored() -> None:
    sources = Sources()
    sources.clock.at_least(2000.0)
    sources.clock.at_least(1500.0)
    assert sources.pass_time(0.25) == 2000.25


@given(
    st.lists(
        st.one_of(
            st.floats(-10, 10),
            st.sampled_from(["pause", "resume"]),
            st.floats(900, 1100).map(lambda t: ("at", t)),
        )
    )
)
def test_it_never_goes_back(steps: list[object]) -> None:
    sources = Sources()
    last = sources.clock()
    for step in steps:
        if step == "pause":
            sources.clock.pause()
        elif step == "resume":
            sources.clock.resume()
        elif isinstance(step, tuple):
            sources.clock.at_least(step[1])
        else:
            sources.monotonic_now += step
        now = sources.clock()
        assert now >= last
        last = now


def test_a_master_that_stood_by_begins_with_the_time_of_the_day() -> None:
    sources = Sources()
    sources.wall_now, sources.monotonic_now = 1600.0, 605.0
    sources.clock.begin()
    assert sources.clock() == 1600.0
    sources.wall_now = 10.0
    sources.clock.begin()
    assert sources.clock() == 1600.0
