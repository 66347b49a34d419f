"""Ranks as real containers of podman, by Docker's API: how they start and end, and what becomes of them when
the runner or the container engine is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import podman_service
import pytest
from podman_service import IMAGE, PodmanService

import patience
from elastane_runner.engine import (
    AttemptPlan,
    EngineError,
    EngineUnreachableError,
    ImageMissingError,
    RankEvent,
    RankPlan,
    RankState,
)
from elastane_runner.process_records import LAUNCHED
from elastane_runner.rank_logs import follow
from integration.engine_runner import EngineRunner
from slow import slow

docker = pytest.importorskip(
    "docker", reason="no client of container engines: pip install 'elastane[containers]'"
)
from elastane_runner.container_client import ContainerClient  # noqa: E402
from elastane_runner.container_engine import ContainerEngine  # noqa: E402
from elastane_runner.container_plan import ContainerOptions  # noqa: E402
from elastane_runner.rank_labels import ATTEMPT, FENCE, RANK, RUN, RUNNER  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.environ.get("ELASTANE_TEST_CONTAINERS") != "1", reason="starts containers: make test-containers"
)

SOURCES = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "container_engine_process.py"

UP = "echo up; "
SLEEP = UP + "exec sleep 1000"
#: Says so once it is stopped, by a child: a SIGTERM that comes sooner ends it.
STOPPED = "(until grep -q 'State:.T' /proc/$$/status; do sleep 0.05; done; echo up) & kill -STOP $$"
STUBBORN = "trap 'echo term' TERM; " + UP + "while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def podman() -> Iterator[PodmanService]:
    yield from podman_service.service()


class Bench:
    """Engines and plans of one test; what it leaves is removed."""

    def __init__(self, folder: Path, podman: PodmanService) -> None:
        self.folder, self.podman = folder, podman
        self.root, self.code, self.shared = folder / "root", folder / "code", folder / "shared"
        self.code.mkdir()
        self.code.chmod(0o755)
        (self.code / "hello").write_text("hello\n")
        self.shared.mkdir()
        self.shared.chmod(0o777)
        self.client = ContainerClient(podman.url)
        self._engines: list[ContainerEngine] = []

    def engine(self, runner: str = "runner-1", **options: object) -> ContainerEngine:
        given = {"image": IMAGE, "write_folders": (self.shared,), **options}
        root = self.root if runner == "runner-1" else self.folder / runner
        engine = ContainerEngine(
            root,
            runner=runner,
            options=lambda _: ContainerOptions(**given),  # type: ignore[arg-type]
            url=self.podman.url,
        )
        self._engines.append(engine)
        return engine

    def plan(self, *scripts: str, run: str = "run") -> AttemptPlan:
        """A rank for each shell script."""
        ranks = tuple(RankPlan(("sh", "-c", one), {}, rank) for rank, one in enumerate(scripts))
        return AttemptPlan(run=run, attempt=1, fence=5, folder=self.code, ranks=ranks)

    def close(self, engine: ContainerEngine) -> None:
        self._engines.remove(engine)
        engine.close()

    def containers(self, runner: str = "runner-1") -> list[str]:
        return [one.container for one in self.client.find({RUNNER: runner})]

    def inspect(self, container: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.podman.run("inspect", container))[0]
        return found

    def started_at(self) -> set[object]:
        """When each container was started: different after a restart."""
        return {self.client.state(one).started_at for one in self.containers()}

    def clean(self) -> None:
        for engine in self._engines:
            engine.close()
        for runner in ("runner-1", "runner-2"):
            found = self.client.find({RUNNER: runner})
            # The first rank is the last to go: the others are in its network.
            for one in sorted(found, key=lambda one: int(one.labels[RANK]), reverse=True):
                self.client.remove(one.container)
        self.client.close()


@pytest.fixture
async def bench(tmp_path: Path, podman: PodmanService) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path, podman)
    yield bench
    bench.clean()


async def next_end(events: AsyncIterator[RankEvent]) -> RankEvent:
    async with patience.within(60):
        while (event := await anext(events)).state is RankState.RUNNING:
            pass
    return event


async def log_of(engine: ContainerEngine, rank: int = 0) -> bytes:
    """The log of a rank until its end."""
    return b"".join([chunk.data async for chunk in follow(engine.rank_folder("run", 1, rank))])


async def said(engine: ContainerEngine, words: bytes, rank: int = 0) -> bytes:
    """The log of a rank until it has these words."""
    text = b""
    async with patience.within(60):
        async for chunk in follow(engine.rank_folder("run", 1, rank)):
            if words in (text := text + chunk.data):
                break
    assert words in text
    return text


# ---------------------------------------------------------------- a rank


async def test_a_rank_has_its_environment_its_code_and_no_rights(bench: Bench) -> None:
    engine = bench.engine()
    script = (
        "cat hello; pwd; id -u; id -g; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status; "
        "touch /tmp/x ${SHARED}/x && echo writable; touch x; touch /x; touch /bin/x; env"
    )
    plan = bench.plan()
    given = {"SHARED": str(bench.shared), "NOTE": "a\nb=ü"}
    await engine.launch(replace(plan, ranks=(RankPlan(("sh", "-c", script), given),)))
    assert (await next_end(engine.watch())).returncode == 0
    text = (await log_of(engine)).decode()
    for line in (
        "hello", "/elastane/code", "10001", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1", "writable", "NOTE=a", "b=ü", "HOME=/tmp", "PYTHONUNBUFFERED=1",
    ):  # fmt: skip
        assert line in text.splitlines(), line
    for path in ("x", "/x", "/bin/x"):
        assert f"touch: {path}: Read-only file system" in text
    assert "ELASTANE_" not in text
    assert (bench.shared / "x").stat().st_uid == 10001


@pytest.mark.parametrize(
    ("command", "returncode", "last_line"),
    [
        (("sh", "-c", "echo err >&2; exit 3"), 3, b"err"),
        (("sh", "-c", "kill -SEGV $$"), -signal.SIGSEGV, b""),
        (("sh", "-c", "printf 'no end'"), 0, b"no end"),
        (("sh", "-c", r"printf '\377\033[2J\n'"), 0, b"\xff\x1b[2J"),
    ],
    ids=["code", "signal", "line without end", "bytes"],
)
async def test_the_end_of_a_rank_is_told_with_its_code_and_last_line(
    bench: Bench, command: tuple[str, ...], returncode: int, last_line: bytes
) -> None:
    engine = bench.engine()
    await engine.launch(replace(bench.plan(), ranks=(RankPlan(command, {}, 2),)))
    events = engine.watch()
    assert await anext(events) == RankEvent(run="run", attempt=1, rank=2, state=RankState.RUNNING)
    assert await next_end(events) == RankEvent(
        run="run", attempt=1, rank=2, state=RankState.EXITED, returncode=returncode, last_line=last_line
    )


async def test_a_program_that_is_not_there_is_a_failed_rank_with_a_reason(bench: Bench) -> None:
    engine = bench.engine()
    await engine.launch(replace(bench.plan(), ranks=(RankPlan(("./missing", "x")),)))
    ended = await next_end(engine.watch())
    assert ended.returncode not in (0, None) and b"No such file" in ended.last_line


async def test_the_log_is_there_while_it_is_written_and_keeps_its_cap(bench: Bench) -> None:
    engine = bench.engine()
    plan = bench.plan("printf part; read _ < $SHARED/go; echo; seq 20000")
    (rank,) = plan.ranks
    os.mkfifo(bench.shared / "go")
    (bench.shared / "go").chmod(0o666)
    await engine.launch(
        replace(plan, log_cap_bytes=4096, ranks=(replace(rank, environment={"SHARED": str(bench.shared)}),))
    )
    await said(engine, b"part")
    await asyncio.to_thread((bench.shared / "go").write_text, "\n")
    assert (await next_end(engine.watch())).last_line == b"20000"
    text = await log_of(engine)
    assert text.startswith(b"part\n1\n2\n") and text.endswith(b"\n20000\n")
    assert text.count(b"bytes left out") == 1
    sizes = [path.stat().st_size for path in engine.rank_folder("run", 1, 0).glob("log.*")]
    assert sum(sizes) <= 4096 and len(sizes) == 8


async def test_ranks_of_an_attempt_have_one_loopback(bench: Bench) -> None:
    engine = bench.engine()
    listens = "echo found | nc -l -p 4321"
    asks = "while ! nc 127.0.0.1 4321 < /dev/null; do sleep 0.05; done"
    await engine.launch(bench.plan(listens, asks))
    assert b"found\n" in await patience.wait_for(log_of(engine, 1), 60)


async def test_limits_are_set(bench: Bench) -> None:
    engine = bench.engine(
        memory_bytes=64 * 2**20, cpus=0.5, processes_max=77, temporary_bytes=2**20, network="none"
    )
    await engine.launch(bench.plan("head -c 2000000 /dev/zero > /tmp/x || echo full; " + SLEEP))
    assert b"full\n" in await said(engine, b"up")
    (container,) = bench.containers()
    host = bench.inspect(container)["HostConfig"]
    assert isinstance(host, dict)
    wanted = {
        "Memory": 64 * 2**20, "MemorySwap": 64 * 2**20, "NanoCpus": 500_000_000, "PidsLimit": 77,
        "ReadonlyRootfs": True, "NetworkMode": "none", "Privileged": False, "ShmSize": 2**30,
    }  # fmt: skip
    assert {name: host[name] for name in wanted} == wanted
    assert "no-new-privileges" in host["SecurityOpt"]
    await engine.stop("run", 1, 0)


async def test_memory_beyond_the_limit_ends_the_rank(bench: Bench) -> None:
    engine = bench.engine(memory_bytes=16 * 2**20, temporary_bytes=2**30)
    await engine.launch(bench.plan("exec head -c 500000000 /dev/zero > /tmp/x"))
    assert (await next_end(engine.watch())).returncode == -signal.SIGKILL


# ---------------------------------------------------------------- stop


@pytest.mark.parametrize(
    ("script", "grace_seconds", "returncode"),
    [
        ("trap 'exit 7' TERM; sleep 1000 & " + UP + "wait", 600, 7),
        (SLEEP, 600, -signal.SIGTERM),
        (STUBBORN, 0.5, -signal.SIGKILL),
        ("trap '' TERM; (trap '' TERM; sleep 1000) & " + UP + "wait", 0.5, -signal.SIGKILL),
        (UP + "exec >&- 2>&-; exec sleep 1000", 600, -signal.SIGTERM),
        (STOPPED, 0.5, -signal.SIGKILL),
    ],
    ids=["polite", "plain", "ignores SIGTERM", "family", "closed output", "stopped"],
)
async def test_a_stop_ends_all_of_a_rank(
    bench: Bench, script: str, grace_seconds: float, returncode: int
) -> None:
    engine = bench.engine()
    await engine.launch(bench.plan(script))
    await said(engine, b"up")
    await patience.wait_for(engine.stop("run", 1, grace_seconds), 60)
    (container,) = bench.containers()
    assert not bench.client.state(container).is_running
    assert (await next_end(engine.watch())).returncode == returncode
    await engine.stop("run", 1, grace_seconds)  # of what has ended: nothing


async def test_a_second_stop_shortens_the_grace(bench: Bench) -> None:
    engine = bench.engine()
    await engine.launch(bench.plan(STUBBORN))
    await said(engine, b"up")
    first = asyncio.create_task(engine.stop("run", 1, 600))
    await said(engine, b"term")
    await engine.stop("run", 1, 0)
    await first
    assert (await next_end(engine.watch())).returncode == -signal.SIGKILL


# ---------------------------------------------------------------- launches


async def test_containers_say_what_they_are_and_stale_fences_are_refused(bench: Bench) -> None:
    engine = bench.engine()
    await engine.launch(replace(bench.plan(SLEEP), attempt=3))
    (found,) = bench.client.find({RUNNER: "runner-1"})
    wanted = {RUN: "run", ATTEMPT: "3", RANK: "0", FENCE: "5"}
    assert {name: found.labels[name] for name in wanted} == wanted
    with pytest.raises(EngineError, match="has not ended"):
        await engine.launch(replace(bench.plan(SLEEP), attempt=4, fence=6))
    with pytest.raises(EngineError, match="has not ended"):
        await engine.remove("run", 3)
    await engine.stop("run", 3, 0)
    with pytest.raises(EngineError, match="fence 4 of run is stale: 5 was seen"):
        await engine.launch(replace(bench.plan(SLEEP), attempt=4, fence=4))
    with pytest.raises(EngineError, match="there already"):
        await engine.launch(replace(bench.plan(SLEEP), attempt=3))
    await engine.remove("run", 3)
    assert bench.containers() == [] == list((bench.root / "runs").iterdir())
    await engine.remove("run", 3)
    with pytest.raises(EngineError, match="no attempt 3 of run"):
        await engine.stop("run", 3, 0)


async def test_a_missing_image_is_named_and_leaves_nothing(bench: Bench) -> None:
    engine = bench.engine(image="localhost/not-here:7")
    with pytest.raises(ImageMissingError, match=r"localhost/not-here:7 is not on this machine \(pull"):
        await engine.launch(bench.plan(SLEEP))
    assert bench.containers() == [] == list((bench.root / "runs").iterdir())


async def test_a_launch_that_fails_half_way_is_taken_back_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, started = ContainerClient.start, []

    def start_two(self: ContainerClient, container: str) -> None:
        if len(started) == 2:
            raise EngineError("planted")
        start(self, container)
        started.append(container)

    monkeypatch.setattr(ContainerClient, "start", start_two)
    engine = bench.engine()
    with pytest.raises(EngineError, match="not launched: planted"):
        await engine.launch(bench.plan(SLEEP, SLEEP, SLEEP))
    assert len(started) == 2 and bench.containers() == []
    monkeypatch.undo()
    with pytest.raises(EngineError, match="there already"):
        await engine.launch(bench.plan(SLEEP))
    await engine.launch(replace(bench.plan(SLEEP), attempt=2))


async def test_a_runner_leaves_the_containers_of_others_alone(bench: Bench) -> None:
    one, other = bench.engine(), bench.engine("runner-2")
    await one.launch(bench.plan(SLEEP))
    assert await other.adopt() == []
    await other.launch(bench.plan(SLEEP))
    await other.stop("run", 1, 0)
    await other.remove("run", 1)
    (container,) = bench.containers()
    assert bench.client.state(container).is_running


async def test_a_folder_has_one_engine(bench: Bench) -> None:
    bench.engine()
    with pytest.raises(EngineError, match="another runner uses"):
        bench.engine()


# ---------------------------------------------------------------- the runner is killed


class Runner(EngineRunner):
    """A process of scripts/container_engine_process.py."""

    def __init__(self, bench: Bench, *scripts: str, kill_at: int = 0) -> None:
        plan = {
            "run": "run", "attempt": 1, "fence": 5, "folder": str(bench.code),
            "commands": [["sh", "-c", script] for script in scripts],
            "image": IMAGE, "write_folder": str(bench.shared),
        }  # fmt: skip
        super().__init__(SCRIPT, str(bench.root), bench.podman.url, plan=plan, kill_at=kill_at)


def fifo(bench: Bench, name: str) -> Path:
    path = bench.shared / name
    os.mkfifo(path)
    path.chmod(0o666)
    return path


async def test_ranks_outlive_their_runner_and_are_adopted(bench: Bench) -> None:
    """None is started again, none loses its output, and how each one ends is known."""
    go = fifo(bench, "go")
    waits = f"echo before; read _ < {go}; echo after; exit 3"
    runner = Runner(bench, waits, "echo short; exit 5", SLEEP)
    await runner.launched()
    await runner.kill()
    started_at = bench.started_at()
    engine = bench.engine()
    ended = next(c for c in bench.containers() if bench.inspect(c)["Args"][-1].startswith("echo short"))  # type: ignore[index]
    bench.podman.run("wait", ended)
    (record,) = await engine.adopt()
    assert (record.run, record.attempt, record.fence, record.launched) == ("run", 1, 5, True)
    assert [rank.state for rank in record.ranks] == [RankState.RUNNING, RankState.EXITED, RankState.RUNNING]
    assert (record.ranks[1].returncode, record.ranks[1].last_line) == (5, b"short")
    assert record.ranks[1].started_at is not None and record.ranks[1].ended_at is not None
    assert record.ranks[1].started_at <= record.ranks[1].ended_at
    await asyncio.to_thread(go.write_text, "\n")
    event = await next_end(engine.watch())
    assert (event.rank, event.returncode, event.last_line) == (0, 3, b"after")
    assert await log_of(engine) == b"before\nafter\n"
    assert bench.started_at() == started_at
    assert len(await engine.adopt()) == 1, "a second time it changes nothing"
    await engine.stop("run", 1, 600)
    assert (await next_end(engine.watch())).returncode == -signal.SIGTERM


async def test_what_was_copied_of_a_log_is_not_copied_again(bench: Bench) -> None:
    go = fifo(bench, "go")
    engine = bench.engine()
    await engine.launch(bench.plan(f"seq 1000; printf half; read _ < {go}; echo way; seq 1000"))
    await said(engine, b"half")
    bench.close(engine)
    await asyncio.to_thread(go.write_text, "\n")
    engine = bench.engine()
    await engine.adopt()
    numbers = b"".join(b"%d\n" % one for one in range(1, 1001))
    assert await patience.wait_for(log_of(engine), 60) == numbers + b"halfway\n" + numbers


async def test_a_runner_that_has_lost_its_folder_finds_its_ranks_by_their_labels(bench: Bench) -> None:
    engine = bench.engine()
    await engine.launch(bench.plan(SLEEP, SLEEP))
    await said(engine, b"up")
    bench.close(engine)
    bench.root.rename(bench.folder / "lost")
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert (record.fence, record.launched) == (5, True)
    assert [rank.state for rank in record.ranks] == [RankState.RUNNING, RankState.RUNNING]
    await said(engine, b"up", 1)
    await engine.stop("run", 1, 0)


async def test_a_stop_whose_runner_was_killed_is_taken_up_by_the_next_one(bench: Bench) -> None:
    runner = Runner(bench, STUBBORN)
    await runner.launched()
    folder = bench.root / "runs" / "run" / "1" / "ranks" / "0"
    async with patience.within(60):
        text = b""
        async for chunk in follow(folder):
            text += chunk.data
            if text == b"up\n":
                runner.stop(0.5)
            if b"term" in text:
                break
    await runner.kill()
    engine = bench.engine()
    (record,) = await engine.adopt()
    assert record.ranks[0].state is RankState.RUNNING
    assert (await next_end(engine.watch())).returncode == -signal.SIGKILL


async def _kill_launch_at(bench: Bench, line: int) -> None:
    runner = Runner(bench, SLEEP, SLEEP, kill_at=line)
    await asyncio.to_thread(runner.process.communicate)
    assert runner.process.returncode == -signal.SIGKILL
    engine = bench.engine()
    records = await engine.adopt()
    states = [rank.state for record in records for rank in record.ranks]
    if any(record.launched for record in records):
        assert states == [RankState.RUNNING, RankState.RUNNING]
        assert len(bench.containers()) == 2
        await engine.stop("run", 1, 0)
    else:
        assert RankState.RUNNING not in states and bench.containers() == []
    await engine.remove("run", 1)
    await engine.launch(bench.plan(SLEEP))
    await engine.stop("run", 1, 0)


#: Before anything, before, between and after the containers are created, started and recorded.
KILLED_AT = (1, 80, 122, 127, 128, 136, 139)


@pytest.mark.parametrize("line", KILLED_AT)
async def test_a_launch_whose_runner_is_killed_is_whole_or_taken_back(bench: Bench, line: int) -> None:
    await _kill_launch_at(bench, line)


@slow
@pytest.mark.timeout(1800)
async def test_a_launch_is_whole_or_taken_back_at_each_of_its_lines(
    tmp_path: Path, podman: PodmanService
) -> None:
    (tmp_path / "whole").mkdir()
    bench = Bench(tmp_path / "whole", podman)
    runner = Runner(bench, SLEEP, SLEEP)
    lines = await runner.launched()
    await runner.kill()
    bench.clean()
    for line in range(1, lines + 1):
        (tmp_path / str(line)).mkdir()
        bench = Bench(tmp_path / str(line), podman)
        try:
            await _kill_launch_at(bench, line)
        finally:
            bench.clean()


# ---------------------------------------------------------------- the container engine is away


async def test_an_engine_that_is_away_may_come_back(bench: Bench, tmp_path: Path) -> None:
    away = ContainerEngine(
        tmp_path / "away",
        runner="runner-1",
        options=lambda _: ContainerOptions(image=IMAGE),
        url=f"unix://{tmp_path}/nobody.sock",
    )
    assert await away.adopt() == []
    with pytest.raises(EngineUnreachableError, match=r"nobody\.sock cannot be reached: No such file"):
        await away.launch(bench.plan(SLEEP))
    assert list((tmp_path / "away" / "runs").iterdir()) == []
    away.close()


async def test_ranks_whose_engine_is_away_are_neither_ended_nor_lost(bench: Bench) -> None:
    go = fifo(bench, "go")
    engine = bench.engine()
    await engine.launch(bench.plan(f"echo before; read _ < {go}; echo after; exit 3", STUBBORN))
    await said(engine, b"before")
    await said(engine, b"up", 1)
    bench.podman.end()
    try:
        await asyncio.to_thread(go.write_text, "\n")
        with pytest.raises(EngineUnreachableError):
            await engine.launch(bench.plan(SLEEP, run="other"))
        stop = asyncio.create_task(engine.stop("run", 1, 600))
        done, _ = await asyncio.wait([stop], timeout=0.5)
        assert not done, "what cannot be reached has not ended"
    finally:
        bench.podman.start()
    ended = await next_end(engine.watch())
    assert (ended.rank, ended.returncode) == (0, 3)
    assert await log_of(engine) == b"before\nafter\n"
    await said(engine, b"term", 1)
    await engine.stop("run", 1, 0)
    await stop


async def test_ranks_are_adopted_while_the_engine_is_away(bench: Bench) -> None:
    """They count as running until it answers: then their ends are known, and what was cut is gone."""
    # A podman that is started again in a mount namespace of its own does not find those of networks.
    go = fifo(bench, "go")
    engine = bench.engine(network="host", allows_host_network=True)
    await engine.launch(bench.plan(f"echo before; read _ < {go}; echo after; exit 3", STUBBORN))
    await said(engine, b"before")
    await said(engine, b"up", 1)
    await engine.launch(bench.plan(SLEEP, run="cut"))
    (engine.rank_folder("cut", 1, 0).parents[1] / LAUNCHED).unlink()
    await engine.launch(bench.plan(SLEEP, run="lost"))
    bench.close(engine)
    shutil.rmtree(bench.root / "runs" / "lost")
    started_at = bench.started_at()
    bench.podman.end()
    try:
        await asyncio.to_thread(go.write_text, "\n")
        engine = bench.engine(network="host", allows_host_network=True)
        whole, cut = sorted(await engine.adopt(), key=lambda record: record.run, reverse=True)
        assert (whole.run, whole.launched, cut.run, cut.launched) == ("run", True, "cut", False)
        assert [rank.state for rank in whole.ranks] == [RankState.RUNNING, RankState.RUNNING]
        assert whole.fence == 5 and whole.ranks[0].started_at is not None
        stop = asyncio.create_task(engine.stop("run", 1, 600))
    finally:
        bench.podman.start()
    ended = await next_end(engine.watch())
    assert (ended.run, ended.rank, ended.returncode) == ("run", 0, 3)
    assert await log_of(engine) == b"before\nafter\n"
    await said(engine, b"term", 1)
    async with patience.within(60):
        while len(bench.containers()) > 2:
            await asyncio.sleep(0.05)
    assert bench.started_at() < started_at, "none was started again, and those of no plan are removed"
    await engine.stop("run", 1, 0)
    await stop


async def test_a_container_that_somebody_removes_is_lost(bench: Bench) -> None:
    engine = bench.engine()
    await engine.launch(bench.plan(SLEEP))
    await said(engine, b"up")
    (container,) = bench.containers()
    bench.client.remove(container)
    ended = await next_end(engine.watch())
    assert (ended.state, ended.returncode, ended.last_line) == (RankState.LOST, None, b"up")
    assert (engine.rank_folder("run", 1, 0).parents[1] / LAUNCHED).exists()
    with contextlib.suppress(EngineError):
        await engine.stop("run", 1, 0)
