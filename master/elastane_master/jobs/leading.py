"""Leadership of one master: takes over the jobs of its store, pauses, resumes, or stands by.

Connects the lease keeper, which knows the leader, with the job servers. A takeover is complete once every job
of the store is restored; until then every request is refused, and the master is not ready. An interrupted
takeover discards what it has read, and starts again or stands by.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.clock import Clock
from elastane_master.jobs.job_servers import JobServers, LeaseOver
from elastane_master.jobs.limits import Limits
from elastane_master.jobs.serving import not_leading, stopping
from elastane_master.jobs.succession_keeper import Follower, SuccessionKeeper
from elastane_master.metrics.measures import MasterMeasures
from elastane_master.signals import Signal
from elastane_master.store.connection import Store
from elastane_master.store.errors import AnotherLeads, Fenced, StoreError, StoreRefused
from elastane_master.store.leader_lease import LeaderLease
from elastane_master.store.log import LogOptions

logger = structlog.get_logger(__name__)

_STORE_AWAY = (RedisError, OSError)


class Leadership(Follower):
    """One master's service of its store's jobs. Used from one event loop.

    lease: of the store; None if the store is this master's private one. standby: wait while another master
    leads; otherwise AnotherLeads is raised. failed: called with an error that ends the master. clock, master:
    as for `JobServers`. leads: this master serves. news: announces that `ready` may have changed.
    """

    def __init__(
        self,
        store: Store,
        options: LogOptions,
        limits: Limits | None = None,
        *,
        lease: LeaderLease | None = None,
        standby: bool = True,
        measures: MasterMeasures | None = None,
        failed: Callable[[BaseException], None] = lambda error: None,
        clock: Clock | None = None,
        master: str = "",
    ) -> None:
        self.jobs = JobServers(
            store,
            options,
            limits,
            on_failed=self._server_failed,
            on_reachable=self._store_reachable,
            clock=clock,
            master=master,
        )
        self.measures = measures or MasterMeasures()
        self.jobs.opening.measures = self.measures.store
        self.jobs.refuse(not_leading(None))
        self.leads = False
        self.reachable = True
        self.news = Signal()
        self.keeper = SuccessionKeeper(lease, self) if lease is not None else None
        self._store = store
        self._standby = standby
        self._failed = failed
        self._started = False

    async def start(self) -> None:
        """Start; on return the master serves or stands by. Raises StoreError."""
        if self.keeper is None:
            await self.lead()
        else:
            await self.keeper.start()
            if not self.leads:
                self._stand_by()
            self.keeper.failure.add_done_callback(self._keeper_failed)
        self._started = True

    async def stop(self) -> bool:
        """Complete pending writes and release the lease; True if another master had taken over a job."""
        if self.keeper is not None:
            await self.keeper.stop()
        self.leads = False
        self.jobs.refuse(stopping())
        await self.jobs.stop(stopping())
        fenced = self.jobs.any_fenced()
        if self.keeper is not None:
            await self.keeper.release()
        return fenced

    @property
    def ready(self) -> bool:
        """True if, as far as is known, this master serves every job of the store."""
        return self.reachable and self.leads and self.jobs.restored

    def not_ready(self) -> str:
        """Reason why requests are currently refused; empty while they are served."""
        if not self.reachable:
            return "the store does not answer"
        if self.ready:
            lapsed = self._lease_over()
            return str(lapsed) if lapsed is not None else ""
        leader = self.keeper.state.leader if self.keeper is not None else None
        if leader is not None:
            return f"stands by: {leader.master} at {leader.address} leads"
        return "takes the jobs over, or waits for the store to say who leads"

    # ---------------------------------------------------------------- what the keeper asks

    async def lead(self) -> bool:
        """Take every job over. If the store becomes unreachable, retry, except at the start.

        False: the lease was lost meanwhile, and nothing is served. Raises StoreError.
        """
        started = time.monotonic()
        for attempt in itertools.count(1):
            try:
                await self.jobs.start(lambda: self._lease_over() is None)
                break
            except Fenced as error:  # lost while reading: another master is about to serve
                await self.jobs.abandon(not_leading(None))
                if self.keeper is None:
                    raise
                self.keeper.fenced(str(error))
                return False
            except (*_STORE_AWAY, LeaseOver) as error:
                await self.jobs.abandon(not_leading(None))
                if not self._started and not isinstance(error, LeaseOver):
                    raise StoreRefused(f"the jobs of {self._store.url} cannot be read: {error}") from error
                logger.warning("the jobs cannot be taken over yet", error=str(error))
                if self.keeper is not None and self.keeper.state.role != "leading":
                    return False
                await asyncio.sleep(min(0.05 * 2.0 ** min(attempt, 10), 1.0))
        self._serve()
        self.measures.takeovers += 1
        self.measures.takeover_seconds = seconds = round(time.monotonic() - started, 3)
        if self.keeper is not None:
            logger.info("leads", jobs=self.jobs.count, takeover_seconds=seconds)
        return True

    async def pause(self, reason: str) -> None:
        logger.warning("does not lead until the store answers", reason=reason)
        self.leads = False
        self.jobs.pause(not_leading(None))
        self.news.announce()

    async def resume(self) -> None:
        logger.info("leads again: nobody else did meanwhile")
        self.jobs.resume()
        self._serve()

    async def give_way(self, reason: str) -> None:
        assert self.keeper is not None
        logger.warning("gives way", reason=reason)
        self.leads = False
        self.news.announce()
        await self.jobs.abandon(not_leading(self.keeper.state.leader))
        self._stand_by(reason)

    # ---------------------------------------------------------------- inside

    def _serve(self) -> None:
        self.leads = True
        self.jobs.refuse_by(self._lease_over)
        self.news.announce()

    def _stand_by(self, reason: str = "") -> None:
        assert self.keeper is not None
        keeper = self.keeper
        self.jobs.refuse_by(lambda: not_leading(keeper.state.leader))
        if not self._standby:
            leader = keeper.state.leader
            said = reason or (f"{leader.master} at {leader.address} leads this store" if leader else "")
            raise AnotherLeads(said or "another master leads this store")

    def _lease_over(self) -> Rejection | None:
        """Refusal for requests when another master may hold the lease by now; None while this one does.

        Checked per request: a master that was stopped for a while finds requests waiting before it renews its
        lease.
        """
        if self.keeper is None:
            return None
        state = self.keeper.state
        if state.role == "leading" and time.monotonic() - state.renewed_at <= state.lease_seconds:
            return None
        return not_leading(state.leader)

    def _keeper_failed(self, failure: asyncio.Future[None]) -> None:
        if not failure.cancelled() and (error := failure.exception()) is not None:
            self._failed(error)

    def _store_reachable(self, reachable: bool) -> None:
        self.reachable = reachable
        self.news.announce()

    def _server_failed(self, error: StoreError) -> None:
        if self.keeper is not None and isinstance(error, Fenced):
            self.keeper.fenced(str(error))
        else:
            self._failed(error)
