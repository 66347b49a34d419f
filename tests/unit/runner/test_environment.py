"""Environments of ranks: golden files of each framework, the documented table, and what is refused.

`GOLDEN=write pytest tests/unit/runner/test_environment.py` writes the golden files; read the difference.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from elastane_proto.rank_variables import VARIABLES, Framework
from elastane_runner.environment import (
    ENVIRONMENT_BYTES_MAX,
    INSTANCES_MAX,
    RESERVED_PREFIX,
    VARIABLE_BYTES_MAX,
    Endpoint,
    LaunchSpec,
    LaunchSpecError,
    environment,
)

GOLDEN = Path(__file__).parent / "golden"
PAGE = Path(__file__).parents[3] / "docs" / "training-environment.md"

#: Two ranks on one host and one on another, whose local rank 1 is missing.
ENDPOINTS = (Endpoint("10.0.0.1", 12360), Endpoint("10.0.0.1", 12361), Endpoint("fd00::2", 12360))


def spec_of(framework: Framework) -> LaunchSpec:
    return LaunchSpec(
        job_id="17",
        attempt=2,
        framework=framework,
        algorithm="intent-classification",
        fence=9,
        model_name="my model",
        instances=3,
        endpoints=ENDPOINTS,
        dataset_id="1",
        dataset_hash="hashDg==",
        dataset_url="s3://data/1/hashDg==",
        model_url="s3://models/17",
        checkpoint_url="s3://checkpoints/17",
        metadata_store="http://mlflow:5000",
        parameters={"LR": "4", "EPOCHS": "15", "NOTE": "a=b\nünïcode", "PARALLEL_INSTANCES": "3"},
        rendezvous=Endpoint("10.0.0.9", 4000) if framework is Framework.HOROVOD else None,
        elastane_masters="m1:50051,m2:50051" if framework is Framework.ELASTANE else "",
    )


CASES = {
    **{framework.value: spec_of(framework) for framework in Framework},
    "tensorflow_chief_ps": replace(spec_of(Framework.TENSORFLOW), chief=True, parameter_servers=1),
    "single": replace(
        spec_of(Framework.PLAIN), instances=1, endpoints=ENDPOINTS[:1], parameters={}, master_port=29500
    ),
}


def text_of(spec: LaunchSpec) -> str:
    ranks = [environment(spec, rank) for rank in range(spec.instances)]
    return json.dumps(ranks, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_the_environment_of_each_framework_is_the_golden_one(name: str) -> None:
    path = GOLDEN / f"{name}.json"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text_of(CASES[name]))
    assert text_of(CASES[name]) == path.read_text()


def test_every_golden_file_has_its_case() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.json")) == sorted(CASES)


@pytest.mark.parametrize("framework", Framework)
def test_a_rank_gets_the_variables_of_the_table_and_its_parameters_and_nothing_else(
    framework: Framework,
) -> None:
    spec = spec_of(framework)
    documented = {variable.name for variable in VARIABLES if framework in variable.frameworks}
    for rank in range(3):
        assert environment(spec, rank).keys() == documented | spec.parameters.keys()


def test_the_page_has_the_table_and_the_limits() -> None:
    page = PAGE.read_text()
    rows = []
    for variable in VARIABLES:
        frameworks = ", ".join(one for one in Framework if one in variable.frameworks)
        if variable.frameworks == frozenset(Framework):
            frameworks = "all"
        rows.append(f"| `{variable.name}` | {frameworks} | {variable.meaning} |\n")
    assert "| variable | frameworks | meaning |\n|---|---|---|\n" + "".join(rows) + "\n" in page
    for limit in (VARIABLE_BYTES_MAX, ENVIRONMENT_BYTES_MAX, INSTANCES_MAX):
        assert str(limit) in page


def test_no_variable_is_listed_twice() -> None:
    names = [variable.name for variable in VARIABLES]
    assert len(names) == len(set(names))


def test_tf_config_is_equal_on_all_ranks_but_for_the_task() -> None:
    spec = CASES["tensorflow_chief_ps"]
    configs = [json.loads(environment(spec, rank)["TF_CONFIG"]) for rank in range(3)]
    tasks = [config.pop("task") for config in configs]
    assert configs[0] == configs[1] == configs[2]
    assert [task["type"] for task in tasks] == ["chief", "worker", "ps"]
    for config, task, endpoint in zip(configs, tasks, ENDPOINTS, strict=True):
        assert config["cluster"][task["type"]][task["index"]] == str(endpoint)


@pytest.mark.parametrize(
    "name",
    ["", "A=B", "A\0B", "A\nB", "A\n", "lower", "Mixed", "1A", "A-B", "A B", "Ä", "A\u0660"],
)
def test_a_parameter_name_that_is_no_variable_is_refused(name: str) -> None:
    spec = replace(spec_of(Framework.PLAIN), parameters={name: "1"})
    with pytest.raises(LaunchSpecError, match="not allowed") as refused:
        environment(spec, 0)
    assert repr(name) in str(refused.value) and refused.value.facts["parameter"] == name


@pytest.mark.parametrize("framework", Framework)
@pytest.mark.parametrize(
    "name", [*(variable.name for variable in VARIABLES), f"{RESERVED_PREFIX}TOKEN", RESERVED_PREFIX]
)
def test_a_parameter_never_replaces_a_variable_of_the_service(name: str, framework: Framework) -> None:
    """Of whatever framework: a job that changes its framework keeps its parameters."""
    spec = replace(spec_of(framework), parameters={name: "1"})
    with pytest.raises(LaunchSpecError, match=f"{name} would replace"):
        environment(spec, 0)


@pytest.mark.parametrize(("value", "words"), [("a\0b", "contains NUL"), ("\udc80", "is not valid Unicode")])
def test_a_value_that_no_process_can_get_is_refused(value: str, words: str) -> None:
    with pytest.raises(LaunchSpecError, match=f"LR {words}"):
        environment(replace(spec_of(Framework.PLAIN), parameters={"LR": value}), 0)
    with pytest.raises(LaunchSpecError, match=f"MODEL_NAME {words}"):
        environment(replace(spec_of(Framework.PLAIN), model_name=value), 0)


def test_a_megabyte_of_parameters_is_refused_with_the_limit() -> None:
    for parameters in ({"A": "x" * 1024 * 1024}, {f"A{number}": "x" * 1024 for number in range(1024)}):
        with pytest.raises(LaunchSpecError, match=str(VARIABLE_BYTES_MAX)):
            environment(replace(spec_of(Framework.PLAIN), parameters=parameters), 0)


def test_the_whole_environment_is_bounded() -> None:
    spec = replace(
        spec_of(Framework.PLAIN),
        model_url="x" * 110_000,
        dataset_url="x" * 110_000,
        dataset_id="x" * 110_000,
    )
    environment(spec, 0)
    with pytest.raises(LaunchSpecError, match=str(ENVIRONMENT_BYTES_MAX)):
        environment(replace(spec, checkpoint_url="x" * 110_000, metadata_store="x" * 110_000), 0)


def test_the_largest_variable_is_one_that_a_process_can_be_started_with() -> None:
    """Linux' own limit, which a variable that is one byte larger meets."""
    largest = "x" * (VARIABLE_BYTES_MAX - len("MODEL_URL=") - 1)
    spec = replace(spec_of(Framework.PLAIN), model_url=largest)
    subprocess.run(["/bin/true"], env=environment(spec, 0), check=True)
    with pytest.raises(LaunchSpecError, match=f"MODEL_URL has {VARIABLE_BYTES_MAX + 1} bytes"):
        environment(replace(spec, model_url=largest + "x"), 0)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["/bin/true"], env={"MODEL_URL": largest + "x"}, check=True)


@pytest.mark.parametrize("instances", [0, -1, 10**6, INSTANCES_MAX + 1])
def test_a_number_of_instances_out_of_range_is_refused(instances: int) -> None:
    with pytest.raises(LaunchSpecError, match=f"{instances} instances are not between 1 and {INSTANCES_MAX}"):
        environment(replace(spec_of(Framework.PLAIN), instances=instances), 0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model_name": ""}, "model_name is empty"),
        ({"job_id": ""}, "job_id is empty"),
        ({"attempt": 0}, "attempt 0"),
        ({"endpoints": ENDPOINTS[:2]}, "2 endpoints"),
        ({"endpoints": (*ENDPOINTS[:2], Endpoint("", 1))}, "no host"),
        ({"endpoints": (*ENDPOINTS[:2], Endpoint("h", 0))}, "port 0"),
        ({"master_port": 65536}, "port 65536"),
        ({"chief": True}, "neither a chief"),
        ({"parameter_servers": 1}, "neither a chief"),
        ({"framework": Framework.HOROVOD}, "no rendezvous"),
        ({"framework": Framework.HOROVOD, "rendezvous": Endpoint("h", -1)}, "port -1"),
        ({"framework": Framework.ELASTANE}, "no address of a master"),
        ({"framework": Framework.TENSORFLOW, "parameter_servers": 3}, "no worker"),
        ({"framework": Framework.TENSORFLOW, "parameter_servers": -1}, "no worker"),
        ({"framework": Framework.TENSORFLOW, "endpoints": ENDPOINTS[:1] * 3}, "same endpoint"),
    ],
)
def test_what_does_not_belong_together_is_refused(changed: dict[str, object], words: str) -> None:
    with pytest.raises(LaunchSpecError, match=words):
        environment(replace(spec_of(Framework.PLAIN), **changed), 0)  # type: ignore[arg-type]


def test_code_that_came_without_an_algorithm_runs_with_an_empty_name_of_it() -> None:
    """The master accepts such a run."""
    assert environment(replace(spec_of(Framework.PLAIN), algorithm=""), 0)["ALGORITHM_NAME"] == ""
