"""A runner's answers to each message of a master, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

import patience
from elastane_common import layout
from elastane_common.errors import RefusedError
from elastane_common.storage import Folder
from elastane_proto.v1 import training_pb2
from elastane_runner import runner
from elastane_runner.launching import LaunchSettings
from elastane_runner.process_engine import ProcessEngine
from elastane_runner.rank_logs import last_line
from elastane_runner.run_outcomes import RunOutcomes
from elastane_runner.runner import Runner, RunnerSettings
from integration.scripted_master import ScriptedMaster

State = training_pb2.RankStatus.State
WAITS = "exec sleep 1000"


class Serving:
    """A runner in this process."""

    def __init__(self, master: ScriptedMaster, folder: Path, gpus: tuple[str, ...] | None = None) -> None:
        launch = LaunchSettings(host="127.0.0.1", masters=master.address, environ=dict(os.environ), gpus=gpus)
        self._settings = RunnerSettings(
            runner_id="r1", slots=4, folder=folder, launch=launch, labels={"a": "b"}
        )
        self.start()

    def start(self) -> None:
        self.engine = ProcessEngine(self._settings.folder / "engine")
        self._outcomes = RunOutcomes(self.engine)
        self.runner = Runner(self._settings, self.engine, self._outcomes)
        self.task = asyncio.create_task(self.runner.run())

    async def end(self) -> None:
        """End as if it were killed, to its ranks and to the next one."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self._outcomes.close()
        self.engine.close()


@contextlib.asynccontextmanager
async def attended(
    tmp_path: Path, prepare_seconds: float = 120.0, gpus: tuple[str, ...] | None = None
) -> AsyncIterator[tuple[ScriptedMaster, Serving]]:
    """A welcomed runner; all ranks are gone afterwards."""
    artifact_url = (tmp_path / "artifacts").as_uri()
    async with ScriptedMaster(artifact_url, prepare_seconds=prepare_seconds) as master:
        serving = Serving(master, tmp_path / "runner", gpus)
        hello = await master.hello()
        assert (hello.runner_id, hello.kind, hello.slots, hello.labels["a"]) == ("r1", "process", 4, "b")
        assert not hello.ranks
        try:
            yield master, serving
        finally:
            await serving.runner.leave("the test is over", stops=True)
            await serving.end()


def key(fence: int = 5, run_id: int = 7, attempt: int = 1) -> training_pb2.AttemptKey:
    return training_pb2.AttemptKey(run_id=run_id, attempt=attempt, fence=fence)


def prepare(
    tmp_path: Path, *command: str, attempt: training_pb2.AttemptKey | None = None, **more: object
) -> training_pb2.RunnerPrepare:
    fields: dict[str, object] = {
        "framework": "FRAMEWORK_PYTORCH", "instances": 1, "code": {"installed": True}, **more
    }  # fmt: skip
    spec = training_pb2.RunSpec(algorithm="a", output_model_name="m", command=command, **fields)
    return training_pb2.RunnerPrepare(
        attempt=attempt or key(),
        spec=spec,
        ranks=range(spec.instances),
        artifact_url=(tmp_path / "artifacts/runs/7").as_uri(),
    )


async def launch(master: ScriptedMaster, message: training_pb2.RunnerPrepare) -> None:
    """Carry a launch through until its ranks run."""
    master.send(prepare=message)
    prepared = (await master.next("prepared")).prepared
    assert prepared.attempt == message.attempt
    master.send(start=training_pb2.RunnerStart(attempt=message.attempt, endpoints=prepared.endpoints))
    for _ in message.ranks:
        await master.rank("RUNNING")


async def test_a_launch_is_prepared_started_and_reported_with_times_and_code(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, _):
        script = r"echo port $MASTER_PORT; printf 'last \033[2J'; kill -SEGV $$"
        message = prepare(tmp_path, "sh", "-c", script)
        master.send(prepare=message)
        prepared = (await master.next("prepared")).prepared
        port = prepared.endpoints[0].port
        master.send(prepare=message)  # a repeated one gets the same answer
        assert (await master.next("prepared")).prepared == prepared
        master.send(start=training_pb2.RunnerStart(attempt=key(), endpoints=prepared.endpoints))
        await master.rank("RUNNING")
        status = await master.rank("EXITED")
        assert (status.exit_code, status.last_line) == (139, "last \N{REPLACEMENT CHARACTER}[2J")
        assert 0 < status.started.seconds <= status.ended.seconds
        master.send(start=training_pb2.RunnerStart(attempt=key(), endpoints=prepared.endpoints))
        assert await master.rank("EXITED") == status, "a repeated start starts nothing"
        master.send(forget=training_pb2.RunnerForget(attempt=key()))
        stored = Folder((tmp_path / "artifacts/runs/7").as_uri())
        async with patience.within(60):
            while any((tmp_path / "runner/launches").iterdir()):
                await asyncio.sleep(0.02)
        log = stored.read(layout.rank_log(1, 0), bytes_max=1000)
        assert log == f"port {port}\nlast \x1b[2J".encode()
        assert not list((tmp_path / "runner/engine/runs").iterdir())


async def test_a_runner_says_of_a_long_preparation_that_it_gets_on_and_only_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage gives a piece of the archive at a time, and then none for a while."""
    pieces: queue.Queue[bytes] = queue.Queue()

    class Source:
        def read(self, _: int) -> bytes:
            return pieces.get()

    monkeypatch.setattr(Folder, "size", lambda *_: 1)
    monkeypatch.setattr(Folder, "reading", lambda *_: contextlib.nullcontext(Source()))
    monkeypatch.setattr(runner, "PREPARE_SECONDS_DEFAULT", 3600.0)  # the master's counts
    async with attended(tmp_path, prepare_seconds=0.4) as (master, _):
        message = prepare(tmp_path, "true", code={"archive_sha256": "ab" * 32})
        master.send(prepare=message)
        try:
            for size in (1, 2):
                pieces.put(bytes(1 << 20))
                status = await master.rank("PENDING")
                assert status.reason == f"downloads the code: {size} MiB are there"
            await asyncio.sleep(0.5)  # for as long as a master would wait
        finally:  # whose thread would wait for ever
            pieces.put(b"")
        failed = (await master.next("launch_failed")).launch_failed
        assert "another sha256" in failed.reason and failed.permanent


async def test_runs_side_by_side_have_gpus_of_their_own_also_after_the_runner_was_restarted(
    tmp_path: Path,
) -> None:
    async with attended(tmp_path, gpus=("3", "5", "6", "7")) as (master, serving):

        async def begin(run_id: int, instances: int = 1, **more: object) -> None:
            script = "echo gpus $CUDA_VISIBLE_DEVICES; exec sleep 1000"
            more["instances"] = instances
            await launch(master, prepare(tmp_path, "sh", "-c", script, attempt=key(5, run_id), **more))

        async def end(run_id: int) -> set[str]:
            """Stop a run; return what its ranks saw."""
            ranks = serving.engine.rank_folder(f"run-{run_id}-1-5", 1, 0).parent
            async with patience.within(60):
                while not all(last_line(rank) for rank in ranks.iterdir()):
                    await asyncio.sleep(0.02)
            master.send(stop=training_pb2.RunnerStop(attempt=key(5, run_id)))
            found = set()
            while (message := await master.next_of("rank_changed", "stopped")).HasField("rank_changed"):
                found.add(message.rank_changed.report.status.last_line)
            return found

        await begin(1)
        await begin(2, instances=2)
        await serving.end()
        serving.start()
        await master.hello()
        await begin(3)
        assert await end(2) == {"gpus 5,6"}, "LOCAL_RANK numbers the GPUs of both"
        await begin(4, parameters={"CUDA_VISIBLE_DEVICES": "9"})
        await begin(5)
        assert [await end(one) for one in (1, 3, 4, 5)] == [{"gpus 3"}, {"gpus 7"}, {"gpus 9"}, {"gpus 6"}]


async def test_what_bears_an_older_fence_is_refused(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, serving):
        await launch(master, prepare(tmp_path, "sh", "-c", WAITS, attempt=key(5)))
        master.send(prepare=prepare(tmp_path, "sh", "-c", WAITS, attempt=key(4)))
        failed = (await master.next("launch_failed")).launch_failed
        assert failed.attempt == key(4) and "5 was seen" in failed.reason and not failed.permanent
        master.send(start=training_pb2.RunnerStart(attempt=key(4)))
        assert (await master.next("launch_failed")).launch_failed.attempt == key(4)
        master.send(stop=training_pb2.RunnerStop(attempt=key(4)))
        assert (await master.next("stopped")).stopped.attempt == key(4)  # of what is not known
        assert [one.fence for one in serving.runner._launches] == [5]


async def test_a_newer_launch_of_a_run_ends_the_one_before(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, _):
        await launch(master, prepare(tmp_path, "sh", "-c", WAITS, attempt=key(5)))
        master.send(prepare=prepare(tmp_path, "sh", "-c", WAITS, attempt=key(6)))
        assert (await master.rank("EXITED")).exit_code == 143
        assert (await master.next("prepared")).prepared.attempt == key(6)


async def test_a_stop_ends_ranks_in_whatever_stage_they_are(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, _):
        master.send(prepare=prepare(tmp_path, "sh", "-c", WAITS))
        await master.next("prepared")
        master.send(stop=training_pb2.RunnerStop(attempt=key()))
        assert (await master.rank("EXITED")).exit_code == 143
        assert (await master.next("stopped")).stopped.attempt == key()
        await launch(master, prepare(tmp_path, "sh", "-c", WAITS, attempt=key(6)))
        master.send(stop=training_pb2.RunnerStop(attempt=key(6), grace={"seconds": 60}))
        assert (await master.rank("EXITED")).exit_code == 143
        assert (await master.next("stopped")).stopped.attempt == key(6)
        master.send(prepare=prepare(tmp_path, "sh", "-c", WAITS, attempt=key(6)))  # too late: it was stopped
        master.send(stop=training_pb2.RunnerStop(attempt=key(6)))
        assert (await master.next("stopped")).stopped.attempt == key(6)


async def test_elastic_ranks_come_and_go_one_by_one(tmp_path: Path) -> None:
    """Their agents find no job, which does not matter here: ranks are prepared, stopped and tried anew."""
    async with attended(tmp_path) as (master, _):
        (script := tmp_path / "train.py").touch()  # without it an agent ends before it is reported to run
        message = prepare(tmp_path, str(script), framework="FRAMEWORK_ELASTANE", instances=2)
        message.job = "run-7-1"
        await launch(master, message)
        master.send(stop=training_pb2.RunnerStop(attempt=key(), rank=1))
        assert (await master.rank("EXITED")).rank == 1
        for rank in (1, 0xFF):  # of what has ended, and of what never was: the master may hold slots for it
            master.send(stop=training_pb2.RunnerStop(attempt=key(), rank=rank))
            assert (await master.rank("EXITED")).rank == rank
        again = training_pb2.RunnerPrepare()
        again.CopyFrom(message)
        again.ranks[:] = [1]
        await launch(master, again)
        master.send(stop=training_pb2.RunnerStop(attempt=key()))
        assert {(await master.rank("EXITED")).rank for _ in range(2)} == {0, 1}
        assert (await master.next("stopped")).stopped.attempt == key()


async def test_the_next_runner_lists_what_runs_and_what_has_ended(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, serving):
        await launch(master, prepare(tmp_path, "sh", "-c", f"test $RANK = 0 && exit 3; {WAITS}", instances=2))
        assert (await master.rank("EXITED")).exit_code == 3
        await serving.end()
        serving.start()
        hello = await master.hello()
        found = {one.status.rank: one.status for one in hello.ranks}
        assert [one.attempt for one in hello.ranks] == [key()] * 2
        assert (found[0].state, found[0].exit_code) == (State.STATE_EXITED, 3)
        assert found[1].state == State.STATE_RUNNING and found[1].started.seconds > 0


async def test_ranks_go_on_without_a_master_and_the_next_hello_has_their_end(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, _):
        go = tmp_path / "go"
        await launch(
            master, prepare(tmp_path, "sh", "-c", f"until test -e {go}; do sleep 0.02; done; exit 9")
        )
        await master.stop()
        go.touch()
        await master.start()
        hello = await master.hello()
        if hello.ranks[0].status.state == State.STATE_RUNNING:
            assert (await master.rank("EXITED")).exit_code == 9
        else:
            assert hello.ranks[0].status.exit_code == 9


async def test_a_reader_that_takes_nothing_is_sent_64_kib_and_slows_nobody(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, _):
        await launch(master, prepare(tmp_path, "sh", "-c", f"head -c 300000 /dev/zero; {WAITS}"))
        # One that takes everything: then all of it is written.
        master.send(read_log=training_pb2.RunnerReadLog(reader=9, attempt=key(), follow=True))
        written = 0
        while written < 300_000:
            written += len((await master.next("log_chunk")).log_chunk.chunk.data)
            master.send(read_log=training_pb2.RunnerReadLog(reader=9, taken_bytes=written))
        master.send(read_log=training_pb2.RunnerReadLog(reader=9, end=True))
        read = training_pb2.RunnerReadLog(reader=1, attempt=key(), follow=True)
        master.send(read_log=read)
        sizes = [len((await master.next("log_chunk")).log_chunk.chunk.data) for _ in range(2)]
        assert sum(sizes) == 64 * 1024
        master.send(read_log=training_pb2.RunnerReadLog(reader=2, attempt=key(), offset=-5))
        chunk = (await master.next("log_chunk")).log_chunk  # nothing more came for the first one
        assert (chunk.reader, chunk.chunk.data, chunk.chunk.offset) == (2, b"\0" * 5, 299_995)
        assert (await master.next("log_chunk")).log_chunk.end
        master.send(read_log=training_pb2.RunnerReadLog(reader=1, taken_bytes=32 * 1024))
        chunk = (await master.next("log_chunk")).log_chunk
        assert (chunk.reader, chunk.chunk.offset, len(chunk.chunk.data)) == (1, 64 * 1024, 32 * 1024)
        master.send(read_log=training_pb2.RunnerReadLog(reader=1, end=True))
        master.send(read_log=training_pb2.RunnerReadLog(reader=3, attempt=key(fence=1)))
        chunk = (await master.next("log_chunk")).log_chunk
        assert chunk.reader == 3 and chunk.end and "no such rank" in chunk.error


async def test_whoever_follows_a_rank_that_never_starts_is_told_the_end(tmp_path: Path) -> None:
    async with attended(tmp_path) as (master, _):
        master.send(prepare=prepare(tmp_path, "sh", "-c", WAITS))
        await master.next("prepared")
        master.send(read_log=training_pb2.RunnerReadLog(reader=1, attempt=key(), follow=True))
        master.send(stop=training_pb2.RunnerStop(attempt=key()))
        await master.rank("EXITED")
        await master.next("stopped")
        chunk = (await master.next("log_chunk")).log_chunk
        assert (chunk.reader, chunk.end, chunk.error) == (1, True, "")


@pytest.mark.parametrize(
    ("fields", "words", "permanent"),
    [
        ({"code": {"archive_sha256": "0" * 64}}, "there is no archive", True),
        ({"command": []}, "no command", True),
        ({"secrets": [{"variable": "A", "file": "../a"}]}, "no folder of secrets", False),
        ({"code": {"git": {"url": "/nowhere", "commit": "a" * 40}}}, "git fetch failed", False),
    ],
)
async def test_a_launch_that_cannot_be_made_says_whether_it_would_fail_again(
    tmp_path: Path, fields: dict[str, object], words: str, permanent: bool
) -> None:
    async with attended(tmp_path) as (master, _):
        message = prepare(tmp_path, "true")
        for name in fields:
            message.spec.ClearField(name)
        message.spec.MergeFrom(training_pb2.RunSpec(**fields))
        master.send(prepare=message)
        failed = (await master.next("launch_failed")).launch_failed
        assert words in failed.reason and failed.permanent is permanent


async def test_a_permanent_refusal_ends_the_runner_with_its_reason(tmp_path: Path) -> None:
    async with ScriptedMaster("", grpc.StatusCode.PERMISSION_DENIED) as master:
        serving = Serving(master, tmp_path / "runner")
        async with patience.within(60):
            with pytest.raises(RefusedError, match="not you"):
                await serving.task
        await serving.end()
