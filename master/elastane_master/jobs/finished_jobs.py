"""Finished jobs: closed when unused, reopened on request, deleted at the end of retention.

served --unused--> closed, in the store only --overdue or asked--> deleted
   ^                  |
   +---- asked for ---+
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import structlog
from redis.exceptions import RedisError

from elastane_common.cancellation import cancel
from elastane_master.decisions.events import CancelRequested, Rejection
from elastane_master.decisions.retention import Retention, may_close, record_of, require_deletable
from elastane_master.decisions.state import OVER
from elastane_master.jobs.job_opening import JobOpening, StoredJob
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_table import ClosedJob, JobTable
from elastane_master.store.closed import Closed, ClosedJobs
from elastane_master.store.connection import Store
from elastane_master.store.errors import Fenced, JobDamaged, JobTooNew, StoreError, StoreFormatUnknown

logger = structlog.get_logger(__name__)

CLOSE_SECONDS = 300.0
"""Time after which a finished job that nobody requests is closed.

Longer than the window of writes that a store can lose (`LogOptions.kept_seconds`): once the job is closed
nobody is left to write them again.
"""

LOOK_SECONDS_MAX = 60.0
"""Longest interval between checks for jobs to close or delete."""


class FinishedJobs:
    """Closes, reopens and deletes finished jobs of one master. Used from one event loop.

    retention: which finished jobs are kept. close_seconds: idle time after which they are closed. records:
    those of the closed ones in the store.

    require_serving: raises Rejection once this master no longer serves. on_fenced: called with the error when
    the store shows that another master took over a closed job.
    """

    def __init__(
        self,
        store: Store,
        table: JobTable,
        opening: JobOpening,
        *,
        require_serving: Callable[[], None],
        on_fenced: Callable[[StoreError], None],
    ) -> None:
        self.retention = Retention()
        self.close_seconds = CLOSE_SECONDS
        self.records = ClosedJobs(store.redis)
        self._store = store
        self._table = table
        self._opening = opening
        self._require_serving = require_serving
        self._on_fenced = on_fenced
        self._deleting: dict[str, str] = {}  # closed jobs being deleted, with the request
        self._closing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to manage finished jobs."""
        self._closing = asyncio.create_task(self._keep_closing(), name="finished jobs")

    async def stop(self) -> None:
        """Stop, after completing operations in progress."""
        if self._closing is not None:
            await cancel(self._closing)
            self._closing = None

    def forget(self) -> None:
        """Drop unconfirmed deletions, because another master leads."""
        self._deleting.clear()

    async def take_over(self, names: list[str], state_version: int) -> list[str]:
        """Take over the closed jobs among these; return the names of the open ones. Raises redis errors."""
        listed = await self.records.take_over(names, state_version)
        for name in listed.deleted:  # the master that deleted them did not get to this
            await self._store.remove_job(name)
        for name, closed in listed.closed.items():
            if (job := ClosedJob.of(name, closed)) is not None:
                self._table.closed[name] = job
            else:
                listed.open.append(name)
        return listed.open

    async def wake(self, name: str) -> None:
        """Reopen the job if it is closed. Raises as `open`."""
        async with self._table.lock(name):
            if (closed := self._table.closed.get(name)) is not None:
                await self.open(closed)

    async def open(self, closed: ClosedJob) -> JobServer:
        """Read a closed job again and serve it. The caller holds its lock.

        Raises Rejection, StoreError and redis errors.
        """
        name, token = closed.name, closed.stored.token
        self._require_serving()
        if (request_id := self._deleting.get(name)) is not None:
            await self._delete(closed, request_id)
            raise Rejection("busy", f"job {name!r} was just deleted", hint="ask again", job=name)
        async with self._opening.at_once:
            await self._require_held(name, token)  # continuing would fence the current leader
            try:
                with self._fenced_steps_down():
                    log, recovered = await self._opening.log(name)
            except (JobDamaged, JobTooNew) as error:
                self._table.closed.pop(name, None)
                self._table.hold(error)
                raise
            await self._require_held(name, recovered.token)
        self._require_serving()
        if self._table.closed.get(name) is not closed:
            raise Rejection("busy", f"job {name!r} changed its master meanwhile", hint="ask again", job=name)
        if recovered.snapshot is None:
            raise StoreFormatUnknown(f"closed job {name} is gone from the store", job=name)
        machine = self._opening.replay(name, recovered)
        del self._table.closed[name]
        server = self._opening.server(StoredJob(log, recovered, machine))
        logger.info("finished job opened again", job=name, phase=closed.phase)
        await server.start()
        return server

    async def _require_held(self, name: str, token: int) -> None:
        with self._fenced_steps_down():
            await self.records.check(name, token)

    @contextlib.contextmanager
    def _fenced_steps_down(self) -> Iterator[None]:
        """Stop leading if the store shows that another master took over a closed job.

        This may happen late, after this master got the lease back. With its old tokens it would refuse every
        request for the job.
        """
        try:
            yield
        except Fenced as error:
            self._on_fenced(error)
            raise

    async def _keep_closing(self) -> None:
        """Close and delete finished jobs when they are due."""
        while True:
            await asyncio.sleep(min(self.close_seconds / 2, LOOK_SECONDS_MAX))
            try:
                await self.close_unused()
                await self._delete_overdue()
            except (Rejection, StoreError, RedisError, OSError) as error:
                # The store is unreachable, or another master leads: not urgent.
                logger.info("finished jobs cannot be closed or deleted for now", error=str(error))
            except Exception:  # whatever the error, continue with the other jobs
                logger.exception("finished jobs could not be closed or deleted")

    async def close_unused(self) -> None:
        """Close the jobs not requested for `close_seconds`."""
        for server in list(self._table.serving.values()):
            if may_close(server.machine) and server.is_unused(self.close_seconds):
                async with self._table.lock(server.name):
                    self._require_serving()
                    if self._table.serving.get(server.name) is server and server.is_unused(
                        self.close_seconds
                    ):
                        await self._close(server, "nobody asks for it", unused_seconds=self.close_seconds)

    async def _close(self, server: JobServer, why: str, *, unused_seconds: float | None = None) -> None:
        """Close a finished job. The caller holds its lock.

        unused_seconds: close it only if nobody has asked for the job for this long.
        """
        await server.confirm()  # everything that it depends on is stored completely
        self._require_serving()
        if unused_seconds is not None and not server.is_unused(unused_seconds):
            return  # a caller in between would get NOT_FOUND
        name, log = server.name, server.log
        record = record_of(server.machine, self._opening.clock())
        closed = ClosedJob.of(name, Closed(log.token, record))
        assert closed is not None
        del self._table.serving[name]
        self._table.closed[name] = closed
        await server.stop(Rejection("not_found", f"job {name!r} is over: {why}", job=name))
        with self._fenced_steps_down():
            is_closed = await self.records.close(name, log.token, log.sequence, record)
        if is_closed:
            logger.info("finished job closed", job=name, phase=closed.phase, reason=why)
            return
        # The store lost the last writes. Memory is authoritative: serve the job again, and rewrite it.
        with self._fenced_steps_down():
            log, recovered = await self._opening.log(name, accept_loss=True)
        self._require_serving()
        del self._table.closed[name]
        await self._opening.server(StoredJob(log, recovered, server.machine)).start()

    async def _delete_overdue(self) -> None:
        ended = [(job.name, job.ended_at) for job in self._table.closed.values()]
        for name in self.retention.overdue(ended, self._opening.clock()):
            async with self._table.lock(name):
                self._require_serving()
                if (closed := self._table.closed.get(name)) is not None:
                    await self._delete(closed, "")
                    logger.info("finished job deleted", job=name, phase=closed.phase, reason="kept no longer")

    async def delete(self, name: str, request_id: str, force: bool) -> None:
        """Delete a finished job with all its stored data. Raises as `JobServers.delete`."""
        async with self._table.lock(name):
            self._require_serving()
            if name not in self._table.closed:
                if await self._was_deleted_by(name, request_id):
                    return  # the answer did not arrive
                self._require_serving()
                server = self._table.get(name)
                require_deletable(server.machine, force)
                if server.machine.state.phase not in OVER:
                    await server.submit(CancelRequested(""))
                await self._close(server, "it is deleted by an operator")
            self._require_serving()
            if (closed := self._table.closed.get(name)) is None:
                raise Rejection("busy", f"job {name!r} changed meanwhile", hint="ask again", job=name)
            await self._delete(closed, request_id)
            logger.info("job deleted", job=name, phase=closed.phase, reason="an operator asked for it")

    async def _was_deleted_by(self, name: str, request_id: str) -> bool:
        if name in self._table.serving or not request_id:
            return False
        return await self.records.deleted_by(name) == request_id

    async def _delete(self, closed: ClosedJob, request_id: str) -> None:
        """Delete all data of a closed job. The caller holds its lock.

        The store may do it without a reply: from now on the job counts as deleted and is never opened.
        """
        self._deleting[closed.name] = request_id
        with self._fenced_steps_down():
            await self.records.delete(closed.name, closed.stored.token, request_id)
        self._require_serving()  # a new leader took it off the list, and may have recreated it
        await self._store.remove_job(closed.name)
        self._table.closed.pop(closed.name, None)
        self._deleting.pop(closed.name, None)
