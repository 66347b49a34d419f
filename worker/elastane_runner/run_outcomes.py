"""What ended ranks have left: their logs go to the artifact URL, in the background, until that has worked."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import structlog

from elastane_common import layout
from elastane_common.artifacts import ArtifactError
from elastane_common.errors import ElastaneError
from elastane_common.outbox import doubling_wait
from elastane_common.storage import Folder
from elastane_runner.engine import Engine
from elastane_runner.launches import Launch, LaunchKey, Unit
from elastane_runner.rank_logs import read

_log = structlog.get_logger(__name__)


class RunOutcomes:
    """Stores what launches have left. Used from one event loop.

    wait_seconds: before the next attempt, by the number of failed ones.
    """

    def __init__(self, engine: Engine, wait_seconds: Callable[[int], float] = doubling_wait) -> None:
        self._engine = engine
        self._wait_seconds = wait_seconds
        self._tasks: dict[LaunchKey, asyncio.Task[None]] = {}

    def store(self, launch: Launch) -> None:
        """Begin to store the logs of a launch of which nothing lives, unless that was done."""
        if launch.record.uploaded or not launch.record.artifact_url or launch.key in self._tasks:
            return
        task = self._tasks[launch.key] = asyncio.create_task(self._store(launch))
        task.add_done_callback(lambda _: self._tasks.pop(launch.key, None))

    async def conclude(self, launch: Launch) -> None:
        """Wait until everything of a launch is stored."""
        if (task := self._tasks.get(launch.key)) is not None:
            await asyncio.shield(task)

    async def close(self) -> None:
        """Stop storing; the next runner goes on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _store(self, launch: Launch) -> None:
        failures = 0
        while True:
            try:
                await asyncio.to_thread(self._store_logs, launch)
            except (ElastaneError, OSError) as error:
                failures += 1
                if failures == 1:
                    _log.warning("logs are not stored yet", run=launch.key.run_id, reason=str(error))
                await asyncio.sleep(self._wait_seconds(failures))
            else:
                return

    def _store_logs(self, launch: Launch) -> None:
        record = launch.record
        target = Folder(record.artifact_url, ArtifactError)
        for rank in record.tries:
            name = layout.rank_log(record.attempt, rank)
            if rank not in record.prior_bytes:  # of a launch before this one in the same attempt
                record.prior_bytes[rank] = target.size(name) or 0
                launch.save()
            with tempfile.TemporaryFile(dir=launch.folder) as prior:
                _copy(target, name, record.prior_bytes[rank], prior)
                target.write(name, self._log(launch, rank, prior))
        record.uploaded = True
        launch.save()

    def _log(self, launch: Launch, rank: int, prior: IO[bytes]) -> Iterator[bytes]:
        """Yield the log of a rank, that of all its tries."""
        while chunk := prior.read(1 << 20):
            yield chunk
        newest = launch.record.unit_of(rank)
        first = 1 if launch.record.elastic else newest.attempt
        for attempt in range(first, newest.attempt + 1):
            folder = self._engine.rank_folder(*Unit(newest.run, attempt), rank)
            if folder.exists():
                yield from _chunks(folder)


def _copy(source: Folder, name: str, size_bytes: int, target: IO[bytes]) -> None:
    if size_bytes:
        with source.reading(name) as file:
            target.write(file.read(size_bytes))
        target.seek(0)


def _chunks(folder: Path) -> Iterator[bytes]:
    offset = 0
    while (chunk := read(folder, offset)).next_offset > offset:
        yield chunk.data
        offset = chunk.next_offset
