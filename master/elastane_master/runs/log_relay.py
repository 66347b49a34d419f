"""Output of running ranks on its way from their runner to a reader.

  reader --ReadLog--> runner --LogChunk--> here --> reader's stream
                        ^--- ReadLog(taken_bytes) ---'

A runner sends a reader at most WINDOW_BYTES beyond what it has taken, so a slow reader fills no memory, and
slows neither its runner nor other readers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.limits import require_room
from elastane_proto.v1 import training_pb2

WINDOW_BYTES = 64 * 1024


@dataclass(slots=True)
class _Reader:
    """One reader. runner: id of the session that serves it. over: nothing more comes; error: why."""

    session: str
    chunks: deque[training_pb2.TrainingServiceStreamLogsResponse] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    error: str = ""


class LogRelay:
    """Readers of all runners' logs. Used from one event loop."""

    def __init__(self, readers_max: int) -> None:
        self._readers: dict[int, _Reader] = {}
        self._numbers = itertools.count(1)
        self._readers_max = readers_max

    async def read(
        self,
        session: str,
        send: Callable[[training_pb2.RunnerReadLog], None],
        request: training_pb2.RunnerReadLog,
    ) -> AsyncGenerator[training_pb2.TrainingServiceStreamLogsResponse]:
        """Yield the chunks that a runner's session sends for `request`; its `reader` is set here.

        send: passes a message to that session. Raises Rejection if the runner leaves before the end.
        """
        require_room("run_log_readers_max", len(self._readers), self._readers_max, "readers of logs")
        number = next(self._numbers)
        reader = self._readers[number] = _Reader(session)
        request.reader = number
        taken = 0
        send(request)
        try:
            while True:
                while reader.chunks:
                    chunk = reader.chunks.popleft()
                    yield chunk
                    taken += len(chunk.data)
                    if not reader.over:
                        send(training_pb2.RunnerReadLog(reader=number, taken_bytes=taken))
                if reader.over:
                    break
                reader.news.clear()
                await reader.news.wait()
        finally:
            del self._readers[number]
            if not reader.over:
                send(training_pb2.RunnerReadLog(reader=number, end=True))
        if reader.error:
            raise Rejection("store_unavailable", reader.error, hint="try again, from the last offset")

    def received(self, session: str, message: training_pb2.RunnerLogChunk) -> None:
        """Take a chunk from a runner's session; ignored if its reader has left, or is another session's."""
        reader = self._readers.get(message.reader)
        if reader is None or reader.session != session or reader.over:
            return
        if message.chunk.data or message.chunk.dropped_bytes:
            if sum(len(chunk.data) for chunk in reader.chunks) + len(message.chunk.data) > 2 * WINDOW_BYTES:
                reader.over, reader.error = True, "the runner sent more than was asked for"
            else:
                reader.chunks.append(message.chunk)
        if message.end:
            reader.over, reader.error = True, message.error[:1000]
        reader.news.set()

    def session_over(self, session: str) -> None:
        """End all readers of a session that is gone."""
        for reader in self._readers.values():
            if reader.session == session and not reader.over:
                reader.over, reader.error = True, "the runner is not connected any more"
                reader.news.set()
