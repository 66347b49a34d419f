"""The end of a rank's output as a page shows it: whole lines, few of them, and no controls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_master.dashboard.log_tail import TAIL_BYTES, TAIL_LINES, LogTail, tail_of


def test_a_short_log_is_shown_as_it_is() -> None:
    assert tail_of(b"", 0) == LogTail()
    assert tail_of(b"one\n\ttwo", 0) == LogTail("one\n\ttwo", 0)


def test_a_line_whose_beginning_is_missing_is_left_out() -> None:
    assert tail_of(b"tail of a line\nwhole\n", 100) == LogTail("whole\n", 115)
    assert tail_of(b"without an end", 100) == LogTail("without an end", 100)


def test_few_lines_and_bytes_are_shown_and_those_before_counted() -> None:
    lines = b"".join(b"%d\n" % number for number in range(1000))
    tail = tail_of(lines, 7)
    assert tail.text.startswith(f"{1000 - TAIL_LINES}\n") and tail.text.endswith("999\n")
    assert tail.before == 7 + len(lines) - len(tail.text)
    wide = tail_of(b"x" * (3 * TAIL_BYTES), 0)
    assert len(wide.text) == TAIL_BYTES and wide.before == 2 * TAIL_BYTES


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07after", "after"),
        (b"10%\r20%\r\n", "10%\n20%\n"),
        (b"bell\x07", "bell\ufffd"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("right\u202eto left".encode(), "right\ufffdto left"),
    ],
)
def test_controls_are_no_part_of_the_text(data: bytes, text: str) -> None:
    assert tail_of(data, 0).text == text


@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_any_bytes_become_bounded_harmless_text(data: bytes, offset: int) -> None:
    tail = tail_of(data, offset)
    assert offset <= tail.before <= offset + len(data)
    assert not any(ord(character) < 32 and character not in "\n\t" for character in tail.text)
