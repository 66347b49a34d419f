"""TrainMany over real gRPC: all runs of a call or none, also if it is repeated or the master is killed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest

from elastane_agent.supervisor.master_process import EmbeddedMaster
from elastane_common import layout
from elastane_common.client import MasterClient
from elastane_common.storage import Folder
from elastane_common.training_client import RUNS_AT_ONCE, TrainingClient
from elastane_proto.v1 import training_pb2, training_pb2_grpc
from integration.master_support import reason_of, serving_master

DIGEST = "a" * 64


def spec(number: int, **fields: object) -> training_pb2.RunSpec:
    given = {"code": training_pb2.CodeRef(installed=True), **fields}
    return training_pb2.RunSpec(
        output_model_name="m",
        framework="FRAMEWORK_PLAIN",
        command=["true"],
        parameters={"SEED": str(number)},
        **given,
    )


async def train_many(
    channel: grpc.aio.Channel, specs: Iterable[training_pb2.RunSpec], request_id: str = ""
) -> list[training_pb2.Run]:
    request = training_pb2.TrainingServiceTrainManyRequest(specs=specs, request_id=request_id)
    return list((await training_pb2_grpc.TrainingServiceStub(channel).TrainMany(request)).runs)


async def queued(channel: grpc.aio.Channel) -> list[int]:
    request = training_pb2.TrainingServiceListRequest(page_size=1000)
    listed = await training_pb2_grpc.TrainingServiceStub(channel).List(request)
    return sorted(run.run_id for run in listed.runs)


async def refused(
    channel: grpc.aio.Channel, specs: Iterable[training_pb2.RunSpec]
) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason, and words and detail of the refusal of these runs."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await train_many(channel, specs)
    code, reason, detail = reason_of(error.value)
    return code, reason, f"{error.value.details()} {detail}"


async def test_runs_are_queued_in_order_and_once_however_often_the_call_is_repeated(tmp_path: Path) -> None:
    specs = [spec(number) for number in range(RUNS_AT_ONCE)]
    async with serving_master(tmp_path) as (_, channel):
        runs = await train_many(channel, specs, "sweep")
        assert [run.spec.parameters["SEED"] for run in runs] == [str(n) for n in range(RUNS_AT_ONCE)]
        assert [run.run_id for run in runs] == list(range(1, RUNS_AT_ONCE + 1))
    async with serving_master(tmp_path) as (_, channel):
        again = await train_many(channel, specs, "sweep")
        assert [run.run_id for run in again] == [run.run_id for run in runs] == await queued(channel)
        other = await train_many(channel, specs[:1], "another sweep")
        assert [run.run_id for run in other] == [RUNS_AT_ONCE + 1]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"instances": 10**6}, "specs[1].instances"),
        ({"framework": "FRAMEWORK_PYTORCH", "parameters": {"RANK": "1"}}, "specs[1].parameters"),
        ({"code": training_pb2.CodeRef(archive_sha256=DIGEST)}, "there is no code archive"),
        ({"dataset": {"id": "../etc", "version_hash": "h"}}, "specs[1].dataset"),
    ],
)
async def test_one_bad_run_refuses_all_of_its_call(
    tmp_path: Path, bad: dict[str, object], words: str
) -> None:
    wrong = spec(1)
    wrong.MergeFrom(training_pb2.RunSpec(**bad))
    artifacts = str(tmp_path / "artifacts")
    async with serving_master(tmp_path / "state", artifact_url=artifacts) as (_, channel):
        code, reason, said = await refused(channel, [spec(0), wrong, spec(2)])
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        assert said.startswith("run 2 of the call: ") and words in said, said
        assert await queued(channel) == []


async def test_limits_count_all_runs_of_a_call(tmp_path: Path) -> None:
    async with serving_master(tmp_path, runs_waiting_max=3) as (_, channel):
        await train_many(channel, [spec(0)])
        code, _, said = await refused(channel, [spec(1), spec(2), spec(3)])
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "run 3 of the call: 3 runs wait" in said
        assert await queued(channel) == [1]
        assert [run.run_id for run in await train_many(channel, [spec(1), spec(2)])] == [2, 3]
        for count in (0, RUNS_AT_ONCE + 1):
            code, _, said = await refused(channel, [spec(number) for number in range(count)])
            assert code == grpc.StatusCode.INVALID_ARGUMENT and f"{count} runs in one call" in said


async def test_runs_of_one_archive_are_queued_together(tmp_path: Path) -> None:
    artifacts = str(tmp_path / "artifacts")
    Folder(artifacts).write(layout.code_archive(DIGEST), [b"zip"])
    code = training_pb2.CodeRef(archive_sha256=DIGEST)
    async with serving_master(tmp_path / "state", artifact_url=artifacts) as (_, channel):
        await train_many(channel, [spec(number, code=code) for number in range(3)])
        assert await queued(channel) == [1, 2, 3]


def test_a_client_queues_each_run_once_though_the_master_is_killed_meanwhile(tmp_path: Path) -> None:
    master = EmbeddedMaster(tmp_path)
    master.start()
    count = 5 * RUNS_AT_ONCE
    try:
        with MasterClient(master.address, timeout_seconds=60.0) as client:
            training = TrainingClient(client)
            ids = []
            for run in training.train_many(spec(number) for number in range(count)):
                assert run.spec.parameters["SEED"] == str(len(ids))
                ids.append(run.run_id)
                if len(ids) in (150, 350):
                    master.sigkill()
                    master.wait()
                    master.start()
            assert len(set(ids)) == count
            assert {run.run_id for run in training.iter_runs()} == set(ids), "none is there twice"
    finally:
        master.stop()
