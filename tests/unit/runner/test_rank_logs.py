"""Logs of ranks: offsets, the cap with head and tail kept, dropped bytes counted, readers beside a writer."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
from pathlib import Path

import pytest

from elastane_runner.log_segments import CAP_BYTES_MIN, LogWriter, segment_offsets, segment_path
from elastane_runner.process_records import EXIT, write_record
from elastane_runner.rank_logs import CHUNK_BYTES_MAX, LogChunk, follow, last_line, read

MARKER = re.compile(rb"\n\[(\d+) bytes left out\]\n")


def disk_bytes(folder: Path) -> int:
    return sum(segment_path(folder, offset).stat().st_size for offset in segment_offsets(folder))


def end(folder: Path, writer: LogWriter) -> None:
    writer.close()
    write_record(folder / EXIT, {"log_bytes": writer.offset})


def read_all(folder: Path, offset: int = 0, limit_bytes: int = CHUNK_BYTES_MAX) -> list[LogChunk]:
    chunks = []
    while (chunk := read(folder, offset, limit_bytes)).next_offset > offset:
        chunks.append(chunk)
        offset = chunk.next_offset
    return chunks


def test_a_log_below_its_cap_is_whole_and_of_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 3
    writer = LogWriter(tmp_path, 1024)
    for begin in range(0, len(data), 100):
        writer.write(data[begin : begin + 100])
    assert b"".join(chunk.data for chunk in read_all(tmp_path)) == data
    assert b"".join(chunk.data for chunk in read_all(tmp_path, 300, 7)) == data[300:]
    assert max(len(chunk.data) for chunk in read_all(tmp_path, 0, 7)) == 7


def test_a_chunk_has_64_kib_at_most(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 4 * 1024 * 1024)
    writer.write(bytes(300_000))
    assert len(read(tmp_path, 0, 10**6).data) == CHUNK_BYTES_MAX == 65536


@pytest.mark.parametrize("seed", range(20))
def test_the_cap_holds_at_any_time_and_what_is_read_is_true(tmp_path: Path, seed: int) -> None:
    """Of each offset: the byte that was written there, or a count of bytes that leads to one."""
    choose = random.Random(seed)
    cap_bytes = choose.randrange(CAP_BYTES_MIN, 400)
    writer, written = LogWriter(tmp_path, cap_bytes), b""
    for _ in range(60):
        part = choose.randbytes(choose.randrange(0, 60))
        writer.write(part)
        written += part
        assert disk_bytes(tmp_path) <= cap_bytes
        offset = choose.randrange(0, len(written) + 1)
        for chunk in read_all(tmp_path, offset, 16):
            assert chunk.offset == offset
            if chunk.dropped_bytes:
                assert chunk.data == b"\n[%d bytes left out]\n" % (chunk.next_offset - offset)
                assert chunk.dropped_bytes == chunk.next_offset - offset
            else:
                assert chunk.data == written[offset : chunk.next_offset]
            offset = chunk.next_offset
        assert offset == len(written)
    segment_bytes = cap_bytes // 8
    text = b"".join(chunk.data for chunk in read_all(tmp_path))
    head, (dropped,), tail = text[: 4 * segment_bytes], MARKER.findall(text), MARKER.split(text)[2]
    assert head == written[: 4 * segment_bytes]
    assert tail == written[-len(tail) :] and len(tail) > 3 * segment_bytes - segment_bytes
    assert len(head) + int(dropped) + len(tail) == len(written)


def test_a_full_disk_costs_bytes_that_are_counted_and_not_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path, 8000)
    writer.write(b"before\n")
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        writer.write(b"x" * 100)
    assert read(tmp_path, 7) == LogChunk(7, b"", 7), "whether something follows is not known yet"
    writer.write(b"after\n")
    text = b"".join(chunk.data for chunk in read_all(tmp_path))
    assert text == b"before\n\n[100 bytes left out]\nafter\n"
    with monkeypatch.context() as full:
        full.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        writer.close()
        writer.write(b"y" * 30)
    end(tmp_path, writer)
    assert read_all(tmp_path, 113) == [LogChunk(113, b"\n[30 bytes left out]\n", 143, 30)]


def test_a_segment_that_is_dropped_under_a_reader_is_read_as_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path, 80)
    writer.write(b"a" * 75)
    listed = iter([segment_offsets(tmp_path)])
    writer.write(b"b" * 75)
    monkeypatch.setattr(
        "elastane_runner.rank_logs.segment_offsets", lambda folder: next(listed, segment_offsets(folder))
    )
    chunk = read(tmp_path, 50)
    assert (chunk.data, chunk.next_offset) == (b"\n[60 bytes left out]\n", 110)


def test_a_listing_that_lacks_a_segment_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(tmp_path, 80)
    writer.write(b"a" * 10 + b"b" * 10 + b"c" * 10)
    listed = iter([[0, 20]])
    monkeypatch.setattr(
        "elastane_runner.rank_logs.segment_offsets", lambda folder: next(listed, segment_offsets(folder))
    )
    assert read(tmp_path, 10) == LogChunk(10, b"b" * 10, 20)


def test_offsets_outside_of_the_log(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 1000)
    assert read(tmp_path, 0) == LogChunk(0, b"", 0)
    writer.write(b"abc")
    assert read(tmp_path, 3) == LogChunk(3, b"", 3)
    assert read(tmp_path, 99) == LogChunk(99, b"", 99)
    end(tmp_path, writer)
    assert read(tmp_path, 3) == LogChunk(3, b"", 3)
    assert read(tmp_path, 99) == LogChunk(99, b"", 99)
    with pytest.raises(ValueError, match="-1"):
        read(tmp_path, -1)


async def test_a_log_is_followed_until_its_rank_has_ended(tmp_path: Path) -> None:
    writer, found = LogWriter(tmp_path, 1000), asyncio.Queue[LogChunk]()

    async def reader() -> None:
        async for chunk in follow(tmp_path, poll_seconds=0.001):
            found.put_nowait(chunk)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(reader())
        for part in (b"one\n", b"two\n"):
            writer.write(part)
            assert (await found.get()).data == part
        writer.write(b"last")
        end(tmp_path, writer)
    assert (await found.get()).data == b"last" and found.empty()


async def test_a_reader_that_never_reads_does_not_hold_up_another(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, 8 * CHUNK_BYTES_MAX)
    writer.write(bytes(3 * CHUNK_BYTES_MAX))
    slow = follow(tmp_path)
    await anext(slow)
    writer.write(bytes(9 * CHUNK_BYTES_MAX))
    end(tmp_path, writer)
    assert [chunk.next_offset async for chunk in follow(tmp_path)][-1] == writer.offset
    assert [chunk.next_offset async for chunk in slow][-1] == writer.offset


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", b""),
        (b"\n\n", b""),
        (b"one\ntwo\n", b"two"),
        (b"one\ntwo", b"two"),
        (b"one\ntwo\r\n\n  \n", b"two"),
        (b"\xff\x1b[2J", b"\xff\x1b[2J"),
        (b"x" * 10_000, b"x" * 4096),
    ],
)
def test_the_last_line(tmp_path: Path, text: bytes, line: bytes) -> None:
    for cap_bytes in (120, 40_000_000):  # in several segments, and in one
        folder = tmp_path / str(cap_bytes)
        folder.mkdir()
        writer = LogWriter(folder, cap_bytes)
        writer.write(text)
        assert last_line(folder)[-cap_bytes // 4 :] == line[-cap_bytes // 4 :]
