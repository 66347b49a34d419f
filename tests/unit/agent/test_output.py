"""Lines of many processes: whole, prefixed, bounded."""

from __future__ import annotations

import io
import itertools
import json
import os
import threading

from hypothesis import given
from hypothesis import strategies as st

from elastane_common.processes.output import LineSplitter, Output


def lines_of(data: bytes, cuts: list[int], limit: int = 64) -> list[str]:
    splitter = LineSplitter(limit)
    lines: list[str] = []
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        lines += splitter.feed(data[start:end])
    return lines + splitter.flush()


@given(
    st.lists(st.sampled_from(["a", "bc", "\n", "\r", "\r\n", "é", "漢字"]), max_size=40).map("".join),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_reads_may_end_anywhere(text: str, cuts: list[int]) -> None:
    data = text.encode()
    assert lines_of(data, cuts, limit=4096) == lines_of(data, [], limit=4096)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=8))
def test_plain_lines_come_back(lines: list[str]) -> None:
    data = "".join(line + "\n" for line in lines).encode()
    assert lines_of(data, [], limit=1 << 20) == lines


def test_last_line_without_newline_is_kept() -> None:
    assert lines_of(b"one\ntwo", []) == ["one", "two"]


def test_blank_lines_are_kept_and_redrawn_bars_become_lines() -> None:
    assert lines_of(b"a\n\nb\r\n\r\n\r10%\r20%\r\nend\n", []) == ["a", "", "b", "", "10%", "20%", "end"]


@given(st.text("abc .é", max_size=300), st.lists(st.integers(0, 10_000), max_size=8))
def test_a_line_that_never_ends_is_cut_and_nothing_is_lost(text: str, cuts: list[int]) -> None:
    lines = lines_of(text.encode(), cuts, limit=16)
    assert "".join(lines) == text
    assert all(len(line.encode()) <= 16 for line in lines)


@given(st.binary(max_size=300), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_bytes_are_taken(data: bytes, cuts: list[int]) -> None:
    assert all("\n" not in line and "\r" not in line for line in lines_of(data, cuts, limit=16))


def test_a_long_line_is_cut_between_characters() -> None:
    lines = lines_of("é".encode() * 20 + b"\n", [], limit=7)
    assert "".join(lines) == "é" * 20
    assert all(len(line.encode()) <= 7 for line in lines)


def test_prefix_and_colour() -> None:
    out, err = io.StringIO(), io.StringIO()
    Output(stdout=out, stderr=err, color=False).line("w0", "stdout", "hello")
    assert out.getvalue() == "[w0] hello\n"
    Output(stdout=out, stderr=err, color=True).line("w0", "stderr", "hello")
    assert err.getvalue().startswith("\x1b[") and "\x1b[0mhello\n" in err.getvalue()


def test_json_lines() -> None:
    out = io.StringIO()
    output = Output(as_json=True, stdout=out, stderr=io.StringIO())
    output.line("w0", "stderr", "oh")
    output.say("w0 died", "warning", "worker_died", worker="w0")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first == {"event": "output", "worker": "w0", "stream": "stderr", "line": "oh"}
    assert second["event"] == "worker_died" and second["worker"] == "w0" and second["kind"] == "warning"


def test_a_terminal_that_cannot_show_a_character_gets_an_escape() -> None:
    raw = io.BytesIO()
    output = Output(stdout=io.TextIOWrapper(raw, "ascii", newline=""), stderr=io.StringIO(), color=False)
    output.line("w0", "stdout", "né")
    assert raw.getvalue() == b"[w0] n\\xe9\n"


def test_a_reader_that_left_does_not_stop_the_workers() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        output = Output(stdout=broken, stderr=io.StringIO(), color=False)
        output.line("w0", "stdout", "into the void")
        output.line("w0", "stdout", "again")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)


def test_lines_of_many_threads_do_not_mix() -> None:
    class SlowStream(io.StringIO):
        """Writes a piece at a time, and lets others run between."""

        def write(self, text: str) -> int:
            for character in text:
                super().write(character)
                os.sched_yield()
            return len(text)

    out = SlowStream()
    output = Output(stdout=out, stderr=io.StringIO(), color=False)
    barrier = threading.Barrier(8)

    def write(number: int) -> None:
        barrier.wait()
        for _ in range(20):
            output.line(f"w{number}", "stdout", str(number) * 20)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = out.getvalue().splitlines()
    assert len(lines) == 160
    assert set(lines) == {f"[w{number}] {str(number) * 20}" for number in range(8)}


def test_a_passing_line_gives_way_to_the_next_one() -> None:
    out, err = io.StringIO(), io.StringIO()
    on_terminal = Output(stdout=out, stderr=err, color=True)
    on_terminal.passing("9 s left")
    on_terminal.passing("8 s left")
    on_terminal.line("w0", "stdout", "x")
    assert err.getvalue() == "\r\x1b[K[elastane] 9 s left\r\x1b[K[elastane] 8 s left\r\x1b[K"
    assert "x\n" in out.getvalue()
    on_terminal.passing("")
    assert err.getvalue().endswith("8 s left\r\x1b[K"), "it is away already"
    quiet = io.StringIO()
    Output(stdout=quiet, stderr=quiet, color=False).passing("9 s left")
    Output(as_json=True, stdout=quiet, stderr=quiet, color=True).passing("9 s left")
    assert quiet.getvalue() == ""
