"""Files that are replaced as a whole."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastane_common.atomic_writes import PARTIAL, atomic_file, write_atomically


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_write_that_fails_half_way_leaves_the_old_content_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "cursor"
    write_atomically(file, "old")
    with pytest.raises(ZeroDivisionError), atomic_file(file) as new:
        new.write(b"half")
        new.flush()
        assert file.read_text() == "old"
        raise ZeroDivisionError
    assert file.read_text() == "old" and names(tmp_path) == ["cursor"]


def test_what_is_being_written_is_hidden_and_known_by_its_name(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "report.json"):
        (name,) = names(tmp_path)
        assert name.startswith(".report.json.") and name.endswith(PARTIAL)


def test_threads_that_write_one_file_leave_the_whole_of_one(tmp_path: Path) -> None:
    file, whole = tmp_path / "report", {"a" * 10_000, "b" * 10_000}
    both_write = threading.Barrier(2)

    def write(text: str) -> None:
        with atomic_file(file) as new:
            new.write(text[:5_000].encode())
            both_write.wait()
            new.write(text[5_000:].encode())

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, whole))  # raises what a thread has raised
    assert file.read_text() in whole and names(tmp_path) == ["report"]


def test_a_durable_file_is_synced_whole_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((os.fstat(fd).st_size, (tmp_path / "a").exists()))
    )
    write_atomically(tmp_path / "a", b"four", durable=True)
    assert synced == [(4, False)] and (tmp_path / "a").read_bytes() == b"four"
    write_atomically(tmp_path / "a", b"five")
    assert len(synced) == 1
