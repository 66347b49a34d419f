"""The chapter's own requests, as its clients type them: JSON by gRPC reflection, without generated code."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import patience
from integration.master_support import serving_master
from integration.runner_support import Service, running_runner

VERSION = "hashBA=="
TRAIN = """{
  "metadata": {
    "algorithm": "intent-classification",
    "dataset_id": "1",
    "name": "test1",
    "train_data_version_hash": "hashBA==",
    "output_model_name": "twitter-model",
    "parameters": {"LR": "4", "EPOCHS": "15", "PARALLEL_INSTANCES": "3", "BATCH_SIZE": "64", "FC_SIZE": "128"}
  }
}"""
SCRIPT = """
import json, os
names = ("RANK", "WORLD_SIZE", "MODEL_NAME", "LR", "TRAINING_DATASET_VERSION_HASH")
print({name: os.environ[name] for name in names})
print(open(os.environ["TRAINING_DATA_URL"].removeprefix("file://") + "/manifest.json").read() != "")
"""


class Caller:
    """`grpcurl -plaintext -d JSON ADDRESS SERVICE/METHOD`: all that it knows of the service, it has asked."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self._channel))

    def call(self, service: str, method: str, text: str) -> dict[str, Any]:
        """Return the answer as JSON; unknown fields of the request are an error."""
        found = self._pool.FindServiceByName(service).FindMethodByName(method)
        request, answer = (GetMessageClass(one) for one in (found.input_type, found.output_type))
        rpc = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return json_format.MessageToDict(rpc(json_format.Parse(text, request()), timeout=30))

    def until_over(self, job_id: int) -> list[dict[str, Any]]:
        """Ask for the status, as the chapter's clients do, until the job is over; return the answers."""
        limit, answers = patience.Patience(100), []
        while limit.left():
            status = self.call(
                "training.TrainingService", "GetTrainingStatus", json.dumps({"job_id": job_id})
            )
            answers.append(status)
            if status.get("status") in ("succeed", "failure"):
                return answers
            time.sleep(0.1)
        raise AssertionError(f"the job does not end: {answers[-1]}")

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def algorithms(tmp_path: Path) -> Path:
    """What the runner offers: the chapter's training code, and its dataset for the master."""
    code, data = tmp_path / "code", tmp_path / "datasets" / "1" / VERSION
    code.mkdir()
    data.mkdir(parents=True)
    (code / "train.py").write_text(SCRIPT)
    (data / "manifest.json").write_text(json.dumps({"state": "ready", "version_hash": VERSION}))
    file = tmp_path / "algorithms.toml"
    file.write_text('[intent-classification]\ncommand = ["python", "train.py"]\nfolder = "code"\n')
    return file


async def test_train_and_get_training_status_end_in_succeed_with_three_instances(
    tmp_path: Path, algorithms: Path
) -> None:
    datasets = (tmp_path / "datasets").as_uri()
    async with (
        serving_master(tmp_path / "master", dataset_root=datasets) as (master, channel),
        running_runner(
            master.address, tmp_path / "runner", "--slots", "3", "--algorithms", str(algorithms)
        ) as runner,
    ):
        async with patience.within(60):
            while not (await Service(channel).runners_attend()):
                assert runner.lives, runner.log_path.read_text()
                await asyncio.sleep(0.05)
        caller = Caller(master.address)
        answer = await asyncio.to_thread(caller.call, "training.TrainingService", "Train", TRAIN)
        assert answer == {"jobId": 1}
        *_, last = await asyncio.to_thread(caller.until_over, 1)
        assert last["status"] == "succeed" and last["jobId"] == 1, last
        assert last["metadata"] == json_format_names(json.loads(TRAIN)["metadata"])
        for rank in range(3):
            seen, has_data = (await Service(channel).log(1, rank)).decode().splitlines()
            assert f"'RANK': '{rank}', 'WORLD_SIZE': '3', 'MODEL_NAME': 'twitter-model', 'LR': '4'" in seen
            assert VERSION in seen and has_data == "True"
        with pytest.raises(json_format.ParseError, match="Parameters"):  # as the chapter's text has it
            caller.call("training.TrainingService", "Train", TRAIN.replace('"parameters"', '"Parameters"'))
        await asyncio.to_thread(caller.close)


def json_format_names(metadata: dict[str, Any]) -> dict[str, Any]:
    """Fields as they are printed: datasetId for dataset_id."""
    words = {name: name.split("_") for name in metadata}
    return {
        words[name][0] + "".join(map(str.capitalize, words[name][1:])): value
        for name, value in metadata.items()
    }
