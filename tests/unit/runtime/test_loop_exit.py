"""When a loop over our generators has been left on purpose, and when by an exception."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import pytest

from elastane.runtime.loop_exit import when_left


class Left(Exception):  # noqa: N818 - an outcome
    pass


seen: list[str] = []


def numbers(name: str, *, raises: bool = True) -> Iterator[int]:
    def left(place: str) -> None:
        seen.append(name)
        if raises:
            raise Left(place)

    try:
        yield from range(5)
    except GeneratorExit:
        when_left(left)
        raise


def wrapped(inner: Iterator[int]) -> Iterator[int]:
    yield from inner


def by_break() -> None:
    for _ in numbers("a"):
        break
    seen.append("went on")


def by_break_as_the_last_line() -> None:
    for _ in numbers("a"):
        break


def by_break_of_a_wrapper() -> None:
    for _, _ in enumerate(wrapped(numbers("a"))):
        break


def by_break_in_a_context() -> None:
    with contextlib.nullcontext():
        for _ in numbers("a"):
            break


def by_return() -> int:
    for number in numbers("a"):
        return number
    return 7


def by_return_through_two() -> None:
    for _ in numbers("outer"):
        for _ in numbers("a"):
            return


def by_the_end_of_another() -> None:
    for _ in zip(range(2), numbers("a"), strict=False):
        pass


def by_an_exception_that_is_caught_around_it() -> None:
    try:
        for _ in numbers("a"):
            raise KeyError
    except KeyError:
        seen.append("caught")
    seen.append("went on")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    seen.clear()
    before = sys.gettrace()
    yield
    assert sys.gettrace() is before


@pytest.mark.parametrize(
    "leave",
    [
        by_break,
        by_break_as_the_last_line,
        by_break_of_a_wrapper,
        by_break_in_a_context,
        by_return,
        by_return_through_two,
        by_the_end_of_another,
    ],
)
def test_leaving_is_told_in_the_function_that_left(leave: Callable[[], object]) -> None:
    with pytest.raises(Left, match=r"^test_loop_exit\.py:\d+$"):
        leave()
    assert seen == ["a"]


def test_an_exception_that_is_caught_has_left_the_loop_behind_its_handler() -> None:
    with pytest.raises(Left):
        by_an_exception_that_is_caught_around_it()
    assert seen == ["caught", "a"]


@pytest.mark.parametrize("error", [KeyError(1), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_on_its_way_out_is_not_told_of(error: BaseException) -> None:
    def leaves() -> None:
        try:
            for _ in numbers("a"):
                raise error
        finally:
            seen.append("finally")

    with pytest.raises(type(error)) as raised:
        leaves()
    assert raised.value is error
    assert seen == ["finally"]


def test_an_action_that_does_not_raise_lets_the_script_go_on() -> None:
    for _ in numbers("a", raises=False):
        break
    seen.append("went on")
    assert seen == ["a", "went on"]


def test_a_loop_that_comes_to_its_end_is_not_left() -> None:
    assert list(numbers("a")) == [0, 1, 2, 3, 4]
    assert seen == []
