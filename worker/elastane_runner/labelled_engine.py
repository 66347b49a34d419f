"""Ranks that are kept by another system: containers, pods. They are found again by their labels.

    ROOT/lock                          held by the one engine that uses the folder
    ROOT/runs/RUN/ATTEMPT/plan.json    written before any container of the attempt exists
                          launched.json  all its containers were started, from which image
                          closed.json  the launch is being taken back
                          stop.json    it is to end, and when it is killed
                          ranks/N/     a rank: log (`log_segments`), and exit.json once it has ended

A container's labels say what it is (`rank_labels`); a runner that has lost its folder finds its ranks all the
same. A thread for each rank copies its log (`container_log`) and learns of its end.

An engine that does not answer says nothing about its containers: ranks count as running until it does, also
for a runner that is started meanwhile, which finds them by the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from elastane_common.run_record import RankImage
from elastane_runner.attempt_folders import attempt_folder, attempts_of, refuse_stale
from elastane_runner.container_log import ContainerLog, End, LogThread, record_end
from elastane_runner.engine import (
    AttemptPlan,
    AttemptRecord,
    EngineError,
    EngineUnreachableError,
    RankEvent,
    RankRecord,
    RankState,
)
from elastane_runner.log_segments import log_bytes
from elastane_runner.process_records import (
    CLOSED,
    EXIT,
    LAUNCHED,
    PLAN,
    PROCESS,
    STOP,
    lock,
    read_record,
    write_record,
)
from elastane_runner.rank_client import ContainerMissingError, ContainerState, LaunchCalls, RankClient
from elastane_runner.rank_labels import RUNNER, RankLabels, check_attempt, check_name, is_whole, read_labels
from elastane_runner.rank_logs import last_line
from elastane_runner.rank_process import rank_record

_log = structlog.get_logger(__name__)

#: Time between two tries to reach an engine that does not answer, while something has to be ended.
RETRY_SECONDS: Final = 0.5
#: When launches that were cut are taken back again; a call of a killed runner may still be carried out.
LATE_SECONDS: Final = 2.0
LATE_TRIES: Final = 3


class RankKey(NamedTuple):
    run: str
    attempt: int
    rank: int


class RankContainer(NamedTuple):
    """A rank's container. log_cap_bytes: of its log on this disk."""

    id: str
    log_cap_bytes: int


@dataclass
class _Watched:
    """A rank whose end is not recorded yet."""

    container: str
    log: LogThread
    ended: asyncio.Future[None]
    was_told: bool = False
    """SIGTERM was sent."""


class LabelledEngine:
    """Runs ranks by a client; see the module. Implements `Engine`.

    root: folder of records and logs, on a local disk. runner: id of the runner, the same after a restart; it
    tells apart the containers of several runners. client: closed with the engine. Raises EngineError if
    another engine uses the folder.
    """

    def __init__(self, root: Path, *, runner: str, client: RankClient) -> None:
        check_name(runner, "runner")
        self._runs = root / "runs"
        self._removed = root / "removed"
        for folder in (self._runs, self._removed):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = lock(root)
        if held is None:
            raise EngineError(f"another runner uses {root}", hint="give each runner a folder of its own")
        self._lock = held
        self._runner = runner
        self._client = client
        self._watched: dict[RankKey, _Watched] = {}
        self._launching: dict[str, asyncio.Task[None]] = {}
        self._calls: dict[str, LaunchCalls] = {}
        #: Runs whose launch is to wait for nothing any more.
        self._stopping: set[str] = set()
        self._adopting = self._has_launched = self._is_closed = False
        self._events: asyncio.Queue[RankEvent] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def rank_folder(self, run: str, attempt: int, rank: int) -> Path:
        """Return the folder with the log of a rank, for `rank_logs`."""
        return self._folder(run, attempt) / "ranks" / str(rank)

    def image(self, run: str, attempt: int) -> RankImage | None:
        """Return the image of an attempt; None if it is not known."""
        folder = self._folder(run, attempt)
        records = (read_record(folder / name) or {} for name in (LAUNCHED, PLAN))
        found = next((one["image"] for one in records if "image" in one), None)
        return RankImage(*found) if isinstance(found, list) else None

    def close(self) -> None:
        """Stop watching, and let another engine use the folder. The ranks continue."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        logs = [watched.log for watched in list(self._watched.values())]
        for log in logs:
            log.close()
        for log in logs:
            log.join()
        self._watched.clear()
        self._client.close()
        os.close(self._lock)

    # ------------------------------------------------------------------ launch

    async def launch(self, attempt: AttemptPlan) -> None:
        """Start all ranks, or none. Raises EngineError.

        Refused are an attempt that is there already, one whose run has a rank that has not ended, and one
        with a lower fence than another of its run. A launch goes on when its caller is cancelled. Raises
        EngineUnreachableError while the container engine does not answer, ImageMissingError.
        """
        check_attempt(attempt)
        if self._adopting:
            raise EngineError("the attempts that are there are still being adopted", hint="launch afterwards")
        if attempt.run in self._launching or any(key.run == attempt.run for key in self._watched):
            raise EngineError(
                f"another attempt of {attempt.run} has not ended", hint="stop it before the next one"
            )
        self._has_launched = True
        self._launching[attempt.run] = self._task(self._launch_and_watch(attempt))
        await asyncio.shield(self._launching[attempt.run])

    async def _launch_and_watch(self, plan: AttemptPlan) -> None:
        try:
            containers = await asyncio.to_thread(self._launch, plan)
            for rank, container in containers.items():
                key = RankKey(plan.run, plan.attempt, rank)
                self._watch(key, RankContainer(container, plan.log_cap_bytes))
                self._events.put_nowait(RankEvent(**key._asdict(), state=RankState.RUNNING))
        finally:
            del self._launching[plan.run]
            self._stopping.discard(plan.run)

    def _launch(self, plan: AttemptPlan) -> dict[int, str]:
        """Create and start the containers; return their ids by rank."""
        refuse_stale(self._runs, plan)
        calls = self._client.prepare(plan)
        ranks = [one.rank for one in plan.ranks]
        folder = self._folder(plan.run, plan.attempt)
        try:
            (folder / "ranks").mkdir(parents=True, mode=0o700)
            record = _plan_record(plan.fence, ranks, plan.log_cap_bytes)
            write_record(folder / PLAN, {**record, "image": list(calls.image)})
            self._calls[plan.run] = calls
            if plan.run in self._stopping:
                calls.cancel()
            containers = calls.create()
            for rank, container in containers.items():
                rank_folder = folder / "ranks" / str(rank)
                rank_folder.mkdir(mode=0o700)
                started_at = time.time()  # before: a rank may have ended when the engine answers
                calls.start(container)
                write_record(rank_folder / PROCESS, _process_record(container, started_at))
            write_record(folder / LAUNCHED, {"image": list(calls.image)})
        except (OSError, EngineError, ContainerMissingError) as error:
            self._take_back(plan.run, plan.attempt)
            text = f"attempt {plan.attempt} of {plan.run} was not launched: {error}"
            kind = type(error) if isinstance(error, EngineError) else EngineError
            raise kind(text) from error
        finally:
            self._calls.pop(plan.run, None)
        return containers

    def _take_back(self, run: str, attempt: int) -> None:
        """Remove everything that a launch started, however long the engine does not answer, unless closed."""
        with contextlib.suppress(OSError):  # the disk is full: without launched.json it is not whole either
            write_record(self._folder(run, attempt) / CLOSED, {})
        while not self._is_closed:
            with contextlib.suppress(EngineUnreachableError):
                self._client.remove(run, attempt)
                return
            time.sleep(RETRY_SECONDS)

    # ------------------------------------------------------------------ adopt

    async def adopt(self) -> list[AttemptRecord]:
        """Find existing attempts; see `Engine`. Ranks that ended meanwhile are only in the records.

        While the container engine does not answer, the folder says what was launched. Raises EngineError
        after a launch: what is being launched would be taken back.
        """
        if self._has_launched or self._adopting:
            raise EngineError("attempts are adopted once, before the first launch")
        self._adopting = True
        try:
            try:
                found, is_away = await asyncio.to_thread(self._adopt), False
            except EngineUnreachableError as error:
                _log.warning("ranks are adopted as they are recorded", reason=str(error))
                found, is_away = await asyncio.to_thread(self._recorded), True
        finally:
            self._adopting = False
        for record, containers in found:
            for rank, container in containers.items():
                key = RankKey(record.run, record.attempt, rank)
                if key not in self._watched:
                    self._watch(key, container)
            self._go_on_stopping(record.run, record.attempt)
        taken_back = [record for record, _ in found if not record.launched]
        if taken_back or is_away:
            self._task(self._take_back_late(taken_back, was_away=is_away))
        return [record for record, _ in found]

    async def _take_back_late(self, attempts: list[AttemptRecord], *, was_away: bool) -> None:
        """Roll back again what the engine was still starting for the previous runner when that was killed.

        was_away: it could not be asked what else there is; that is removed, too, as soon as it answers.
        """
        tries = 0
        while tries < LATE_TRIES:
            await asyncio.sleep(LATE_SECONDS)
            try:
                await asyncio.to_thread(self._remove_late, attempts, was_away)
            except EngineUnreachableError:
                continue
            except EngineError as error:
                _log.warning("an interrupted launch is not rolled back yet", reason=str(error))
            tries += 1

    def _remove_late(self, attempts: list[AttemptRecord], was_away: bool) -> None:
        unknown = {(one.run, one.attempt) for one in attempts}
        if was_away:
            labels = [read_labels(one.labels) for one in self._client.find({RUNNER: self._runner})]
            found = {(one.run, one.attempt) for one in labels if one is not None}
            # Whatever is launched meanwhile has its plan before its first container.
            unknown |= {one for one in found if not (self._folder(*one) / PLAN).exists()}
        for run, attempt in unknown:
            try:
                self._client.remove(run, attempt)
            except EngineUnreachableError:
                raise
            except EngineError as error:
                _log.warning("a launch is not rolled back yet", run=run, reason=str(error))

    def _recorded(self) -> list[tuple[AttemptRecord, dict[int, RankContainer]]]:
        """Return all attempts as the folder has them, with the containers of ranks whose end is not known."""
        found = []
        for run in self._runs.iterdir():
            for folder in attempts_of(self._runs, run.name):
                if (plan := read_record(folder / PLAN)) is None:
                    shutil.rmtree(folder, ignore_errors=True)
                    continue
                is_launched = (folder / LAUNCHED).exists() and not (folder / CLOSED).exists()
                if not is_launched:
                    write_record(folder / CLOSED, {})
                record = _attempt_record(folder, plan, is_launched)
                running = {
                    rank: RankContainer(process["container"], plan["log_cap_bytes"])
                    for rank in (plan["ranks"] if is_launched else ())
                    if not (folder / "ranks" / str(rank) / EXIT).exists()
                    and (process := read_record(folder / "ranks" / str(rank) / PROCESS)) is not None
                }
                found.append((record, running))
        return found

    def _adopt(self) -> list[tuple[AttemptRecord, dict[int, RankContainer]]]:
        """Return all attempts, with the containers of ranks that run."""
        for leftover in self._removed.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        labelled: dict[tuple[str, int], dict[RankLabels, str]] = {}
        for one in self._client.find({RUNNER: self._runner}):
            if (labels := read_labels(one.labels)) is not None:
                labelled.setdefault((labels.run, labels.attempt), {})[labels] = one.container
        for run in self._runs.iterdir():
            for folder in attempts_of(self._runs, run.name):
                labelled.setdefault((run.name, int(folder.name)), {})
        found = [
            self._adopt_attempt(run, attempt, containers)
            for (run, attempt), containers in sorted(labelled.items(), key=lambda item: item[0])
        ]
        return [one for one in found if one is not None]

    def _adopt_attempt(
        self, run: str, attempt: int, labelled: dict[RankLabels, str]
    ) -> tuple[AttemptRecord, dict[int, RankContainer]] | None:
        folder = self._folder(run, attempt)
        plan = read_record(folder / PLAN)
        if plan is None:
            if not labelled:  # its runner was killed before it had created anything
                shutil.rmtree(folder, ignore_errors=True)
                return None
            labels = next(iter(labelled))  # its folder was lost
            plan = _plan_record(labels.fence, labels.ranks, labels.log_cap_bytes)
            (folder / "ranks").mkdir(parents=True, exist_ok=True, mode=0o700)
            write_record(folder / PLAN, plan)
        started = self._started(folder, labelled)
        is_launched = (folder / LAUNCHED).exists() or is_whole(plan["ranks"], started)
        is_launched = is_launched and not (folder / CLOSED).exists()
        if is_launched:
            if not (folder / LAUNCHED).exists():
                write_record(folder / LAUNCHED, {})
            containers = {one.rank: RankContainer(id, one.log_cap_bytes) for one, id in labelled.items()}
            running = {
                rank: containers[rank]
                for rank in plan["ranks"]
                if self._adopt_rank(folder / "ranks" / str(rank), containers.get(rank), started.get(rank))
            }
        else:
            write_record(folder / CLOSED, {})
            running = {}
            self._client.remove(run, attempt)
            for rank in started:
                record_end(folder / "ranks" / str(rank), End(None, time.time()), 0)
        return _attempt_record(folder, plan, is_launched), running

    def _started(self, folder: Path, labelled: dict[RankLabels, str]) -> dict[int, ContainerState]:
        """Return the states of the ranks that have been started; their folders are there afterwards."""
        started = {}
        for labels, container in labelled.items():
            with contextlib.suppress(ContainerMissingError):
                state = self._client.state(container)
                if state.started_at is not None:
                    rank = folder / "ranks" / str(labels.rank)
                    rank.mkdir(exist_ok=True, mode=0o700)
                    if not (rank / PROCESS).exists():
                        write_record(rank / PROCESS, _process_record(container, state.started_at))
                    started[labels.rank] = state
        return started

    def _adopt_rank(
        self, folder: Path, container: RankContainer | None, state: ContainerState | None
    ) -> bool:
        """Record the end of a rank that has ended; True if it runs."""
        if (folder / EXIT).exists():
            if container is not None:
                with contextlib.suppress(EngineError):
                    self._client.release(container.id)
            return False
        if container is None or state is None:  # somebody has removed it
            folder.mkdir(exist_ok=True, mode=0o700)
            record_end(
                folder, End(None, None, "its container was removed by somebody else"), log_bytes(folder)
            )
            return False
        if state.is_running:
            return True
        try:
            return ContainerLog(self._client, container.id, folder, container.log_cap_bytes).collect() is None
        except EngineUnreachableError:
            raise
        except EngineError:  # the rest of its log is refused: who follows it, tries again
            return True

    def _go_on_stopping(self, run: str, attempt: int) -> None:
        """Continue a stop that the previous runner began."""
        request = read_record(self._folder(run, attempt) / STOP)
        running = self._running(run, attempt)
        if request is not None and running:
            self._task(self._stop(running, max(0.0, float(request["kill_at"]) - time.time())))

    # ------------------------------------------------------------------ watch, stop, remove

    async def watch(self) -> AsyncIterator[RankEvent]:
        """Yield events of ranks; see `Engine`."""
        while True:
            yield await self._events.get()

    async def stop(self, run: str, attempt: int, grace_seconds: float) -> None:
        """End all ranks of an attempt; see `Engine`. Raises EngineError if there is no such attempt.

        While the container engine does not answer, it waits: what cannot be reached has not ended.
        """
        folder = self._folder(run, attempt)
        if launch := self._launching.get(run):  # what is being launched is stopped afterwards
            self._stopping.add(run)
            if calls := self._calls.get(run):
                calls.cancel()
            await asyncio.wait([launch])
        if not (folder / PLAN).exists():
            raise EngineError(f"there is no attempt {attempt} of {run}")
        running = self._running(run, attempt)
        if not running:
            return
        grace_seconds = max(0.0, grace_seconds)
        await asyncio.to_thread(write_record, folder / STOP, {"kill_at": time.time() + grace_seconds})
        await asyncio.shield(self._task(self._stop(running, grace_seconds)))

    async def _stop(self, running: list[_Watched], grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        await asyncio.gather(*(self._terminate(watched, deadline) for watched in running))

    async def _terminate(self, watched: _Watched, deadline: float) -> None:
        if not watched.was_told:
            watched.was_told = True
            await self._signal(watched, "SIGTERM", deadline)
        await asyncio.wait([watched.ended], timeout=max(0.0, deadline - time.monotonic()))
        while not watched.ended.done():
            await self._signal(watched, "SIGKILL")
            await asyncio.wait([watched.ended], timeout=RETRY_SECONDS)

    async def _signal(self, watched: _Watched, name: str, deadline: float | None = None) -> None:
        """Signal a rank until the engine accepts it, the rank has ended, or the deadline is reached."""
        while not watched.ended.done() and (deadline is None or time.monotonic() < deadline):
            grace_seconds = 0.0 if deadline is None else max(0.0, deadline - time.monotonic())
            with contextlib.suppress(EngineError):
                await asyncio.to_thread(self._client.kill, watched.container, name, grace_seconds)
                return
            await asyncio.wait([watched.ended], timeout=RETRY_SECONDS)

    async def remove(self, run: str, attempt: int) -> None:
        """Delete everything stored of an attempt, including its containers; see `Engine`.

        Raises EngineError while a rank runs, EngineUnreachableError while the engine does not answer.
        """
        folder = self._folder(run, attempt)
        if run in self._launching or self._running(run, attempt):
            raise EngineError(f"attempt {attempt} of {run} has not ended", hint="stop it first")
        await asyncio.to_thread(self._remove, run, attempt, folder)

    def _remove(self, run: str, attempt: int, folder: Path) -> None:
        self._client.remove(run, attempt)  # first: without its folder, a container would be adopted
        away = self._removed / uuid.uuid4().hex
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)  # at once: a half-deleted attempt must not be adopted
        shutil.rmtree(away, ignore_errors=True)
        with contextlib.suppress(OSError):  # the run has other attempts
            folder.parent.rmdir()

    def _running(self, run: str, attempt: int) -> list[_Watched]:
        return [watched for key, watched in self._watched.items() if key[:2] == (run, attempt)]

    def _watch(self, key: RankKey, container: RankContainer) -> None:
        loop = asyncio.get_running_loop()
        log = ContainerLog(self._client, container.id, self.rank_folder(*key), container.log_cap_bytes)

        def ended(end: End) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the next runner learns of it
                loop.call_soon_threadsafe(self._on_end, key, end)

        thread = LogThread(log, ended)
        self._watched[key] = _Watched(container.id, thread, loop.create_future())
        thread.start()

    def _on_end(self, key: RankKey, end: End) -> None:
        watched = self._watched.pop(key, None)
        if watched is None:  # closed
            return
        self._events.put_nowait(
            RankEvent(
                **key._asdict(),
                state=RankState.LOST if end.returncode is None else RankState.EXITED,
                returncode=end.returncode,
                last_line=last_line(self.rank_folder(*key)),
                reason=end.reason,
            )
        )
        watched.ended.set_result(None)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _folder(self, run: str, attempt: int) -> Path:
        return attempt_folder(self._runs, run, attempt)


def _plan_record(fence: int, ranks: Iterable[int], log_cap_bytes: int) -> dict[str, Any]:
    return {"fence": fence, "ranks": list(ranks), "log_cap_bytes": log_cap_bytes}


def _process_record(container: str, started_at: float) -> dict[str, Any]:
    return {"started": started_at, "container": container}


def _attempt_record(folder: Path, plan: dict[str, Any], is_launched: bool) -> AttemptRecord:
    return AttemptRecord(
        run=folder.parent.name,
        attempt=int(folder.name),
        fence=plan["fence"],
        launched=is_launched,
        ranks=tuple(_rank_record(folder, rank, is_launched) for rank in plan["ranks"]),
    )


def _rank_record(folder: Path, rank: int, is_launched: bool) -> RankRecord:
    """Return the record of a rank. No rank of an attempt that was rolled back runs."""
    if not is_launched and not (folder / "ranks" / str(rank) / EXIT).exists():
        return RankRecord(rank=rank, state=RankState.WAITING)
    return rank_record(folder / "ranks" / str(rank), rank)
