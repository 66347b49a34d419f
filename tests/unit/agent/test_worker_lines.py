"""What an agent keeps of its workers' output, and what it sends of it."""

from __future__ import annotations

from elastane_agent.supervisor.worker_lines import Batch, WorkerLines
from elastane_common.last_lines import BYTES_MAX, LINE_BYTES_MAX, LINES_MAX, LastLines, cut_line


def texts(batch: Batch) -> list[str]:
    return [line.text for line in batch.lines]


def filled(count: int, text: str = "line {}") -> WorkerLines:
    lines = WorkerLines()
    for number in range(count):
        lines.add("w0", False, text.format(number), float(number))
    return lines


def test_lines_are_sent_once_and_again_to_a_master_that_lost_them() -> None:
    lines = filled(3)
    first = lines.take(10_000)
    assert [(one.worker, one.first, texts(one)) for one in first] == [
        ("w0", 0, ["line 0", "line 1", "line 2"])
    ]
    assert lines.take(10_000) == first, "a report that failed is repeated"
    lines.sent(first)
    assert not lines.has_news and lines.take(10_000) == []
    lines.add("w0", True, "line 3", 3.0)
    assert [(one.first, texts(one)) for one in lines.take(10_000)] == [(3, ["line 3"])]
    lines.send_again()
    assert [(one.first, texts(one)) for one in lines.take(10_000)] == [
        (0, ["line 0", "line 1", "line 2", "line 3"])
    ]


def test_an_exit_stands_between_the_lines_of_two_processes() -> None:
    lines = filled(2)
    lines.exited("w0", -9, "ended by SIGKILL", "", expected=False)
    lines.add("w0", False, "the next process", 9.0)
    batches = lines.take(10_000)
    assert [(one.first, texts(one), one.ended is not None) for one in batches] == [
        (0, ["line 0", "line 1"], True),
        (2, ["the next process"], False),
    ]
    lines.sent(batches)
    lines.send_again()
    assert all(one.ended is None for one in lines.take(10_000)), "an exit is reported once"


def test_an_exit_without_any_line_is_reported() -> None:
    lines = WorkerLines()
    lines.exited("w0", 1, "exit code 1", "", expected=False)
    assert [(one.worker, one.lines, one.ended and one.ended.number) for one in lines.take(100)] == [
        ("w0", (), 1)
    ]


def test_of_too_many_lines_the_newest_are_sent_of_each_worker() -> None:
    lines = filled(100)
    for number in range(100):
        lines.add("w1", False, f"other {number}", 0.0)
    batches = lines.take(4000)
    assert [one.worker for one in batches] == ["w0", "w1"]
    for batch in batches:
        assert batch.end == 100 and 10 < len(batch.lines) < 20
        assert sum(line.size_bytes for line in batch.lines) <= 2000
    lines.sent(batches)
    assert not lines.has_news, "what was left out is not sent later, behind newer lines"


def test_one_long_line_is_sent_though_it_is_more_than_the_share() -> None:
    batches = filled(2, "x" * 3000).take(1000)
    assert [(one.first, len(one.lines)) for one in batches] == [(1, 1)]


def test_memory_of_a_worker_is_bounded_by_lines_and_bytes() -> None:
    lines = filled(2 * LINES_MAX, "")
    [batch] = lines.take(10**9)
    assert sum(line.size_bytes for line in batch.lines) <= BYTES_MAX and batch.end == 2 * LINES_MAX
    [batch] = filled(50, "ü" * LINE_BYTES_MAX).take(10**9)
    assert sum(line.size_bytes for line in batch.lines) <= BYTES_MAX
    assert all(line.cut_bytes == LINE_BYTES_MAX for line in batch.lines)


def test_a_long_line_is_cut_between_two_characters() -> None:
    assert cut_line("abc", 4) == ("abc", 0)
    assert cut_line("aüü", 4) == ("aü", 2)
    assert cut_line("üü", 4) == ("üü", 0)


class Sized(int):
    size_bytes = 1


def test_last_lines_with_gaps() -> None:
    lines = LastLines[Sized](lines_max=3, bytes_max=100)
    for number in (0, 1, 5, 6):
        lines.add(number, Sized(number))
    assert [number for number, _ in lines.since(0)] == [1, 5, 6] and lines.end == 7
    assert [number for number, _ in lines.since(2)] == [5, 6]
    assert (lines.last(2), lines.last(9), lines.last(0)) == (5, 1, 7)
