"""Lines of a logged value for the list of jobs: of some jobs, now and then, the same for all viewers.

The first look at a job reads its whole history, later ones what was committed since. Which jobs get a line
does not depend on what viewers ask: otherwise a long list could have all of them read in turn, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from elastane_master.dashboard.curve_drawing import draw_sparkline
from elastane_master.dashboard.words import number
from elastane_master.jobs.curves import Curves
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.servers.errors import REFUSALS
from elastane_master.servers.metric_service import MetricServicer

logger = structlog.get_logger(__name__)

JOBS_WITH_LINES: Final = 12
"""The newest jobs that run; fewer than `MetricServicer` keeps."""

INTERVAL_SECONDS: Final = 3.0
READ_SECONDS: Final = 0.5
"""Time limit for reading all of them; what was read remains, so that the next time goes on from there."""

POINTS: Final = 60
WIDTH: Final = 110
HEIGHT: Final = 22


class Sparklines:
    """The lines of one master's jobs. Used from one event loop."""

    def __init__(self, jobs: JobServers) -> None:
        self._metrics = MetricServicer(jobs)
        self._made: dict[str, tuple[str, str]] = {}
        self._due = 0.0
        self._lock = asyncio.Lock()

    async def of(self, servers: Sequence[JobServer]) -> dict[str, tuple[str, str]]:
        """Return points and text by job; without the store there are none. servers: all that are served."""
        clock = asyncio.get_running_loop().time
        async with self._lock:
            if clock() >= self._due:
                running = [one for one in servers if one.machine.state.phase == "running"]
                running.sort(key=lambda one: (-one.machine.state.created_at, one.name))
                try:
                    async with asyncio.timeout(READ_SECONDS):
                        await self._read(running[:JOBS_WITH_LINES])
                except (TimeoutError, *REFUSALS) as error:
                    logger.debug("lines of logged values are left out", error=str(error))
                self._due = clock() + INTERVAL_SECONDS
        return self._made

    async def _read(self, servers: Sequence[JobServer]) -> None:
        for gone in self._made.keys() - {one.name for one in servers}:
            del self._made[gone]
        for server in servers:
            self._made[server.name] = _line(await self._metrics.curves(server))


def _line(curves: Curves) -> tuple[str, str]:
    """Return the line of the loss, or else of the first name."""
    names = sorted(curves.series, key=lambda name: ("loss" not in name.casefold(), name))
    if not names:
        return "", ""
    points = curves.points(names[0], POINTS)
    return draw_sparkline(points, WIDTH, HEIGHT), f"{names[0]} {number(points[-1].last)}"
