"""Forecasts of the queue for whoever looks at it: computed at most once a second, however many look."""

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
"""Forecasts are shown again for so long."""


class Forecasts:
    """Forecasts of the runs that wait, by the order of fair share. Used from one event loop.

    What a scheduling policy will decide is not known; places in the queue are those of fair share, too.
    """

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs
        self._server: RunServer | None = None
        self._at = 0.0
        self._found: Mapping[int, Forecast] = {}

    def of(self, server: RunServer, run_id: int) -> Forecast | None:
        """Return when a waiting run could start; None of one that is not among the first of the queue."""
        if not len(server.machine.index.waiting):
            return None
        now = asyncio.get_running_loop().time()
        if server is not self._server or now - self._at >= FORECAST_SECONDS:
            self._server, self._at, self._found = server, now, self._compute(server)
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
