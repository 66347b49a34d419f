"""The record of a run, made of what the master says of it, and what lies in its folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from google.protobuf import json_format

from elastane_common import layout
from elastane_common.artifacts import write_artifacts
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import MasterUnreachableError
from elastane_common.outbox import Outbox
from elastane_common.record_writing import (
    RunFacts,
    StoredModel,
    installed_versions,
    record_of,
    stored_artifacts,
    stored_model,
)
from elastane_common.run_record import RankImage, RunRecord, spec_of
from elastane_common.storage import Folder
from elastane_proto.v1 import job_pb2, training_pb2
from elastane_runner.launches import LaunchRecord, LaunchStore
from elastane_runner.process_engine import ProcessEngine
from elastane_runner.run_outcomes import AskRun, RunOutcomes


def run_message(state: str = "SUCCEEDED") -> training_pb2.Run:
    spec = training_pb2.RunSpec(
        algorithm="digits",
        output_model_name="m",
        instances=4,
        owner="ann",
        parameters={"LR": "0.1"},
        code={"archive_sha256": "a" * 64},
        dataset={"id": "d", "version_hash": "h"},
        job={"seed": 3},
    )
    return training_pb2.Run(
        run_id=7,
        spec=spec,
        state=f"RUN_STATE_{state}",
        reason="all instances ended with 0",
        attempt=2,
        created={"seconds": 10},
        started={"seconds": 11, "nanos": 500_000_000},
        ended={"seconds": 20},
        slot_seconds=34.5,
    )


def made(
    run: training_pb2.Run, job: job_pb2.Job | None = None, metrics: Mapping[str, float] | None = None
) -> RunRecord:
    facts = RunFacts(run, job, metrics or {})
    model = StoredModel("/m", "ab")
    return record_of(facts, data_url="/data/d", model=model, artifacts=(), versions={"python": "3"})


def test_a_record_has_what_the_same_bits_need() -> None:
    record = made(run_message())
    assert (record.run_id, record.owner, record.state, record.attempts) == (7, "ann", "succeeded", 2)
    assert (record.created_at, record.started_at, record.ended_at) == (10.0, 11.5, 20.0)
    assert (record.seed, record.logical_workers, record.cost.slot_seconds) == (3, 4, 34.5)
    assert record.dataset is not None and record.dataset.url == "/data/d"
    again = spec_of(record)
    assert again["code"] == {"archive_sha256": "a" * 64} and again["parameters"] == {"LR": "0.1"}
    assert again["instances"] == 4 and "owner" not in again
    json_format.ParseDict(again, training_pb2.RunSpec())


def test_the_record_of_a_containers_run_fixes_its_image() -> None:
    run = run_message()
    record = record_of(
        RunFacts(run),
        data_url="",
        model=StoredModel(),
        artifacts=(),
        versions={},
        image=RankImage("i:1", "sha256:ab"),
    )
    assert (record.code.image, record.code.image_digest, record.versions) == ("i:1", "sha256:ab", {})
    assert spec_of(record)["code"] == {"archive_sha256": "a" * 64, "image": "i:1@sha256:ab"}
    assert made(run).code.image == ""


def test_the_job_of_an_elastic_run_knows_its_settings_and_environment_best() -> None:
    job = job_pb2.Job(settings={"ests": 4, "seed": 5, "torch_threads": 2}, environment={"cpu": "avx2"})
    record = made(run_message("FAILED"), job)
    assert (record.state, record.seed, record.environment) == ("failed", 5, {"cpu": "avx2"})
    assert record.settings["torch_threads"] == 2


def test_the_last_values_are_recorded_and_the_digest_of_the_model() -> None:
    record = made(run_message(), metrics={"loss": 0.5, "gain": math.inf, "score": math.nan})
    assert record.metrics == {"gain": None, "loss": 0.5, "score": None}
    assert (record.model_url, record.weights_sha256) == ("/m", "ab")


def test_a_run_that_has_no_times_seed_and_dataset_has_none_in_its_record() -> None:
    run = training_pb2.Run(run_id=1, state="RUN_STATE_CANCELLED", created={"seconds": 1})
    record = made(run)
    assert (record.started_at, record.seed, record.dataset, record.settings) == (None, None, None, {})


def test_versions_are_of_python_and_what_is_installed() -> None:
    assert {"python", "torch"} <= installed_versions().keys()


def test_model_and_logs_are_recorded_with_their_digests(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    assert stored_model(url) == StoredModel() and stored_artifacts(url) == []
    (tmp_path / "w").write_text("weights")
    manifest = write_artifacts(layout.model_url(url), {"w.pt": tmp_path / "w"})
    (tmp_path / "w").unlink()
    Folder(url).write(layout.rank_log(1, 0), [b"log"])
    Folder(url).write("checkpoints/x", [b"no artifact"])
    lines = f"{hashlib.sha256(b'weights').hexdigest()}  w.pt\n"
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert stored_model(url) == (f"{url}/model/{manifest.folder}", digest)
    assert [(one.path, one.kind, one.sha256) for one in stored_artifacts(url)] == [
        ("attempts/1/rank-0.log", "log", hashlib.sha256(b"log").hexdigest()),
        (f"model/{manifest.folder}/w.pt", "model", hashlib.sha256(b"weights").hexdigest()),
    ]


# ---------------------------------------------------------------- when it is written


async def conclude(tmp_path: Path, ask: AskRun, rank: int = 0) -> tuple[bool, Outbox]:
    """Conclude a launch: whether a record was written, and what goes to the registry."""
    engine = ProcessEngine(tmp_path / "engine")
    outbox = Outbox(tmp_path / "outbox")
    outcomes = RunOutcomes(engine, ask, outbox, wait_seconds=lambda _: 0.0)
    url = (tmp_path / "run").as_uri()
    record = LaunchRecord(run_id=7, attempt=1, fence=1, elastic=False, artifact_url=url, tries={rank: 1})
    await outcomes.conclude(LaunchStore(tmp_path).new(record))
    engine.close()
    return (tmp_path / "run" / layout.RECORD).exists(), outbox


async def test_the_runner_of_rank_0_records_a_run_that_is_over_once_a_master_answers(tmp_path: Path) -> None:
    answers: list[Exception | training_pb2.Run] = [MasterUnreachableError("away"), run_message()]

    def ask(run_id: int) -> RunFacts:
        assert run_id == 7
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return RunFacts(answer)

    written, outbox = await conclude(tmp_path, ask)
    (name,) = outbox.waiting()
    assert written and not answers and outbox.get(name)["tags"]["elastane.run_id"] == "7"


@pytest.mark.parametrize("state", ["QUEUED", "SUSPENDED", "RUNNING"])
async def test_a_run_that_is_launched_again_has_no_record_yet(tmp_path: Path, state: str) -> None:
    written, outbox = await conclude(tmp_path, lambda _: RunFacts(run_message(state)))
    assert not written and not outbox.waiting()


async def test_a_run_that_the_master_does_not_show_has_no_record(tmp_path: Path) -> None:
    def ask(run_id: int) -> RunFacts:
        raise RequestRefusedError("deleted", reason="not_found")

    assert (await conclude(tmp_path, ask))[0] is False


async def test_runners_of_other_ranks_do_not_ask(tmp_path: Path) -> None:
    def ask(run_id: int) -> RunFacts:
        raise AssertionError("asked")

    assert (await conclude(tmp_path, ask, rank=1))[0] is False
