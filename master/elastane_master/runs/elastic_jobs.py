"""Jobs of elastic runs: created and cancelled as the runs' decisions say, and followed to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

import msgspec
import structlog
from redis.exceptions import RedisError

from elastane_common.cancellation import end_all
from elastane_master.decisions import autoscaling, views
from elastane_master.decisions.events import CancelRequested, Rejection
from elastane_master.decisions.machine import JobMachine
from elastane_master.decisions.runs.events import ElasticJobEnded, ElasticJobScaled
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.state import OVER
from elastane_master.errors import MachineBroken
from elastane_master.jobs.job_servers import JobServers
from elastane_master.store.errors import StoreError
from elastane_proto.job_settings import JobSettings

logger = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0

_PERMANENT = frozenset({"invalid_argument", "already_exists", "limit_exceeded", "damaged", "too_new"})
"""Refusals that the same request would get again."""

_PHASES: dict[str, Literal["succeeded", "failed", "cancelled"]] = {
    "succeeded": "succeeded",
    "cancelled": "cancelled",
}


def settings_of(run: Run, checkpoint_url: str) -> JobSettings:
    """Settings of an elastic run's job: those of its spec, and what the service decides."""
    workers = run.servers.start
    return msgspec.structs.replace(
        run.spec.job or JobSettings(ests=workers),
        ests=workers,
        workers_min=run.demand.instances_min - len(run.servers),
        workers_max=workers,
        checkpoint_url=checkpoint_url,
    )


def targets_of(run_id: int, job: str, machine: JobMachine) -> ElasticJobScaled:
    """Return what a run's job wants now, and whether its tasks are done."""
    state, tasks = machine.state, views.task_counts(machine)
    over = tasks is not None and tasks.over
    if not state.settings.scaling:
        return ElasticJobScaled(run_id, job, 0, tasks_over=over)
    on_demand = min(state.scaling.on_demand_target, autoscaling.workers_target(state))
    return ElasticJobScaled(run_id, job, autoscaling.workers_asked(state), on_demand, over)


class ElasticJobs:
    """Jobs of the runs of one master. ended: called with each job's end. scaled: with what it wants and
    has done. Used from one event loop."""

    def __init__(
        self,
        jobs: JobServers,
        ended: Callable[[ElasticJobEnded], None],
        scaled: Callable[[ElasticJobScaled], None],
    ) -> None:
        self._jobs = jobs
        self._scaled = scaled
        self._ended = ended
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def create(self, run_id: int, job: str, settings: JobSettings) -> None:
        """Create the job unless it exists, and follow it."""
        self._begin(job, self._create_and_follow(run_id, job, settings))

    def cancel(self, run_id: int, job: str) -> None:
        """Cancel the job, and report its end, also of one that is not there."""
        self._begin(job, self._cancel(run_id, job))

    async def close(self) -> None:
        """Follow no job any more."""
        await end_all(self._tasks.values())

    def _begin(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        if (running := self._tasks.pop(job, None)) is not None:
            running.cancel()
        task = asyncio.create_task(work, name=f"job {job} of a run")
        self._tasks[job] = task
        task.add_done_callback(lambda done: self._done(job, done))

    def _done(self, job: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(job) is task:
            del self._tasks[job]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a run's job could not be followed", job=job, error=repr(error))

    async def _create_and_follow(self, run_id: int, job: str, settings: JobSettings) -> None:
        while True:
            try:
                server, _ = await self._jobs.create(job, settings)
                told: ElasticJobScaled | None = None
                while server.machine.state.phase not in OVER:
                    seen = server.changed.count
                    if (scaled := targets_of(run_id, job, server.machine)) != told:
                        self._scaled(scaled)
                        told = scaled
                    if server.stopping or server.log.failure is not None:
                        return  # another master follows it
                    await server.changed.beyond(seen)
                await server.log.settled()
                state = server.machine.state
                self._report(run_id, job, _PHASES.get(state.phase, "failed"), state.reason)
                return
            except Rejection as refusal:
                if refusal.reason in _PERMANENT:
                    self._report(run_id, job, "failed", f"its job cannot be created: {refusal}")
                    return
                await asyncio.sleep(RETRY_SECONDS)
            except (StoreError, RedisError, MachineBroken, OSError) as error:
                logger.info("a run's job is not created yet", job=job, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _cancel(self, run_id: int, job: str) -> None:
        while True:
            try:
                server = await self._jobs.find(job)
                if server.machine.state.phase not in OVER:
                    await server.submit(CancelRequested("", f"run {run_id} has ended"))
                state = server.machine.state
                self._report(run_id, job, _PHASES.get(state.phase, "failed"), state.reason)
                return
            except Rejection as refusal:
                if refusal.reason == "not_found":
                    self._report(run_id, job, "cancelled", "its job was never created")
                    return
                await asyncio.sleep(RETRY_SECONDS)
            except (StoreError, RedisError, MachineBroken, OSError):
                await asyncio.sleep(RETRY_SECONDS)

    def _report(
        self, run_id: int, job: str, phase: Literal["succeeded", "failed", "cancelled"], reason: str
    ) -> None:
        self._ended(ElasticJobEnded(run_id, job, phase, reason))
