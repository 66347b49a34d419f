"""All jobs of a master: takes them over from the store, creates them, finds them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

import structlog
from redis.exceptions import RedisError

from elastane_master import records
from elastane_master.cancellation import cancel
from elastane_master.clock import Clock
from elastane_master.decisions.effects import Note
from elastane_master.decisions.events import CancelRequested, JobSettings, MasterStarted, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.retention import (
    Record,
    Retention,
    may_rest,
    read_record,
    record_of,
    require_deletable,
)
from elastane_master.decisions.state import OVER, Phase
from elastane_master.host import HostOwner, JobHost
from elastane_master.limits import Limits, require_room, require_within
from elastane_master.metrics.measures import StoreMeasures
from elastane_master.ring_tracing import RingTracing
from elastane_master.store.closed import Closed, ClosedJobs
from elastane_master.store.connection import Store
from elastane_master.store.errors import Damage, Fenced, JobDamaged, StoreError, StoreFormatUnknown
from elastane_master.store.history import JobHistory
from elastane_master.store.keys import JobKeys, checked_job_name
from elastane_master.store.log import JobLog, LogOptions
from elastane_master.store.recovery import Recovered
from elastane_proto.tracing import Tracer

logger = structlog.get_logger(__name__)

TAKEN_OVER_AT_ONCE = 8

CLOSE_SECONDS = 300.0
"""A finished job that nobody asks for is closed after so long. Longer than a store can lose writes of
(`LogOptions.kept_seconds`): once the job is closed nobody is left who would write them again."""

LOOK_SECONDS_MAX = 60.0
"""How often it is looked for jobs to close or to delete, at least."""

_PRICES = frozenset({"currency", "spot_price_micros", "on_demand_price_micros"})


class LeaseOver(Exception):  # noqa: N818 - says what happened
    """Another master may lead by now: what is left is its to take over."""


@dataclass(frozen=True, slots=True)
class ClosedJob:
    """A finished job that is not held in memory. Its record is read when it is asked for."""

    name: str
    phase: Phase
    ended_at: float
    stored: Closed

    @classmethod
    def of(cls, name: str, stored: Closed) -> ClosedJob | None:
        """None: its record is of another version."""
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
    """The results of all; when one fails, the others are ended before its error is raised.

    Those that are left would take jobs over behind the back of the next attempt.
    """
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await cancel(*tasks)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


class _Restored(NamedTuple):
    """A job that was read, and is not served yet."""

    name: str
    log: JobLog
    recovered: Recovered
    machine: JobMachine


class JobHosts(HostOwner):
    """The jobs being served, by name, and those that are closed. Used from one event loop.

    on_failed: told what ended a job's service. on_reachable: told when the store stops or starts to answer.
    restored: every job of the store is here; until then every request is refused. measures: of the writes of
    all jobs. tracer: of changes of their rings; None: they are not traced.
    retention: of finished jobs. close_seconds: after so long unasked for they are closed.
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
        self._hosts: dict[str, JobHost] = {}
        self._held: dict[str, JobDamaged] = {}
        self._creating = asyncio.Lock()
        self._unreachable: set[str] = set()
        self.retention = Retention()
        self.close_seconds = CLOSE_SECONDS
        self._records = ClosedJobs(store.redis)
        self._closed: dict[str, ClosedJob] = {}
        self._deleting: dict[str, str] = {}  # those of the closed ones, and by which request
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._opening = asyncio.Semaphore(TAKEN_OVER_AT_ONCE)
        self._resting: asyncio.Task[None] | None = None
        self._reads = asyncio.Semaphore(self._limits.store_reads_max)
        self._refusal: Callable[[], Rejection | None] = lambda: None

    def refuse(self, refusal: Rejection | None) -> None:
        """Every request is refused with `refusal` from here on; None: they are served."""
        self._refusal = lambda: refusal

    def refuse_by(self, refusal: Callable[[], Rejection | None]) -> None:
        """Every request is refused with what `refusal` says when it comes; None: it is served."""
        self._refusal = refusal

    def any_fenced(self) -> bool:
        """Whether another master took a job over."""
        return any(isinstance(host.log.failure, Fenced) for host in self._hosts.values())

    def _require_serving(self) -> None:
        if (refusal := self._refusal()) is not None:
            raise refusal
        if not self.restored:  # a job that is not read yet would be called unknown
            raise Rejection(
                "not_leading",
                "this master has not read all jobs of the store yet",
                hint="ask again in a moment, or the next of the masters' addresses",
            )

    async def start(self, may_lead: Callable[[], bool] = lambda: True) -> None:
        """Takes over every job of the store. Raises StoreFormatUnknown, Fenced, LeaseOver and redis errors.

        may_lead: asked before each job; where it is False the takeover ends with LeaseOver. A store that a
        newer master wrote is left as it is, every job of it.
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
        # Each may lift the clock that all share: whoever was served before would see its deadlines pass.
        await _all_or_none(serve(job) for job in jobs if job is not None)
        await self.store.mark_stored(self._hosts.keys() - stored)
        self.restored = True
        self._resting = asyncio.create_task(self._keep_resting(), name="finished jobs")

    async def stop(self, refusal: Rejection) -> None:
        """Stops serving: streams end with `refusal`, everything pending is written."""
        await self._stop_resting()
        await asyncio.gather(*[host.stop(refusal) for host in self._hosts.values()])
        self.clock.stop()

    def pause(self, refusal: Rejection) -> None:
        """Sends everybody away and refuses every request, forgetting nothing."""
        self.refuse(refusal)
        for host in self._hosts.values():
            host.pause(refusal)

    def resume(self) -> None:
        """Serves again after `pause`."""
        for host in self._hosts.values():
            if host.log.failure is None:
                host.resume(MasterStarted(self.master))
        self.refuse(None)

    async def abandon(self, refusal: Rejection) -> None:
        """Forgets every job without writing: another master serves them."""
        self.refuse(refusal)
        self.restored = False
        await self._stop_resting()
        hosts = list(self._hosts.values())
        await asyncio.gather(*[host.abandon(refusal) for host in hosts])
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

    @property
    def count(self) -> int:
        """Jobs that this master has, closed ones too, whether it serves them now or not."""
        return len(self._hosts) + len(self._closed)

    def all(self) -> list[JobHost]:
        """Every job's host, by name; closed jobs have none. Raises Rejection while it does not serve."""
        self._require_serving()
        return [self._hosts[name] for name in sorted(self._hosts)]

    def closed(self) -> list[ClosedJob]:
        """The closed jobs, by name. Raises as `all`."""
        self._require_serving()
        return [self._closed[name] for name in sorted(self._closed)]

    def closed_job(self, name: str) -> ClosedJob | None:
        """The job if it is closed. Raises as `all`."""
        self._require_serving()
        return self._closed.get(name)

    def names(self) -> list[str]:
        """Of all jobs, sorted. Raises as `all`."""
        self._require_serving()
        return sorted([*self._hosts, *self._closed, *self._held])

    async def find(self, name: str) -> JobHost:
        """The job's host; a closed job is read from the store again.

        Raises as `get`, StoreError and redis errors.
        """
        self._require_serving()
        if name in self._closed:
            # Whoever asked may leave: what was begun at the store comes to its end.
            await asyncio.shield(self._wake(name))
        return self.get(name)

    def held(self) -> dict[str, JobDamaged]:
        """The jobs that are not served since what is stored of them is not whole, and why.

        Raises Rejection while this master does not serve.
        """
        self._require_serving()
        return self._held

    def get(self, name: str) -> JobHost:
        """The job's host. Raises Rejection, BadJobName, and JobDamaged when it is held."""
        self._require_serving()
        if name in self._held:
            raise self._held[name].with_traceback(None)
        host = self._hosts.get(name)
        if host is None:
            if name in self._closed:
                raise Rejection("busy", f"job {name!r} is just being closed", hint="ask again", job=name)
            raise Rejection(
                "not_found",
                f"there is no job {checked_job_name(name)!r}",
                hint="create it first (JobService.Create)",
                job=name,
            )
        host.asked_for()
        return host

    async def find_or_only(self, name: str) -> JobHost:
        """The job's host; without a name that of the only job there is. Raises as `find`."""
        if name:
            return await self.find(name)
        names = self.names()
        if len(names) != 1:
            raise Rejection(
                "invalid_argument" if names else "not_found",
                f"there are {len(names)} jobs: which one?",
                hint="name the job",
                field="job",
                jobs=", ".join(names[:20]),
            )
        return await self.find(names[0])

    def history(self, host: JobHost) -> JobHistory:
        """What of the job can be read back from the store."""
        return JobHistory(self.store.redis, host.name, self._reads)

    async def create(self, name: str, settings: JobSettings) -> tuple[JobHost, bool]:
        """The job of that name, and whether it was created now.

        Raises Rejection when it is there with other settings or they are impossible, BadJobName, StoreError,
        and redis errors.
        """
        checked_job_name(name)
        async with self._creating:
            self._require_serving()
            async with self._lock(name):  # it may just be closed, or deleted
                return await self._create(name, settings)

    async def _create(self, name: str, settings: JobSettings) -> tuple[JobHost, bool]:
        self._require_serving()
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
        self._require_serving()  # what follows would put out whoever leads by now
        log, recovered = await JobLog.open(self.store.redis, name, self._options)
        self._require_serving()  # a host made now would be served by nobody, and never be ended
        if recovered.snapshot is not None:
            host = await self._serve(name, log, recovered, self._replay(name, recovered))
            _require_equal_host(host, settings)
            return host, False
        host = self._make_host(machine, log, recovered)
        await host.start(note=machine.creation_note())
        await self.store.mark_stored([name])
        return host, True

    async def delete(self, name: str, *, request_id: str = "", force: bool = False) -> None:
        """Deletes a finished job with all that is stored of it; its checkpoints stay.

        force: one that is not over is cancelled first. A request that is repeated within a day has its answer
        again. Raises Rejection, StoreError and redis errors.
        """
        # Whoever asked may leave: half of a job is no job.
        await asyncio.shield(self._delete_asked(checked_job_name(name), request_id, force))

    async def repair(self, name: str, *, accept_loss: bool) -> tuple[JobHost | None, tuple[Damage, ...]]:
        """Looks again at a job that is held: its host, or None when nothing of it could be kept.

        And what was given up for it. accept_loss: go on without what is lost; else JobDamaged is raised while
        something is. A job that is served is left as it is. Raises Rejection, BadJobName, StoreError, and
        redis errors.
        """
        async with self._creating:
            self._require_serving()
            if name not in self._held:
                return await self.find(name), ()
            try:
                host, accepted = await self._repair(name, accept_loss=accept_loss)
            except JobDamaged as error:
                self._hold(error)
                raise
            self._held.pop(name, None)
            return host, accepted

    async def _repair(self, name: str, *, accept_loss: bool) -> tuple[JobHost | None, tuple[Damage, ...]]:
        found = self._held[name].damages
        log, recovered = await JobLog.open(self.store.redis, name, self._options, accept_loss=accept_loss)
        self._require_serving()
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
        reason = f"an operator accepted the loss: {lost}" if lost else "what was missing is there again"
        host = self._make_host(machine, log, recovered)
        await host.start(MasterStarted(self.master), Note("job_repaired", reason))
        await self.store.add_job(name)
        await self.store.mark_stored([name])
        logger.warning("a damaged job is served again", job=name, reason=reason)
        return host, accepted

    def _make_host(self, machine: JobMachine, log: JobLog, recovered: Recovered) -> JobHost:
        """The job is found from here on; it is served once its host is started."""
        log.measures = self.measures
        tracing = RingTracing(log.job, machine.state, self.tracer) if self.tracer is not None else None
        host = JobHost(machine, log, self.clock, self, recovered.event_sequence, self._limits, tracing)
        self._hosts[log.job] = host
        return host

    # ---------------------------------------------------------------- taking over

    def _hold(self, error: JobDamaged) -> None:
        self._held[error.job] = error
        logger.error("a job is held and not served", error=str(error), hint=error.hint, **error.facts)

    async def _take_over(self, name: str, *, is_stored: bool) -> _Restored | None:
        """The job as it was; None: it is held, or was never stored. is_stored: the store had some of it."""
        try:
            log, recovered = await JobLog.open(self.store.redis, name, self._options)
            if is_stored and not recovered.exists:
                raise JobDamaged(name, [Damage(JobKeys.of(name).fence, 1, "it and every other key are gone")])
        except JobDamaged as error:
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

    async def _serve(self, name: str, log: JobLog, recovered: Recovered, machine: JobMachine) -> JobHost:
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
        """The machine as it was: the snapshot, and the events decided after it at their times."""
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
        """Held by whoever creates, closes, wakes or deletes the job."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _wake(self, name: str) -> None:
        """Makes sure that the job is not closed, if it is there."""
        async with self._lock(name):
            if (closed := self._closed.get(name)) is not None:
                await self._open(closed)

    async def _open(self, closed: ClosedJob) -> JobHost:
        """Reads a closed job again and serves it. The caller holds its lock."""
        name, token = closed.name, closed.stored.token
        self._require_serving()
        if (request_id := self._deleting.get(name)) is not None:
            await self._delete(closed, request_id)
            raise Rejection("busy", f"job {name!r} was just deleted", hint="ask again", job=name)
        async with self._opening:
            await self._require_held(name, token)  # what follows would put out whoever leads by now
            try:
                log, recovered = await JobLog.open(self.store.redis, name, self._options)
            except JobDamaged as error:
                self._closed.pop(name, None)
                self._hold(error)
                raise
            await self._require_held(name, recovered.token)
        self._require_serving()
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
        try:
            await self._records.check(name, token)
        except Fenced as error:
            self._on_failed(error)
            raise

    async def _keep_resting(self) -> None:
        """Closes and deletes finished jobs when their time has come."""
        while True:
            await asyncio.sleep(min(self.close_seconds / 2, LOOK_SECONDS_MAX))
            try:
                await self._close_unused()
                await self._delete_overdue()
            except Fenced as error:
                self._on_failed(error)
            except (Rejection, StoreError, RedisError, OSError) as error:
                # The store is away, or another master leads: there is no hurry.
                logger.info("finished jobs stay as they are for now", error=str(error))
            except Exception:  # whatever it is, the other jobs' time comes too
                logger.exception("finished jobs could not be looked after")

    async def _stop_resting(self) -> None:
        if self._resting is not None:
            await cancel(self._resting)
            self._resting = None

    async def _close_unused(self) -> None:
        for host in list(self._hosts.values()):
            if may_rest(host.machine) and host.is_unused(self.close_seconds):
                async with self._lock(host.name):
                    self._require_serving()
                    if self._hosts.get(host.name) is host and host.is_unused(self.close_seconds):
                        await self._close(host, "nobody asks for it", unused_seconds=self.close_seconds)

    async def _close(self, host: JobHost, why: str, *, unused_seconds: float | None = None) -> None:
        """Ends the service of a finished job. The caller holds its lock.

        unused_seconds: only if nobody has asked for the job for so long.
        """
        await host.confirm()  # all that it rests on is stored, and stored whole
        self._require_serving()
        if unused_seconds is not None and not host.is_unused(unused_seconds):
            return  # whoever came meanwhile would be told that there is no such job
        name, log = host.name, host.log
        record = record_of(host.machine, self.clock())
        closed = ClosedJob.of(name, Closed(log.token, record))
        assert closed is not None
        del self._hosts[name]
        self._closed[name] = closed
        await host.stop(Rejection("not_found", f"job {name!r} is over: {why}", job=name))
        if await self._records.close(name, log.token, log.sequence, record):
            logger.info("finished job closed", job=name, phase=closed.phase, reason=why)
            return
        # The store lost what was written last. Memory is the truth: it is served again, and written anew.
        options = self._options
        log, recovered = await JobLog.open(self.store.redis, name, options, accept_loss=True)
        self._require_serving()
        del self._closed[name]
        await self._make_host(host.machine, log, recovered).start()

    async def _delete_overdue(self) -> None:
        ended = [(job.name, job.ended_at) for job in self._closed.values()]
        for name in self.retention.overdue(ended, self.clock()):
            async with self._lock(name):
                self._require_serving()
                if (closed := self._closed.get(name)) is not None:
                    await self._delete(closed, "")
                    logger.info("finished job deleted", job=name, phase=closed.phase, reason="kept no longer")

    async def _delete_asked(self, name: str, request_id: str, force: bool) -> None:
        async with self._lock(name):
            self._require_serving()
            if name not in self._closed:
                if await self._was_deleted_by(name, request_id):
                    return  # the answer did not arrive
                host = self.get(name)
                require_deletable(host.machine, force)
                if host.machine.state.phase not in OVER:
                    await host.submit(CancelRequested(""))
                await self._close(host, "it is deleted by an operator")
            self._require_serving()
            if (closed := self._closed.get(name)) is None:
                raise Rejection("busy", f"job {name!r} changed meanwhile", hint="ask again", job=name)
            await self._delete(closed, request_id)
            logger.info("job deleted", job=name, phase=closed.phase, reason="an operator asked for it")

    async def _was_deleted_by(self, name: str, request_id: str) -> bool:
        if name in self._hosts or not request_id:
            return False
        return await self._records.deleted_by(name) == request_id

    async def _delete(self, closed: ClosedJob, request_id: str) -> None:
        """Deletes all of a closed job. The caller holds its lock.

        The store may do it without saying so: from here on the job is deleted, and never opened.
        """
        self._deleting[closed.name] = request_id
        await self._records.delete(closed.name, closed.stored.token, request_id)
        del self._closed[closed.name], self._deleting[closed.name]
        await self.store.remove_job(closed.name)

    # ---------------------------------------------------------------- from the hosts

    def host_failed(self, host: JobHost, error: StoreError) -> None:
        if not isinstance(error, JobDamaged):
            self._on_failed(error)
        elif self._hosts.get(host.name) is host:
            del self._hosts[host.name]
            self._hold(error)

    def store_reachable(self, host: JobHost, reachable: bool) -> None:
        was_reachable = not self._unreachable
        if reachable:
            self._unreachable.discard(host.name)
            self.clock.resume()
        else:
            self._unreachable.add(host.name)
            self.clock.pause()
        if was_reachable != (not self._unreachable):
            self._on_reachable(reachable)

    async def revive_store(self) -> None:
        await self.store.revive()


def _unreadable(name: str, error: StoreFormatUnknown) -> Damage:
    return Damage(JobKeys.of(name).snapshot, 0, f"what was read contradicts itself: {error}")


def _require_equal_host(host: JobHost, settings: JobSettings) -> None:
    state = host.machine.state
    _require_equal(host.name, state.original, state.settings, settings)


def _require_equal(name: str, original: JobSettings, current: JobSettings, settings: JobSettings) -> None:
    """Raises Rejection unless the job was created with these settings.

    Or with the numbers of workers it was scaled to since: whoever wants what is in force is not wrong. Prices
    do not tell jobs apart: they change with the hour, and those in force stay.
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
                f"job {name!r} is there with {field} {getattr(original, field)!r},"
                f" not {getattr(settings, field)!r}",
                hint="use its settings, or another name",
                job=name,
                field=field,
            )
