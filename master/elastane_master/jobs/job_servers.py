"""All jobs of a master: takeover from the store, creation, lookup, repair.

`job_table` has the jobs by name, `job_opening` creates servers from stored state, `finished_jobs` handles
jobs that are over.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

import structlog

from elastane_common.cancellation import cancel, to_its_end
from elastane_master.decisions import autoscaling
from elastane_master.decisions.effects import Note
from elastane_master.decisions.events import MasterStarted, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import OVER
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.durable_server import DurableServer
from elastane_master.jobs.finished_jobs import FinishedJobs
from elastane_master.jobs.job_opening import JobOpening, StoredJob, unreadable
from elastane_master.jobs.job_server import JobServer, JobServerOwner
from elastane_master.jobs.job_table import ClosedJob, JobPage, JobTable
from elastane_master.jobs.limits import Limits, require_room, require_within
from elastane_master.store.connection import Store
from elastane_master.store.errors import (
    Damage,
    Fenced,
    HeldError,
    JobDamaged,
    JobTooNew,
    StoreError,
    StoreFormatUnknown,
)
from elastane_master.store.history import JobHistory
from elastane_master.store.keys import checked_job_name
from elastane_master.store.log import LogOptions
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings

logger = structlog.get_logger(__name__)

_PRICES = frozenset({"currency", "spot_price_micros", "on_demand_price_micros"})
_SCALING = frozenset(autoscaling.SETTINGS)


class LeaseOver(Exception):  # noqa: N818 - says what happened
    """The lease expired: another master may lead by now, and takes over the remaining jobs."""


T = TypeVar("T")


async def _all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all; if one fails, cancel the others before raising its error.

    Otherwise they would take over jobs during the next attempt.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel(*tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class Companion(Protocol):
    """A service of the master beside its jobs, taken over and released together with them.

    name: its name in `elastane repair`; no job can have it.
    """

    name: str

    async def repair(self, *, accept_loss: bool) -> tuple[Damage, ...]:
        """Try again to serve it if it is held; return the accepted damages. Raises as `JobServers.repair`."""
        ...

    async def read(self, may_lead: Callable[[], bool]) -> None:
        """Read the stored state. Raises as `JobServers.start`."""

    async def serve(self) -> None:
        """Serve the state that was read."""

    async def stop(self, refusal: Rejection) -> None:
        """End every stream with `refusal`, and complete pending writes."""

    def pause(self, refusal: Rejection) -> None:
        """End every stream; the state stays in memory."""

    def resume(self) -> None:
        """Serve again after `pause`."""

    async def abandon(self, refusal: Rejection) -> None:
        """Drop everything without writing: another master serves it."""

    def is_fenced(self) -> bool:
        """True if another master took it over."""
        ...


class JobServers(JobServerOwner):
    """The jobs being served, by name, and the closed ones. Used from one event loop.

    on_failed: called with the error that ended a job's service. on_reachable: called when the store stops or
    resumes answering. restored: True once every job of the store is loaded; until then every request is
    refused. clock: for all jobs (default: this machine's). master: its name in their history (default: host
    and process id). companions: served beside the jobs. opening, finished: read jobs, and manage finished
    ones.
    """

    def __init__(
        self,
        store: Store,
        options: LogOptions,
        limits: Limits | None = None,
        *,
        clock: Clock | None = None,
        master: str = "",
        on_failed: Callable[[StoreError], None] = lambda error: None,
        on_reachable: Callable[[bool], None] = lambda reachable: None,
    ) -> None:
        self.store = store
        self.clock = clock or Clock()
        self.master = master or f"{socket.gethostname()}:{os.getpid()}"
        self.restored = False
        self.companions: list[Companion] = []
        self._options = options
        self.limits = limits or Limits()
        self._on_failed = on_failed
        self._on_reachable = on_reachable
        self._creating = asyncio.Lock()
        self._unreachable: set[str] = set()
        self._table = JobTable()
        self.opening = JobOpening(
            store, options, self.limits, self.clock, self._table, owner=self, master=self.master
        )
        self.finished = FinishedJobs(
            store,
            self._table,
            self.opening,
            require_serving=self.require_serving,
            on_fenced=self.lead_lost,
        )
        self._reads = asyncio.Semaphore(self.limits.store_reads_max)
        self._refusal: Callable[[], Rejection | None] = lambda: None

    def refuse(self, refusal: Rejection | None) -> None:
        """Refuse every request with `refusal` from now on; None: serve again."""
        self._refusal = lambda: refusal

    def refuse_by(self, refusal: Callable[[], Rejection | None]) -> None:
        """Call `refusal` for every request: refuse it with the result, or serve it if that is None."""
        self._refusal = refusal

    def any_fenced(self) -> bool:
        """True if another master took a job over."""
        return any(isinstance(server.log.failure, Fenced) for server in self._table.serving.values()) or any(
            companion.is_fenced() for companion in self.companions
        )

    def require_serving(self) -> None:
        """Raise Rejection while this master does not serve."""
        if (refusal := self._refusal()) is not None:
            raise refusal
        if not self.restored:  # a job that is not read yet would be reported as unknown
            raise Rejection(
                "not_leading",
                "this master has not read all jobs of the store yet",
                hint="ask again in a moment, or the next of the masters' addresses",
            )

    async def start(self, may_lead: Callable[[], bool] = lambda: True) -> None:
        """Take over every job of the store. Raises StoreFormatUnknown, Fenced, LeaseOver and redis errors.

        may_lead: called before each job; if it returns False the takeover ends with LeaseOver. If a fence
        shows that a newer master wrote a job, the whole store is left unchanged: that master may be running.
        If only other keys of a job show it, that job is held.
        """
        self.clock.begin()
        self.clock.keep()
        names, stored = await self.store.jobs()
        if not may_lead():
            raise LeaseOver("the lease ran out before any job was taken over")
        open_names = await self.finished.take_over(names, self._options.state_version)

        async def read(name: str) -> StoredJob | None:
            async with self.opening.at_once:
                if not may_lead():
                    raise LeaseOver(f"the lease ran out before job {name} was taken over")
                return await self.opening.read(name, is_stored=name in stored)

        async def serve(job: StoredJob) -> None:
            async with self.opening.at_once:
                if not may_lead():
                    raise LeaseOver(f"the lease ran out before job {job.log.job} was served")
                await self.opening.serve(job)

        jobs = await _all_or_none(read(name) for name in sorted(open_names))
        for companion in self.companions:
            await companion.read(may_lead)
        # Each job may advance the shared clock, which would expire deadlines of jobs already served.
        await _all_or_none(serve(job) for job in jobs if job is not None)
        for companion in self.companions:
            await companion.serve()
        await self.store.mark_stored(self._table.serving.keys() - stored)
        self.restored = True
        self.finished.start()

    async def stop(self, refusal: Rejection) -> None:
        """Stop serving: streams end with `refusal`, and all pending writes are done."""
        await self.finished.stop()
        await asyncio.gather(*[one.stop(refusal) for one in self._served()])
        self.clock.stop()

    def pause(self, refusal: Rejection) -> None:
        """End all streams and refuse every request, but keep all jobs in memory."""
        self.refuse(refusal)
        for one in self._served():
            one.pause(refusal)

    def resume(self) -> None:
        """Serve again after `pause`."""
        for server in self._table.serving.values():
            if server.log.failure is None:
                server.resume(MasterStarted(self.master))
        for companion in self.companions:
            companion.resume()
        self.refuse(None)

    async def abandon(self, refusal: Rejection) -> None:
        """Drop every job without writing: another master serves them."""
        self.refuse(refusal)
        self.restored = False
        await self.finished.stop()
        await asyncio.gather(*[one.abandon(refusal) for one in self._served()])
        self._table.clear()
        self.finished.forget()
        for _ in self._unreachable:
            self.clock.resume()
        if self._unreachable:
            self._unreachable.clear()
            self._on_reachable(True)  # no server is left to report it
        self.clock.stop()

    def _served(self) -> list[JobServer | Companion]:
        return [*self._table.serving.values(), *self.companions]

    def running(self) -> list[JobServer]:
        """Return the servers of all jobs in memory, in no order."""
        return list(self._table.serving.values())

    @property
    def count(self) -> int:
        """Number of jobs of this master including closed ones, whether it currently serves them or not."""
        return len(self._table.serving) + len(self._table.closed)

    def all(self) -> list[JobServer]:
        """Servers of all jobs that are not closed, by name.

        Raises Rejection while this master does not serve.
        """
        self.require_serving()
        return [self._table.serving[name] for name in sorted(self._table.serving)]

    def closed(self) -> list[ClosedJob]:
        """The closed jobs, by name. Raises as `all`."""
        self.require_serving()
        return [self._table.closed[name] for name in sorted(self._table.closed)]

    def closed_job(self, name: str) -> ClosedJob | None:
        """Return the job if it is closed, else None. Raises as `all`."""
        self.require_serving()
        return self._table.closed.get(name)

    def names(self) -> list[str]:
        """Names of all jobs, sorted. Raises as `all`."""
        self.require_serving()
        return self._table.names()

    def dataset_names(self, job: str) -> Collection[str]:
        """Names of the job's dynamic datasets; none of a job that is closed or unknown. Raises as `all`."""
        self.require_serving()
        server = self._table.serving.get(job)
        return server.machine.queues.dynamic.keys() if server is not None else ()

    def page(self, after: str, count: int | None, covers: Callable[[str], bool]) -> JobPage:
        """Return the first `count` jobs, or all, with names after `after` for which `covers` is true.

        Raises as `all`.
        """
        self.require_serving()
        return self._table.page(after, count, covers)

    async def find(self, name: str) -> JobServer:
        """Return the job's server; a closed job is read from the store again.

        Raises as `get`, and StoreError and redis errors.
        """
        self.require_serving()
        if name in self._table.closed:
            # Completed even if the caller leaves.
            await to_its_end(self.finished.wake(name))
        return self.get(name)

    def held(self) -> dict[str, HeldError]:
        """Jobs that are held, not served, because their stored data is damaged or too new, with the errors.

        Raises Rejection while this master does not serve.
        """
        self.require_serving()
        return self._table.held

    def get(self, name: str) -> JobServer:
        """Return the job's server. Raises Rejection, BadJobName, and HeldError if the job is held."""
        self.require_serving()
        return self._table.get(name)

    def served(self, name: str) -> JobServer | None:
        """Return the job's server if there is one, as long as this master serves. Raises as `all`."""
        self.require_serving()
        return self._table.serving.get(name)

    async def find_or_only(self, name: str) -> JobServer:
        """Return the job's server; without a name that of the only job. Raises as `find`."""
        if name:
            return await self.find(name)
        names = self.names()
        if len(names) != 1:
            raise Rejection(
                "invalid_argument" if names else "not_found",
                f"there are {len(names)} jobs, and the request names none",
                hint="name the job",
                field="job",
                jobs=", ".join(names[:20]),
            )
        return await self.find(names[0])

    def history(self, server: JobServer) -> JobHistory:
        """Reader for the job's history in the store."""
        return JobHistory(self.store.redis, server.name, self._reads, server.log)

    async def create(self, name: str, settings: JobSettings) -> tuple[JobServer, bool]:
        """Return the job of that name and whether this call created it.

        Raises Rejection if it exists with other settings or they are invalid, BadJobName, StoreError, and
        redis errors.
        """
        checked_job_name(name)
        async with self._creating:
            self.require_serving()
            async with self._table.lock(name):  # it may be in the middle of closing or deletion
                return await self._create(name, settings)

    async def _create(self, name: str, settings: JobSettings) -> tuple[JobServer, bool]:
        self.require_serving()
        server = self._table.serving.get(name)
        if server is not None:
            _require_equal_server(server, settings)
            if (durable := server.log.pending) is not None:
                await asyncio.shield(durable)
            return server, False
        if name in self._table.held:
            raise self._table.held[name].with_traceback(None)
        if (closed := self._table.closed.get(name)) is not None:
            view = closed.record.view
            _require_equal(name, view.original_settings, view.settings, settings)
            return await self.finished.open(closed), False
        limits = self.limits
        require_within("ests_per_job_max", settings.ests, limits.ests_per_job_max, "ESTs in a job")
        characters = len(settings.checkpoint_url)
        require_within("url_characters_max", characters, limits.url_characters_max, "characters in the URL")
        alive = sum(server.machine.state.phase not in OVER for server in self._table.serving.values())
        require_room("jobs_max", alive, limits.jobs_max, "jobs that are not over")
        machine = JobMachine.create(name, settings, self.clock())
        # Listed first: a listed job without a snapshot is one whose creation was never acknowledged.
        await self.store.add_job(name)
        self.require_serving()  # continuing would fence the current leader
        log, recovered = await self.opening.log(name)
        self.require_serving()  # a server created now would never be served or stopped
        if recovered.snapshot is not None:
            server = await self.opening.serve(StoredJob(log, recovered, self.opening.replay(name, recovered)))
            _require_equal_server(server, settings)
            return server, False
        server = self.opening.server(StoredJob(log, recovered, machine))
        await server.start(note=machine.creation_note())
        await self.store.mark_stored([name])
        return server, True

    async def delete(self, name: str, *, request_id: str = "", force: bool = False) -> None:
        """Delete a finished job with all its stored data; its checkpoints stay.

        force: cancel a job that is not over first. A request repeated within a day gets the same answer
        again. Raises Rejection, StoreError and redis errors.
        """
        # Completed even if the caller leaves, so that no job is half created.
        await to_its_end(self.finished.delete(checked_job_name(name), request_id, force))

    async def repair(self, name: str, *, accept_loss: bool) -> tuple[JobServer | None, tuple[Damage, ...]]:
        """Try again to serve a held job; return its server and the accepted damages.

        The server is None if nothing was left, and for a companion.

        accept_loss: continue without the lost data; otherwise JobDamaged is raised if any is missing. A job
        that is served is left unchanged, and so is one that only a newer master can read. Raises Rejection,
        BadJobName, JobTooNew and other StoreErrors, and redis errors.
        """
        async with self._creating:
            self.require_serving()
            for companion in self.companions:
                if companion.name == name:
                    return None, await companion.repair(accept_loss=accept_loss)
            if name not in self._table.held:
                return await self.find(name), ()
            try:
                server, accepted = await self._repair(name, accept_loss=accept_loss)
            except (JobDamaged, JobTooNew) as error:
                self._table.hold(error)
                raise
            self._table.held.pop(name, None)
            return server, accepted

    async def _repair(self, name: str, *, accept_loss: bool) -> tuple[JobServer | None, tuple[Damage, ...]]:
        held = self._table.held[name]
        found = held.damages if isinstance(held, JobDamaged) else ()
        log, recovered = await self.opening.log(name, accept_loss=accept_loss)
        self.require_serving()
        accepted = recovered.damages
        machine: JobMachine | None = None
        if recovered.snapshot is not None:
            try:
                machine = self.opening.replay(name, recovered)
            except StoreFormatUnknown as error:
                if not accept_loss:
                    raise JobDamaged(name, [unreadable(name, error)]) from error
                accepted = (*accepted, unreadable(name, error))
        elif not accept_loss:
            raise JobDamaged(name, recovered.damages or found)
        if machine is None:
            await log.drop()
            await self.store.remove_job(name)
            logger.warning("a damaged job was removed: no state of it is left", job=name)
            return None, accepted or found
        lost = "; ".join(str(damage) for damage in accepted)
        repaired = Note.of(history.JobRepaired(lost))
        server = self.opening.server(StoredJob(log, recovered, machine))
        await server.start(MasterStarted(self.master), repaired)
        await self.store.add_job(name)
        await self.store.mark_stored([name])
        logger.warning("a damaged job is served again", job=name, reason=repaired.reason)
        return server, accepted

    # ---------------------------------------------------------------- from the job servers

    def server_failed(self, server: JobServer, error: StoreError) -> None:
        if not isinstance(error, JobDamaged):
            self._on_failed(error)
        elif self._table.serving.get(server.name) is server:
            del self._table.serving[server.name]
            self._table.hold(error)

    def lead_lost(self, error: StoreError) -> None:
        """Stop leading: another master has taken over a companion or a closed job."""
        self._on_failed(error)

    def store_reachable(self, server: DurableServer[Any], reachable: bool) -> None:
        was_reachable = not self._unreachable
        if reachable:
            self._unreachable.discard(server.log.job)
            self.clock.resume()
        else:
            self._unreachable.add(server.log.job)
            self.clock.pause()
        if was_reachable != (not self._unreachable):
            self._on_reachable(reachable)

    async def revive_store(self) -> None:
        await self.store.revive()

    async def store_mended(self, server: JobServer) -> None:
        await self.store.add_job(server.name)
        await self.store.mark_stored([server.name])


def _require_equal_server(server: JobServer, settings: JobSettings) -> None:
    state = server.machine.state
    _require_equal(server.name, state.original, state.settings, settings)


def _require_equal(name: str, original: JobSettings, current: JobSettings, settings: JobSettings) -> None:
    """Raise Rejection unless the job was created with these settings.

    The numbers of workers may also be those the job was scaled to since. Prices and scaling are not compared:
    they do not affect the bits and may have changed, and the current ones stay in force.
    """
    for field in JobSettings.__struct_fields__:
        if field in _PRICES or field in _SCALING:
            continue
        asked = getattr(settings, field)
        if field == "workers_max":
            known = {of.workers_max or of.ests for of in (original, current)}
            if (asked or settings.ests) in known:
                continue
        elif field == "workers_min" and asked == current.workers_min:
            continue
        if getattr(original, field) != asked:
            raise Rejection(
                "already_exists",
                f"job {name!r} already exists with {field} {getattr(original, field)!r},"
                f" not {getattr(settings, field)!r}",
                hint="use its settings, or another name",
                job=name,
                field=field,
            )
