"""Ranks as processes of this machine, which outlive their runner and are found again by the next one.

    ROOT/lock                          held by the one engine that uses the folder
    ROOT/runs/RUN/ATTEMPT/plan.json    written before any process of the attempt exists
                          ranks/N/     a rank: records, log (`process_records`, `log_segments`)
    ROOT/removed/                      what `remove` has taken away and not yet deleted

Each rank has a shim (`shim`) as its parent, which does what must go on without a runner: it writes the log,
ends the rank once that is asked for, and records the exit code. The engine asks by files and a signal, and
learns of an end by the shim's pidfd. Killed between any two lines, a launch leaves either an attempt without
`launched.json`, which the next engine takes back whole, or one with it, which it adopts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from elastane_common.run_record import RankImage
from elastane_runner.attempt_folders import attempt_folder, attempts_of, refuse_stale
from elastane_runner.engine import (
    AttemptPlan,
    AttemptRecord,
    EngineError,
    RankEvent,
    RankRecord,
    RankState,
)
from elastane_runner.process_records import (
    CLOSED,
    LAUNCHED,
    PLAN,
    STOP,
    lock,
    read_record,
    write_record,
)
from elastane_runner.rank_labels import check_attempt
from elastane_runner.rank_process import (
    StartingRank,
    base_environment,
    conclude,
    end_now,
    open_shim,
    rank_record,
    send,
)

#: Time that a shim has beyond the grace to end its rank; then it is killed itself.
STOP_MARGIN_SECONDS: Final = 15.0


class _Rank(NamedTuple):
    run: str
    attempt: int
    rank: int


@dataclass
class _Watched:
    """A rank whose end is not recorded. handle: pidfd of its shim; None when that is gone.

    process: of a shim that this engine started, which it has to reap.
    """

    handle: int | None
    process: subprocess.Popen[bytes] | None
    ended: asyncio.Future[None]


class ProcessEngine:
    """Runs ranks as processes; see the module. Implements `Engine`.

    root: folder of records and logs, on a local disk. environ: the runner's own variables, of which ranks get
    a few. Raises EngineError if another engine uses the folder.
    """

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self._runs = root / "runs"
        self._removed = root / "removed"
        for folder in (self._runs, self._removed):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = lock(root)
        if held is None:
            raise EngineError(f"another runner uses {root}", hint="give each runner a folder of its own")
        self._lock = held
        self._base = base_environment(os.environ if environ is None else environ)
        self._watched: dict[_Rank, _Watched] = {}
        self._launching: dict[str, asyncio.Task[None]] = {}
        self._adopting = self._has_launched = False
        self._events: asyncio.Queue[RankEvent] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    def image(self, run: str, attempt: int) -> RankImage | None:
        """Return None: processes have no image."""
        return None

    def rank_folder(self, run: str, attempt: int, rank: int) -> Path:
        """Return the folder with the log of a rank, for `rank_logs`."""
        return self._folder(run, attempt) / "ranks" / str(rank)

    def close(self) -> None:
        """Stop watching, and let another engine use the folder. The ranks continue."""
        loop = asyncio.get_running_loop()
        for watched in self._watched.values():
            if watched.handle is not None:
                loop.remove_reader(watched.handle)
                os.close(watched.handle)
        self._watched.clear()
        os.close(self._lock)

    # ------------------------------------------------------------------ launch and adopt

    async def launch(self, attempt: AttemptPlan) -> None:
        """Start all ranks, or none. Raises EngineError.

        Refused are an attempt that is there already, one whose run has a rank that has not ended, and one
        with a lower fence than another of its run. A launch goes on when its caller is cancelled.
        """
        check_attempt(attempt)
        if not attempt.folder.is_dir():
            raise EngineError(f"{attempt.folder} is not a folder", hint="unpack the code first")
        if self._adopting:
            raise EngineError("the attempts that are there are still being adopted", hint="launch afterwards")
        if attempt.run in self._launching or any(key.run == attempt.run for key in self._watched):
            raise EngineError(
                f"another attempt of {attempt.run} has not ended", hint="stop it before the next one"
            )
        self._has_launched = True
        self._launching[attempt.run] = self._task(self._launch_and_watch(attempt))
        await asyncio.shield(self._launching[attempt.run])

    async def adopt(self) -> list[AttemptRecord]:
        """Find existing attempts; see `Engine`. Ranks that ended meanwhile are only in the records.

        Raises EngineError after a launch: what is being launched would be taken back.
        """
        if self._has_launched or self._adopting:
            raise EngineError("attempts are adopted once, before the first launch")
        self._adopting = True
        try:
            records = await asyncio.to_thread(self._adopt)
        finally:
            self._adopting = False
        for record in records:
            for rank in record.ranks:
                if rank.state is RankState.RUNNING:
                    key = _Rank(record.run, record.attempt, rank.rank)
                    if key not in self._watched:
                        self._watch(key, open_shim(self.rank_folder(*key)), None)
        return records

    async def _launch_and_watch(self, plan: AttemptPlan) -> None:
        try:
            starting = await asyncio.to_thread(self._launch, plan)
            for rank_plan, one in zip(plan.ranks, starting, strict=True):
                key = _Rank(plan.run, plan.attempt, rank_plan.rank)
                self._watch(key, one.handle, one.process)
                self._events.put_nowait(RankEvent(**key._asdict(), state=RankState.RUNNING))
        finally:
            del self._launching[plan.run]

    def _launch(self, plan: AttemptPlan) -> list[StartingRank]:
        refuse_stale(self._runs, plan)
        folder = self._folder(plan.run, plan.attempt)
        mark = uuid.uuid4().hex
        starting: list[StartingRank] = []
        try:
            (folder / "ranks").mkdir(parents=True, mode=0o700)
            ranks = [one.rank for one in plan.ranks]
            write_record(folder / PLAN, {"fence": plan.fence, "ranks": ranks, "mark": mark})
            for rank in ranks:
                starting.append(StartingRank(folder / "ranks" / str(rank), f"{mark}/{rank}"))
            for one, rank_plan in zip(starting, plan.ranks, strict=True):
                one.tell(rank_plan, plan.folder, self._base, plan.log_cap_bytes)
            for one in starting:
                one.wait()
            write_record(folder / LAUNCHED, {})
        except (OSError, EngineError) as error:
            for one in starting:
                one.take_back()
                os.close(one.handle)
            raise EngineError(f"attempt {plan.attempt} of {plan.run} was not launched: {error}") from error
        return starting

    def _adopt(self) -> list[AttemptRecord]:
        for leftover in self._removed.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)
        found = [
            _adopt_attempt(run.name, folder)
            for run in sorted(self._runs.iterdir())
            for folder in attempts_of(self._runs, run.name)
        ]
        return [record for record in found if record is not None]

    # ------------------------------------------------------------------ watch, stop, remove

    async def watch(self) -> AsyncIterator[RankEvent]:
        """Yield events of ranks; see `Engine`."""
        while True:
            yield await self._events.get()

    async def stop(self, run: str, attempt: int, grace_seconds: float) -> None:
        """End all ranks of an attempt; see `Engine`. Raises EngineError if there is no such attempt."""
        folder = self._folder(run, attempt)
        if launch := self._launching.get(run):  # what is being launched is stopped afterwards
            await asyncio.wait([launch])
        if not (folder / PLAN).exists():
            raise EngineError(f"there is no attempt {attempt} of {run}")
        running = [watched for key, watched in self._watched.items() if key[:2] == (run, attempt)]
        if not running:
            return
        await asyncio.to_thread(write_record, folder / STOP, {"grace_seconds": max(0.0, grace_seconds)})
        _signal_running(running, signal.SIGTERM)
        ended = [watched.ended for watched in running]
        _, late = await asyncio.wait(ended, timeout=max(0.0, grace_seconds) + STOP_MARGIN_SECONDS)
        if late:
            _signal_running(running, signal.SIGKILL)
            await asyncio.wait(late)

    async def remove(self, run: str, attempt: int) -> None:
        """Delete everything stored of an attempt; see `Engine`. Raises EngineError while a rank runs."""
        folder = self._folder(run, attempt)
        if run in self._launching or any(key[:2] == (run, attempt) for key in self._watched):
            raise EngineError(f"attempt {attempt} of {run} has not ended", hint="stop it first")
        await asyncio.to_thread(self._remove, folder)

    def _remove(self, folder: Path) -> None:
        away = self._removed / uuid.uuid4().hex
        with contextlib.suppress(FileNotFoundError):
            folder.rename(away)  # at once: a half-deleted attempt must not be adopted
        shutil.rmtree(away, ignore_errors=True)
        with contextlib.suppress(OSError):  # the run has other attempts
            folder.parent.rmdir()

    def _watch(self, key: _Rank, handle: int | None, process: subprocess.Popen[bytes] | None) -> None:
        loop = asyncio.get_running_loop()
        watched = _Watched(handle, process, loop.create_future())
        self._watched[key] = watched
        if handle is None:  # it has ended since it was adopted
            self._task(self._conclude(key, watched))
        else:
            loop.add_reader(handle, self._on_end, key, watched)

    def _on_end(self, key: _Rank, watched: _Watched) -> None:
        assert watched.handle is not None
        asyncio.get_running_loop().remove_reader(watched.handle)
        os.close(watched.handle)
        watched.handle = None
        self._task(self._conclude(key, watched))

    async def _conclude(self, key: _Rank, watched: _Watched) -> None:
        if watched.process is not None:
            watched.process.wait()  # it has ended: this reaps it
        folder = self.rank_folder(*key)
        try:
            record = await asyncio.to_thread(conclude, folder, key.rank, _mark(folder.parents[1], key.rank))
        except OSError:  # its records cannot be read
            record = RankRecord(rank=key.rank, state=RankState.LOST)
        self._events.put_nowait(
            RankEvent(
                **key._asdict(),
                state=record.state,
                returncode=record.returncode,
                last_line=record.last_line,
            )
        )
        self._watched.pop(key, None)
        watched.ended.set_result(None)

    def _task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _folder(self, run: str, attempt: int) -> Path:
        return attempt_folder(self._runs, run, attempt)


def _adopt_attempt(run: str, folder: Path) -> AttemptRecord | None:
    plan = read_record(folder / PLAN)
    if plan is None:  # its engine was killed before anything was started
        shutil.rmtree(folder)
        return None
    launched = (folder / LAUNCHED).exists()
    if not launched:
        write_record(folder / CLOSED, {})
        write_record(folder / STOP, {"grace_seconds": 0.0})
    records = []
    for rank in plan["ranks"]:
        path = folder / "ranks" / str(rank)
        record = rank_record(path, rank)
        if record.state is RankState.RUNNING:
            record = (_adopt_rank if launched else end_now)(path, rank, _mark(folder, rank))
        records.append(record)
    return AttemptRecord(
        run=run,
        attempt=int(folder.name),
        fence=plan["fence"],
        launched=launched,
        ranks=tuple(records),
    )


def _adopt_rank(folder: Path, rank: int, mark: str) -> RankRecord:
    shim = open_shim(folder)
    if shim is None:
        return conclude(folder, rank, mark)
    if (folder.parents[1] / STOP).exists():  # the engine may have been killed before it told the shim
        send(shim, signal.SIGTERM)
    os.close(shim)
    return rank_record(folder, rank)


def _mark(folder: Path, rank: int) -> str:
    plan = read_record(folder / PLAN)
    return f"{plan['mark']}/{rank}" if plan else ""


def _signal_running(running: list[_Watched], number: signal.Signals) -> None:
    for watched in running:
        if watched.handle is not None:
            send(watched.handle, number)
