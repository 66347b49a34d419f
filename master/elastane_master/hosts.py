"""All jobs of a master: takes them over from the store, creates them, finds them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import structlog

from elastane_master import records
from elastane_master.cancellation import cancel
from elastane_master.clock import Clock
from elastane_master.decisions.events import JobSettings, MasterStarted, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.state import OVER
from elastane_master.host import HostOwner, JobHost
from elastane_master.limits import Limits, require_room, require_within
from elastane_master.metrics.measures import StoreMeasures
from elastane_master.ring_tracing import RingTracing
from elastane_master.store.connection import Store
from elastane_master.store.errors import Fenced, StoreError, StoreFormatUnknown
from elastane_master.store.history import JobHistory
from elastane_master.store.keys import checked_job_name
from elastane_master.store.log import JobLog, LogOptions
from elastane_master.store.recovery import Recovered, check_readable
from elastane_proto.tracing import Tracer

logger = structlog.get_logger(__name__)

TAKEN_OVER_AT_ONCE = 8

_PRICES = frozenset({"currency", "spot_price_micros", "on_demand_price_micros"})


class LeaseOver(Exception):  # noqa: N818 - says what happened
    """Another master may lead by now: what is left is its to take over."""


class JobHosts(HostOwner):
    """The jobs being served, by name. Used from one event loop.

    on_failed: told what ended a job's service. on_reachable: told when the store stops or starts to answer.
    restored: every job of the store is here; until then every request is refused. measures: of the writes of
    all jobs. tracer: of changes of their rings; None: they are not traced.
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
        self._creating = asyncio.Lock()
        self._unreachable: set[str] = set()
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
        names = await self.store.jobs()
        for name in names:
            await check_readable(self.store.redis, name, self._options.state_version)
        gate = asyncio.Semaphore(TAKEN_OVER_AT_ONCE)

        async def take_over(name: str) -> None:
            async with gate:
                if not may_lead():
                    raise LeaseOver(f"the lease ran out before job {name} was taken over")
                await self._take_over(name)

        tasks = [asyncio.create_task(take_over(name)) for name in names]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            # Those that are left would take jobs over behind the back of the next attempt.
            await cancel(*tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        self.restored = True

    async def stop(self, refusal: Rejection) -> None:
        """Stops serving: streams end with `refusal`, everything pending is written."""
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
        hosts = list(self._hosts.values())
        await asyncio.gather(*[host.abandon(refusal) for host in hosts])
        self._hosts.clear()
        for _ in self._unreachable:
            self.clock.resume()
        if self._unreachable:
            self._unreachable.clear()
            self._on_reachable(True)  # nobody is left who would say so
        self.clock.stop()

    @property
    def count(self) -> int:
        """Jobs that this master holds, whether it serves them now or not."""
        return len(self._hosts)

    def all(self) -> list[JobHost]:
        """Every job's host, by name. Raises Rejection while this master does not serve."""
        self._require_serving()
        return [self._hosts[name] for name in sorted(self._hosts)]

    def get(self, name: str) -> JobHost:
        """The job's host. Raises Rejection and BadJobName."""
        self._require_serving()
        host = self._hosts.get(name)
        if host is None:
            raise Rejection(
                "not_found",
                f"there is no job {checked_job_name(name)!r}",
                hint="create it first (JobService.Create)",
                job=name,
            )
        return host

    def get_or_only(self, name: str) -> JobHost:
        """The job's host; without a name that of the only job there is. Raises Rejection."""
        if name:
            return self.get(name)
        self._require_serving()
        if len(self._hosts) != 1:
            raise Rejection(
                "invalid_argument" if self._hosts else "not_found",
                f"there are {len(self._hosts)} jobs: which one?",
                hint="name the job",
                field="job",
                jobs=", ".join(sorted(self._hosts)[:20]),
            )
        return next(iter(self._hosts.values()))

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
            host = self._hosts.get(name)
            if host is not None:
                _require_equal(host, settings)
                if (durable := host.log.pending) is not None:
                    await asyncio.shield(durable)
                return host, False
            limits = self._limits
            require_within("ests_per_job_max", settings.ests, limits.ests_per_job_max, "ESTs in a job")
            characters = len(settings.checkpoint_url)
            require_within(
                "url_characters_max", characters, limits.url_characters_max, "characters in the URL"
            )
            alive = sum(host.machine.state.phase not in OVER for host in self._hosts.values())
            require_room("jobs_max", alive, limits.jobs_max, "jobs that are not over")
            machine = JobMachine.create(name, settings, self.clock())
            # Listed first: a listed job without a snapshot is one whose creation nobody was told of.
            await self.store.add_job(name)
            self._require_serving()  # what follows would put out whoever leads by now
            log, recovered = await JobLog.open(self.store.redis, name, self._options)
            self._require_serving()  # a host made now would be served by nobody, and never be ended
            if recovered.snapshot is not None:
                host = await self._serve(name, log, recovered)
                _require_equal(host, settings)
                return host, False
            host = self._make_host(machine, log, recovered)
            await host.start(note=machine.creation_note())
            return host, True

    def _make_host(self, machine: JobMachine, log: JobLog, recovered: Recovered) -> JobHost:
        """The job is found from here on; it is served once its host is started."""
        log.measures = self.measures
        tracing = RingTracing(log.job, machine.state, self.tracer) if self.tracer is not None else None
        host = JobHost(machine, log, self.clock, self, recovered.event_sequence, self._limits, tracing)
        self._hosts[log.job] = host
        return host

    # ---------------------------------------------------------------- taking over

    async def _take_over(self, name: str) -> None:
        log, recovered = await JobLog.open(self.store.redis, name, self._options)
        if recovered.snapshot is None:
            # It stays listed: another master may be about to store it, and to acknowledge its creation.
            logger.warning("a job was never stored; its creation was not acknowledged", job=name)
            return
        await self._serve(name, log, recovered)

    async def _serve(self, name: str, log: JobLog, recovered: Recovered) -> JobHost:
        machine = self._replay(name, recovered)
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

    # ---------------------------------------------------------------- from the hosts

    def host_failed(self, host: JobHost, error: StoreError) -> None:
        self._on_failed(error)

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


def _require_equal(host: JobHost, settings: JobSettings) -> None:
    """Raises Rejection unless the job was created with these settings.

    Or with the numbers of workers it was scaled to since: whoever wants what is in force is not wrong. Prices
    do not tell jobs apart: they change with the hour, and those in force stay.
    """
    state = host.machine.state
    original, current = state.original, state.settings
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
                f"job {host.name!r} is there with {field} {getattr(original, field)!r},"
                f" not {getattr(settings, field)!r}",
                hint="use its settings, or another name",
                job=host.name,
                field=field,
            )
