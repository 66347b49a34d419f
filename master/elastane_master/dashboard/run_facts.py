"""Gathers what the pages of runs show, in bounded memory and time.

The order of the queue is computed once for all viewers, at each change and every second. What comes from
storage or from a runner is read at most once at a time for each run; a page does not wait for it for long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from elastane_common.file_manifest import FileEntry
from elastane_master.dashboard.log_tail import TAIL_BYTES, LogTail, tail_of
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import views
from elastane_master.decisions.runs.allocation import RunDecision
from elastane_master.decisions.runs.discretion import Covers, everything
from elastane_master.decisions.runs.run import OVER, Run
from elastane_master.decisions.runs.views import RunnerView, RunView
from elastane_master.runs.run_server import RunServer
from elastane_master.runs.service import TrainingRuns
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.run_logs import stream_log
from elastane_master.servers.visible_runs import unknown_run
from elastane_proto.v1 import training_pb2

WAITING_SHOWN: Final = 100
RUNNING_SHOWN: Final = 100
ENDED_SHOWN: Final = 50
RUNNERS_SHOWN: Final = 100
RANKS_SHOWN: Final = 200
ARTIFACTS_SHOWN: Final = 200

QUEUE_SECONDS: Final = 1.0
LOG_SECONDS: Final = 0.8
STORED_LOG_SECONDS: Final = 3.0
ARTIFACT_SECONDS: Final = 10.0
"""Time for which gathered facts are shown again."""

READ_SECONDS: Final = 3.0
"""Time that a page waits for storage or a runner."""

READINGS_MAX: Final = 64

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RunList:
    """Contents of the page of all runs.

    waiting: with their places first, then those that wait for data or their next attempt. running: being
    launched, or running. ended: the newest first. ..._left_out: how many more there are.
    """

    waiting: tuple[RunView, ...]
    running: tuple[RunView, ...]
    ended: tuple[RunView, ...]
    runners: tuple[RunnerView, ...]
    waiting_left_out: int
    running_left_out: int
    ended_left_out: int
    runners_left_out: int
    slots: int
    slots_used: int
    now: float


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Files of a run. problem: why they are not known."""

    files: tuple[FileEntry, ...] = ()
    left_out: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Contents of a run's page.

    rank, log_attempt: whose log is shown. decisions: of the scheduling policy, the newest last.
    """

    view: RunView
    now: float
    rank: int
    log_attempt: int
    log: LogTail
    artifacts: Artifacts
    decisions: tuple[RunDecision, ...]
    ranks_left_out: int


class _Readings(Generic[Value]):
    """Slow readings by key: each runs once at a time, and its value is kept for a while.

    failed: the value that says why there is none.
    """

    def __init__(self, seconds: float, failed: Callable[[str], Value]) -> None:
        self._seconds = seconds
        self._failed = failed
        self._tasks: OrderedDict[object, tuple[float, asyncio.Task[Value]]] = OrderedDict()

    async def of(self, key: object, read: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Return the value of a key that was read within the last seconds, or read it now."""
        now = asyncio.get_running_loop().time()
        at, task = self._tasks.get(key, (now, None))
        if task is None or (task.done() and now - at > self._seconds):
            self._forget_some()
            if len(self._tasks) >= READINGS_MAX:
                return self._failed("too much is being read now")
            task = asyncio.create_task(self._read(read), name="reading for the dashboard")
            self._tasks[key] = (now, task)
            self._tasks.move_to_end(key)
        done, _ = await asyncio.wait({task}, timeout=READ_SECONDS)
        return task.result() if done else self._failed(f"it could not be read within {READ_SECONDS:g} s")

    def _forget_some(self) -> None:
        """Forget the oldest that are read; one that is being read stays, as it holds a thread."""
        for key, (_, task) in list(self._tasks.items()):
            if len(self._tasks) < READINGS_MAX:
                return
            if task.done():
                del self._tasks[key]

    async def _read(self, read: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        try:
            return await read()
        except REFUSALS as error:
            return self._failed(str(as_rejection(error)))
        except TimeoutError:
            return self._failed("it took too long to read")


async def _settled(server: RunServer) -> None:
    """Wait until what is shown is stored. Raises Rejection, StoreError."""
    try:
        async with asyncio.timeout(READ_SECONDS):
            await server.log.settled()
    except TimeoutError:
        raise Rejection("store_unavailable", "what is shown may not be stored yet") from None


class RunGatherer:
    """Gathers the contents of the pages of one master's runs."""

    def __init__(self, runs: TrainingRuns) -> None:
        self._runs = runs
        self._queue: tuple[float, tuple[RunServer, int] | None, tuple[int, ...]] = (0.0, None, ())
        self._logs: _Readings[LogTail] = _Readings(LOG_SECONDS, lambda why: LogTail(problem=why))
        self._stored_logs: _Readings[LogTail] = _Readings(
            STORED_LOG_SECONDS, lambda why: LogTail(problem=why)
        )
        self._artifacts: _Readings[Artifacts] = _Readings(
            ARTIFACT_SECONDS, lambda why: Artifacts(problem=why)
        )

    @property
    def server(self) -> RunServer:
        """The server of the runs. Raises as `TrainingRuns.server`."""
        return self._runs.server

    def run(self, run_id: int, covers: Covers) -> Run:
        """Return a run. covers: whether the caller may see runs of an owner.

        Raises Rejection("not_found") for one that there is not, or that the caller may not see.
        """
        run = self.server.machine.state.runs.get(run_id)
        if run is None or not covers(run.owner):
            raise unknown_run(run_id)
        return run

    def list(self, covers: Covers) -> RunList:
        """Return the runs of the owners that are covered, and all runners. Raises as `server`."""
        server = self.server
        machine, now = server.machine, server.clock()
        known: dict[str, bool] = {}
        waiting: list[Run] = []
        running: list[Run] = []
        ended: list[Run] = []
        for run in machine.state.runs.values():
            if not known.setdefault(run.owner, covers(run.owner)):
                continue
            if run.state in OVER:
                ended.append(run)
            else:
                (running if run.state in ("launching", "running") else waiting).append(run)
        places = {run_id: place for place, run_id in enumerate(self._order(server))}
        waiting.sort(key=lambda run: (places.get(run.run_id, len(places)), run.run_id))
        running.sort(key=lambda run: run.run_id, reverse=True)
        ended.sort(key=lambda run: run.ended_at or 0.0, reverse=True)

        def viewed(runs: list[Run], shown: int) -> tuple[RunView, ...]:
            found = (self._view(server, run.run_id, covers, now, whole=False) for run in runs[:shown])
            return tuple(view for view in found if view is not None)

        service = views.service_view(machine, now)
        return RunList(
            viewed(waiting, WAITING_SHOWN),
            viewed(running, RUNNING_SHOWN),
            viewed(ended, ENDED_SHOWN),
            service.runners[:RUNNERS_SHOWN],
            max(len(waiting) - WAITING_SHOWN, 0),
            max(len(running) - RUNNING_SHOWN, 0),
            max(len(ended) - ENDED_SHOWN, 0),
            max(len(service.runners) - RUNNERS_SHOWN, 0),
            service.slots,
            service.slots_used,
            now,
        )

    def _view(
        self, server: RunServer, run_id: int, covers: Covers, now: float, whole: bool = True
    ) -> RunView | None:
        forecast = self._runs.forecasts.of(server, run_id)
        return views.run_view(server.machine, run_id, now, whole, forecast, covers)

    def _order(self, server: RunServer) -> tuple[int, ...]:
        """Return the runs that wait for slots, in their order."""
        now = asyncio.get_running_loop().time()
        at, of, order = self._queue
        wanted = (server, server.machine.state.revision)
        if of != wanted or now - at > QUEUE_SECONDS:  # it also changes as owners' use decays
            order = tuple(run_id for run_id, _, _ in views.queue(server.machine, server.clock()))
            self._queue = (now, wanted, order)
        return order

    async def facts(
        self, run_id: int, rank: int = 0, attempt: int = 0, covers: Covers = everything
    ) -> RunFacts:
        """Return the contents of a run's page. attempt: whose log is wanted; 0: the newest. covers: as `run`.

        Raises Rejection, StoreError.
        """
        server = self.server
        await _settled(server)
        run = self.run(run_id, everything)
        log_attempt = attempt or run.attempt
        running = run.launch is not None and run.launch.attempt == log_attempt
        logs = self._logs if running else self._stored_logs
        log = await logs.of((run_id, rank, log_attempt), lambda: self._log(run, rank, log_attempt))
        artifacts = await self._artifacts.of((run_id, run.state), lambda: self._files(run_id))
        view = self._view(server, run_id, covers, server.clock())
        if view is None:  # deleted meanwhile
            raise unknown_run(run_id)
        decisions = views.scheduling(server.machine, run_id, covers=covers)
        left_out = max(len(view.ranks) - RANKS_SHOWN, 0)
        return RunFacts(view, server.clock(), rank, log_attempt, log, artifacts, decisions, left_out)

    async def _log(self, run: Run, rank: int, attempt: int) -> LogTail:
        if not attempt:
            return LogTail(problem="it has not been launched yet")
        request = training_pb2.TrainingServiceStreamLogsRequest(
            run_id=run.run_id, rank=rank, attempt=attempt, offset=-TAIL_BYTES
        )
        data, first = bytearray(), 0
        async with asyncio.timeout(2 * READ_SECONDS):
            async with aclosing(stream_log(self._runs, run, request)) as chunks:
                async for chunk in chunks:
                    data += chunk.data
                    del data[:-TAIL_BYTES]
                    first = chunk.offset + len(chunk.data) - len(data)
        return tail_of(bytes(data), first)

    async def _files(self, run_id: int) -> Artifacts:
        files = await self._runs.artifacts.list(run_id)
        return Artifacts(tuple(files[:ARTIFACTS_SHOWN]), max(len(files) - ARTIFACTS_SHOWN, 0))
