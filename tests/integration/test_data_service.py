"""Runs whose datasets a data management service prepares: a real gRPC server in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from elastane_master.app import Master
from elastane_proto.training import data_management_pb2, data_management_pb2_grpc
from elastane_proto.v1 import training_pb2
from integration.master_support import serving_master
from integration.test_training_service import get, train, until

HASH = "hashDg=="


class DataServer(data_management_pb2_grpc.DataManagementServiceServicer):
    """Knows one version of one dataset. state: of it. gives: the hash that it answers with."""

    def __init__(self) -> None:
        self.state = data_management_pb2.RUNNING
        self.gives = HASH

    async def FetchTrainingDataset(  # noqa: N802 - as gRPC names it
        self, request: data_management_pb2.VersionQuery, context: grpc.aio.ServicerContext
    ) -> data_management_pb2.VersionedSnapshot:
        if (request.dataset_id, request.version_hash) != ("5", HASH):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"Dataset {request.dataset_id} not found")
        root = data_management_pb2.FileInfo(bucket="mini-automl", path="versionedDatasets/5/hashDg==/")
        return data_management_pb2.VersionedSnapshot(
            dataset_id="5", version_hash=self.gives, state=self.state, root=root
        )


@asynccontextmanager
async def serving(
    folder: Path,
) -> AsyncIterator[tuple[DataServer, grpc.aio.Server, Master, grpc.aio.Channel]]:
    data, server = DataServer(), grpc.aio.server()
    data_management_pb2_grpc.add_DataManagementServiceServicer_to_server(data, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with serving_master(folder, data_service=f"127.0.0.1:{port}") as (master, channel):
            master.runs.datasets.poll_seconds = 0.05
            yield data, server, master, channel
    finally:
        await server.stop(None)


def of(dataset: str = "5", version_hash: str = HASH, **fields: object) -> dict[str, object]:
    reference = training_pb2.DatasetRef(id=dataset, version_hash=version_hash, **fields)
    return {
        "algorithm": "",
        "command": ["a"],
        "code": training_pb2.CodeRef(installed=True),
        "dataset": reference,
    }


async def test_a_run_waits_until_its_dataset_is_ready_and_gets_its_url(tmp_path: Path) -> None:
    async with serving(tmp_path) as (data, _, master, channel):
        run = await train(channel, **of())
        assert training_pb2.RunState.Name(run.state) == "RUN_STATE_WAITING_DATA"
        assert "prepares version 'hashDg==' of dataset '5'" in run.reason
        data.state = data_management_pb2.READY
        run = await until(channel, run.run_id, "QUEUED")
        stored = master.runs.server.machine.state.runs[run.run_id]
        assert stored.data_url == "s3://mini-automl/versionedDatasets/5/hashDg=="
        data.state = data_management_pb2.FAILED
        with pytest.raises(grpc.aio.AioRpcError, match="failed to prepare"):
            await train(channel, **of())


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (of("6"), "has no version 'hashDg==' of dataset '6'"),
        (of("../5"), "dataset.id: '../5'"),
        (of(version_hash="other"), "has no version 'other'"),
        (of(verify_files=True), "no digests"),
    ],
    ids=["unknown", "path", "version", "verified"],
)
async def test_a_dataset_that_will_not_come_is_refused(
    tmp_path: Path, reference: dict[str, object], reason: str
) -> None:
    async with serving(tmp_path) as (_, _, _, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await train(channel, **reference)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert reason in (refused.value.details() or "")


async def test_another_version_than_asked_for_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (data, _, _, channel):
        data.gives = "hashBg=="
        with pytest.raises(grpc.aio.AioRpcError, match="gave version 'hashBg=='"):
            await train(channel, **of())


async def test_a_run_waits_for_a_data_service_that_is_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, server, _, channel):
        await server.stop(None)
        run = await train(channel, **of())
        assert "does not answer (UNAVAILABLE" in run.reason
        assert (await get(channel, run.run_id)).state == training_pb2.RUN_STATE_WAITING_DATA
