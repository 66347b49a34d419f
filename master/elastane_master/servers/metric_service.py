"""MetricService: values logged by scripts, read from the committed history on request.

Each request updates the curves by the commits since the previous one. Nothing is done at a commit, and
nothing is stored; after a restart the first request reads the whole history.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.views import ring_view
from elastane_master.jobs import records
from elastane_master.jobs.commit_gaps import CommitGaps
from elastane_master.jobs.curves import POINTS_MAX, Curves, step_values
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import clip
from elastane_master.jobs.serving import require_serving
from elastane_master.servers import translate_shard
from elastane_master.servers.binding import Context
from elastane_master.servers.translate import checked_count, seconds, timestamp
from elastane_master.store.history import is_history_token
from elastane_proto.v1 import metric_pb2

TASKS_AT_ONCE = 20_000
"""Tasks read from the store at a time, before other work gets its turn."""

COMMITS_AT_ONCE = 500
JOBS_KEPT = 16
"""Number of jobs whose curves stay in memory, by most recent use."""

WATCH_SECONDS = 1.0
WATCH_SECONDS_MIN = 0.05


class _Followed:
    """Curves of one job as far as they were read. token: of the last commit in them."""

    def __init__(self, server: JobServer) -> None:
        self.server = server
        self.curves, self.gaps = Curves(), CommitGaps()
        self.token = ""
        self.lock = asyncio.Lock()


class MetricServicer:
    """Implementation of elastane.v1.MetricService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    async def GetSeries(
        self, request: metric_pb2.GetSeriesRequest, context: Context
    ) -> metric_pb2.GetSeriesResponse:
        server = await self._jobs.find(request.job)
        points_max = _points_max(request.points_max)
        curves = await self.curves(server)
        return metric_pb2.GetSeriesResponse(
            series=_series(curves, request.names, points_max),
            step=curves.step,
            names_left_out=curves.left_out,
        )

    async def WatchSeries(
        self, request: metric_pb2.WatchSeriesRequest, context: Context
    ) -> AsyncGenerator[metric_pb2.WatchSeriesResponse]:
        server = await self._jobs.find(request.job)
        points_max = _points_max(request.points_max)
        interval = seconds(request.interval, "interval") if request.HasField("interval") else WATCH_SECONDS
        sent_token: str | None = None
        followed: _Followed | None = None
        with server.watching():
            while True:
                seen = server.changed.count
                require_serving(server)
                followed = await self._caught_up(server, followed)
                if followed.token != sent_token:
                    sent_token, curves = followed.token, followed.curves
                    yield metric_pb2.WatchSeriesResponse(
                        series=_series(curves, request.names, points_max),
                        step=curves.step,
                        names_left_out=curves.left_out,
                    )
                await asyncio.sleep(max(interval, WATCH_SECONDS_MIN))
                await server.changed.beyond(seen)

    async def WatchSteps(
        self, request: metric_pb2.WatchStepsRequest, context: Context
    ) -> AsyncGenerator[metric_pb2.WatchStepsResponse]:
        server = await self._jobs.find(request.job)
        if not is_history_token(request.after):
            raise translate_shard.bad_token(request.after)
        token, highest = request.after, -1
        created = timestamp(server.machine.state.created_at)
        with server.watching():
            _require_leading(server, request.worker_id)
            # Sent at once: the client must know which job's curves these are before it requests any.
            yield metric_pb2.WatchStepsResponse(token=token, job_created=created)
            while True:
                seen = server.changed.count
                require_serving(server)
                _require_leading(server, request.worker_id)
                if not request.follow:
                    await server.log.settled()
                payloads, newest = await self._jobs.history(server).news(token, _at_once(server))
                steps = []
                for payload in payloads:
                    now, logged = records.decode_logged(payload)
                    if logged is None:
                        continue
                    rewound, highest = logged.step <= highest, logged.step
                    if logged.step >= request.since_step:
                        steps.append(_step(now, logged, rewound=rewound))
                _require_leading(server, request.worker_id)  # the lead may be lost while the store answers
                if steps:
                    yield metric_pb2.WatchStepsResponse(steps=steps, token=newest, job_created=created)
                token = newest
                if payloads:
                    continue
                if not request.follow:
                    return
                await server.changed.beyond(seen)

    async def curves(self, server: JobServer) -> Curves:
        """Return all curves of a job, including every commit decided before this call."""
        await server.log.settled()
        return (await self._caught_up(server)).curves

    async def gaps(self, server: JobServer) -> CommitGaps:
        """Return the gaps between a job's commits, including every commit decided before this call."""
        await server.log.settled()
        return (await self._caught_up(server)).gaps

    async def _caught_up(self, server: JobServer, before: _Followed | None = None) -> _Followed:
        """Update the curves with all stored commits.

        before: the curves a watch already has. Without them, if more than `JOBS_KEPT` jobs are watched, each
        request would read the whole history again.
        """
        followed = self._followed.get(server.name)
        if followed is None or followed.server is not server:
            followed = self._followed[server.name] = before or _Followed(server)
        self._followed.move_to_end(server.name)
        while len(self._followed) > JOBS_KEPT:
            self._followed.popitem(last=False)
        async with followed.lock:
            history = self._jobs.history(server)
            while True:
                payloads, newest = await history.news(followed.token, _at_once(server))
                if not payloads:
                    return followed
                if self._count(followed, payloads):
                    followed.token = newest
                else:
                    followed.curves, followed.gaps = Curves(followed.curves.rewinds), CommitGaps()
                    followed.token = ""

    @staticmethod
    def _count(followed: _Followed, payloads: Iterable[bytes]) -> bool:
        for payload in payloads:
            now, logged = records.decode_logged(payload)
            if logged is None:
                continue
            if not followed.curves.add(logged):
                return False
            followed.gaps.take(now, logged.generation)
        return True


def _at_once(server: JobServer) -> int:
    """Number of commits to read at a time."""
    return max(1, min(COMMITS_AT_ONCE, TASKS_AT_ONCE // server.machine.state.settings.ests))


def _step(now: float, logged: records.LoggedStep, *, rewound: bool) -> metric_pb2.StepValues:
    return metric_pb2.StepValues(
        step=logged.step,
        epoch=logged.epoch,
        generation=logged.generation,
        committed=timestamp(now),
        values=step_values(logged),
        samples=sum(task.end - task.start for _, task in logged.tasks),
        rewound=rewound,
    )


def _series(curves: Curves, names: Iterable[str], points_max: int) -> list[metric_pb2.Series]:
    wanted = set(names)
    return [
        metric_pb2.Series(
            name=name,
            points=[
                metric_pb2.Point(
                    step=bucket.start,
                    steps=bucket.count,
                    mean=bucket.mean,
                    min=bucket.low,
                    max=bucket.high,
                    last=bucket.last,
                )
                for bucket in curves.points(name, points_max)
            ],
        )
        for name in sorted(curves.series)
        if not wanted or name in wanted
    ]


def _points_max(asked: int) -> int:
    return checked_count(asked, "points_max", POINTS_MAX, f"a curve of {asked} points", POINTS_MAX)


def _require_leading(server: JobServer, worker: str) -> None:
    """Raise Rejection if `worker` is named and does not lead the current ring."""
    members = ring_view(server.machine).members
    if worker and members and members[0].worker != worker:
        raise Rejection(
            "stale",
            f"{clip(worker, 100)!r} does not lead the ring: {members[0].worker} does",
            hint="the leader's tracker writes; this one must stop",
            leader=members[0].worker,
        )
