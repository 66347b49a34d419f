"""Sending of ranks' output to readers, each at its own pace.

A reader is sent at most `WINDOW_BYTES` that it has not taken. Each has a task of its own, so one that takes
nothing slows neither the rank nor other readers, and holds one chunk in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from elastane_common.errors import ElastaneError
from elastane_proto.v1 import training_pb2
from elastane_runner.rank_logs import POLL_SECONDS, LogChunk, follow, read, size_bytes

#: Bytes that are on their way to one reader at most.
WINDOW_BYTES: Final = 64 * 1024
#: A chunk is smaller than the window, so that the next one is on its way while one is being taken.
CHUNK_BYTES: Final = 32 * 1024
#: Time for the readers of a rank that has ended to take the rest, before its folder is removed.
FINISH_SECONDS: Final = 30.0

Send = Callable[[training_pb2.RunnerLogChunk], None]


@dataclass
class _Reader:
    """One reader. folder: of the rank. sent_bytes, taken_bytes: totals sent to it, and taken by it."""

    folder: Path
    task: asyncio.Task[None] | None = None
    sent_bytes: int = 0
    taken_bytes: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def taken(self, taken_bytes: int) -> None:
        self.taken_bytes = max(self.taken_bytes, taken_bytes)
        self.news.set()

    async def room(self, wanted_bytes: int) -> None:
        """Wait until this many bytes may be sent."""
        while self.sent_bytes - self.taken_bytes + wanted_bytes > WINDOW_BYTES:
            self.news.clear()
            await self.news.wait()


class LogSender:
    """Readers of one session with the master. send: passes a chunk to the session."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._readers: dict[int, _Reader] = {}

    def handle(
        self,
        request: training_pb2.RunnerReadLog,
        folder: Path | None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Carry a ReadLog out.

        folder: of the rank; None: there is no such rank here. is_over: the rank has ended; without a folder
        it was never started.
        """
        reader = self._readers.get(request.reader)
        if request.end:
            self._end(request.reader)
        elif reader is not None:
            reader.taken(request.taken_bytes)
        elif request.HasField("attempt"):
            if folder is None:
                self._over(request.reader, "this runner has no such rank")
                return
            reader = self._readers[request.reader] = _Reader(folder)
            reader.task = asyncio.create_task(self._serve(reader, request, folder, is_over))

    async def finish(self, folders: Collection[Path], timeout_seconds: float = FINISH_SECONDS) -> None:
        """Wait until the readers of ended ranks have received the rest; then `folders` can be removed.

        Those that are slower are told to go on from their offset, in what is stored.
        """
        slow = {number for number, reader in self._readers.items() if reader.folder in folders}
        tasks = [task for number in slow if (task := self._readers[number].task) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        for number in slow & self._readers.keys():
            self._end(number)
            self._over(number, "the log has been stored and is read from there: go on from the last offset")

    def close(self) -> None:
        """End all readers, because their session is over."""
        for number in list(self._readers):
            self._end(number)

    def _end(self, number: int) -> None:
        reader = self._readers.pop(number, None)
        if reader is not None and reader.task is not None:
            reader.task.cancel()

    def _over(self, number: int, error: str = "") -> None:
        self._send(training_pb2.RunnerLogChunk(reader=number, end=True, error=error))

    async def _serve(
        self,
        reader: _Reader,
        request: training_pb2.RunnerReadLog,
        folder: Path,
        is_over: Callable[[], bool],
    ) -> None:
        number, error = request.reader, ""
        try:
            while request.follow and not folder.exists() and not is_over():
                await asyncio.sleep(POLL_SECONDS)
            offset = request.offset
            if offset < 0:
                offset = max(0, await asyncio.to_thread(size_bytes, folder) + offset)
            follows = request.follow and folder.exists()
            async for chunk in follow(folder, offset) if follows else _stored(folder, offset):
                await self._pass_on(reader, number, chunk)
        except (OSError, ElastaneError, ValueError) as failure:
            error = f"the log cannot be read: {failure}"
        if self._readers.pop(number, None) is not None:
            self._over(number, error)

    async def _pass_on(self, reader: _Reader, number: int, chunk: LogChunk) -> None:
        if chunk.dropped_bytes:
            gap = training_pb2.TrainingServiceStreamLogsResponse(
                offset=chunk.next_offset, dropped_bytes=chunk.dropped_bytes
            )
            self._send(training_pb2.RunnerLogChunk(reader=number, chunk=gap))
            return
        for start in range(0, len(chunk.data), CHUNK_BYTES):
            data = chunk.data[start : start + CHUNK_BYTES]
            await reader.room(len(data))
            reader.sent_bytes += len(data)
            part = training_pb2.TrainingServiceStreamLogsResponse(offset=chunk.offset + start, data=data)
            self._send(training_pb2.RunnerLogChunk(reader=number, chunk=part))


async def _stored(folder: Path, offset: int) -> AsyncIterator[LogChunk]:
    """Yield the current content of a log."""
    while True:
        chunk = await asyncio.to_thread(read, folder, offset)
        if chunk.next_offset == offset:
            return
        yield chunk
        offset = chunk.next_offset
