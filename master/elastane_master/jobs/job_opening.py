"""Creates the server of a job from its stored state."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import structlog

from elastane_master.decisions.events import MasterStarted
from elastane_master.decisions.machine import JobMachine
from elastane_master.jobs import records
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.job_server import JobServer, JobServerOwner
from elastane_master.jobs.job_table import JobTable
from elastane_master.jobs.limits import Limits
from elastane_master.jobs.ring_tracing import RingTracing
from elastane_master.metrics.measures import StoreMeasures
from elastane_master.store.connection import Store
from elastane_master.store.errors import Damage, JobDamaged, JobTooNew, StoreFormatUnknown
from elastane_master.store.keys import JobKeys
from elastane_master.store.log import JobLog, LogOptions
from elastane_master.store.recovery import Recovered
from elastane_proto.tracing import Tracer

logger = structlog.get_logger(__name__)

OPENED_AT_ONCE = 8


class StoredJob(NamedTuple):
    """A job that was read but is not served yet."""

    log: JobLog
    recovered: Recovered
    machine: JobMachine


class JobOpening:
    """Reads jobs and creates their servers, for one master. Used from one event loop.

    at_once: semaphore held while one of many jobs is read or started. master: its name in the history of
    jobs. measures: writes of all jobs. tracer: traces ring changes; None: no tracing.
    """

    def __init__(
        self,
        store: Store,
        options: LogOptions,
        limits: Limits,
        clock: Clock,
        table: JobTable,
        owner: JobServerOwner,
        master: str,
    ) -> None:
        self.clock = clock
        self.at_once = asyncio.Semaphore(OPENED_AT_ONCE)
        self.measures = StoreMeasures()
        self.tracer: Tracer | None = None
        self._store = store
        self._options = options
        self._limits = limits
        self._table = table
        self._owner = owner
        self._master = master

    async def log(self, name: str, *, accept_loss: bool = False) -> tuple[JobLog, Recovered]:
        """Take over the job's log, fencing its previous writer. Raises as `JobLog.open`."""
        return await JobLog.open(self._store.redis, name, self._options, accept_loss=accept_loss)

    async def read(self, name: str, *, is_stored: bool) -> StoredJob | None:
        """Read a job's last state; None if it was never stored, or is now held.

        is_stored: the store had data of it.
        """
        try:
            log, recovered = await self.log(name)
            if is_stored and not recovered.exists:
                raise JobDamaged(name, [Damage(JobKeys.of(name).fence, 1, "it and every other key are gone")])
        except (JobDamaged, JobTooNew) as error:
            self._table.hold(error)
            return None
        if recovered.snapshot is None:
            # It stays listed: another master may be about to store it, and to acknowledge its creation.
            logger.warning("a job was never stored; its creation was not acknowledged", job=name)
            return None
        try:
            return StoredJob(log, recovered, self.replay(name, recovered))
        except StoreFormatUnknown as error:
            self._table.hold(JobDamaged(name, [unreadable(name, error)]))
            return None

    async def serve(self, job: StoredJob) -> JobServer:
        """Serve a job that was taken over."""
        server = self.server(job)
        logger.info(
            "job taken over",
            job=server.name,
            phase=job.machine.state.phase,
            records=len(job.recovered.records),
            token=job.recovered.token,
        )
        await server.start(MasterStarted(self._master))
        return server

    def server(self, job: StoredJob) -> JobServer:
        """Create the job's server and add it to the table; it serves once started."""
        log, recovered, machine = job
        log.measures = self.measures
        tracing = RingTracing(log.job, machine.state, self.tracer) if self.tracer is not None else None
        server = JobServer(
            machine, log, self.clock, self._owner, recovered.event_sequence, self._limits, tracing
        )
        self._table.serving[log.job] = server
        return server

    def replay(self, name: str, recovered: Recovered) -> JobMachine:
        """Restore the machine: the snapshot, then the later events at the times they were decided.

        Raises StoreFormatUnknown.
        """
        assert recovered.snapshot is not None
        try:
            machine = JobMachine.restore(recovered.snapshot)
            # Deadlines are in the state: on a machine whose clock is behind they would be far in the future.
            self.clock.at_least(machine.state.decided_at)
            for record in recovered.records:
                stored = records.decode_event(record)
                machine.handle(stored.event, stored.now)
                self.clock.at_least(stored.now)
        except StoreFormatUnknown:
            raise
        except Exception as error:  # corrupted bytes can be inconsistent in any way
            raise StoreFormatUnknown(
                f"job {name} cannot be read from the store: {error!r}", job=name
            ) from error
        return machine


def unreadable(name: str, error: StoreFormatUnknown) -> Damage:
    """Return the damage of a job whose stored state is complete but cannot be decoded."""
    return Damage(JobKeys.of(name).snapshot, 0, f"the stored state is inconsistent: {error}")
