"""Runs the planner for pipelines whenever its inputs have changed.

The planner runs in a thread; its result is an ordinary event of the job, so a master that is killed meanwhile
loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import structlog

from elastane_common.bounded_thread import BoundedThread, StillBusy
from elastane_master.decisions import replanning
from elastane_master.decisions.events import PipelinePlanned, Rejection
from elastane_master.errors import MachineBroken
from elastane_master.jobs.job_server import JobServer
from elastane_master.store.errors import StoreError

logger = structlog.get_logger(__name__)

INTERVAL_SECONDS = 0.5
BUDGET_SECONDS = 5.0
"""Time budget of the planner's search for one job."""
SECONDS_MAX = 30.0
"""A planner that takes longer has failed: the stages stay as they are."""


class StagePlanning:
    """The planner of a master's jobs, one job at a time. Used from one event loop.

    servers: the jobs that are served now. planned, failed: numbers of plans and of failures.
    """

    def __init__(
        self,
        servers: Callable[[], Iterable[JobServer]],
        *,
        budget_seconds: float = BUDGET_SECONDS,
        seconds_max: float = SECONDS_MAX,
    ) -> None:
        self._servers = servers
        self._budget_seconds = budget_seconds
        self._thread: BoundedThread[PipelinePlanned | None] = BoundedThread("pipeline planner", seconds_max)
        self._seen: dict[str, tuple[int, int]] = {}
        self.planned = self.failed = 0

    async def run(self) -> None:
        """Plan for all jobs until cancelled."""
        while True:
            servers = [server for server in self._servers() if server.machine.state.unit_count]
            self._seen = {server.name: seen for server in servers if (seen := self._seen.get(server.name))}
            for server in servers:
                await self.look(server)
            await asyncio.sleep(INTERVAL_SECONDS)

    async def look(self, server: JobServer) -> None:
        """Make a plan for a job if its inputs have changed."""
        state = server.machine.state
        seen = (state.ring.generation, state.pipeline.measurements)
        if server.stopping or server.paused is not None or self._seen.get(server.name) == seen:
            return
        try:
            asked = replanning.question(state, server.clock())
            if asked is None:
                return
            generation, budget = state.ring.generation, self._budget_seconds
            self._seen[server.name] = seen
            event = await self._thread.run(
                lambda: replanning.answer(asked, generation, time.monotonic, budget)
            )
            self.planned += 1
            if event is not None:
                await server.submit(event)
        except StillBusy:
            self._seen.pop(server.name, None)
        except (Rejection, StoreError, MachineBroken) as error:
            logger.info("a plan could not be recorded", job=server.name, error=str(error))
        except Exception as error:  # noqa: BLE001 - no job may wait for a bug in the planner
            self.failed += 1
            logger.warning(
                "the planner has found no plan", job=server.name, error=f"{type(error).__name__}: {error}"
            )
