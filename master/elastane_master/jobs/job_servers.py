"""All jobs of a master: takeover from the store, creation, lookup, closing, deletion, repair."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast
from weakref import WeakValueDictionary

import structlog
from redis.exceptions import RedisError

from elastane_master.cancellation import cancel
from elastane_master.decisions.effects import Note
from elastane_master.decisions.events import CancelRequested, MasterStarted, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.retention import (
    Record,
    Retention,
    may_close,
    read_record,
    record_of,
    require_deletable,
)
from elastane_master.decisions.state import OVER, Phase
from elastane_master.jobs import records
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.durable_server import DurableServer
from elastane_master.jobs.job_server import JobServer, JobServerOwner
from elastane_master.jobs.limits import Limits, require_room, require_within
from elastane_master.jobs.ring_tracing import RingTracing
from elastane_master.metrics.measures import StoreMeasures
from elastane_master.store.closed import Closed, ClosedJobs
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
from elastane_master.store.keys import JobKeys, checked_job_name
from elastane_master.store.log import JobLog, LogOptions
from elastane_master.store.recovery import Recovered
from elastane_proto.history import events as history
from elastane_proto.job_settings import JobSettings
from elastane_proto.tracing import Tracer

logger = structlog.get_logger(__name__)

TAKEN_OVER_AT_ONCE = 8

CLOSE_SECONDS = 300.0
"""Time after which a finished job that nobody requests is closed.

Longer than the window of writes that a store can lose (`LogOptions.kept_seconds`): once the job is closed
nobody is left to write them again.
"""

LOOK_SECONDS_MAX = 60.0
"""Longest interval between checks for jobs to close or delete."""

_PRICES = frozenset({"currency", "spot_price_micros", "on_demand_price_micros"})


class LeaseOver(Exception):  # noqa: N818 - says what happened
    """The lease ran out: another master may lead by now, and the remaining jobs are for it to take over."""


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
        assert record is not None  # it was read before
        return record


T = TypeVar("T")


async def _all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all; when one fails, cancel the others before raising its error.

    Those left running would take jobs over behind the back of the next attempt.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel(*tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class Companion(Protocol):
    """What a master serves beside its jobs, taken over and given up together with them.

    name: by which it is repaired; no job can have it.
    """

    name: str

    async def repair(self, *, accept_loss: bool) -> tuple[Damage, ...]:
        """Try again to serve it if it is held; return the accepted damages. Raises as `JobServers.repair`."""
        ...

    async def read(self, may_lead: Callable[[], bool]) -> None:
        """Read what is stored. Raises as `JobServers.start`."""

    async def serve(self) -> None:
        """Serve what was read."""

    async def stop(self, refusal: Rejection) -> None:
        """End every stream with `refusal`, and write what is pending."""

    def pause(self, refusal: Rejection) -> None:
        """End every stream; all stays in memory."""

    def resume(self) -> None:
        """Serve again after `pause`."""

    async def abandon(self, refusal: Rejection) -> None:
        """Drop everything without writing: another master serves it."""

    def is_fenced(self) -> bool:
        """True if another master took it over."""
        ...


class JobPage(NamedTuple):
    """Some of the jobs, by name. last: the last one's name where there are more; else empty."""

    jobs: list[JobServer | ClosedJob | HeldError]
    last: str


class _Restored(NamedTuple):
    """A job that was read but is not served yet."""

    name: str
    log: JobLog
    recovered: Recovered
    machine: JobMachine


class JobServers(JobServerOwner):
    """The jobs being served, by name, and the closed ones. Used from one event loop.

    on_failed: called with the error that ended a job's service. on_reachable: called when the store stops or
    resumes answering. restored: True once every job of the store is here; until then every request is
    refused. measures: writes of all jobs. tracer: traces ring changes; None: they are not traced. retention:
    which finished jobs are kept. close_seconds: idle time after which they are closed. companions: served
    beside the jobs.
    """

    def __init__(
        self,
        store: Store,
        options: LogOptions,
        limits: Limits | None = None,
        *,
        on_failed: Callable[[StoreError], None] = lambda error: None,
        on_reachable: Callable[[bool], None] = lambda reachable: None,
    ) -> None:
        self.store = store
        self.measures = StoreMeasures()
        self.tracer: Tracer | None = None
        self.clock = Clock()
        self.master = f"{socket.gethostname()}:{os.getpid()}"
        self.restored = False
        self._options = options
        self._limits = limits or Limits()
        self._on_failed = on_failed
        self._on_reachable = on_reachable
        self._hosts: dict[str, JobServer] = {}
        self._held: dict[str, HeldError] = {}
        self._creating = asyncio.Lock()
        self._unreachable: set[str] = set()
        self.retention = Retention()
        self.close_seconds = CLOSE_SECONDS
        self._records = ClosedJobs(store.redis)
        self._closed: dict[str, ClosedJob] = {}
        self._deleting: dict[str, str] = {}  # those of the closed ones, and by which request
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._opening = asyncio.Semaphore(TAKEN_OVER_AT_ONCE)
        self._closing: asyncio.Task[None] | None = None
        self._reads = asyncio.Semaphore(self._limits.store_reads_max)
        self._refusal: Callable[[], Rejection | None] = lambda: None
        self.companions: list[Companion] = []

    def refuse(self, refusal: Rejection | None) -> None:
        """Refuse every request with `refusal` from now on; None: serve them."""
        self._refusal = lambda: refusal

    def refuse_by(self, refusal: Callable[[], Rejection | None]) -> None:
        """Call `refusal` for every request: refuse it with the result, or serve it if that is None."""
        self._refusal = refusal

    def any_fenced(self) -> bool:
        """True if another master took a job over."""
        return any(isinstance(host.log.failure, Fenced) for host in self._hosts.values()) or any(
            companion.is_fenced() for companion in self.companions
        )

    def require_serving(self) -> None:
        """Raise Rejection while this master does not serve."""
        if (refusal := self._refusal()) is not None:
            raise refusal
        if not self.restored:  # a job that is not read yet would be called unknown
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
        listed = await self._records.take_over(names, self._options.state_version)
        for name in listed.deleted:  # the master that deleted them did not come to this
            await self.store.remove_job(name)
        for name, closed in listed.closed.items():
            if (job := ClosedJob.of(name, closed)) is not None:
                self._closed[name] = job
            else:
                listed.open.append(name)

        async def read(name: str) -> _Restored | None:
            async with self._opening:
                if not may_lead():
                    raise LeaseOver(f"the lease ran out before job {name} was taken over")
                return await self._take_over(name, is_stored=name in stored)

        async def serve(job: _Restored) -> None:
            async with self._opening:
                if not may_lead():
                    raise LeaseOver(f"the lease ran out before job {job.name} was served")
                await self._serve(*job)

        jobs = await _all_or_none(read(name) for name in sorted(listed.open))
        for companion in self.companions:
            await companion.read(may_lead)
        # Each may lift the clock that all share: whoever was served before would see its deadlines pass.
        await _all_or_none(serve(job) for job in jobs if job is not None)
        for companion in self.companions:
            await companion.serve()
        await self.store.mark_stored(self._hosts.keys() - stored)
        self.restored = True
        self._closing = asyncio.create_task(self._keep_closing(), name="finished jobs")

    async def stop(self, refusal: Rejection) -> None:
        """Stop serving: streams end with `refusal`, and all pending writes are done."""
        await self._stop_closing()
        await asyncio.gather(*[one.stop(refusal) for one in self._served()])
        self.clock.stop()

    def pause(self, refusal: Rejection) -> None:
        """End all streams and refuse every request, but keep all jobs in memory."""
        self.refuse(refusal)
        for one in self._served():
            one.pause(refusal)

    def resume(self) -> None:
        """Serve again after `pause`."""
        for host in self._hosts.values():
            if host.log.failure is None:
                host.resume(MasterStarted(self.master))
        for companion in self.companions:
            companion.resume()
        self.refuse(None)

    async def abandon(self, refusal: Rejection) -> None:
        """Drop every job without writing: another master serves them."""
        self.refuse(refusal)
        self.restored = False
        await self._stop_closing()
        await asyncio.gather(*[one.abandon(refusal) for one in self._served()])
        self._hosts.clear()
        self._closed.clear()
        self._deleting.clear()
        self._held.clear()
        for _ in self._unreachable:
            self.clock.resume()
        if self._unreachable:
            self._unreachable.clear()
            self._on_reachable(True)  # nobody is left who would say so
        self.clock.stop()

    def _served(self) -> list[JobServer | Companion]:
        return [*self._hosts.values(), *self.companions]

    @property
    def count(self) -> int:
        """Number of jobs of this master including closed ones, whether it currently serves them or not."""
        return len(self._hosts) + len(self._closed)

    def all(self) -> list[JobServer]:
        """Hosts of all jobs that are not closed, by name.

        Raises Rejection while this master does not serve.
        """
        self.require_serving()
        return [self._hosts[name] for name in sorted(self._hosts)]

    def closed(self) -> list[ClosedJob]:
        """The closed jobs, by name. Raises as `all`."""
        self.require_serving()
        return [self._closed[name] for name in sorted(self._closed)]

    def closed_job(self, name: str) -> ClosedJob | None:
        """Return the job if it is closed, else None. Raises as `all`."""
        self.require_serving()
        return self._closed.get(name)

    def names(self) -> list[str]:
        """Names of all jobs, sorted. Raises as `all`."""
        self.require_serving()
        return sorted([*self._hosts, *self._closed, *self._held])

    def dataset_names(self, job: str) -> Collection[str]:
        """Names of the job's dynamic datasets; none of a job that is closed or unknown. Raises as `all`."""
        self.require_serving()
        host = self._hosts.get(job)
        return host.machine.queues.dynamic.keys() if host is not None else ()

    def page(self, after: str, count: int | None, covers: Callable[[str], bool]) -> JobPage:
        """The first `count` jobs, or all of them, whose names come after `after` and which `covers` holds of.

        Raises as `all`.
        """
        self.require_serving()
        names = sorted(name for name in chain(self._hosts, self._closed, self._held) if name > after)
        seen = (name for name in names if covers(name))
        chosen = list(seen if count is None else islice(seen, count + 1))
        is_last = count is None or len(chosen) <= count
        chosen = chosen[:count]
        jobs = [self._hosts.get(name) or self._closed.get(name) or self._held[name] for name in chosen]
        return JobPage(jobs, "" if is_last else chosen[-1])

    async def find(self, name: str) -> JobServer:
        """Return the job's host; a closed job is read from the store again.

        Raises as `get`, and StoreError and redis errors.
        """
        self.require_serving()
        if name in self._closed:
            # Whoever asked may leave: what was begun at the store comes to its end.
            await asyncio.shield(self._wake(name))
        return self.get(name)

    def held(self) -> dict[str, HeldError]:
        """Jobs that are held, not served, because their stored data is damaged or too new, with the errors.

        Raises Rejection while this master does not serve.
        """
        self.require_serving()
        return self._held

    def get(self, name: str) -> JobServer:
        """Return the job's host. Raises Rejection, BadJobName, and HeldError if the job is held."""
        self.require_serving()
        if name in self._held:
            raise self._held[name].with_traceback(None)
        host = self._hosts.get(name)
        if host is None:
            if name in self._closed:
                raise Rejection("busy", f"job {name!r} is being closed", hint="ask again", job=name)
            raise Rejection(
                "not_found",
                f"there is no job {checked_job_name(name)!r}",
                hint="create it first (JobService.Create)",
                job=name,
            )
        host.asked_for()
        return host

    async def find_or_only(self, name: str) -> JobServer:
        """Return the job's host; without a name that of the only job. Raises as `find`."""
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

    def history(self, host: JobServer) -> JobHistory:
        """Reader for the job's history in the store."""
        return JobHistory(self.store.redis, host.name, self._reads)

    async def create(self, name: str, settings: JobSettings) -> tuple[JobServer, bool]:
        """Return the job of that name and whether this call created it.

        Raises Rejection if it exists with other settings or they are invalid, BadJobName, StoreError, and
        redis errors.
        """
        checked_job_name(name)
        async with self._creating:
            self.require_serving()
            async with self._lock(name):  # it may just be closed, or deleted
                return await self._create(name, settings)

    async def _create(self, name: str, settings: JobSettings) -> tuple[JobServer, bool]:
        self.require_serving()
        host = self._hosts.get(name)
        if host is not None:
            _require_equal_host(host, settings)
            if (durable := host.log.pending) is not None:
                await asyncio.shield(durable)
            return host, False
        if name in self._held:
            raise self._held[name].with_traceback(None)
        if (closed := self._closed.get(name)) is not None:
            view = closed.record.view
            _require_equal(name, view.original_settings, view.settings, settings)
            return await self._open(closed), False
        limits = self._limits
        require_within("ests_per_job_max", settings.ests, limits.ests_per_job_max, "ESTs in a job")
        characters = len(settings.checkpoint_url)
        require_within("url_characters_max", characters, limits.url_characters_max, "characters in the URL")
        alive = sum(host.machine.state.phase not in OVER for host in self._hosts.values())
        require_room("jobs_max", alive, limits.jobs_max, "jobs that are not over")
        machine = JobMachine.create(name, settings, self.clock())
        # Listed first: a listed job without a snapshot is one whose creation nobody was told of.
        await self.store.add_job(name)
        self.require_serving()  # what follows would fence whoever leads by now
        log, recovered = await JobLog.open(self.store.redis, name, self._options)
        self.require_serving()  # a host made now would be served by nobody, and never be ended
        if recovered.snapshot is not None:
            host = await self._serve(name, log, recovered, self._replay(name, recovered))
            _require_equal_host(host, settings)
            return host, False
        host = self._make_host(machine, log, recovered)
        await host.start(note=machine.creation_note())
        await self.store.mark_stored([name])
        return host, True

    async def delete(self, name: str, *, request_id: str = "", force: bool = False) -> None:
        """Delete a finished job with all its stored data; its checkpoints stay.

        force: cancel a job that is not over first. A request repeated within a day gets the same answer
        again. Raises Rejection, StoreError and redis errors.
        """
        # Whoever asked may leave: half of a job is no job.
        await asyncio.shield(self._delete_asked(checked_job_name(name), request_id, force))

    async def repair(self, name: str, *, accept_loss: bool) -> tuple[JobServer | None, tuple[Damage, ...]]:
        """Try again to serve a held job; return its host and the accepted damages.

        The host is None if nothing was left, and for a companion.

        accept_loss: continue without the lost data; otherwise JobDamaged is raised if any is missing. A job
        that is served is left unchanged, and so is one that only a newer master can read. Raises Rejection,
        BadJobName, JobTooNew and other StoreErrors, and redis errors.
        """
        async with self._creating:
            self.require_serving()
            for companion in self.companions:
                if companion.name == name:
                    return None, await companion.repair(accept_loss=accept_loss)
            if name not in self._held:
                return await self.find(name), ()
            try:
                host, accepted = await self._repair(name, accept_loss=accept_loss)
            except (JobDamaged, JobTooNew) as error:
                self._hold(error)
                raise
            self._held.pop(name, None)
            return host, accepted

    async def _repair(self, name: str, *, accept_loss: bool) -> tuple[JobServer | None, tuple[Damage, ...]]:
        held = self._held[name]
        found = held.damages if isinstance(held, JobDamaged) else ()
        log, recovered = await JobLog.open(self.store.redis, name, self._options, accept_loss=accept_loss)
        self.require_serving()
        accepted = recovered.damages
        machine: JobMachine | None = None
        if recovered.snapshot is not None:
            try:
                machine = self._replay(name, recovered)
            except StoreFormatUnknown as error:
                if not accept_loss:
                    raise JobDamaged(name, [_unreadable(name, error)]) from error
                accepted = (*accepted, _unreadable(name, error))
        elif not accept_loss:
            raise JobDamaged(name, recovered.damages or found)
        if machine is None:
            await log.drop()
            await self.store.remove_job(name)
            logger.warning("a damaged job was removed: no state of it is left", job=name)
            return None, accepted or found
        lost = "; ".join(str(damage) for damage in accepted)
        repaired = Note.of(history.JobRepaired(lost))
        host = self._make_host(machine, log, recovered)
        await host.start(MasterStarted(self.master), repaired)
        await self.store.add_job(name)
        await self.store.mark_stored([name])
        logger.warning("a damaged job is served again", job=name, reason=repaired.reason)
        return host, accepted

    def _make_host(self, machine: JobMachine, log: JobLog, recovered: Recovered) -> JobServer:
        """Create the job's host. From now on `get` finds it; it serves once it is started."""
        log.measures = self.measures
        tracing = RingTracing(log.job, machine.state, self.tracer) if self.tracer is not None else None
        host = JobServer(machine, log, self.clock, self, recovered.event_sequence, self._limits, tracing)
        self._hosts[log.job] = host
        return host

    # ---------------------------------------------------------------- taking over

    def _hold(self, error: HeldError) -> None:
        self._held[error.job] = error
        logger.error("a job is held and not served", error=str(error), hint=error.hint, **error.facts)

    async def _take_over(self, name: str, *, is_stored: bool) -> _Restored | None:
        """Read a job's last state; None if it is held or was never stored.

        is_stored: the store had data of it.
        """
        try:
            log, recovered = await JobLog.open(self.store.redis, name, self._options)
            if is_stored and not recovered.exists:
                raise JobDamaged(name, [Damage(JobKeys.of(name).fence, 1, "it and every other key are gone")])
        except (JobDamaged, JobTooNew) as error:
            self._hold(error)
            return None
        if recovered.snapshot is None:
            # It stays listed: another master may be about to store it, and to acknowledge its creation.
            logger.warning("a job was never stored; its creation was not acknowledged", job=name)
            return None
        try:
            return _Restored(name, log, recovered, self._replay(name, recovered))
        except StoreFormatUnknown as error:
            self._hold(JobDamaged(name, [_unreadable(name, error)]))
            return None

    async def _serve(self, name: str, log: JobLog, recovered: Recovered, machine: JobMachine) -> JobServer:
        host = self._make_host(machine, log, recovered)
        logger.info(
            "job taken over",
            job=name,
            phase=machine.state.phase,
            records=len(recovered.records),
            token=recovered.token,
        )
        await host.start(MasterStarted(self.master))
        return host

    def _replay(self, name: str, recovered: Recovered) -> JobMachine:
        """Restore the machine: the snapshot, then the later events at the times they were decided."""
        assert recovered.snapshot is not None
        try:
            machine = JobMachine.restore(recovered.snapshot)
            # Deadlines are in the state: on a machine whose clock is behind they would lie far away.
            self.clock.at_least(machine.state.decided_at)
            for record in recovered.records:
                stored = records.decode_event(record)
                machine.handle(stored.event, stored.now)
                self.clock.at_least(stored.now)
        except StoreFormatUnknown:
            raise
        except Exception as error:  # bytes that were spoiled can contradict each other in any way
            raise StoreFormatUnknown(
                f"job {name} cannot be read from the store: {error!r}", job=name
            ) from error
        return machine

    # ---------------------------------------------------------------- finished jobs

    def _lock(self, name: str) -> asyncio.Lock:
        """Lock held while the job is created, closed, reopened or deleted."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _wake(self, name: str) -> None:
        """Reopen the job if it is closed."""
        async with self._lock(name):
            if (closed := self._closed.get(name)) is not None:
                await self._open(closed)

    async def _open(self, closed: ClosedJob) -> JobServer:
        """Read a closed job again and serve it. The caller holds its lock."""
        name, token = closed.name, closed.stored.token
        self.require_serving()
        if (request_id := self._deleting.get(name)) is not None:
            await self._delete(closed, request_id)
            raise Rejection("busy", f"job {name!r} was just deleted", hint="ask again", job=name)
        async with self._opening:
            await self._require_held(name, token)  # what follows would fence whoever leads by now
            try:
                with self._fenced_steps_down():
                    log, recovered = await JobLog.open(self.store.redis, name, self._options)
            except (JobDamaged, JobTooNew) as error:
                self._closed.pop(name, None)
                self._hold(error)
                raise
            await self._require_held(name, recovered.token)
        self.require_serving()
        if self._closed.get(name) is not closed:
            raise Rejection("busy", f"job {name!r} changed its master meanwhile", hint="ask again", job=name)
        if recovered.snapshot is None:
            raise StoreFormatUnknown(f"closed job {name} is gone from the store", job=name)
        machine = self._replay(name, recovered)
        del self._closed[name]
        host = self._make_host(machine, log, recovered)
        logger.info("finished job opened again", job=name, phase=closed.phase)
        await host.start()
        return host

    async def _require_held(self, name: str, token: int) -> None:
        with self._fenced_steps_down():
            await self._records.check(name, token)

    @contextlib.contextmanager
    def _fenced_steps_down(self) -> Iterator[None]:
        """Give up leading if the store says that another master took a closed job over.

        The other one may have done so late, after this one got the lease back. If this one led on with
        its old tokens, it would refuse every request for the job.
        """
        try:
            yield
        except Fenced as error:
            self._on_failed(error)
            raise

    async def _keep_closing(self) -> None:
        """Close and delete finished jobs when they are due."""
        while True:
            await asyncio.sleep(min(self.close_seconds / 2, LOOK_SECONDS_MAX))
            try:
                await self._close_unused()
                await self._delete_overdue()
            except (Rejection, StoreError, RedisError, OSError) as error:
                # The store is away, or another master leads: there is no hurry.
                logger.info("finished jobs stay as they are for now", error=str(error))
            except Exception:  # whatever it is, the other jobs' time comes too
                logger.exception("finished jobs could not be looked after")

    async def _stop_closing(self) -> None:
        if self._closing is not None:
            await cancel(self._closing)
            self._closing = None

    async def _close_unused(self) -> None:
        for host in list(self._hosts.values()):
            if may_close(host.machine) and host.is_unused(self.close_seconds):
                async with self._lock(host.name):
                    self.require_serving()
                    if self._hosts.get(host.name) is host and host.is_unused(self.close_seconds):
                        await self._close(host, "nobody asks for it", unused_seconds=self.close_seconds)

    async def _close(self, host: JobServer, why: str, *, unused_seconds: float | None = None) -> None:
        """End the service of a finished job. The caller holds its lock.

        unused_seconds: close it only if nobody has asked for the job for this long.
        """
        await host.confirm()  # all that it rests on is stored, and stored whole
        self.require_serving()
        if unused_seconds is not None and not host.is_unused(unused_seconds):
            return  # whoever came meanwhile would be told that there is no such job
        name, log = host.name, host.log
        record = record_of(host.machine, self.clock())
        closed = ClosedJob.of(name, Closed(log.token, record))
        assert closed is not None
        del self._hosts[name]
        self._closed[name] = closed
        await host.stop(Rejection("not_found", f"job {name!r} is over: {why}", job=name))
        with self._fenced_steps_down():
            is_closed = await self._records.close(name, log.token, log.sequence, record)
        if is_closed:
            logger.info("finished job closed", job=name, phase=closed.phase, reason=why)
            return
        # The store lost what was written last. Memory is the truth: it is served again, and written anew.
        options = self._options
        with self._fenced_steps_down():
            log, recovered = await JobLog.open(self.store.redis, name, options, accept_loss=True)
        self.require_serving()
        del self._closed[name]
        await self._make_host(host.machine, log, recovered).start()

    async def _delete_overdue(self) -> None:
        ended = [(job.name, job.ended_at) for job in self._closed.values()]
        for name in self.retention.overdue(ended, self.clock()):
            async with self._lock(name):
                self.require_serving()
                if (closed := self._closed.get(name)) is not None:
                    await self._delete(closed, "")
                    logger.info("finished job deleted", job=name, phase=closed.phase, reason="kept no longer")

    async def _delete_asked(self, name: str, request_id: str, force: bool) -> None:
        async with self._lock(name):
            self.require_serving()
            if name not in self._closed:
                if await self._was_deleted_by(name, request_id):
                    return  # the answer did not arrive
                host = self.get(name)
                require_deletable(host.machine, force)
                if host.machine.state.phase not in OVER:
                    await host.submit(CancelRequested(""))
                await self._close(host, "it is deleted by an operator")
            self.require_serving()
            if (closed := self._closed.get(name)) is None:
                raise Rejection("busy", f"job {name!r} changed meanwhile", hint="ask again", job=name)
            await self._delete(closed, request_id)
            logger.info("job deleted", job=name, phase=closed.phase, reason="an operator asked for it")

    async def _was_deleted_by(self, name: str, request_id: str) -> bool:
        if name in self._hosts or not request_id:
            return False
        return await self._records.deleted_by(name) == request_id

    async def _delete(self, closed: ClosedJob, request_id: str) -> None:
        """Delete all data of a closed job. The caller holds its lock.

        The store may do it without a reply: from here on the job counts as deleted and is never opened.
        """
        self._deleting[closed.name] = request_id
        with self._fenced_steps_down():
            await self._records.delete(closed.name, closed.stored.token, request_id)
        self.require_serving()  # a new leader took it off the list, and may have it again
        await self.store.remove_job(closed.name)
        self._closed.pop(closed.name, None)
        self._deleting.pop(closed.name, None)

    # ---------------------------------------------------------------- from the hosts

    def server_failed(self, host: JobServer, error: StoreError) -> None:
        if not isinstance(error, JobDamaged):
            self._on_failed(error)
        elif self._hosts.get(host.name) is host:
            del self._hosts[host.name]
            self._hold(error)

    def companion_failed(self, error: StoreError) -> None:
        """Handle an error that ended the service of a companion: it ends that of the jobs, too."""
        self._on_failed(error)

    def store_reachable(self, host: DurableServer[Any], reachable: bool) -> None:
        was_reachable = not self._unreachable
        if reachable:
            self._unreachable.discard(host.log.job)
            self.clock.resume()
        else:
            self._unreachable.add(host.log.job)
            self.clock.pause()
        if was_reachable != (not self._unreachable):
            self._on_reachable(reachable)

    async def revive_store(self) -> None:
        await self.store.revive()

    async def store_mended(self, host: JobServer) -> None:
        await self.store.add_job(host.name)
        await self.store.mark_stored([host.name])


def _unreadable(name: str, error: StoreFormatUnknown) -> Damage:
    return Damage(JobKeys.of(name).snapshot, 0, f"what was read contradicts itself: {error}")


def _require_equal_host(host: JobServer, settings: JobSettings) -> None:
    state = host.machine.state
    _require_equal(host.name, state.original, state.settings, settings)


def _require_equal(name: str, original: JobSettings, current: JobSettings, settings: JobSettings) -> None:
    """Raise Rejection unless the job was created with these settings.

    The numbers of workers may also be those the job was scaled to since. Prices are not compared: they change
    by the hour, and the current ones stay in force.
    """
    for field in JobSettings.__struct_fields__:
        if field in _PRICES:
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
