"""What is sent to a newcomer that follows, in which order, and what it takes."""

from __future__ import annotations

import pytest

from elastane.runtime.feed_book import FeedBook, FollowBook, FollowError


def sent(book: FeedBook[str]) -> list[str]:
    found = []
    while (given := book.next()) is not None:
        found.append(given.item)
    return found


def copied(bytes_max: int = 10) -> FeedBook[str]:
    book: FeedBook[str] = FeedBook(bytes_max)
    assert book.at_boundary(3) == "state"
    book.read()
    book.sending = False
    return book


def test_nothing_changes_the_state_while_it_is_copied() -> None:
    book: FeedBook[str] = FeedBook(10)
    assert book.may_change
    book.at_boundary(3)
    assert not book.may_change
    book.read()
    assert book.may_change


def test_optimizer_steps_are_sent_in_order_and_then_it_is_level() -> None:
    book = copied()
    book.given(3, "a", 4)
    book.given(4, "b", 4)
    assert book.at_boundary(5) == "" and book.may_change
    assert sent(book) == ["a", "b"]
    assert book.at_boundary(6) == "digest" and not book.may_change
    book.read()
    assert book.is_level and book.at_boundary(7) == ""


def test_who_is_too_far_behind_is_given_up_and_holds_nobody_up() -> None:
    book = copied()
    book.at_boundary(4)
    for step in range(3):
        book.given(step, "x", 4)
    assert "behind by 3 steps" in book.failure
    assert book.may_change and book.next() is None and not book.end(9)


def test_it_ends_with_what_waits_and_takes_no_more() -> None:
    book = copied()
    book.given(3, "a", 4)
    assert book.end(4) and book.end_step == 4
    book.given(4, "b", 4)
    assert sent(book) == ["a"] and book.calls == 1
    assert not book.end(5)


def test_it_does_not_end_before_the_state_is_copied() -> None:
    book: FeedBook[str] = FeedBook(10)
    book.at_boundary(3)
    assert not book.end(3) and book.failure and book.may_change


def test_a_newcomer_notices_what_is_missing() -> None:
    book = FollowBook(3)
    book.given(3, 1)
    book.given(3, 2)  # a second optimizer
    book.reach(5, 2)  # a step in which the scaler left the optimizer out
    with pytest.raises(FollowError):
        book.given(5, 4)
    with pytest.raises(FollowError):
        book.reach(6, 3)
    with pytest.raises(FollowError):
        book.reach(4, 2)
