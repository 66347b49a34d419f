"""Commits and events that are kept for a store which loses what it acknowledged."""

from __future__ import annotations

from elastane_master.store.kept_writes import Entries, KeptGroups


def keep(kept: KeptGroups, number: int, *commits: str, now: float = 0.0) -> None:
    """A write whose last commit and event have this number."""
    kept.keep(number, number, [Entries([name.encode() for name in commits], [(number, b"event")])], now)


def test_what_was_lost_comes_back_in_order_and_once() -> None:
    kept = KeptGroups(seconds=30.0, bytes_max=1000)
    for number in range(1, 6):
        keep(kept, number, f"commit {number}", now=float(number))
    assert kept.beyond(2, 4) == Entries([b"commit 3", b"commit 4", b"commit 5"], [(5, b"event")])
    assert kept.beyond(5, 5) == Entries([], [])
    assert (kept.commit, kept.event) == (0, 0)


def test_of_a_write_of_which_a_part_is_stored_the_rest_comes_back() -> None:
    kept = KeptGroups(seconds=30.0, bytes_max=1000)
    keep(kept, 3, "a", "b", "c")
    assert kept.beyond(1, 3).history == [b"b", b"c"]


def test_what_is_too_old_or_too_much_is_dropped_and_said() -> None:
    by_time = KeptGroups(seconds=2.0, bytes_max=1000)
    by_size = KeptGroups(seconds=30.0, bytes_max=30)
    for number in range(1, 6):
        keep(by_time, number, "x", now=float(number))
        keep(by_size, number, "x" * 10)
    assert by_time.beyond(0, 5).history == [b"x"] * 3
    assert (by_time.commit, by_time.event) == (2, 2)
    assert by_size.beyond(0, 5).history == [b"x" * 10] * 2
    assert by_size.commit == 3


def test_writes_that_told_nothing_are_not_missed() -> None:
    kept = KeptGroups(seconds=1.0, bytes_max=1000)
    for number in range(1, 10):
        kept.keep(0, 0, [Entries()], now=float(number))
    assert (kept.commit, kept.event) == (0, 0) and kept.beyond(0, 0) == Entries([], [])
