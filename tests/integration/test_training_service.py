"""The training service of a real master: runs, a scripted runner, restarts, the chapter's own API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

import patience
from elastane_common import layout
from elastane_common.artifacts import read_record
from elastane_common.storage import Folder
from elastane_master.app import Master
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.spec import CodeRef, RunSpec
from elastane_master.runs import run_server
from elastane_master.security.tokens import Principal, Quotas
from elastane_master.servers import callers
from elastane_master.servers.run_submission import submit
from elastane_master.store.errors import Damage, JobDamaged
from elastane_master.store.keys import RUNS, RUNS_STORED_KEY, JobKeys
from elastane_master.store.log import JobLog
from elastane_proto.training import training_service_pb2 as chapter_pb2
from elastane_proto.training import training_service_pb2_grpc as chapter_grpc
from elastane_proto.v1 import job_pb2, job_pb2_grpc, training_pb2, training_pb2_grpc
from integration.master_support import private_store, reason_of, serving_master
from integration.scripted_runner import ScriptedRunner

STATES = training_pb2.RunState
RUNNING = training_pb2.RankStatus.STATE_RUNNING
REQUIRED = {"algorithm": "digits", "output_model_name": "m"}


def spec(**fields: object) -> training_pb2.RunSpec:
    return training_pb2.RunSpec(**{**REQUIRED, "framework": "FRAMEWORK_PYTORCH", **fields})


def stub(channel: grpc.aio.Channel) -> training_pb2_grpc.TrainingServiceStub:
    return training_pb2_grpc.TrainingServiceStub(channel)


async def train(channel: grpc.aio.Channel, request_id: str = "", **fields: object) -> training_pb2.Run:
    request = training_pb2.TrainingServiceTrainRequest(spec=spec(**fields), request_id=request_id)
    return (await stub(channel).Train(request)).run


async def get(channel: grpc.aio.Channel, run_id: int) -> training_pb2.Run:
    return (await stub(channel).Get(training_pb2.TrainingServiceGetRequest(run_id=run_id))).run


async def until(channel: grpc.aio.Channel, run_id: int, state: str) -> training_pb2.Run:
    """The run once it is in the state; by a watch, which must not end before."""
    wanted = STATES.Value(f"RUN_STATE_{state}")
    async with patience.within(30):
        watch = stub(channel).Watch(training_pb2.TrainingServiceWatchRequest(run_id=run_id))
        async for response in watch:
            if response.run.state == wanted:
                watch.cancel()
                return response.run
    raise AssertionError(f"the watch of run {run_id} ended before {state}: {response.run}")


async def created(channel: grpc.aio.Channel, job: str) -> job_pb2.Job:
    """The job, once the service has created it."""
    async with patience.within(30):
        while True:
            try:
                return (
                    await job_pb2_grpc.JobServiceStub(channel).Get(job_pb2.JobServiceGetRequest(name=job))
                ).job
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.NOT_FOUND
                await asyncio.sleep(0.02)


@asynccontextmanager
async def service(
    folder: Path, slots: int = 4
) -> AsyncIterator[tuple[Master, grpc.aio.Channel, ScriptedRunner]]:
    async with (
        serving_master(folder, dataset_root=(folder / "datasets").as_uri()) as (master, channel),
        ScriptedRunner(channel, slots=slots) as runner,
    ):
        yield master, channel, runner


async def test_a_run_goes_from_the_queue_to_its_end_with_each_rank_seen(tmp_path: Path) -> None:
    async with service(tmp_path) as (_, channel, runner):
        run = await train(channel, instances=2, parameters={"LR": "0.1"})
        assert run.run_id == 1 and run.spec.owner == "anybody" and run.artifact_url.endswith("/runs/1")
        prepare = await runner.launch()
        assert list(prepare.ranks) == [0, 1] and dict(prepare.spec.parameters) == {"LR": "0.1"}
        assert prepare.spec.instances == 2 and prepare.artifact_url == run.artifact_url
        running = await until(channel, 1, "RUNNING")
        assert [rank.runner_id for rank in running.ranks] == ["runner-1"] * 2
        runner.report(prepare.attempt, 1, "EXITED", last_line="bye\x1b[2J")
        runner.report(prepare.attempt, 0, "EXITED", last_line="loss 0.1")
        ended = await until(channel, 1, "SUCCEEDED")
        assert [rank.exit_code for rank in ended.ranks] == [0, 0]
        assert "\x1b" not in ended.ranks[1].last_line and ended.ranks[0].last_line == "loss 0.1"
        assert [STATES.Name(one.state) for one in ended.history][-1] == "RUN_STATE_SUCCEEDED"


async def test_an_idle_runner_that_falls_silent_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_server, "SILENT_SECONDS", 0.5)
    async with serving_master(tmp_path) as (_, channel), ScriptedRunner(channel) as runner:
        for _ in range(10):
            runner.send(heartbeat=training_pb2.RunnerHeartbeat())
            await asyncio.sleep(0.1)
        assert runner.received.empty()
        with pytest.raises(grpc.aio.AioRpcError, match=r"nothing was heard of it for 0\.5 s"):
            await runner.next("prepare")


async def test_roles_of_tensorflow_reach_the_runner_and_its_servers_are_stopped(tmp_path: Path) -> None:
    async with service(tmp_path) as (_, channel, runner):
        roles = {"framework": "FRAMEWORK_TENSORFLOW", "chief": True, "parameter_servers": 1}
        run = await train(channel, instances=2, **roles)
        assert run.spec.chief and run.spec.parameter_servers == 1
        prepare = await runner.launch()
        assert prepare.spec.chief and prepare.spec.parameter_servers == 1
        await until(channel, run.run_id, "RUNNING")
        runner.report(prepare.attempt, 0, "EXITED")
        assert (await runner.next("stop")).stop.attempt == prepare.attempt
        runner.stopped(prepare.attempt)
        await until(channel, run.run_id, "SUCCEEDED")


async def test_what_was_accepted_is_there_after_the_master_is_killed_and_its_ranks_go_on(
    tmp_path: Path,
) -> None:
    async with service(tmp_path) as (_, channel, runner):
        first = await train(channel, "once")
        prepare = await runner.launch()
        await until(channel, first.run_id, "RUNNING")
        await train(channel, instances=100)
    async with serving_master(tmp_path) as (_, channel):
        assert (await get(channel, 1)).state == STATES.RUN_STATE_RUNNING
        waiting = await get(channel, 2)
        assert waiting.state == STATES.RUN_STATE_QUEUED and waiting.position == 1
        assert (await train(channel, "once")).run_id == 1
        back = ScriptedRunner(channel)
        status = training_pb2.RankStatus(rank=0, state=training_pb2.RankStatus.STATE_RUNNING)
        back.hello.ranks.add(attempt=prepare.attempt, status=status)
        async with back:
            back.report(prepare.attempt, 0, "EXITED")
            assert (await until(channel, 1, "SUCCEEDED")).attempt == 1


async def test_an_elastic_job_has_the_settings_that_are_given_and_defaults_for_the_others(
    tmp_path: Path,
) -> None:
    async with service(tmp_path) as (_, channel, runner):
        settings = {"seed": 3, "audit_samples": True}
        run = await train(channel, framework="FRAMEWORK_ELASTANE", instances=2, job=settings)
        assert (await runner.next("prepare")).prepare.spec.job.seed == 3
        assert run.spec.job.determinism == job_pb2.DETERMINISM_LEVEL_D1
        given = (await created(channel, "run-1-1")).settings
        assert (given.ests, given.seed, given.torch_threads, given.audit_samples) == (2, 3, 1, True)
        assert given.determinism == job_pb2.DETERMINISM_LEVEL_D1 and given.heartbeat_timeout.seconds == 3
        with pytest.raises(grpc.aio.AioRpcError, match=r"spec\.job\.determinism"):
            await train(channel, framework="FRAMEWORK_ELASTANE", job={"determinism": 77})


async def test_a_cancel_stops_all_ranks_and_is_kept_while_no_runner_is_there(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (_, channel):
        async with ScriptedRunner(channel) as runner:
            run = await train(channel)
            prepare = await runner.launch()
            await until(channel, run.run_id, "RUNNING")
        request = training_pb2.TrainingServiceCancelRequest(run_id=run.run_id, request_id="c")
        assert (await stub(channel).Cancel(request)).run.cancelling
        back = ScriptedRunner(channel)
        status = training_pb2.RankStatus(rank=0, state=training_pb2.RankStatus.STATE_RUNNING)
        back.hello.ranks.add(attempt=prepare.attempt, status=status)
        async with back:
            stop = (await back.next("stop")).stop
            assert stop.attempt == prepare.attempt and stop.grace.seconds == 30
            back.stopped(prepare.attempt)
            await until(channel, run.run_id, "CANCELLED")
        assert (await stub(channel).Cancel(request)).run.state == STATES.RUN_STATE_CANCELLED


async def test_a_run_that_is_cancelled_while_it_waits_has_a_record(tmp_path: Path) -> None:
    async with service(tmp_path, slots=0) as (_, channel, _):
        run = await train(channel, parameters={"LR": "0.1"}, labels={"team": "a"})
        await stub(channel).Cancel(training_pb2.TrainingServiceCancelRequest(run_id=run.run_id))
        async with patience.within(30):
            while (record := read_record(run.artifact_url)) is None:
                await asyncio.sleep(0.02)
        assert (record.state, record.reason) == ("cancelled", "cancelled by anybody")
        assert record.parameters == {"LR": "0.1"} and record.spec["labels"] == {"team": "a"}
        assert record.ended_at is not None and record.started_at is None


async def test_the_same_key_gives_the_same_run_and_another_spec_is_refused_by_field(tmp_path: Path) -> None:
    async with service(tmp_path, slots=0) as (_, channel, _):

        async def ask(**fields: object) -> training_pb2.TrainingServiceTrainResponse:
            request = training_pb2.TrainingServiceTrainRequest(spec=spec(**fields), client_key="k")
            return await stub(channel).Train(request)

        both = await asyncio.gather(ask(priority=1), ask(priority=1))
        assert {one.run.run_id for one in both} == {1} and sorted(one.created for one in both) == [
            False,
            True,
        ]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(priority=2)
        code, reason, *_ = reason_of(refused.value)
        assert (code, reason) == (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS")
        assert "priority" in str(refused.value.details())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"output_model_name": ""}, "output_model_name"),
        ({"algorithm": "nobody-has-it"}, "algorithm"),
        ({"instances": 1_000_000}, "instances"),
        ({"parameters": {"PARALLEL_INSTANCES": "3.0"}}, "parameters"),
        ({"parameters": {"PARALLEL_INSTANCES": "-1"}}, "parameters"),
        ({"parameters": {"RANK": "1"}}, "parameters"),
        ({"parameters": {"lower": "1"}}, "parameters"),
        ({"parameters": {"A=B": "1"}}, "parameters"),
        ({"parameters": {"A": "x" * 2**20}}, "parameters"),
        ({"dataset": {"id": "../etc", "version_hash": "h"}}, "dataset"),
        ({"framework": 77}, "framework"),
    ],
)
async def test_bad_input_is_refused_and_makes_no_run(
    tmp_path: Path, fields: dict[str, object], field: str
) -> None:
    async with service(tmp_path) as (_, channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await train(channel, **fields)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert field in str(refused.value.details())
        listed = await stub(channel).List(training_pb2.TrainingServiceListRequest())
        assert not listed.runs


async def test_logs_come_from_the_runner_and_a_slow_reader_is_sent_no_more_than_it_takes(
    tmp_path: Path,
) -> None:
    async with service(tmp_path) as (_, channel, runner):
        run = await train(channel)
        prepare = await runner.launch()
        await until(channel, run.run_id, "RUNNING")
        request = training_pb2.TrainingServiceStreamLogsRequest(run_id=run.run_id, follow=True)
        stream = stub(channel).StreamLogs(request)
        read = (await runner.next("read_log")).read_log
        assert read.attempt == prepare.attempt and read.follow

        def chunk(offset: int, data: bytes, **more: object) -> None:
            sent = training_pb2.TrainingServiceStreamLogsResponse(offset=offset, data=data)
            message = training_pb2.RunnerLogChunk(reader=read.reader, chunk=sent, **more)
            runner.send(log_chunk=message)

        chunk(0, b"hello\n")
        assert (await stream.read()).data == b"hello\n"
        assert (await runner.next("read_log")).read_log.taken_bytes == 6
        chunk(6, b"\xff\x1b", end=True)
        assert (await stream.read()).data == b"\xff\x1b"
        assert await stream.read() is grpc.aio.EOF


async def test_a_code_archive_is_there_when_its_run_is_submitted(tmp_path: Path) -> None:
    digest = "a" * 64
    code = training_pb2.CodeRef(archive_sha256=digest)
    async with serving_master(tmp_path, artifact_url=str(tmp_path / "artifacts")) as (master, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await train(channel, algorithm="", command=["a"], code=code)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "there is no code archive" in (refused.value.details() or "")
        Folder(str(tmp_path / "artifacts")).write(layout.code_archive(digest), [b"zip"])
        run = await train(channel, algorithm="", command=["a"], code=code)
        for _ in range(3):
            await master.runs.sweep_archives(master.runs.server)
        assert Folder(str(tmp_path / "artifacts")).size(layout.code_archive(digest))
        await stub(channel).Cancel(training_pb2.TrainingServiceCancelRequest(run_id=run.run_id))
        await stub(channel).Delete(training_pb2.TrainingServiceDeleteRequest(run_id=run.run_id))
        for _ in range(2):
            await master.runs.sweep_archives(master.runs.server)
        assert Folder(str(tmp_path / "artifacts")).size(layout.code_archive(digest)) is None


async def test_a_master_whose_runs_another_one_has_removes_no_code_archive(tmp_path: Path) -> None:
    name = layout.code_archive("a" * 64)
    async with serving_master(tmp_path, artifact_url=str(tmp_path / "artifacts")) as (master, _):
        Folder(str(tmp_path / "artifacts")).write(name, [b"zip"])
        server = master.runs.server
        await master.runs.sweep_archives(server)
        await JobLog.open(master.jobs.store.redis, RUNS, master.settings.log_options())
        await master.runs.sweep_archives(server)  # without the other one it would be removed now
        assert Folder(str(tmp_path / "artifacts")).size(name)
    async with private_store(tmp_path):
        pass  # a master that another one overtook leaves the store to that


async def test_nothing_is_looked_after_for_runs_that_are_held(tmp_path: Path) -> None:
    async with serving_master(tmp_path) as (master, _):
        tasks = [task for task in master.runs._tasks if task.get_name() != "artifact URL"]
        damage = Damage(JobKeys.of(RUNS).history, 1, "an entry is gone")
        master.runs.server_failed(master.runs.server, JobDamaged(RUNS, [damage]))
        async with patience.within(10):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert len(tasks) == 3 and all(task.cancelled() for task in tasks)


async def test_stored_logs_and_artifacts_are_read_from_the_artifact_url(tmp_path: Path) -> None:
    async with service(tmp_path) as (_, channel, runner):
        run = await train(channel)
        prepare = await runner.launch()
        runner.report(prepare.attempt, 0, "EXITED")
        await until(channel, run.run_id, "SUCCEEDED")
        assert (await runner.next("forget")).forget.attempt == prepare.attempt
        log = bytes(range(256)) * 1000
        request = training_pb2.TrainingServiceStreamLogsRequest(run_id=run.run_id)
        for rank, follow in ((0, False), (1, True)):  # it is not stored yet, and there is no rank 1
            unknown = training_pb2.TrainingServiceStreamLogsRequest(
                run_id=run.run_id, rank=rank, follow=follow
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub(channel).StreamLogs(unknown).read()
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        follower = stub(channel).StreamLogs(
            training_pb2.TrainingServiceStreamLogsRequest(run_id=run.run_id, follow=True)
        )
        following = asyncio.ensure_future(follower.read())
        await asyncio.wait([following], timeout=0.5)
        assert not following.done(), "it waits until the log is stored"
        Folder(run.artifact_url).write(layout.rank_log(1, 0), [log])
        async with patience.within(30):
            assert log.startswith((await following).data)
        follower.cancel()
        chunks = [chunk async for chunk in stub(channel).StreamLogs(request)]
        assert b"".join(chunk.data for chunk in chunks) == log
        assert max(len(chunk.data) for chunk in chunks) <= 64 * 1024
        tail = training_pb2.TrainingServiceStreamLogsRequest(run_id=run.run_id, offset=-10)
        assert [chunk.data async for chunk in stub(channel).StreamLogs(tail)] == [log[-10:]]
        found = await stub(channel).ListArtifacts(
            training_pb2.TrainingServiceListArtifactsRequest(run_id=run.run_id)
        )
        assert [(one.path, one.size_bytes, one.kind) for one in found.artifacts] == [
            ("attempts/1/rank-0.log", len(log), "log")
        ]
        await stub(channel).Delete(training_pb2.TrainingServiceDeleteRequest(run_id=run.run_id))
        assert not Folder(run.artifact_url).files()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await get(channel, run.run_id)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_change_of_a_run_wakes_its_own_watchers_and_the_end_of_the_service_all(
    tmp_path: Path,
) -> None:
    async with service(tmp_path, slots=0) as (master, channel, _):
        for _ in range(2):
            await train(channel, code={"installed": True}, command=["train"])
        assert master.runs is not None
        server = master.runs.server
        with server.watching(1) as one, server.watching(2) as two:
            await stub(channel).Cancel(training_pb2.TrainingServiceCancelRequest(run_id=2))
            assert (one.count, two.count > 0) == (0, True)
            server.pause(Rejection("store_unavailable", "a moment"))
            assert one.count == 1


async def test_a_quota_of_runs_does_not_refuse_the_repetition_of_what_was_accepted(tmp_path: Path) -> None:
    ours = RunSpec(output_model_name="m", code=CodeRef(installed=True), command=("true",), framework="plain")
    async with serving_master(tmp_path) as (master, _):
        assert master.runs is not None
        callers.principal.set(Principal("ci", frozenset({"submitter"}), (), Quotas(runs_max=1)))
        first = await submit(master.runs, ours, "once", client_key="key")
        assert (await submit(master.runs, ours, "once")).run_id == first.run_id
        assert (await submit(master.runs, ours, "other", client_key="key")).run_id == first.run_id
        with pytest.raises(Rejection) as refused:
            await submit(master.runs, ours, "second")
        assert refused.value.reason == "quota_exceeded"


@pytest.mark.parametrize("lost", ["snapshot", "fence", "all"])
async def test_runs_of_which_a_part_is_lost_are_held_until_the_loss_is_accepted(
    tmp_path: Path, lost: str
) -> None:
    keys = JobKeys.of(RUNS)
    async with service(tmp_path, slots=0) as (_, channel, _):
        await train(channel)
    async with private_store(tmp_path) as store:
        await store.redis.delete(*(keys.all if lost == "all" else [getattr(keys, lost)]))
    async with serving_master(tmp_path) as (_, channel):
        jobs = job_pb2_grpc.JobServiceStub(channel)
        await jobs.List(job_pb2.JobServiceListRequest())  # what is whole is served
        for call in (
            stub(channel).List(training_pb2.TrainingServiceListRequest()),
            jobs.Repair(job_pb2.JobServiceRepairRequest(name=RUNS)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert reason_of(refused.value)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "DAMAGED")
        repaired = await jobs.Repair(job_pb2.JobServiceRepairRequest(name=RUNS, accept_loss=True))
        assert repaired.accepted and not repaired.removed
        async with ScriptedRunner(channel):
            assert (await train(channel)).run_id >= 1


async def test_finished_runs_are_kept_as_long_as_jobs_and_their_models_longer(tmp_path: Path) -> None:
    async with serving_master(tmp_path, keep_finished="1") as (master, channel):
        assert master.runs is not None
        async with ScriptedRunner(channel) as runner:
            urls = []
            for _ in range(2):
                run = await train(channel)
                prepare = await runner.launch()
                folder = Folder(run.artifact_url)
                folder.write(layout.rank_log(1, 0), [b"log"])
                folder.write(layout.RECORD, [b"{}"])
                urls.append(folder)
                runner.report(prepare.attempt, 0, "EXITED")
                await until(channel, run.run_id, "SUCCEEDED")
                await runner.next("forget")
            await master.runs.delete_overdue(master.runs.server)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await get(channel, 1)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert [name for name, _ in urls[0].files()] == [layout.RECORD]
            assert (await get(channel, 2)).state == STATES.RUN_STATE_SUCCEEDED
            assert len(urls[1].files()) == 2


async def test_an_elastic_run_is_a_job_and_ends_with_it(tmp_path: Path) -> None:
    async with service(tmp_path) as (_, channel, runner):
        run = await train(channel, framework="FRAMEWORK_ELASTANE", instances=4, instances_min=2)
        carried_out = asyncio.create_task(runner.until_stopped())
        name = (await until(channel, run.run_id, "RUNNING")).job
        job = await created(channel, name)
        assert (job.settings.ests, job.settings.workers_min, job.settings.workers_max) == (4, 2, 4)
        assert job.settings.checkpoint_url.startswith(run.artifact_url)
        async with patience.within(30):  # it grows to all of its instances
            while [rank.state for rank in (await get(channel, run.run_id)).ranks].count(RUNNING) < 4:
                await asyncio.sleep(0.02)
        await job_pb2_grpc.JobServiceStub(channel).Cancel(job_pb2.JobServiceCancelRequest(name=name))
        assert (await carried_out)[0] == {0, 1, 2, 3}
        ended = await until(channel, run.run_id, "CANCELLED")
        assert ended.reason == "cancelled by an operator"


async def test_a_master_that_takes_over_with_other_artifacts_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    async with serving_master(tmp_path / "state", artifact_url=there.as_uri()) as (_, channel):
        await train(channel, algorithm="", command=["x"], code=training_pb2.CodeRef(installed=True))
    async with (
        serving_master(tmp_path / "state", artifact_url=there.as_uri()) as (master, _),
        patience.within(30),
    ):
        while b"#" not in await master._store.redis.get(RUNS_STORED_KEY):
            await asyncio.sleep(0.02)
    there.rename(elsewhere)
    assert "are elsewhere" not in capsys.readouterr().out
    async with serving_master(tmp_path / "state", artifact_url=there.as_uri()), patience.within(30):
        while "are elsewhere" not in capsys.readouterr().out:
            await asyncio.sleep(0.02)


async def test_the_job_of_a_run_that_is_cancelled_says_so(tmp_path: Path) -> None:
    async with service(tmp_path) as (_, channel, runner):
        run = await train(channel, framework="FRAMEWORK_ELASTANE")
        carried_out = asyncio.create_task(runner.until_stopped())
        name = (await until(channel, run.run_id, "RUNNING")).job
        await created(channel, name)
        await stub(channel).Cancel(training_pb2.TrainingServiceCancelRequest(run_id=run.run_id))
        await carried_out
        await until(channel, run.run_id, "CANCELLED")
        asked = job_pb2.JobServiceGetRequest(name=name)
        async with patience.within(30):
            jobs = job_pb2_grpc.JobServiceStub(channel)
            while (job := (await jobs.Get(asked)).job).phase != job_pb2.JOB_PHASE_CANCELLED:
                await asyncio.sleep(0.02)
        assert job.reason == f"run {run.run_id} has ended"


async def test_the_chapters_clients_work_unchanged(tmp_path: Path) -> None:
    async with service(tmp_path) as (master, channel, runner):
        folder = Path(master.settings.state_dir) / "datasets" / "data-1" / "v1"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"state": "ready", "files": [], "version_hash": "v1"}')
        api = chapter_grpc.TrainingServiceStub(channel)
        metadata = chapter_pb2.TrainingJobMetadata(
            algorithm="digits",
            dataset_id="data-1",
            name="mine",
            train_data_version_hash="v1",
            parameters={"PARALLEL_INSTANCES": "3"},
            output_model_name="m",
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.Train(chapter_pb2.TrainRequest())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        job_id = (await api.Train(chapter_pb2.TrainRequest(metadata=metadata))).job_id
        prepare = await runner.launch()
        assert len(prepare.ranks) == 3
        for rank in prepare.ranks:
            runner.report(prepare.attempt, rank, "EXITED")
        await until(channel, job_id, "SUCCEEDED")
        status = await api.GetTrainingStatus(chapter_pb2.GetTrainingStatusRequest(job_id=job_id))
        assert chapter_pb2.TrainingStatus.Name(status.status) == "succeed"
        assert status.metadata == metadata and status.positionInQueue == 0
