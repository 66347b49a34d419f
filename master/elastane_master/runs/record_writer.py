"""Records of runs that end while no runner has their rank 0: cancelled in the queue, or their runner lost.

Of every other run the runner of rank 0 writes the record, once the last logs are stored. A runner that
returns does so later, too, and its record replaces the master's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from elastane_common import record_writing
from elastane_common.artifacts import read_record, write_record
from elastane_common.cancellation import end_all
from elastane_common.errors import ElastaneError
from elastane_common.record_writing import RunFacts

logger = structlog.get_logger(__name__)

RETRY_SECONDS = 10.0


class EndedRun(NamedTuple):
    """A run that is over. url: of its artifacts; empty: nothing is stored. data_url: of its dataset."""

    facts: RunFacts
    url: str
    data_url: str


class RecordWriter:
    """Writes records in the background until that has worked. Used from one event loop.

    ended: returns a run; None if it is not over, or gone. written: called when there is nothing left to do.
    """

    def __init__(
        self,
        ended: Callable[[int], EndedRun | None],
        written: Callable[[int], None],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._ended = ended
        self._written = written
        self._retry_seconds = retry_seconds
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def begin(self, run_id: int) -> None:
        """Start writing the record of a run, unless that is in progress."""
        if run_id not in self._tasks:
            task = asyncio.create_task(self._write(run_id), name=f"record of run {run_id}")
            self._tasks[run_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(run_id, None))

    async def close(self) -> None:
        """Stop writing; the next master continues."""
        await end_all(self._tasks.values())

    async def _write(self, run_id: int) -> None:
        recorded: EndedRun | None = None
        # A run that was queued again meanwhile may have ended again.
        while (run := self._ended(run_id)) is not None and run.url and run != recorded:
            try:
                await asyncio.to_thread(_write_unless_there, run)
                recorded = run
            except (ElastaneError, OSError) as error:
                logger.info("a run's record is not written yet", run=run_id, reason=str(error))
                await asyncio.sleep(self._retry_seconds)
        self._written(run_id)


def _write_unless_there(run: EndedRun) -> None:
    """Write the record of a run, unless a runner has written that of this end."""
    record = record_writing.record_of(
        run.facts,
        data_url=run.data_url,
        model=record_writing.stored_model(run.url),
        artifacts=record_writing.stored_artifacts(run.url),
        versions={},
    )
    there = read_record(run.url)
    if there is None or (there.created_at, there.ended_at) != (record.created_at, record.ended_at):
        write_record(run.url, record)
