"""Files with all output of an agent's workers."""

from __future__ import annotations

import io
import resource
import uuid
from pathlib import Path

import fsspec
import pytest

from elastane_agent.supervisor.log_files import LogFiles, LogFilesError
from elastane_common.processes.output import Output


def quiet() -> tuple[Output, io.StringIO]:
    said = io.StringIO()
    return Output(stdout=io.StringIO(), stderr=said, color=False), said


def test_a_folder_gets_a_file_for_each_worker_and_keeps_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for run in ("first", "second"):
        files = LogFiles(str(folder), quiet()[0])
        files.write("w0", "stdout", f"{run} ü\n".encode())
        files.write("w1", "stdout", f"{run}\n".encode())
        files.close()
    assert (folder / "w0.log").read_text() == "first ü\nsecond ü\n"
    assert sorted(path.name for path in folder.iterdir()) == ["w0.log", "w1.log"]


def test_a_url_gets_segments_that_no_other_agent_overwrites() -> None:
    url = f"memory://logs-{uuid.uuid4().hex}"
    for _ in range(2):
        files = LogFiles(url, quiet()[0], segment_bytes=20)
        for number in range(5):
            files.write("w0", "stdout", f"line {number}\n".encode())  # 7 bytes each
        files.close()
    system, root = fsspec.core.url_to_fs(url)
    names = sorted(path for path in system.find(root) if path.endswith(".log"))
    found = [system.cat(name).decode() for name in names]
    assert found == ["line 0\nline 1\nline 2\n", "line 3\nline 4\n"] * 2


def test_a_growing_segment_is_uploaded_before_the_end() -> None:
    url = f"memory://logs-{uuid.uuid4().hex}"
    files = LogFiles(url, quiet()[0])
    system, root = fsspec.core.url_to_fs(url)
    for text, content in (("early", b"early\n"), ("late", b"early\nlate\n")):
        files.write("w0", "stdout", f"{text}\n".encode())
        files._upload()
        [name] = [path for path in system.find(root) if path.endswith(".log")]
        assert system.cat(name) == content
    files.close()


def test_a_place_that_cannot_be_written_to_is_refused_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LogFilesError, match=r"Not a directory|File exists"):
        LogFiles(str(tmp_path / "file"), quiet()[0])
    with pytest.raises(LogFilesError, match="no storage for the URL"):
        LogFiles("nonsense://x", quiet()[0])


def test_every_byte_is_in_the_file_and_lines_of_the_streams_are_apart(tmp_path: Path) -> None:
    files = LogFiles(str(tmp_path), quiet()[0])
    bar, long = b"\r 10 %\r 20 %\r100 %\r\n", b"[" + b"x" * 300_000 + b"]\n"
    files.write("w0", "stdout", b"begun, ")
    files.write("w0", "stderr", bar)
    files.write("w0", "stdout", b"ended \xff\0\n" + long[:100_000])
    files.write("w0", "stderr", b"meanwhile\n")
    files.write("w0", "stdout", long[100_000:200_000])
    files.write("w0", "stdout", long[200_000:])
    for stream in ("stdout", "stderr"):
        files.write("w0", stream, b"no newline")  # type: ignore[arg-type]
        files.write("w0", stream, b"")  # type: ignore[arg-type]
    files.close()
    expected = bar + b"begun, ended \xff\0\n" + long + b"meanwhile\nno newline\nno newline\n"
    assert (tmp_path / "w0.log").read_bytes() == expected


def test_a_line_without_end_cannot_hold_back_the_other_stream(tmp_path: Path) -> None:
    files = LogFiles(str(tmp_path), quiet()[0])
    files.write("w0", "stdout", b"." * 100_000)
    files.write("w0", "stderr", b"trouble\n" * 10_000)
    assert (tmp_path / "w0.log").read_bytes() == b"." * 100_000 + b"\n" + b"trouble\n" * 10_000
    files.write("w0", "stdout", b"." * 100_000)
    files.write("w0", "stderr", b"trouble\n")
    files.close()
    assert (tmp_path / "w0.log").read_bytes().endswith(b"\n" + b"." * 100_000 + b"\ntrouble\n")


def test_a_disk_that_fills_up_is_told_of_once_and_the_file_says_what_is_missing(tmp_path: Path) -> None:
    output, said = quiet()
    files = LogFiles(str(tmp_path), output)
    files.write("w0", "stdout", b"before\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        for _ in range(3):
            files.write("w0", "stdout", b"0123456789\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    files.write("w0", "stdout", b"after\n")
    files.write("w0", "stdout", b"later\n")
    files.close()
    found = (tmp_path / "w0.log").read_bytes()
    assert found == b"before\n012\n[elastane: 30 bytes are missing here]\nafter\nlater\n"
    assert said.getvalue().count("is missing") == 1
    assert files.failure == "File too large"


def test_a_file_that_cannot_be_opened_stops_nothing(tmp_path: Path) -> None:
    output, said = quiet()
    files = LogFiles(str(tmp_path), output)
    (tmp_path / "w0.log").mkdir()
    for _ in range(3):
        files.write("w0", "stdout", b"lost\n")
    files.write("w1", "stdout", b"kept\n")
    files.close()
    assert said.getvalue().count("is missing") == 1
    assert (tmp_path / "w1.log").read_text() == "kept\n"


def test_credentials_of_a_url_are_not_told() -> None:
    files = LogFiles(f"memory://user:secret@logs-{uuid.uuid4().hex}", quiet()[0])
    files.close()
    assert "secret" not in files.location and files.location.startswith("memory://logs-")
