"""Records of runs: read back as written, by later and earlier releases, and made into a spec again."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format

from elastane_common import run_record
from elastane_common.file_manifest import FileEntry
from elastane_common.run_record import (
    CodeRecord,
    CostRecord,
    DatasetRecord,
    RunRecord,
    RunRecordError,
    spec_of,
)
from elastane_proto.v1 import job_pb2, training_pb2

SPEC = training_pb2.RunSpec(
    algorithm="digits",
    output_model_name="digits",
    dataset=training_pb2.DatasetRef(id="digits", verify_files=True),
    parameters={"PARALLEL_INSTANCES": "4", "LR": "0.1"},
    framework=training_pb2.FRAMEWORK_ELASTANE,
    instances_min=2,
    code=training_pb2.CodeRef(archive_sha256="ab" * 32, image="registry:5000/train:latest"),
    command=["train.py", "--epochs", "3"],
    priority=7,
    owner="ann",
    retries_max=0,
    secrets=[training_pb2.SecretRef(variable="TOKEN", file="token")],
    job=job_pb2.JobSettings(checkpoint_interval_steps=50),
)
SETTINGS = job_pb2.JobSettings(
    ests=4, seed=17, torch_threads=2, determinism=job_pb2.DETERMINISM_LEVEL_D2, checkpoint_url="s3://b/c"
)


def as_json(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def a_record(**changed: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "run_id": 12,
        "owner": "ann",
        "state": "succeeded",
        "attempts": 2,
        "created_at": 1.5,
        "started_at": 2.5,
        "ended_at": 3.5,
        "spec": as_json(SPEC),
        "parameters": dict(SPEC.parameters),
        "seed": 17,
        "logical_workers": 4,
        "settings": as_json(SETTINGS),
        "environment": {"torch": "2.13.0", "optimizer": "SGD"},
        "versions": {"elastane": "0.1.0", "python": "3.11.9"},
        "code": CodeRecord(
            archive_sha256="ab" * 32, image="registry:5000/train:latest", image_digest=f"sha256:{'cd' * 32}"
        ),
        "dataset": DatasetRecord(id="digits", version_hash="ef" * 32, url="s3://b/digits"),
        "metrics": {"loss": 0.125},
        "cost": CostRecord(slot_seconds=120.5, amount_micros=2500, currency="USD"),
        "weights_sha256": "12" * 32,
        "model_url": "s3://b/runs/12/model/0123",
        "artifacts": (FileEntry("model/0123/w.pt", 3, "34" * 32, "model"),),
    }
    return RunRecord(**{**fields, **changed})


def test_a_record_is_read_as_it_was_written() -> None:
    record = a_record()
    data = run_record.encode(record)
    assert run_record.decode(data) == record
    assert run_record.encode(run_record.decode(data)) == data
    assert json.loads(data)["version"] == run_record.VERSION
    smallest = RunRecord(run_id=1, state="failed", created_at=0.0, spec={})
    assert run_record.decode(run_record.encode(smallest)) == smallest


def test_every_field_is_in_the_full_record() -> None:
    """Otherwise the test above would not notice one that is lost."""
    record, smallest = a_record(), RunRecord(run_id=1, state="", created_at=0.0, spec={})
    same = [name for name in record.__struct_fields__ if getattr(record, name) == getattr(smallest, name)]
    assert same == ["version", "reason"]


def test_fields_of_later_releases_are_ignored() -> None:
    later = json.loads(run_record.encode(a_record())) | {"carbon": {"grams": 3}}
    later["code"]["signature"] = "x"
    assert run_record.decode(json.dumps(later).encode()) == a_record()


def test_fields_that_earlier_releases_did_not_write_have_defaults() -> None:
    earlier = json.loads(run_record.encode(a_record()))
    del earlier["cost"], earlier["artifacts"]
    assert run_record.decode(json.dumps(earlier).encode()) == a_record(cost=CostRecord(), artifacts=())


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"\xff", b'{"version": 1}', b'{"version":' + b"[" * 99999]
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(RunRecordError, match="is damaged"):
        run_record.decode(data)


def test_a_record_of_a_higher_version_is_refused_whatever_it_holds() -> None:
    with pytest.raises(RunRecordError, match="has version 2; this release reads up to 1"):
        run_record.decode(b'{"version": 2, "run_id": "by then a text"}')


def test_a_metric_that_is_no_number_is_kept_as_null() -> None:
    record = run_record.decode(run_record.encode(a_record(metrics={"loss": math.nan, "gain": math.inf})))
    assert record.metrics == {"loss": None, "gain": None}


def test_the_spec_of_a_record_fixes_what_decided_the_bits() -> None:
    spec = training_pb2.RunSpec()
    json_format.ParseDict(spec_of(a_record()), spec)
    expected = training_pb2.RunSpec()
    expected.CopyFrom(SPEC)
    expected.ClearField("owner")
    expected.ClearField("priority")
    expected.instances = 4
    expected.dataset.version_hash = "ef" * 32
    expected.dataset.url = "s3://b/digits"
    expected.code.image = f"registry:5000/train:latest@sha256:{'cd' * 32}"
    expected.job.seed = 17
    expected.job.torch_threads = 2
    expected.job.determinism = job_pb2.DETERMINISM_LEVEL_D2
    assert spec == expected


def test_the_spec_of_a_commit_and_of_installed_code() -> None:
    git = CodeRecord(git_url="https://host/repo", git_commit="a" * 40)
    assert spec_of(a_record(code=git))["code"] == {
        "image": "registry:5000/train:latest",
        "git": {"url": "https://host/repo", "commit": "a" * 40},
    }
    installed = {"code": {"installed": True, "image": "old@sha256:00"}}
    code = CodeRecord(image_digest="sha256:11")
    assert spec_of(a_record(spec=installed, code=code))["code"] == {
        "installed": True,
        "image": "old@sha256:11",
    }


def test_a_spec_made_again_makes_the_same_spec() -> None:
    record = a_record()
    spec = spec_of(record)
    assert spec_of(msgspec.structs.replace(record, spec=spec)) == spec
    assert record == a_record()  # and the record is as it was


def test_a_black_box_has_its_number_of_instances_and_no_settings_of_a_job() -> None:
    plain = as_json(training_pb2.RunSpec(algorithm="x", framework=training_pb2.FRAMEWORK_PLAIN))
    spec = spec_of(a_record(spec=plain, settings={}, seed=None, dataset=None, logical_workers=3))
    assert spec["instances"] == 3
    assert "job" not in spec and "dataset" not in spec
