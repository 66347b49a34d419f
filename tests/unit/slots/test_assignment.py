"""Rendezvous hashing: the same everywhere, and nothing moves that need not."""

from __future__ import annotations

from collections import Counter

import pytest

from elastane_shards.errors import InvalidRequest
from elastane_slots.assignment import holders, ranking

V = 64


def named(count: int) -> list[str]:
    return [f"ps-{number}" for number in range(count)]


def test_the_owners_are_those_of_all_masters_so_far() -> None:
    assert [held[0] for held in holders(8, named(3))] == [
        "ps-0",
        "ps-1",
        "ps-0",
        "ps-1",
        "ps-1",
        "ps-2",
        "ps-1",
        "ps-0",
    ]


def test_the_order_of_the_processes_does_not_matter() -> None:
    assert holders(V, named(5), 2) == holders(V, reversed([*named(5), "ps-2"]), 2)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 15])
def test_a_newcomer_takes_its_share_and_nothing_else_moves(count: int) -> None:
    before, after = holders(V, named(count)), holders(V, named(count + 1))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {(f"ps-{count}",)}
    assert 0.3 * V / (count + 1) <= len(moved) <= 2 * V / (count + 1)


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_slots_of_one_that_leaves_go_to_those_that_hold_copies(count: int) -> None:
    before, after = holders(V, named(count), 2), holders(V, named(count)[:-1])
    for copies, (owner,) in zip(before, after, strict=True):
        assert owner == (copies[1] if copies[0] == f"ps-{count - 1}" else copies[0])


def test_processes_have_about_equal_shares() -> None:
    for count in range(1, 9):
        shares = Counter(held[0] for held in holders(1024, named(count)))
        assert max(shares.values()) < 1.35 * 1024 / count
        assert len(shares) == count


@pytest.mark.parametrize("count", range(2, 9))
def test_up_to_eight_processes_of_the_usual_names_have_even_shares_of_the_usual_slots(count: int) -> None:
    shares = Counter(held[0] for held in holders(V, named(count)))
    assert V / count / 1.29 < min(shares.values()) <= max(shares.values()) < V / count * 1.29


def test_there_are_no_more_copies_than_processes() -> None:
    assert holders(2, ["a"], 3) == (("a",), ("a",))
    assert holders(2, []) == ((), ())
    assert sorted(ranking(0, ["a", "b", "a"])) == ["a", "b"]


def test_no_copy_at_all_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        holders(V, named(2), 0)
