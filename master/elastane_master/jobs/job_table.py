"""The jobs of a master by name: those it serves, those that are closed, those that are held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, cast
from weakref import WeakValueDictionary

import structlog

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.retention import Record, read_record
from elastane_master.decisions.state import Phase
from elastane_master.jobs.job_server import JobServer
from elastane_master.store.closed import Closed
from elastane_master.store.errors import HeldError
from elastane_master.store.keys import checked_job_name

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClosedJob:
    """A finished job that is not held in memory. Its record is decoded on demand."""

    name: str
    phase: Phase
    ended_at: float
    stored: Closed

    @classmethod
    def of(cls, name: str, stored: Closed) -> ClosedJob | None:
        """Return None if the record has another version."""
        record = read_record(stored.record)
        if record is None:
            return None
        return cls(name, cast("Phase", record.view.phase), record.ended_at, stored)

    @property
    def record(self) -> Record:
        record = read_record(self.stored.record)
        assert record is not None  # already read
        return record


class JobPage(NamedTuple):
    """A page of jobs in the order of names. last: the name of its last job if more follow; else empty."""

    jobs: list[JobServer | ClosedJob | HeldError]
    last: str


class JobTable:
    """Jobs of a master by name, each in one of three places. Used from one event loop.

    serving: servers of jobs in memory, finished ones included until they are closed. closed: finished jobs
    that are only in the store. held: jobs that are not served, because their stored data is damaged or too
    new, with the error.
    """

    def __init__(self) -> None:
        self.serving: dict[str, JobServer] = {}
        self.closed: dict[str, ClosedJob] = {}
        self.held: dict[str, HeldError] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, name: str) -> asyncio.Lock:
        """Lock held while the job is created, closed, reopened or deleted."""
        return self._locks.setdefault(name, asyncio.Lock())

    def hold(self, error: HeldError) -> None:
        """Hold the job that `error` names. It must no longer be served."""
        self.held[error.job] = error
        logger.error("a job is held and not served", error=str(error), hint=error.hint, **error.facts)

    def clear(self) -> None:
        """Forget every job."""
        self.serving.clear()
        self.closed.clear()
        self.held.clear()

    def names(self) -> list[str]:
        """Names of all jobs, sorted."""
        return sorted([*self.serving, *self.closed, *self.held])

    def get(self, name: str) -> JobServer:
        """Return the job's server. Raises Rejection, BadJobName, and HeldError if the job is held."""
        if name in self.held:
            raise self.held[name].with_traceback(None)
        server = self.serving.get(name)
        if server is None:
            if name in self.closed:
                raise Rejection("busy", f"job {name!r} is being closed", hint="ask again", job=name)
            raise Rejection(
                "not_found",
                f"there is no job {checked_job_name(name)!r}",
                hint="create it first (JobService.Create)",
                job=name,
            )
        server.asked_for()
        return server

    def page(self, after: str, count: int | None, covers: Callable[[str], bool]) -> JobPage:
        """The first `count` jobs, or all of them, that `covers` accepts and whose names follow `after`."""
        names = sorted(name for name in chain(self.serving, self.closed, self.held) if name > after)
        seen = (name for name in names if covers(name))
        chosen = list(seen if count is None else islice(seen, count + 1))
        is_last = count is None or len(chosen) <= count
        chosen = chosen[:count]
        jobs = [self.serving.get(name) or self.closed.get(name) or self.held[name] for name in chosen]
        return JobPage(jobs, "" if is_last else chosen[-1])
