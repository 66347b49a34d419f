"""What is refused, and that a repeated request takes effect once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from runs_driver import ELASTIC, RunsDriver, spec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import events
from elastane_master.decisions.runs.machine import RunsMachine
from elastane_master.decisions.runs.requests import REQUESTS_MAX
from elastane_master.decisions.runs.spec import (
    CodeRef,
    DatasetRef,
    GitCommit,
    SecretRef,
    SpecLimits,
    check,
    owner_of,
    resolved,
)
from elastane_master.decisions.runs.state import ServiceSettings
from elastane_proto.job_settings import JobSettings


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instances": -1}, "instances"),
        ({"instances": 10**6}, "instances"),
        ({"instances": 0, "parameters": {"PARALLEL_INSTANCES": "0"}}, "parameters['PARALLEL_INSTANCES']"),
        ({"instances": 0, "parameters": {"PARALLEL_INSTANCES": "3.0"}}, "parameters['PARALLEL_INSTANCES']"),
        ({"instances": 0, "parameters": {"PARALLEL_INSTANCES": "-1"}}, "parameters['PARALLEL_INSTANCES']"),
        (
            {"instances": 0, "parameters": {"PARALLEL_INSTANCES": "1000000"}},
            "parameters['PARALLEL_INSTANCES']",
        ),
        ({"instances": 2, "parameters": {"PARALLEL_INSTANCES": "3"}}, "instances"),
        ({"instances": 4, "instances_min": 2}, "instances_min"),
        ({"chief": True}, "chief"),
        ({"parameter_servers": 1}, "parameter_servers"),
        ({"framework": "tensorflow", "instances": 2, "parameter_servers": 2}, "parameter_servers"),
        ({"framework": "tensorflow", "instances": 2, "parameter_servers": -1}, "parameter_servers"),
        ({"output_model_name": ""}, "output_model_name"),
        ({"output_model_name": "../model"}, "output_model_name"),
        ({"algorithm": "", "code": None}, "algorithm"),
        ({"parameters": {"A=B": "1"}}, "parameters['A=B']"),
        ({"parameters": {"A\0": "1"}}, "parameters['A\\x00']"),
        ({"parameters": {"A\nB": "1"}}, "parameters['A\\nB']"),
        ({"parameters": {"A\n": "1"}}, "parameters['A\\n']"),
        ({"parameters": {"lower": "1"}}, "parameters['lower']"),
        ({"parameters": {"": "1"}}, "parameters['']"),
        ({"parameters": {"RANK": "1"}}, "parameters['RANK']"),
        ({"parameters": {"LD_PRELOAD": "1"}}, "parameters['LD_PRELOAD']"),
        ({"parameters": {"PATH": "1"}}, "parameters['PATH']"),
        ({"parameters": {"PYTHONPATH": "1"}}, "parameters['PYTHONPATH']"),
        ({"parameters": {"ELASTANE_JOB": "1"}}, "parameters['ELASTANE_JOB']"),
        ({"parameters": {"HOROVOD_RANK": "1"}}, "parameters['HOROVOD_RANK']"),
        ({"parameters": {"TF_CONFIG": "1"}}, "parameters['TF_CONFIG']"),
        ({"parameters": {"A": "1\0"}}, "parameters['A']"),
        ({"parameters": {"A": "x" * 2**20}}, "parameters"),
        ({"dataset": DatasetRef("../secrets")}, "dataset.id"),
        ({"dataset": DatasetRef("a/../b")}, "dataset.id"),
        ({"dataset": DatasetRef("")}, "dataset.id"),
        ({"dataset": DatasetRef("a", "hash/1")}, "dataset.version_hash"),
        ({"dataset": DatasetRef("a", url="file:///a/../b")}, "dataset.url"),
        ({"code": CodeRef()}, "code"),
        ({"code": CodeRef(installed=True, archive_sha256="0" * 64)}, "code"),
        ({"code": CodeRef(archive_sha256="0" * 63)}, "code.archive_sha256"),
        ({"code": CodeRef(git=GitCommit("https://a/b", "main"))}, "code.git.commit"),
        ({"code": CodeRef(git=GitCommit("--upload-pack=x", "0" * 40))}, "code.git.url"),
        ({"code": CodeRef(installed=True, image="-v /:/host")}, "code.image"),
        ({"command": ("",)}, "command"),
        ({"command": ("a\0",)}, "command"),
        ({"slots_per_instance": -1}, "slots_per_instance"),
        ({"priority": 1001}, "priority"),
        ({"retries_max": -1}, "retries_max"),
        ({"run_time_max_seconds": -1.0}, "run_time_max"),
        ({"run_time_max_seconds": float("nan")}, "run_time_max"),
        ({"grace_seconds": 1e9}, "grace"),
        ({"runner_labels": {"a b": "c"}}, "runner_labels"),
        ({"labels": {"a": "\n"}}, "labels"),
        ({"secrets": (SecretRef("KEY", file="../key"),)}, "secrets[0].file"),
        ({"secrets": (SecretRef("KEY"),)}, "secrets[0]"),
        ({"secrets": (SecretRef("RANK", file="key"),)}, "secrets[0].variable"),
        ({"secrets": (SecretRef("KEY", kubernetes="key"),)}, "secrets[0].kubernetes"),
        ({"job": JobSettings(ests=2)}, "job"),
    ],
)
def test_bad_input_is_refused_with_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejection) as refused:
        check(spec(**changes), SpecLimits())
    assert refused.value.reason == "invalid_argument" and refused.value.hint
    assert refused.value.facts["field"] == f"spec.{field}"


def test_what_is_good_is_accepted() -> None:
    check(spec(), SpecLimits())
    check(ELASTIC, SpecLimits())
    good = spec(
        instances=0,
        parameters={"PARALLEL_INSTANCES": "3", "LEARNING_RATE": "0.1", "_X9": ""},
        dataset=DatasetRef("team/set-1.2", "sha256:0a", "s3://bucket/set"),
        code=CodeRef(
            git=GitCommit("https://example.org/a.git", "0" * 40), image="registry:5000/a/b:1@sha256:0a"
        ),
        secrets=(SecretRef("KEY", file="keys/one"), SecretRef("OTHER", kubernetes="name/key")),
        labels={"team": "vision"},
        run_time_max_seconds=0.0,
    )
    check(good, SpecLimits())
    demand = resolved(good)
    assert (demand.instances, demand.instances_min, demand.retries_max) == (3, 3, 3)
    assert (resolved(ELASTIC).instances_min, resolved(ELASTIC).elastic) == (1, True)


def test_owners() -> None:
    assert owner_of(spec(owner=""), "ann", all_owners=False) == "ann"
    assert owner_of(spec(owner="bob"), "ann", all_owners=True) == "bob"
    with pytest.raises(Rejection, match="ann may not submit runs of 'bob'"):
        owner_of(spec(owner="bob"), "ann", all_owners=False)
    driver = RunsDriver(ServiceSettings(limits=SpecLimits(owners=("ann",))))
    driver.submit("ann")
    with pytest.raises(Rejection, match="not known"):
        driver.submit("bob")


def test_an_algorithm_that_nobody_offers_is_refused() -> None:
    driver = RunsDriver()
    driver.join("a", 1, algorithms=("intent",))
    driver.submit(algorithm="intent", code=None)
    with pytest.raises(Rejection) as refused:
        driver.submit(algorithm="other", code=None)
    assert refused.value.hint == "there are intent"


def test_missing_data_is_refused_at_once() -> None:
    with pytest.raises(Rejection, match="no version abc"):
        RunsDriver().do(events.RunSubmitted(spec(), data="missing", data_reason="no version abc"))


def test_a_full_queue_refuses() -> None:
    driver = RunsDriver(ServiceSettings(runs_waiting_max=2))
    driver.submit(), driver.submit()
    with pytest.raises(Rejection) as refused:
        driver.submit()
    assert refused.value.reason == "limit_exceeded"


def test_a_repeated_submission_is_the_same_run() -> None:
    driver = RunsDriver()
    first = driver.submit(request_id="r")
    assert driver.submit(request_id="r") == first
    assert driver.submit("bob", request_id="r") != first
    driver.machine = RunsMachine.restore(driver.machine.snapshot())
    assert driver.submit(request_id="r") == first


def test_request_ids_are_remembered_up_to_a_limit() -> None:
    machine = RunsMachine.create()
    for number in range(REQUESTS_MAX + 1):
        machine.handle(events.RunSubmitted(spec(), "", f"{number}"), 0.0)
    assert len(machine.state.requests) == REQUESTS_MAX


def test_client_keys() -> None:
    driver = RunsDriver()
    first = driver.submit(client_key="k", request_id="1")
    assert driver.submit(client_key="k", request_id="2") == first
    assert driver.submit("bob", client_key="k") != first
    with pytest.raises(Rejection) as refused:
        driver.submit(client_key="k", instances=2, labels={"a": "b"})
    assert refused.value.reason == "already_exists"
    assert refused.value.facts["fields"] == "instances,labels"
    driver.cancel(first)
    assert driver.submit(client_key="k") == first  # the key lives as long as the run
    driver.do(events.RunDeleted(first, "d"))
    driver.do(events.RunDeleted(first, "d"))
    assert driver.submit(client_key="k") > first


def test_only_what_is_over_is_deleted() -> None:
    driver = RunsDriver()
    run_id = driver.submit()
    with pytest.raises(Rejection, match="queued"):
        driver.do(events.RunDeleted(run_id))
    for event in (events.RunDeleted(99), events.RunCancelRequested(99), events.RunRetryRequested(99)):
        with pytest.raises(Rejection) as refused:
            driver.do(event)
        assert refused.value.reason == "not_found"


def test_a_priority_out_of_range_is_refused() -> None:
    driver = RunsDriver()
    run_id = driver.submit()
    with pytest.raises(Rejection):
        driver.do(events.PriorityChanged(run_id, 1001))
    driver.cancel(run_id)
    with pytest.raises(Rejection, match="cancelled"):
        driver.do(events.PriorityChanged(run_id, 1))


def test_a_snapshot_of_another_version_is_refused() -> None:
    stored = msgspec.msgpack.decode(RunsMachine.create().snapshot())
    stored[0] = 99
    with pytest.raises(ValueError, match="version 99"):
        RunsMachine.restore(msgspec.msgpack.encode(stored))


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    driver = RunsDriver()
    driver.join("a", 1)
    run_id = driver.submit(run_time_max_seconds=100.0)
    driver.start_all()
    driver.now -= 3600.0
    driver.tick()
    driver.submit()
    assert driver.state(run_id) == "running" and driver.machine.state.decided_at > driver.now
    due = driver.machine.next_deadline()
    assert due is not None and due > driver.now
