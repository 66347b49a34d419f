"""The spec as the CRD's schema has it and as the operator reads it: fields, defaults and refusals."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
import yaml

from elastane_operator.decisions import spec as specs
from elastane_operator.decisions import status as statuses
from elastane_operator.decisions.money import money
from elastane_operator.decisions.spec import (
    ExitCodes,
    Identity,
    InvalidSpecError,
    is_retryable,
    job_name,
    price_micros,
    read_spec,
)
from elastane_operator.edge.patches import merge_patch
from elastane_proto.job_settings import SETTINGS
from unit.deploy.elastic_jobs import Cluster, identity, job_body, spec_of

CRD = yaml.safe_load(
    (Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "crd" / "elasticjob.yaml").read_text()
)
[VERSION] = CRD["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC, STATUS = SCHEMA["properties"]["spec"], SCHEMA["properties"]["status"]

#: What the API server refuses by its schema; a word of its message.
BAD = [
    ({"ests": 0}, "minimum"),
    ({"ests": "four"}, "not of type"),
    ({"workers": {"min": 1}}, "max"),
    ({"workers": {"max": 0}}, "minimum"),
    ({"recoveryPolicy": "Maybe"}, "not one of"),
    ({"maxWaitSeconds": -1}, "minimum"),
    ({"restartBudget": -1}, "minimum"),
    ({"exitCodes": {"retryable": ["300"]}}, "does not match"),
    ({"exitCodes": {"retryable": ["0-5"]}}, "does not match"),
    ({"spot": {"price": 0.35}}, "not of type"),
    ({"spot": {"price": "-1"}}, "does not match"),
    ({"spot": {"currency": "dollars"}}, "does not match"),
    ({"spot": {"provider": "Hetzner"}}, "not one of"),
    ({"checkpoint": {"onDelete": "Sometimes"}}, "not one of"),
    ({"checkpoint": {"timeoutSeconds": 0}}, "minimum"),
    ({"queueName": "Team A"}, "does not match"),
    ({"jobName": "-x"}, "does not match"),
    ({"determinism": "D7"}, "not one of"),
    ({"master": {"address": "no port"}}, "does not match"),
    ({"template": {"spec": {"containers": []}}}, "non-empty"),
    ({"template": {}}, "spec"),
]
POOLED: dict[str, Any] = {"checkpoint": {"url": "s3://bucket/digits"}}
DEADLINE = "deadline=2026-12-04T18:00+01:00"
ON_DEMAND = {"workers": 2, "nodeSelector": {"capacity": "on-demand"}}
#: What only the rules across fields refuse; the operator does too.
CROSS = [
    ({"workers": {"min": 3, "max": 2}}, "workers.min (3) must be at most workers.max (2)"),
    ({"workers": {"min": 5, "max": 9}}, "at most ests (4)"),
    ({"checkpoint": {"intervalSteps": 5}}, "needs a checkpoint.url"),
    ({"checkpoint": {"onDelete": "Save"}}, "needs a checkpoint.url"),
    ({"master": {}}, "either master.address or master.perJob"),
    ({"master": {"address": "m:1", "perJob": {}}}, "either master.address or master.perJob"),
    ({"exitCodes": {"retryable": ["200-100"]}}, "no exit code"),
    ({"scheduling": {"pool": "p"}}, "scheduling.pool needs a checkpoint.url"),
    (POOLED | {"scheduling": {"pool": ""}}, "scheduling.pool must name"),
    (POOLED | {"scheduling": {"pool": "p", "queue": ""}}, "scheduling.queue must not"),
    (POOLED | {"scheduling": {"pool": "p", "weight": 0}}, "scheduling.weight must be from 1"),
    (POOLED | {"scheduling": {"pool": "p", "weight": 2**63}}, "scheduling.weight must be from 1"),
    (POOLED | {"scheduling": {"pool": "p", "weight": float("nan")}}, "scheduling.weight"),
    (POOLED | {"scheduling": {"pool": "p", "priority": -(10**7)}}, "scheduling.priority must be from"),
    (POOLED | {"scheduling": {"pool": "p", "deadline": "2027-01-01T00:00:00"}}, "scheduling.deadline must"),
    ({"scaling": {"mode": "fastest"}}, "scaling.mode: 'fastest' is not a scaling mode"),
    ({"scaling": {"mode": "efficiency=0"}}, "scaling.mode: theta is 0"),
    ({"scaling": {"mode": "budget=nan"}}, "scaling.mode: the budget is 'nan'"),
    ({"scaling": {"mode": "budget=5 EUR"}}, "scaling.mode: the budget is in EUR"),
    ({"scaling": {"mode": "deadline=+2h"}}, "means another time each time it is read"),
    ({"scaling": {"mode": "deadline=18:00Z"}}, "means another time each time it is read"),
    ({"scaling": {"mode": "deadline=2026-12-04T18:00"}}, "has no time zone"),
    (
        POOLED | {"scaling": {"mode": "efficiency"}, "scheduling": {"pool": "p"}},
        "either scaling or scheduling",
    ),
    ({"scaling": {"mode": "efficiency"}, "recoveryPolicy": "Fixed"}, "scaling needs recoveryPolicy Elastic"),
    ({"scaling": {"mode": "efficiency", "onDemand": ON_DEMAND}}, "scaling.onDemand is for a deadline"),
    ({"scaling": {"mode": DEADLINE, "onDemand": {"workers": 1}}}, "needs a nodeSelector or tolerations"),
    ({"scaling": {"mode": DEADLINE, "onDemand": ON_DEMAND | {"workers": 4}}}, "from 1 to workers.max (3)"),
    ({"scaling": {"mode": DEADLINE, "coldStartSeconds": -1}}, "coldStartSeconds must be at least 0"),
    ({"pipeline": {"stagesMin": 0}}, "pipeline.stagesMin must be at least 1"),
    ({"pipeline": {"stagesMax": -1}}, "pipeline.stagesMax must be at least 0"),
    ({"pipeline": {"stagesMin": 3, "stagesMax": 2}}, "pipeline.stagesMin (3) must be at most"),
    ({"pipeline": {"shadows": 9}}, "pipeline.shadows must be at most 8"),
    ({"parameterServers": {"count": 2}}, "parameterServers needs a checkpoint.url"),
    (POOLED | {"parameterServers": {"count": 0}}, "parameterServers.count must be from 1 to 1000, it is 0"),
    (
        POOLED | {"parameterServers": {"count": 2, "slots": 5000}},
        "parameterServers.slots must be at most 4096",
    ),
    (
        POOLED | {"parameterServers": {"count": 2, "replicas": 2}},
        "parameterServers.replicas must be at most 1",
    ),
    (POOLED | {"parameterServers": {"count": 1, "replicas": 1}}, "replicas needs a count that is larger"),
    (POOLED | {"parameterServers": {"count": 2, "staleness": -1}}, "parameterServers.staleness must be at"),
    (POOLED | {"parameterServers": {"count": 2}, "pipeline": {}}, "parameterServers excludes scheduling"),
    (
        POOLED | {"parameterServers": {"count": 2}, "scaling": {"mode": "efficiency"}},
        "parameterServers excludes scheduling",
    ),
]


@pytest.mark.parametrize(("bad", "word"), BAD)
def test_the_schema_refuses_a_bad_field(bad: dict[str, Any], word: str) -> None:
    jsonschema.validate(job_body(), SCHEMA)
    with pytest.raises(jsonschema.ValidationError) as caught:
        jsonschema.validate(job_body(**bad), SCHEMA)
    assert word in str(caught.value)


@pytest.mark.parametrize(("bad", "words"), CROSS)
def test_the_operator_refuses_what_only_newer_servers_know(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        read_spec(job_body(**bad))
    assert words in str(caught.value)


def test_every_fault_is_named_and_a_wrong_type_too() -> None:
    with pytest.raises(InvalidSpecError) as caught:
        read_spec(job_body(workers={"min": 9, "max": 2}, master={}))
    assert len(caught.value.problems) == 3
    with pytest.raises(InvalidSpecError, match=r"workers\.max"):
        read_spec(job_body(workers={"max": "many"}))
    long = job_body()
    long["metadata"]["name"] = "x" * 51
    with pytest.raises(InvalidSpecError, match="at most 50"):
        read_spec(long)


def test_the_schema_has_the_fields_and_defaults_that_the_operator_reads() -> None:
    _same(specs.JobSpec, SPEC)
    _same(statuses.Status, STATUS)
    assert set(STATUS["properties"]["phase"]["enum"]) == set(get_args(statuses.Phase))


def test_defaults_of_the_schema_are_those_of_the_operator() -> None:
    filled = _with_defaults(job_body()["spec"], SPEC)
    body = job_body()
    body["spec"] = filled
    assert read_spec(body) == spec_of()


def test_bounds_of_parameter_servers_are_those_of_the_jobs_settings() -> None:
    fields = SPEC["properties"]["parameterServers"]["properties"]
    assert fields["count"]["maximum"] == specs.PS_COUNT_MAX
    for field, name in (
        ("slots", "ps_slots"),
        ("replicas", "ps_replicas"),
        ("staleness", "ps_staleness"),
        ("snapshotSeconds", "ps_snapshot_seconds"),
    ):
        given = fields[field]
        assert given["minimum"] == SETTINGS[name].at_least and given.get("maximum") == SETTINGS[name].at_most


def test_scale_sets_the_most_workers_and_every_column_is_in_the_status() -> None:
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.workers.max",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    for column in VERSION["additionalPrinterColumns"]:
        node = SCHEMA
        for part in column["jsonPath"].removeprefix(".").split("."):
            if part in ("metadata", "creationTimestamp"):
                break
            node = node["properties"][part]


def test_a_status_survives_being_written_and_read() -> None:
    status = statuses.Status(phase="Running", restarts=3, prices="1/2 USD")
    written = statuses.write_status(status)
    jsonschema.validate(written, STATUS)
    assert statuses.read_status({"status": written}) == status
    cluster = Cluster()
    cluster.settle()
    assert cluster.status["conditions"] and json.loads(json.dumps(cluster.status)) == cluster.status
    jsonschema.validate(cluster.status, STATUS)
    spoiled = {**written, "workers": "three", "startTime": 5}
    assert statuses.read_status({"status": spoiled}).restarts == 3


def test_names_of_jobs_differ_when_an_object_is_made_again() -> None:
    first, again = identity(), Identity("ml", "digits", "fedcba98")
    assert job_name(first, spec_of()) != job_name(again, spec_of())
    long = Identity("n" * 60, "x" * 50, "0123456789")
    assert len(job_name(long, spec_of())) <= 63
    assert job_name(first, spec_of(jobName="mine")) == "mine"


@pytest.mark.parametrize(
    ("price", "micros"), [("0.35", 350_000), ("1", 1_000_000), ("0.000001", 1), ("12.5", 12_500_000), ("", 0)]
)
def test_prices_are_exact(price: str, micros: int) -> None:
    assert price_micros(price) == micros


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (0, "0.00"),
        (5_000, "0.00"),
        (15_000, "0.02"),
        (5_001, "0.01"),
        (1_234_567, "1.23"),
        (-1_235_001, "-1.24"),
    ],
)
def test_money_is_rounded_to_the_cent_half_to_even(micros: int, shown: str) -> None:
    assert money(micros) == shown


def test_ranges_of_exit_codes_include_their_ends() -> None:
    codes = ExitCodes(("3", "128-130"))
    assert [code for code in range(1, 256) if is_retryable(codes, code)] == [3, 128, 129, 130]


def test_a_merge_patch_turns_one_object_into_another() -> None:
    before = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1], "f": None}
    after = {"b": {"c": 3}, "e": [1, 2], "g": {}}
    assert merge_patch(before, after) == {"a": None, "b": {"d": None, "c": 3}, "e": [1, 2], "g": {}}
    assert merge_patch(after, after) == {}


def _same(struct: Any, schema: dict[str, Any]) -> None:
    """Fields and nested structs of one are those of the other."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    assert set(fields) == set(schema["properties"]), struct
    for name, field in fields.items():
        if field.required:
            assert name in schema.get("required", ()), f"{struct.__name__}.{name}"
        for inner in (field.type, *get_args(field.type)):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                part = schema["properties"][name]
                _same(inner, part.get("items", part))


def _with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    """As the API server fills them in."""
    if not isinstance(value, dict):
        return value
    filled = copy.deepcopy(value)
    for name, part in schema.get("properties", {}).items():
        if name not in filled and "default" in part:
            filled[name] = copy.deepcopy(part["default"])
        if name in filled:
            filled[name] = _with_defaults(filled[name], part)
    return filled
