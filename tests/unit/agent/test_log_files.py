"""Files with all output of an agent's workers."""

from __future__ import annotations

import io
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
        files.write("w0", f"{run} ü")
        files.write("w1", run)
        files.close()
    assert (folder / "w0.log").read_text() == "first ü\nsecond ü\n"
    assert sorted(path.name for path in folder.iterdir()) == ["w0.log", "w1.log"]


def test_a_url_gets_segments_that_no_other_agent_overwrites() -> None:
    url = f"memory://logs-{uuid.uuid4().hex}"
    for _ in range(2):
        files = LogFiles(url, quiet()[0], segment_bytes=20)
        for number in range(5):
            files.write("w0", f"line {number}")  # 7 bytes each
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
        files.write("w0", text)
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


def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    output, said = quiet()
    files = LogFiles(str(tmp_path), output)
    (tmp_path / "w0.log").mkdir()
    for _ in range(3):
        files.write("w0", "lost")
    files.write("w1", "kept")
    files.close()
    assert said.getvalue().count("is missing") == 1
    assert (tmp_path / "w1.log").read_text() == "kept\n"
