"""Ranks as real processes: how they start and end, and what becomes of them when runner or shim is killed.

Every process of a test's ranks holds a pipe open (`Life`), in whatever session or orphaned it is: the pipe's
end shows that none is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import queue
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import psutil
import pytest

import patience
from elastane_runner import process_records, rank_process
from elastane_runner.engine import AttemptPlan, EngineError, RankEvent, RankPlan, RankState
from elastane_runner.process_engine import ProcessEngine
from elastane_runner.process_records import (
    CLOSED,
    MARK,
    PROCESS,
    STOP,
    lock,
    read_record,
    write_record,
)
from elastane_runner.rank_logs import follow, read
from integration.engine_runner import EngineRunner
from slow import further, slow

SOURCES = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "engine_process.py"

UP = "exec 9>$LIFE; echo up >&9; "
SLEEP = UP + "exec sleep 1000"
#: Leaves a child in its group, one in another session, and one whose parent is gone.
FAMILY = UP + "sleep 1000 & setsid sleep 1000 & (setsid setsid sleep 1000 &) ; "
#: Says so once it is stopped, by a child: a SIGTERM that comes sooner ends it.
STOPPED = (
    "exec 9>$LIFE; "
    "(until grep -q 'State:.T' /proc/$$/status; do sleep 0.01; done; echo up >&9) & kill -STOP $$"
)


class Life:
    """A named pipe that ranks write to, and hold open as long as one of their processes lives."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._lines: list[bytes] = []
        self._rest = b""

    async def line(self) -> str:
        """Return the next line that a rank has written."""
        while not self._lines:
            assert await asyncio.to_thread(self._read) or self._lines
        return self._lines.pop(0).decode()

    async def end(self) -> None:
        """Wait until no process is left."""
        while await asyncio.to_thread(self._read):
            pass

    def _read(self) -> bool:
        patience.wait(self._poll, 60)
        data = os.read(self._file, 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines
        return bool(data)

    def _poll(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._file, select.POLLIN)
        if not poll.poll(seconds * 1000):
            raise queue.Empty("a process is left that says nothing")

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path / "life")
    yield life
    life.close()


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(tmp_path / "root")
    yield engine
    await end_of(engine)


async def end_of(engine: ProcessEngine) -> None:
    with contextlib.suppress(EngineError):
        await engine.stop("run", 1, 0)
    engine.close()


def plan_of(tmp_path: Path, *scripts: str) -> AttemptPlan:
    """A rank for each shell script."""
    environment = {"LIFE": str(tmp_path / "life")}
    return AttemptPlan(
        run="run",
        attempt=1,
        fence=5,
        folder=tmp_path,
        ranks=tuple(RankPlan(("sh", "-c", one), environment, rank) for rank, one in enumerate(scripts)),
    )


async def next_end(events: AsyncIterator[RankEvent]) -> RankEvent:
    async with patience.within(60):
        while (event := await anext(events)).state is RankState.RUNNING:
            pass
    return event


async def log_of(engine: ProcessEngine, rank: int = 0, attempt: int = 1) -> bytes:
    return b"".join([chunk.data async for chunk in follow(engine.rank_folder("run", attempt, rank))])


# ---------------------------------------------------------------- a rank


async def test_a_rank_has_its_environment_its_folder_its_session_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import json, os, sys; "
        "print(json.dumps([dict(os.environ), os.getcwd(), sys.stdin.read(), os.getsid(0) == os.getpid(), "
        "os.getpgrp() == os.getpid(), sorted(os.listdir('/proc/self/fd'))]))"
    )
    (tmp_path / "code").mkdir()
    monkeypatch.setenv("ELASTANE_TOKEN", "secret")
    monkeypatch.setenv("HOME", "/home/of-runner")
    engine = ProcessEngine(tmp_path / "root")
    given = {"RANK": "0", "NOTE": "a\nb=ü", "TMPDIR": "/own"}
    plan = replace(
        plan_of(tmp_path), folder=tmp_path / "code", ranks=(RankPlan((sys.executable, "-c", code), given),)
    )
    await engine.launch(plan)
    assert (await next_end(engine.watch())).returncode == 0
    found, folder, typed, leads_session, leads_group, files = json.loads(await log_of(engine))
    mark = found.pop(MARK)
    assert mark.endswith("/0")
    found.pop("LC_CTYPE", None)  # Python's own, where no locale is set
    passed = {name: os.environ[name] for name in rank_process.PASSED_VARIABLES if name in os.environ}
    passed.pop("LC_CTYPE", None)
    assert found == passed | {"PYTHONUNBUFFERED": "1"} | given and "ELASTANE_TOKEN" not in found
    assert (folder, typed, leads_session, leads_group) == (str(tmp_path / "code"), "", True, True)
    assert files == ["0", "1", "2", "3"], "the listing's own is the fourth"
    engine.close()


@pytest.mark.parametrize(
    ("command", "returncode", "last_line"),
    [
        (("sh", "-c", "echo out; echo err >&2; exit 3"), 3, b"err"),
        (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV, b""),
        (("sh", "-c", "printf 'no end'"), 0, b"no end"),
        (("./missing", "x"), 127, b"./missing: cannot be run in"),
        ((sys.executable, "-c", "1/0"), 1, b"ZeroDivisionError: division by zero"),
        (("sh", "-c", r"printf '\377\033[2J\n'"), 0, b"\xff\x1b[2J"),
    ],
    ids=["code", "signal", "line without end", "no program", "traceback", "bytes"],
)
async def test_the_end_of_a_rank_is_told_with_its_code_and_last_line(
    tmp_path: Path, engine: ProcessEngine, command: tuple[str, ...], returncode: int, last_line: bytes
) -> None:
    await engine.launch(replace(plan_of(tmp_path), ranks=(RankPlan(command),)))
    events = engine.watch()
    started = await anext(events)
    assert started == RankEvent(run="run", attempt=1, rank=0, state=RankState.RUNNING)
    ended = await next_end(events)
    assert (ended.state, ended.returncode) == (RankState.EXITED, returncode)
    assert ended.last_line.startswith(last_line) and bool(last_line) == bool(ended.last_line)


async def test_a_rank_has_the_signals_of_a_new_process(tmp_path: Path, engine: ProcessEngine) -> None:
    """A Python process ignores SIGPIPE, and a shim blocks some while it forks."""
    await engine.launch(plan_of(tmp_path, "exec grep -E '^Sig(Blk|Ign)' /proc/self/status"))
    blocked, ignored = (int(line.split()[1], 16) for line in (await log_of(engine)).splitlines())
    assert blocked == 0
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1) | 1 << (signal.SIGTERM - 1))


async def test_what_a_rank_leaves_is_gone_before_its_end_is_told(
    tmp_path: Path, engine: ProcessEngine, life: Life
) -> None:
    await engine.launch(plan_of(tmp_path, FAMILY + "exit 4"))
    ended = await next_end(engine.watch())
    assert ended.returncode == 4
    await life.end()


async def test_the_log_keeps_its_cap_while_no_runner_is_there(tmp_path: Path, life: Life) -> None:
    engine = ProcessEngine(tmp_path / "root")
    script = UP + "seq 200000; exec sleep 1000"
    await engine.launch(replace(plan_of(tmp_path, script), log_cap_bytes=4096))
    engine.close()
    folder = engine.rank_folder("run", 1, 0)
    text = b""
    async with patience.within(60):
        async for chunk in follow(folder):
            if (text := text + chunk.data).endswith(b"\n200000\n"):
                break
    sizes = [path.stat().st_size for path in folder.glob("log.*")]
    assert sum(sizes) <= 4096 and len(sizes) == 8
    assert read(folder, 0).data.startswith(b"1\n2\n3\n")
    engine = ProcessEngine(tmp_path / "root")
    await engine.adopt()
    await engine.stop("run", 1, 0)
    text = await log_of(engine)
    assert text.endswith(b"199999\n200000\n") and text.count(b"bytes left out") == 1
    engine.close()


# ---------------------------------------------------------------- stop


@pytest.mark.parametrize(
    ("script", "grace_seconds", "returncode"),
    [
        ("trap 'exit 7' TERM; " + UP + "sleep 1000 & wait", 600, 7),
        (SLEEP, 600, -signal.SIGTERM),
        ("trap '' TERM; " + FAMILY + "while :; do sleep 1000; done", 0.2, -signal.SIGKILL),
        (FAMILY + "exec sleep 1000", 600, -signal.SIGTERM),
        ("exec >&- 2>&-; " + SLEEP, 600, -signal.SIGTERM),
        (STOPPED, 0.2, -signal.SIGKILL),
        (UP + "while :; do echo y; done", 600, -signal.SIGTERM),
    ],
    ids=["polite", "plain", "ignores SIGTERM", "family", "closed output", "stopped", "writes on"],
)
async def test_a_stop_ends_all_of_a_rank(
    tmp_path: Path, engine: ProcessEngine, life: Life, script: str, grace_seconds: float, returncode: int
) -> None:
    await engine.launch(plan_of(tmp_path, script))
    assert await life.line() == "up"
    await engine.stop("run", 1, grace_seconds)
    await life.end()
    assert (await next_end(engine.watch())).returncode == returncode
    await engine.stop("run", 1, grace_seconds)  # of what has ended: nothing


async def test_a_second_stop_shortens_the_grace(tmp_path: Path, engine: ProcessEngine, life: Life) -> None:
    await engine.launch(
        plan_of(tmp_path, "trap 'echo term >&9' TERM; " + UP + "while :; do sleep 0.01; done")
    )
    assert await life.line() == "up"
    first = asyncio.create_task(engine.stop("run", 1, 600))
    assert await life.line() == "term"
    await engine.stop("run", 1, 0)
    await first
    await life.end()
    ended = await next_end(engine.watch())
    assert (ended.state, ended.returncode) == (RankState.EXITED, -signal.SIGKILL)


async def test_a_shim_that_does_not_end_its_rank_is_killed(
    tmp_path: Path, engine: ProcessEngine, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastane_runner.process_engine.STOP_MARGIN_SECONDS", 0.1)
    await engine.launch(plan_of(tmp_path, FAMILY + "exec sleep 1000"))
    assert await life.line() == "up"
    os.kill(shim_of(engine), signal.SIGSTOP)
    await engine.stop("run", 1, 0)
    await life.end()
    assert (await next_end(engine.watch())).state is RankState.LOST


async def test_an_attempt_that_is_not_known_cannot_be_stopped(engine: ProcessEngine) -> None:
    with pytest.raises(EngineError, match="no attempt 3 of run"):
        await engine.stop("run", 3, 0)
    await engine.remove("run", 3)


# ---------------------------------------------------------------- launches


async def test_a_launch_that_fails_half_way_is_taken_back_whole(
    tmp_path: Path, engine: ProcessEngine, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = rank_process.StartingRank.wait

    def wait_and_fail(self: rank_process.StartingRank) -> None:
        wait(self)
        if self._folder.name == "1":
            while life._lines[:2] != [b"up", b"up"]:
                life._read()
            raise OSError("planted")

    monkeypatch.setattr(rank_process.StartingRank, "wait", wait_and_fail)
    with pytest.raises(EngineError, match="not launched: planted"):
        await engine.launch(plan_of(tmp_path, FAMILY + "exec sleep 1000", FAMILY + "exec sleep 1000", SLEEP))
    await life.end()
    assert children_of(tmp_path) == []
    monkeypatch.undo()
    with pytest.raises(EngineError, match="there already"):
        await engine.launch(plan_of(tmp_path, SLEEP))
    await engine.launch(replace(plan_of(tmp_path, SLEEP), attempt=2))
    await engine.stop("run", 2, 0)


async def test_a_rank_that_cannot_be_recorded_does_not_run(
    tmp_path: Path, engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = rank_process.StartingRank.tell

    def tell_without_room(self: rank_process.StartingRank, *arguments: object) -> None:
        (self._folder / PROCESS).mkdir()
        tell(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rank_process.StartingRank, "tell", tell_without_room)
    with pytest.raises(EngineError, match=r"not started.*Is a directory"):
        await engine.launch(plan_of(tmp_path, "touch ran"))
    assert children_of(tmp_path) == [] and not (tmp_path / "ran").exists()


async def test_a_shim_that_comes_too_late_starts_nothing(tmp_path: Path) -> None:
    """Of an attempt that was taken back, or of a rank that another shim runs."""
    (tmp_path / "1" / "ranks").mkdir(parents=True)
    (plan,) = plan_of(tmp_path, "touch ran").ranks
    late = rank_process.StartingRank(tmp_path / "1" / "ranks" / "0", "mark/0")
    write_record(tmp_path / "1" / CLOSED, {})
    second = rank_process.StartingRank(tmp_path / "1" / "ranks" / "1", "mark/1")
    held = lock(tmp_path / "1" / "ranks" / "1")
    for shim, words in ((late, "the attempt is closed"), (second, "another shim runs this rank")):
        shim.tell(plan, tmp_path, os.environ, 4096)
        with pytest.raises(EngineError, match=words):
            shim.wait()
        assert shim.process.wait() == 0
        os.close(shim.handle)
    assert held is not None and not (tmp_path / "ran").exists()
    os.close(held)


async def test_what_cannot_be_launched_is_refused(tmp_path: Path, engine: ProcessEngine, life: Life) -> None:
    plan = plan_of(tmp_path, SLEEP)
    for wrong, words in (
        (replace(plan, run="../run"), "cannot name a folder"),
        (replace(plan, run=""), "cannot name a folder"),
        (replace(plan, attempt=0), "attempt 0"),
        (replace(plan, ranks=()), "0 ranks"),
        (replace(plan, log_cap_bytes=7), "too small"),
        (replace(plan, folder=tmp_path / "missing"), "not a folder"),
        (replace(plan, ranks=(RankPlan(()),)), "empty"),
        (replace(plan, ranks=(RankPlan(("true",)), RankPlan(("true",)))), "same number"),
        (replace(plan, ranks=(RankPlan(("a\0b",)),)), "NUL"),
        (replace(plan, ranks=(RankPlan(("a",), {"A": "\0"}),)), "NUL"),
        (replace(plan, ranks=(RankPlan(("a",), {"A=B": "1"}),)), "'='"),
    ):
        with pytest.raises(EngineError, match=words):
            await engine.launch(wrong)
    await engine.launch(plan)
    assert await life.line() == "up"
    with pytest.raises(EngineError, match="has not ended"):
        await engine.launch(replace(plan, attempt=2, fence=6))
    with pytest.raises(EngineError, match="has not ended"):
        await engine.remove("run", 1)
    await engine.stop("run", 1, 0)
    with pytest.raises(EngineError, match="fence 4 of run is stale: 5 was seen"):
        await engine.launch(replace(plan, attempt=2, fence=4))
    with pytest.raises(EngineError, match="there already"):
        await engine.launch(plan)
    await engine.remove("run", 1)
    assert (
        list((tmp_path / "root" / "runs").iterdir()) == [] == list((tmp_path / "root" / "removed").iterdir())
    )


async def test_two_launches_at_once_of_a_run_are_one(
    tmp_path: Path, engine: ProcessEngine, life: Life
) -> None:
    plan = plan_of(tmp_path, SLEEP)
    launches = [engine.launch(plan), engine.launch(plan), engine.launch(replace(plan, attempt=2))]
    results = await asyncio.gather(*launches, return_exceptions=True)
    assert [isinstance(result, EngineError) for result in results] == [False, True, True]
    await engine.stop("run", 1, 0)


async def test_a_launch_whose_caller_is_cancelled_is_watched(
    tmp_path: Path, engine: ProcessEngine, life: Life
) -> None:
    task = asyncio.create_task(engine.launch(plan_of(tmp_path, SLEEP)))
    await asyncio.sleep(0)  # it has begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await anext(engine.watch())).state is RankState.RUNNING


async def test_a_stop_during_a_launch_stops_what_is_launched(
    tmp_path: Path, engine: ProcessEngine, life: Life
) -> None:
    launch = asyncio.create_task(engine.launch(plan_of(tmp_path, SLEEP, SLEEP)))
    await asyncio.sleep(0)  # it has begun
    await engine.stop("run", 1, 0)
    await launch
    assert children_of(tmp_path) == []


async def test_nothing_is_adopted_beside_launches(tmp_path: Path, engine: ProcessEngine, life: Life) -> None:
    adopting = asyncio.create_task(engine.adopt())
    await asyncio.sleep(0)  # it has begun
    with pytest.raises(EngineError, match="being adopted"):
        await engine.launch(plan_of(tmp_path, SLEEP))
    assert await adopting == []
    await engine.launch(plan_of(tmp_path, SLEEP))
    with pytest.raises(EngineError, match="before the first launch"):
        await engine.adopt()


async def test_a_shim_that_cannot_be_looked_at_is_not_taken_for_gone(
    tmp_path: Path, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(tmp_path, SLEEP)
    await runner.launched()
    await runner.kill()
    engine = ProcessEngine(tmp_path / "root")
    answers = iter([OSError(errno.EMFILE, "too many")])
    pidfd_open = os.pidfd_open

    def fail_once(pid: int) -> int:
        if (error := next(answers, None)) is not None:
            raise error
        return pidfd_open(pid)

    monkeypatch.setattr(os, "pidfd_open", fail_once)
    with pytest.raises(OSError, match="too many"):
        await engine.adopt()
    (record,) = await engine.adopt()
    assert record.ranks[0].state is RankState.RUNNING
    await end_of(engine)


async def test_a_folder_has_one_engine(tmp_path: Path, engine: ProcessEngine) -> None:
    with pytest.raises(EngineError, match="another runner uses"):
        ProcessEngine(tmp_path / "root")


# ---------------------------------------------------------------- a runner or a shim is killed


def shim_of(engine: ProcessEngine, rank: int = 0) -> int:
    return process_of(engine, "shim", rank)


def process_of(engine: ProcessEngine, name: Literal["shim", "rank"], rank: int = 0) -> int:
    record = read_record(engine.rank_folder("run", 1, rank) / PROCESS)
    assert record is not None
    return int(record[name][0])


def children_of(tmp_path: Path) -> list[psutil.Process]:
    """Shims and processes of ranks of this test, after those have ended that are about to."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_shim = str(tmp_path) in " ".join(process.cmdline()) and "shim" in " ".join(process.cmdline())
            if is_shim or process.environ().get("LIFE", "").startswith(str(tmp_path)):
                found.append(process)
    return psutil.wait_procs(found, timeout=30)[1] if found else []


class Runner(EngineRunner):
    """A process of scripts/engine_process.py."""

    def __init__(self, tmp_path: Path, *scripts: str, kill_at: int = 0) -> None:
        plan = {
            "run": "run", "attempt": 1, "fence": 5, "folder": str(tmp_path),
            "commands": [["sh", "-c", script] for script in scripts],
            "environment": {"LIFE": str(tmp_path / "life")},
        }  # fmt: skip
        super().__init__(SCRIPT, str(tmp_path / "root"), plan=plan, kill_at=kill_at)


async def test_ranks_outlive_their_runner_and_are_adopted(tmp_path: Path, life: Life) -> None:
    """None is started again, none loses its output, and how each one ends is known."""
    os.mkfifo(tmp_path / "go")
    waits = UP + "echo before; read _ < go; echo after; exit 3"
    runner = Runner(tmp_path, waits, "echo short; exit 5", FAMILY + "exec sleep 1000")
    await runner.launched()
    assert [await life.line(), await life.line()] == ["up", "up"]
    await runner.kill()
    engine = ProcessEngine(tmp_path / "root")
    await log_of(engine, 1)  # it has ended
    (record,) = await engine.adopt()
    assert (record.run, record.attempt, record.fence, record.launched) == ("run", 1, 5, True)
    assert [rank.state for rank in record.ranks] == [RankState.RUNNING, RankState.EXITED, RankState.RUNNING]
    assert (record.ranks[1].returncode, record.ranks[1].last_line) == (5, b"short")
    await asyncio.to_thread((tmp_path / "go").write_text, "\n")
    ended = await next_end(engine.watch())
    assert (ended.rank, ended.returncode, ended.last_line) == (0, 3, b"after")
    assert await log_of(engine) == b"before\nafter\n"
    assert await engine.adopt() != [], "a second time it changes nothing"
    await engine.stop("run", 1, 600)
    await life.end()
    assert (await next_end(engine.watch())).returncode == -signal.SIGTERM
    engine.close()


async def test_a_stop_goes_on_when_its_runner_is_killed(tmp_path: Path, life: Life) -> None:
    runner = Runner(tmp_path, "trap 'echo term >&9' TERM; " + UP + "while :; do sleep 0.01; done")
    await runner.launched()
    assert await life.line() == "up"
    runner.stop(0.5)
    assert await life.line() == "term"
    await runner.kill()
    await life.end()
    engine = ProcessEngine(tmp_path / "root")
    await log_of(engine)  # until the shim has recorded the end
    (record,) = await engine.adopt()
    assert (record.ranks[0].state, record.ranks[0].returncode) == (RankState.EXITED, -signal.SIGKILL)
    engine.close()


async def test_a_stop_whose_signal_was_not_sent_is_taken_up_by_the_next_runner(
    tmp_path: Path, life: Life
) -> None:
    runner = Runner(tmp_path, SLEEP)
    await runner.launched()
    assert await life.line() == "up"
    await runner.kill()
    engine = ProcessEngine(tmp_path / "root")
    write_record(engine.rank_folder("run", 1, 0).parents[1] / STOP, {"grace_seconds": 600})
    await engine.adopt()
    assert (await next_end(engine.watch())).returncode == -signal.SIGTERM
    engine.close()


async def test_a_killed_shim_leaves_nothing_of_its_rank(
    tmp_path: Path, engine: ProcessEngine, life: Life
) -> None:
    await engine.launch(plan_of(tmp_path, FAMILY + "echo line; echo up >&9; exec sleep 1000"))
    assert [await life.line(), await life.line()] == ["up", "up"]
    os.kill(shim_of(engine), signal.SIGKILL)
    ended = await next_end(engine.watch())
    assert (ended.state, ended.returncode) == (RankState.LOST, None)
    await life.end()


@pytest.mark.parametrize("looks", ["at one that ends", "at one in an exec"])
async def test_a_process_that_cannot_be_looked_at_is_not_taken_for_none(
    tmp_path: Path, engine: ProcessEngine, life: Life, monkeypatch: pytest.MonkeyPatch, looks: str
) -> None:
    """The rank's last process forks and ends once all are listed, or is in an exec when it is looked at."""
    os.mkfifo(tmp_path / "go")
    forks = "echo $$ >&9; read _ < go; sleep 1000 & exit"
    await engine.launch(plan_of(tmp_path, f"exec 9>$LIFE; sh -c '{forks}' & exec sleep 1000"))
    forker = int(await life.line())
    has_mark, handle = process_records.has_mark, os.pidfd_open(forker)
    killed_with_shim = os.pidfd_open(process_of(engine, "rank"))

    def has_mark_late(pid: int, mark: str) -> process_records.Marked:
        select.select([killed_with_shim], [], [])
        if pid == forker and select.select([handle], [], [], 0) == ([], [], []):
            if looks == "at one in an exec":
                monkeypatch.undo()
                return process_records.Marked.UNKNOWN
            (tmp_path / "go").write_text("\n")
            select.select([handle], [], [])
        return has_mark(pid, mark)

    monkeypatch.setattr(process_records, "has_mark", has_mark_late)
    os.kill(shim_of(engine), signal.SIGKILL)
    assert (await next_end(engine.watch())).state is RankState.LOST
    await life.end()
    os.close(handle)
    os.close(killed_with_shim)


async def test_a_shim_killed_with_its_runner_leaves_nothing_of_its_rank(tmp_path: Path, life: Life) -> None:
    runner = Runner(tmp_path, FAMILY + "exec sleep 1000")
    await runner.launched()
    assert await life.line() == "up"
    await runner.kill()
    engine = ProcessEngine(tmp_path / "root")
    shim = psutil.Process(shim_of(engine))
    shim.kill()
    await asyncio.to_thread(shim.wait, 60)
    (record,) = await engine.adopt()
    assert record.launched and record.ranks[0].state is RankState.LOST
    await life.end()
    engine.close()


async def test_a_rank_ends_with_its_shim_while_no_runner_is_there(tmp_path: Path, life: Life) -> None:
    runner = Runner(tmp_path, SLEEP)
    await runner.launched()
    assert await life.line() == "up"
    await runner.kill()
    engine = ProcessEngine(tmp_path / "root")
    os.kill(shim_of(engine), signal.SIGKILL)
    await life.end()
    engine.close()


async def test_a_process_that_got_the_pid_of_a_shim_is_left_alone(tmp_path: Path, life: Life) -> None:
    engine = ProcessEngine(tmp_path / "root")
    await engine.launch(plan_of(tmp_path, SLEEP))
    assert await life.line() == "up"
    os.kill(shim_of(engine), signal.SIGKILL)
    await next_end(engine.watch())
    engine.close()
    folder = engine.rank_folder("run", 1, 0)
    (folder / "exit.json").unlink()
    innocent = subprocess.Popen(["sleep", "1000"])
    record = read_record(folder / PROCESS)
    assert record is not None
    write_record(folder / PROCESS, {"shim": [innocent.pid, *record["shim"][1:]]})
    engine = ProcessEngine(tmp_path / "root")
    (found,) = await engine.adopt()
    assert found.ranks[0].state is RankState.LOST and innocent.poll() is None
    innocent.kill()
    innocent.wait()
    engine.close()


async def test_an_attempt_without_a_plan_is_none(tmp_path: Path) -> None:
    engine = ProcessEngine(tmp_path / "root")
    (tmp_path / "root" / "runs" / "run" / "1" / "ranks").mkdir(parents=True)
    (tmp_path / "root" / "removed" / "x").mkdir()
    assert await engine.adopt() == []
    assert list((tmp_path / "root" / "runs" / "run").iterdir()) == []
    assert list((tmp_path / "root" / "removed").iterdir()) == []
    engine.close()


@pytest.fixture(scope="module")
def lines_of_a_launch(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many lines a launch takes that is not cut, whose ranks are adopted."""
    folder = tmp_path_factory.mktemp("whole")

    async def launch() -> int:
        whole = Runner(folder, SLEEP, SLEEP)
        lines = await whole.launched()
        await whole.kill()
        assert await outcome_of(folder) == "adopted"
        return lines

    return asyncio.run(launch())


@pytest.mark.parametrize(
    "part",
    [
        0,
        *(pytest.param(part, marks=slow) for part in range(2, 12, 2)),
        *(pytest.param(part, marks=further) for part in range(1, 12, 2)),  # lines between two of the others
    ],
)
async def test_a_runner_killed_at_any_line_of_a_launch_leaves_all_or_nothing(
    tmp_path: Path, lines_of_a_launch: int, part: int
) -> None:
    """Every twelfth line in each part."""
    assert lines_of_a_launch > 60
    outcomes = []
    for kill_at in range(lines_of_a_launch - part, 0, -12):
        folder = tmp_path / str(kill_at)
        folder.mkdir()
        life = Life(folder / "life")
        runner = Runner(folder, SLEEP, SLEEP, kill_at=kill_at)
        assert await asyncio.to_thread(runner.process.wait) == -signal.SIGKILL
        await runner.kill()
        outcomes.append(await outcome_of(folder))
        life.close()
    assert set(outcomes) >= {"taken back", "nothing"}


async def outcome_of(folder: Path) -> str:
    """What the next runner finds; whatever it is, nothing is left after it has ended it."""
    engine = ProcessEngine(folder / "root")
    records = await engine.adopt()
    outcome = "nothing"
    if records and records[0].launched:
        outcome = "adopted"
        assert [rank.state for rank in records[0].ranks] == [RankState.RUNNING] * 2
        await engine.stop("run", 1, 0)
    elif records:
        outcome = "taken back"
        assert {rank.state for rank in records[0].ranks} <= {
            RankState.WAITING, RankState.LOST, RankState.EXITED,
        }  # fmt: skip
    assert children_of(folder) == []
    await engine.launch(
        AttemptPlan(run="run", attempt=2, fence=6, folder=folder, ranks=(RankPlan(("true",)),))
    )
    assert (await end_after(engine, 2)).returncode == 0
    for attempt in (1, 2):
        await engine.remove("run", attempt)
    assert list((folder / "root" / "runs").iterdir()) == []
    engine.close()
    return outcome


async def end_after(engine: ProcessEngine, attempt: int) -> RankEvent:
    events = engine.watch()
    while (event := await next_end(events)).attempt != attempt:
        pass
    return event
