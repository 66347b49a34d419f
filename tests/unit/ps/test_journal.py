"""What is written of pushes is read again, and what is damaged or missing is named."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import pytest

from elastane.tables import journal_file, journal_records
from elastane.tables.journal_file import JournalReading
from elastane.tables.journal_records import JournalEntry, JournalError, Record
from elastane_common.storage import Chunk, Folder
from elastane_ps import journal
from elastane_ps.journal import Journal


def entry(version: int, task: int = 0) -> JournalEntry:
    later = [[(1, 0, 2)]]
    return JournalEntry(1, 0, version, "clicks", 0, task, 1, 7, [(0, 1), (0, 2)], [[0.1]], later=later)


def read(url: str) -> tuple[list[Record], list[str]]:
    reading = JournalReading(Folder(url, JournalError))
    assert set(reading.models()) == {b"model"}
    return list(reading.records()), reading.torn


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path)


def written(url: str, process: str, versions: Iterable[int]) -> None:
    own = Journal(url, process, b"model")
    for version in versions:
        own.add(entry(version))
    own.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of two entries."""
    size = len(journal_file.MAGIC) + len(journal_records.encode_record(entry(1))) + 1
    monkeypatch.setattr(journal, "SEGMENT_BYTES", size)


def test_it_is_on_the_disk_when_add_returns(url: str) -> None:
    own = Journal(url, "ps-0-a", b"model")
    for version in (1, 2, 3):
        own.add(entry(version))
        assert read(url) == ([entry(one) for one in range(1, version + 1)], [])
    own.close()
    written(url, "ps-1-b", [3, 4])
    assert read(url)[0] == [entry(version) for version in (1, 2, 3, 3, 4)]


def test_an_object_store_has_whole_segments() -> None:
    url = "memory://journal-test"
    written(url, "ps-0-a", range(1, 20))
    assert read(url) == ([entry(version) for version in range(1, 20)], [])
    assert [name for name, _ in Folder(f"{url}/journal").files()] == ["ps-0-a/00000001", "ps-0-a/model"]


def test_a_full_disk_loses_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = threading.Event()
    write = FileIO.write

    class Full(FileIO):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            if full.is_set():
                write(self, bytes(data)[:7])  # a part of it comes through
                raise OSError(errno.ENOSPC, "full")
            return write(self, data)

    def appending(self: Folder, name: str) -> FileIO:
        path = Path(url) / name
        path.parent.mkdir(exist_ok=True)
        return Full(path, "xb")

    monkeypatch.setattr(Folder, "appending", appending)
    own = Journal(url, "ps-0-a", b"model")
    own.add(entry(1))
    full.set()
    own.add(entry(2))
    own.add(entry(3))
    assert read(url) == ([entry(1)], [])
    full.clear()
    own.add(entry(4))
    own.close()
    assert read(url) == ([entry(version) for version in (1, 2, 3, 4)], [])


def test_a_store_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    url, fails = "memory://journal-fails", [True, True, False]
    write = Folder.write

    def once(self: Folder, name: str, chunks: Iterable[Chunk]) -> None:
        if fails and fails.pop():
            raise JournalError("the store is away")
        write(self, name, chunks)

    fails.reverse()
    monkeypatch.setattr(Folder, "write", once)
    monkeypatch.setattr(journal, "_WRITE_SECONDS", 0.01)
    written(url, "ps-0-a", [1, 2])
    assert read(url)[0] == [entry(1), entry(2)]


@pytest.mark.usefixtures("small")
def test_a_missing_segment_is_named(url: str) -> None:
    written(url, "ps-0-a", range(1, 8))
    assert len(read(url)[0]) == 7
    (Path(url) / "journal/ps-0-a/00000002").unlink()
    with pytest.raises(JournalError, match="ps-0-a/00000002 is missing"):
        read(url)


@pytest.mark.usefixtures("small")
def test_a_damaged_segment_is_named(url: str) -> None:
    written(url, "ps-0-a", range(1, 8))
    for number in (1, 4):
        path = Path(url) / f"journal/ps-0-a/0000000{number}"
        content = path.read_bytes()
        for damaged in (content[:10] + b"x" + content[11:], content[:60] + b"x" + content[61:]):
            path.write_bytes(damaged)
            with pytest.raises(JournalError, match=f"0000000{number} is"):
                read(url)
        path.write_bytes(content)


@pytest.mark.usefixtures("small")
def test_the_last_record_of_a_process_that_died_may_be_torn_and_no_other(url: str) -> None:
    written(url, "ps-0-a", range(1, 8))
    last = Path(url) / "journal/ps-0-a/00000004"
    content = last.read_bytes()
    for size in range(len(content) - 1, -1, -7):
        last.write_bytes(content[:size])
        records, torn = read(url)
        assert len(records) == 6
        assert torn == (["ps-0-a/00000004"] if size > len(journal_file.MAGIC) else [])
    last.write_bytes(content)
    first = Path(url) / "journal/ps-0-a/00000001"
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(JournalError, match="00000001 is damaged"):
        read(url)


def test_without_a_journal_or_a_model_it_is_said(url: str) -> None:
    with pytest.raises(JournalError, match="there is no journal"):
        read(url)
    written(url, "ps-0-a", [1])
    (Path(url) / "journal/ps-0-a/model").unlink()
    with pytest.raises(JournalError, match="ps-0-a/model of the journal is missing"):
        read(url)
