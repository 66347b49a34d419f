"""Readers of a rank's log, when its folder is about to be removed."""

import asyncio
from pathlib import Path

import pytest

from elastane_proto.v1 import training_pb2
from elastane_runner.log_segments import LogWriter
from elastane_runner.log_sending import LogSender
from elastane_runner.process_records import EXIT, write_record
from elastane_runner.rank_logs import follow


def ended_rank(folder: Path, size_bytes: int) -> None:
    writer = LogWriter(folder, 1 << 20)
    writer.write(b"x" * size_bytes)
    writer.close()
    write_record(folder / EXIT, {"log_bytes": size_bytes})


def read_from(sender: LogSender, folder: Path) -> None:
    request = training_pb2.RunnerReadLog(reader=1, follow=True)
    request.attempt.run_id = 1
    sender.handle(request, folder)


async def test_readers_have_the_rest_of_a_log_before_its_folder_is_removed(tmp_path: Path) -> None:
    ended_rank(tmp_path, 300_000)
    received: list[training_pb2.RunnerLogChunk] = []

    def take(message: training_pb2.RunnerLogChunk) -> None:
        received.append(message)
        taken = sum(len(one.chunk.data) for one in received)
        sender.handle(training_pb2.RunnerReadLog(reader=1, taken_bytes=taken), None)

    sender = LogSender(take)
    read_from(sender, tmp_path)
    await sender.finish([tmp_path / "another", tmp_path])
    assert sum(len(one.chunk.data) for one in received) == 300_000
    assert [one.reader for one in received if one.end] == [1] and received[-1].error == ""


async def test_a_reader_that_takes_nothing_is_sent_to_what_is_stored(tmp_path: Path) -> None:
    ended_rank(tmp_path, 300_000)
    received: list[training_pb2.RunnerLogChunk] = []
    sender = LogSender(received.append)
    read_from(sender, tmp_path)
    await sender.finish([tmp_path / "another"], timeout_seconds=0)
    assert not received, "its folder stays"
    await sender.finish([tmp_path], timeout_seconds=0.05)
    assert received[-1].end and "has been stored" in received[-1].error
    assert sum(one.end for one in received) == 1


async def test_a_folder_that_vanishes_is_no_end_of_a_log(tmp_path: Path) -> None:
    folder = tmp_path / "rank"
    folder.mkdir()
    chunks = follow(folder, poll_seconds=0.001)
    reading = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0)
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match="removed after 0 bytes"):
        await asyncio.wait_for(reading, 30)
