"""Commits and events that are kept for a store which loses what it acknowledged."""

from __future__ import annotations

from elastane_master.store.kept import KeptGroups, Told


def told(*names: str) -> list[Told]:
    return [Told([name.encode() for name in names], [(1, b"event")])]


def history(found: list[Told]) -> list[bytes]:
    return [commit for one in found for commit in one.history]


def test_what_was_lost_comes_back_in_order_and_once() -> None:
    kept = KeptGroups(seconds=30.0, bytes_max=1000)
    for sequence in range(1, 6):
        kept.keep(sequence, told(f"commit {sequence}"), now=float(sequence))
    found, incomplete = kept.take_after(2)
    assert history(found) == [b"commit 3", b"commit 4", b"commit 5"]
    assert not incomplete
    assert kept.take_after(2) == ([], False)


def test_nothing_is_lost_of_a_store_that_is_whole() -> None:
    kept = KeptGroups(seconds=30.0, bytes_max=1000)
    kept.keep(1, told("a"), now=0.0)
    assert kept.take_after(1) == ([], False)


def test_what_is_too_old_or_too_much_is_dropped_and_said() -> None:
    by_time = KeptGroups(seconds=2.0, bytes_max=1000)
    by_size = KeptGroups(seconds=30.0, bytes_max=30)
    for sequence in range(1, 6):
        by_time.keep(sequence, told("x"), now=float(sequence))
        by_size.keep(sequence, told("x" * 10), now=0.0)
    assert history(by_time.take_after(2)[0]) == [b"x"] * 3
    found, incomplete = by_size.take_after(0)
    assert history(found) == [b"x" * 10] * 2
    assert incomplete


def test_writes_that_told_nothing_are_not_missed() -> None:
    kept = KeptGroups(seconds=1.0, bytes_max=1000)
    for sequence in range(1, 10):
        kept.keep(sequence, [Told()], now=float(sequence))
    assert kept.take_after(0) == ([], False)
