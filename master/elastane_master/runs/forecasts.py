"""Forecasts of the queue for whoever looks at it: computed at most once a second, however many look.

Less often if it takes long: it is done in the event loop, where every other answer waits meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.remaining import seconds_left
from elastane_master.decisions.runs.forecast import Forecast, forecasts
from elastane_master.decisions.runs.queue import FairShare
from elastane_master.jobs.job_servers import JobServers
from elastane_master.runs.run_server import RunServer

FORECAST_SECONDS: Final = 1.0
"""Time for which a forecast is shown again."""

LOOP_FRACTION: Final = 0.05
"""Part of the event loop's time that computing them may take: longer ones are shown for longer."""


class Forecasts:
    """Forecasts of the runs that wait, by the order of fair share. Used from one event loop.

    What a scheduling policy will decide is not known; places in the queue are those of fair share, too.
    """

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs
        self._server: RunServer | None = None
        self._until = 0.0
        self._found: Mapping[int, Forecast] = {}

    def of(self, server: RunServer, run_id: int) -> Forecast | None:
        """Return when a waiting run could start; None of one that is not among the first of the queue."""
        if not len(server.machine.index.waiting):
            return None
        clock = asyncio.get_running_loop().time
        now = clock()
        if server is not self._server or now >= self._until:
            self._server, self._found = server, self._compute(server)
            self._until = now + max(FORECAST_SECONDS, (clock() - now) / LOOP_FRACTION)
        return self._found.get(run_id)

    def _compute(self, server: RunServer) -> Mapping[int, Forecast]:
        machine, now = server.machine, server.clock()
        active = machine.index.active
        ends = {run_id: end for run_id in active if (end := self._end(server, run_id, now)) is not None}
        return forecasts(machine.state, machine.index.waiting, FairShare(), active, ends, now)

    def _end(self, server: RunServer, run_id: int, now: float) -> float | None:
        """Return when a run ends if nothing changes; None: unknown."""
        run = server.machine.state.runs[run_id]
        if not run.job:
            return None
        try:
            job = self._jobs.served(run.job)
        except Rejection:
            return None
        left = seconds_left(job.machine.state) if job is not None else None
        return None if left is None else now + left
