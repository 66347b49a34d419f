"""Results of ended ranks, uploaded to the artifact URL in the background until that succeeds.

Logs of a launch are stored when nothing of it lives. When the master says that a launch can be forgotten, the
runner of rank 0 asks for the run, and writes the run's record if it is over. Nothing waits for either.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import structlog

from elastane_common import layout, record_writing
from elastane_common.artifacts import ArtifactError, write_record
from elastane_common.cancellation import end_all
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import ElastaneError
from elastane_common.model_registry import entry_of
from elastane_common.outbox import Outbox, doubling_wait
from elastane_common.record_writing import RunFacts
from elastane_common.storage import Folder
from elastane_runner.engine import Engine
from elastane_runner.launches import Launch, LaunchKey, Unit
from elastane_runner.rank_logs import read

_log = structlog.get_logger(__name__)


#: Asks the master for a run, and for its job and metrics if it has some that this runner may see.
AskRun = Callable[[int], RunFacts]


class RunOutcomes:
    """Stores the results of launches. Used from one event loop.

    ask: blocks; None: no records are written. registry: takes entries to MLflow; None: there is none.
    wait_seconds: before the next attempt, by the number of failed ones.
    """

    def __init__(
        self,
        engine: Engine,
        ask: AskRun | None = None,
        registry: Outbox | None = None,
        wait_seconds: Callable[[int], float] = doubling_wait,
    ) -> None:
        self._engine = engine
        self._ask = ask
        self._registry = registry
        self._wait_seconds = wait_seconds
        self._tasks: dict[LaunchKey, asyncio.Task[None]] = {}

    def store(self, launch: Launch) -> None:
        """Begin to store the logs of an ended launch, unless that was done."""
        if launch.record.uploaded or not launch.record.artifact_url or launch.key in self._tasks:
            return
        work = self._repeated(launch, "logs are not stored yet", self._store_logs)
        task = self._tasks[launch.key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(launch.key, None))

    async def conclude(self, launch: Launch) -> None:
        """Wait until the logs of a launch are stored, and the record of its run if that is over."""
        if (task := self._tasks.get(launch.key)) is not None:
            await asyncio.shield(task)
        if self._ask is not None and 0 in launch.record.tries and launch.record.artifact_url:
            await self._repeated(launch, "the run's record is not written yet", self._record)

    async def close(self) -> None:
        """Stop storing; the next runner will continue."""
        await end_all(self._tasks.values())

    async def _repeated(self, launch: Launch, delay: str, work: Callable[[Launch], None]) -> None:
        """Do some work in a thread until it succeeds."""
        failures = 0
        while True:
            try:
                await asyncio.to_thread(work, launch)
            except (ElastaneError, OSError) as error:
                failures += 1
                if failures == 1:
                    _log.warning(delay, run=launch.key.run_id, reason=str(error))
                await asyncio.sleep(self._wait_seconds(failures))
            else:
                return

    def _record(self, launch: Launch) -> None:
        """Write the record of the launch's run, and hand it to the registry, if the run is over."""
        assert self._ask is not None
        try:
            facts = self._ask(launch.key.run_id)
        except RequestRefusedError as error:  # it was deleted, or the master is of an older release
            _log.warning("the run's record is not written", run=launch.key.run_id, reason=str(error))
            return
        if facts.run.state not in record_writing.FINAL:
            return
        url = launch.record.artifact_url
        image = self._engine.image(*launch.record.unit_of(0))
        record = record_writing.record_of(
            facts,
            data_url=launch.record.data_url,
            model=record_writing.stored_model(url),
            artifacts=record_writing.stored_artifacts(url),
            versions=record_writing.installed_versions() if image is None else {},
            image=image,
        )
        write_record(url, record)
        if self._registry is not None:
            self._registry.put(entry_of(record, url).to_outbox())

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
        """Yield the log of a rank, of all its tries."""
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
