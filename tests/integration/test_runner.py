"""`elastane runner` with a real master: runs from submission to their end, while runner or master dies."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
import sys
from pathlib import Path

import grpc

import patience
from elastane_common import layout
from elastane_common.artifacts import read_record, verify
from elastane_common.run_record import RunRecord
from elastane_common.storage import Folder
from elastane_proto.v1 import training_pb2
from integration.master_support import master_process, serving_master
from integration.runner_support import RunnerProcess, Service, running_runner, send_code, shims
from slow import slow

PRINTS = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['LR'])"


async def test_a_run_goes_from_submission_to_its_end_and_its_logs_are_stored(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner", "--slots", "2"),
    ):
        service = Service(channel)
        run_id = await service.train(sys.executable, "-c", PRINTS, instances=2, parameters={"LR": "0.1"})
        run = await service.until(run_id, "SUCCEEDED")
        assert [(rank.exit_code, rank.last_line) for rank in run.ranks] == [
            (0, "rank 0 of 2 0.1"),
            (0, "rank 1 of 2 0.1"),
        ]
        assert await service.log(run_id, 1) == b"rank 1 of 2 0.1\n"
        record = await record_of(run.artifact_url)
        assert (record.state, record.attempts, record.parameters) == ("succeeded", 1, {"LR": "0.1"})
        assert record.ended_at is not None and record.cost.slot_seconds > 0
        digest = hashlib.sha256(b"rank 1 of 2 0.1\n").hexdigest()
        assert [(one.path, one.sha256) for one in record.artifacts][1:] == [("attempts/1/rank-1.log", digest)]


async def record_of(run_url: str) -> RunRecord:
    """The record of a run, once its runner has written it."""
    async with patience.within(60):
        while (record := read_record(run_url)) is None:
            await asyncio.sleep(0.05)
    return record


async def line_of(path: Path) -> str:
    """The first line of a file, once a rank has written it."""
    async with patience.within(60):
        while not (path.exists() and (text := path.read_text()).endswith("\n")):
            await asyncio.sleep(0.02)
    return text.splitlines()[0]


def lasting(folder: Path) -> tuple[str, ...]:
    """A rank that says each of its starts in FOLDER/starts, and ends once FOLDER/go is there."""
    return (
        "sh",
        "-c",
        f"echo $$ >> {folder}/starts; until test -e {folder}/go; do sleep 0.05; done; echo over",
    )


async def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    stubborn = f"trap '' TERM; echo up > {tmp_path}/up; while :; do sleep 1000; done"
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner"),
    ):
        service = Service(channel)
        run_id = await service.train("sh", "-c", stubborn, grace={"nanos": 300_000_000})
        await service.until(run_id, "RUNNING")
        assert await line_of(tmp_path / "up") == "up"
        await service.cancel(run_id)
        run = await service.until(run_id, "CANCELLED")
        assert run.ranks[0].exit_code == 128 + signal.SIGKILL
        assert not shims(tmp_path / "runner")


async def test_a_killed_runner_is_followed_by_one_that_adopts_its_ranks(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner") as runner,
    ):
        service = Service(channel)
        run_id = await service.train(*lasting(tmp_path))
        await service.until(run_id, "RUNNING")
        pid = await line_of(tmp_path / "starts")
        await runner.kill()
        assert Path(f"/proc/{pid}").exists()
        (tmp_path / "go").touch()  # it ends while no runner is there, or after
        runner.start()
        run = await service.until(run_id, "SUCCEEDED")
        assert run.attempt == 1 and (tmp_path / "starts").read_text() == f"{pid}\n"
        assert await service.log(run_id) == b"over\n"


async def test_a_runner_that_is_asked_to_end_leaves_its_ranks_to_the_next_one(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner") as runner,
    ):
        service = Service(channel)
        run_id = await service.train(*lasting(tmp_path))
        await service.until(run_id, "RUNNING")
        pid = await line_of(tmp_path / "starts")
        assert await runner.end() == 0
        assert Path(f"/proc/{pid}").exists()
        runner.start()
        (tmp_path / "go").touch()
        assert (await service.until(run_id, "SUCCEEDED")).attempt == 1


async def test_on_stop_stop_ends_the_ranks_first_and_the_run_waits_for_the_next_runner(
    tmp_path: Path,
) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner", "--on-stop", "stop") as runner,
    ):
        service = Service(channel)
        run_id = await service.train(*lasting(tmp_path))
        await service.until(run_id, "RUNNING")
        pid = await line_of(tmp_path / "starts")
        assert await runner.end() == 0
        assert not Path(f"/proc/{pid}").exists() and not shims(tmp_path / "runner")
        await service.until(run_id, "SUSPENDED")
        runner.start()
        (tmp_path / "go").touch()
        run = await service.until(run_id, "SUCCEEDED")
        assert run.attempt == 1 and len((tmp_path / "starts").read_text().split()) == 2


async def test_ranks_go_on_while_the_master_is_killed_and_started_again(tmp_path: Path) -> None:
    async with master_process(tmp_path / "master") as master, running_runner(master.address, tmp_path / "r"):
        async with grpc.aio.insecure_channel(master.address) as channel:
            run_id = await Service(channel).train(*lasting(tmp_path))
            await Service(channel).until(run_id, "RUNNING")
            pid = await line_of(tmp_path / "starts")
        await master.kill()
        assert Path(f"/proc/{pid}").exists()
        (tmp_path / "go").touch()
        await master.start()
        async with grpc.aio.insecure_channel(master.address) as channel:
            run = await Service(channel).until(run_id, "SUCCEEDED")
        assert run.attempt == 1 and (tmp_path / "starts").read_text() == f"{pid}\n"


async def test_code_comes_by_its_digest_secrets_from_files_and_neither_is_seen(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(
        "import os, sys; print(os.listdir('.'), os.environ['KEY'][::-1], sys.argv[1:])"
    )
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("hidden\n")
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner", "--secrets", str(secrets)) as runner,
    ):
        service = Service(channel)
        digest = send_code(tmp_path / "project", await service.artifact_url())
        fields = {"code": {"archive_sha256": digest}, "secrets": [{"variable": "KEY", "file": "key"}]}
        run_id = await service.train("python", "train.py", "--x", **fields)
        await service.until(run_id, "SUCCEEDED")
        assert await service.log(run_id) == b"['train.py'] neddih ['--x']\n"
        kept = [
            path for path in runner.folder.rglob("*") if path.is_file() and b"hidden" in path.read_bytes()
        ]
        assert not kept and "hidden" not in runner.log_path.read_text()


async def test_a_launch_that_would_fail_anywhere_fails_the_run_at_once(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner"),
    ):
        service = Service(channel)
        spoiled = layout.code_archive("0" * 64)
        Folder(await service.artifact_url()).write(spoiled, [b"another content"])
        run_id = await service.train("true", code={"archive_sha256": "0" * 64})
        run = await service.until(run_id, "FAILED")
        assert "could not launch it" in run.reason and run.attempt == 1
        assert (await record_of(run.artifact_url)).state == "failed"


async def test_a_log_is_followed_while_it_is_written(tmp_path: Path) -> None:
    script = f"echo first; until test -e {tmp_path}/go; do sleep 0.05; done; echo last"
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner"),
    ):
        service = Service(channel)
        run_id = await service.train("sh", "-c", script)
        await service.until(run_id, "RUNNING")
        request = training_pb2.TrainingServiceStreamLogsRequest(run_id=run_id, follow=True)
        stream = service.stub.StreamLogs(request)
        async with patience.within(60):
            assert (await stream.read()).data == b"first\n"
            (tmp_path / "go").touch()
            assert (await stream.read()).data == b"last\n"
            assert await stream.read() is grpc.aio.EOF


@slow
async def test_an_elastic_run_trains_on_two_slots_and_its_model_is_there(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(Path(__file__).parent / "scripts" / "saves_model.py", project)
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner", "--slots", "2"),
    ):
        service = Service(channel)
        digest = send_code(project, await service.artifact_url())
        run_id = await service.train(
            "saves_model.py", ".", "after",
            framework="FRAMEWORK_ELASTANE", instances=2, code={"archive_sha256": digest},
        )  # fmt: skip
        run = await service.until(run_id, "SUCCEEDED", 200)
        assert run.job == f"run-{run_id}-1"
        assert [entry.path for entry in verify(layout.model_url(run.artifact_url)).files] == ["weights.pt"]
        record = await record_of(run.artifact_url)
        assert (record.logical_workers, record.code.archive_sha256) == (2, digest)
        assert record.settings["ests"] == 2 and "torch" in record.versions and record.environment
        assert record.model_url.startswith(f"{run.artifact_url}/model/")
        assert record.weights_sha256 == verify(layout.model_url(run.artifact_url)).content_hash
        assert b"the model is saved" in await service.log(run_id, 0) + await service.log(run_id, 1)


async def test_a_second_runner_on_one_folder_is_refused(tmp_path: Path) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, _),
        running_runner(master.address, tmp_path / "runner"),
    ):
        async with patience.within(60):
            while not (tmp_path / "runner" / "engine" / "lock").exists():
                await asyncio.sleep(0.02)
        second = RunnerProcess(master.address, tmp_path / "runner")
        second.log_path = tmp_path / "second.log"
        second.start()
        assert await second.ended() == 3
        assert "another runner uses" in second.log_path.read_text()


async def test_a_second_runner_of_the_same_name_is_refused_and_the_first_ones_ranks_go_on(
    tmp_path: Path,
) -> None:
    async with (
        serving_master(tmp_path / "master") as (master, channel),
        running_runner(master.address, tmp_path / "runner"),
    ):
        service = Service(channel)
        run_id = await service.train(*lasting(tmp_path))
        await service.until(run_id, "RUNNING")
        second = RunnerProcess(master.address, tmp_path / "second")
        second.start()
        assert await second.ended() == 3
        assert "another runner attends as r1" in second.log_path.read_text()
        (tmp_path / "go").touch()
        run = await service.until(run_id, "SUCCEEDED")
        assert run.attempt == 1 and len((tmp_path / "starts").read_text().split()) == 1
