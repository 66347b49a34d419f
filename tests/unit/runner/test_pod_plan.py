"""What pods are created with, and what their status means: the golden file is the whole of it.

`GOLDEN=write pytest tests/unit/runner/test_pod_plan.py` writes the golden file; read the difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes_validate import validate

from elastane_runner.engine import (
    AttemptPlan,
    CodeFetchError,
    CodeSource,
    EngineError,
    ImageMissingError,
    RankPlan,
    SecretKey,
)
from elastane_runner.pod_plan import (
    Mount,
    PodOptions,
    check_options,
    check_runner,
    check_secrets,
    options_of,
    pod,
    rank_host,
    service,
    service_name,
)
from elastane_runner.pod_status import OVERDUE_SECONDS, disruption, image_digest, start_of, state_of
from elastane_runner.rank_labels import read_labels

GOLDEN = Path(__file__).parent / "pod_golden.json"

PLAN = AttemptPlan(
    run="run-7-2-9",
    attempt=2,
    fence=9,
    folder=Path("/"),
    ranks=(
        RankPlan(
            ("sh", "-c", "echo $HOME $$ $(RANK)"),
            {"RANK": "3", "A": "$(RANK)"},
            3,
            {"K": SecretKey("s", "k")},
        ),
        RankPlan(("true",), {}, 1),
    ),
    slots_per_rank=2,
    log_cap_bytes=4096,
    code=CodeSource(service_url="s3://bucket/artifacts", archive_sha256="ab" * 32),
    is_elastic=True,
    grace_seconds=12.5,
)
OPTIONS = PodOptions(
    image="digits:3",
    namespace="runs",
    fetch_image="elastane:1",
    memory_bytes=2**30,
    cpus=1.5,
    gpu_resource="nvidia.com/gpu",
    pull_secrets=("registry",),
    service_account="trainer",
    environment_secrets=("storage",),
    worker_secret=Mount("worker", "/etc/elastane"),
    claims=(Mount("models", "/models"),),
    run_secrets=frozenset({"s"}),
    node_selector={"pool": "gpu"},
    priority_class="training",
)


def made(plan: AttemptPlan = PLAN, options: PodOptions = OPTIONS) -> list[dict[str, Any]]:
    owner = service(plan, runner="r.1", namespace=options.namespace)
    given = options_of(plan, options)
    owner = {**owner, "metadata": {**owner["metadata"], "uid": "u-1"}}
    return [owner, *(pod(plan, one, given, runner="r.1", owner=owner) for one in plan.ranks)]


def test_the_manifests_are_those_of_the_golden_file_and_of_kubernetes() -> None:
    found = made()
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(GOLDEN.read_text())
    for one in found:
        validate(one, "1.34", strict=True)


def test_without_options_there_are_no_limits_no_secrets_and_nothing_is_fetched() -> None:
    plan = replace(PLAN, code=CodeSource(), ranks=(RankPlan(("true",)),), is_elastic=False)
    options = PodOptions(image="i", worker_secret=Mount("worker", "/etc/elastane"))
    check_options(options)
    (_, one) = made(plan, options)
    validate(one, "1.34", strict=True)
    assert {"initContainers", "imagePullSecrets", "serviceAccountName"}.isdisjoint(one["spec"])
    (container,) = one["spec"]["containers"]
    assert {"resources", "envFrom"}.isdisjoint(container)
    assert [volume["name"] for volume in one["spec"]["volumes"]] == ["tmp", "shm", "code"]


def test_a_pod_says_what_it_is() -> None:
    metadata = made()[1]["metadata"]
    read = read_labels({**metadata["annotations"], **metadata["labels"]})
    assert read is not None
    assert (read.run, read.attempt, read.rank, read.ranks, read.fence) == ("run-7-2-9", 2, 3, (3, 1), 9)
    assert read.log_cap_bytes == 4096


def test_names_are_those_that_dns_takes_and_differ_for_each_launch() -> None:
    names = [
        service_name(runner, run, attempt)
        for runner in ("r1", "R1", "r.1", "x" * 63)
        for run in ("run-1-1-1", "run-1-1-11")
        for attempt in (1, 2)
    ]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 50
    assert service_name("r1", "run-1-1-1", 1).startswith("elastane-r1-run-1-1-1-1-")
    assert rank_host("r1", "ns", "run-1", 1, 4) == f"rank-4.{service_name('r1', 'run-1', 1)}.ns.svc"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": ""}, "no image"),
        ({"user": "0"}, "cannot run as '0'"),
        ({"user": "root"}, "cannot run as"),
        ({"namespace": "A"}, "not the name of a namespace"),
        ({"gpu_resource": "gpu"}, "not the name of a resource"),
        ({"cpus": 0.0}, "too few"),
        ({"pull_secrets": ("a b",)}, "names nothing"),
        ({"service_account": "A"}, "names nothing"),
        ({"claims": (Mount("c", "data"),)}, "cannot be seen at 'data'"),
        ({"claims": (Mount("c", "/"),)}, "cannot be seen at '/'"),
        ({"claims": (Mount("c", "/tmp"),)}, "cannot be seen at '/tmp'"),
        ({"claims": (Mount("c", "/a"), Mount("d", "/a"))}, "d cannot be seen at '/a'"),
        ({"worker_secret": Mount("w", "/a/../tmp")}, "cannot be seen"),
    ],
)
def test_options_that_no_cluster_takes_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        check_options(replace(PodOptions(image="i"), **change))


def test_runners_that_are_no_label_and_secrets_that_are_not_for_runs_are_refused() -> None:
    for name in ("-a", "a b", "x" * 64):
        with pytest.raises(EngineError, match="cannot be the value of a label"):
            check_runner(name)
    check_secrets(PLAN, OPTIONS)
    with pytest.raises(EngineError, match="the secret s of K is not for runs"):
        check_secrets(PLAN, replace(OPTIONS, run_secrets=frozenset({"other"})))


# ---------------------------------------------------------------- status

T = "2026-01-01T00:00:{:02d}Z"
AT_0 = 1767225600.0


def status(
    rank: dict[str, Any] | None = None,
    *,
    meta: dict[str, Any] | None = None,
    written: Sequence[dict[str, Any]] = (),
    **fields: Any,
) -> dict[str, Any]:
    found = dict(fields)
    if rank is not None:
        found["containerStatuses"] = [{"name": "rank", "state": rank}]
    metadata = {"name": "p", "managedFields": list(written), **(meta or {})}
    return {"metadata": metadata, "spec": {"nodeName": "n"}, "status": found}


def wrote(at: int, fields: dict[str, Any]) -> dict[str, Any]:
    """The API server's note of a write to the status."""
    return {"manager": "m", "time": T.format(at), "fieldsV1": {"f:status": fields}}


def told(at: int) -> list[dict[str, Any]]:
    """Notes of a kubelet's last report, and of another's to other fields."""
    return [{"manager": "m"}, wrote(58, {"f:phase": {}}), wrote(at, {"f:containerStatuses": {}})]


def over(code: int = 3, at: int = 30, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "startedAt": T.format(1), "finishedAt": T.format(at), **more}}


def target(at: int) -> dict[str, Any]:
    return {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": T.format(at)}


def deleted(due: int, grace: int) -> dict[str, Any]:
    return {"deletionTimestamp": T.format(due), "deletionGracePeriodSeconds": grace}


def test_a_rank_that_has_ended_has_its_code_unless_something_else_ended_it() -> None:
    own = state_of(status(over(), phase="Failed"), AT_0)
    assert (own.is_running, own.exit_code, own.is_disrupted, own.ended_at) == (False, 3, False, AT_0 + 30)
    for one in (
        status(over(143), meta=deleted(40, 20)),
        status(over(0), meta=deleted(20, 0)),  # as its kubelet leaves it
        status(over(137), phase="Failed", reason="Evicted"),
        status(over(143), conditions=[target(20)]),
    ):
        for seen in (one, {**one, "metadata": one["metadata"] | {"managedFields": told(41)}}):
            assert state_of(seen, AT_0).is_disrupted
    assert state_of(status(over(137, reason="ContainerStatusUnknown")), AT_0).exit_code is None
    assert state_of(status(over(128, reason="StartError")), AT_0).exit_code == 127


@pytest.mark.parametrize("ended_at", [1, 31, 59])
def test_whether_a_rank_ended_before_its_pod_was_deleted_is_told_by_the_clock_of_the_api(
    ended_at: int,
) -> None:
    """ended_at: by the clock of its node."""

    def is_disrupted(at: int, **fields: Any) -> bool:
        state = state_of(status(over(0, ended_at), written=told(at), **fields), AT_0)
        assert state.exit_code == 0 and state.ended_at == AT_0 + ended_at
        return state.is_disrupted

    assert [is_disrupted(at, meta=deleted(59, 20)) for at in (38, 39, 40)] == [False, True, True]
    assert [is_disrupted(at, conditions=[target(39)]) for at in (38, 39)] == [False, True]
    # A scheduler has its own clock, too: the API server has noted when it wrote.
    preempted = wrote(39, {"f:conditions": {'k:{"type":"DisruptionTarget"}': {}}})
    for at, expected in ((38, False), (39, True)):
        pod = status(over(0, ended_at), written=[*told(at), preempted], conditions=[target(1)])
        assert state_of(pod, AT_0).is_disrupted is expected


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (
            status(phase="Failed", reason="Evicted", message="low on\n memory. "),
            "was evicted: low on memory.",
        ),
        (status(phase="Failed", reason="NodeAffinity"), "has failed (NodeAffinity)"),
        (status(meta=deleted(40, 20)), "was deleted"),
        (
            status(
                over(143),
                meta=deleted(40, 20),
                conditions=[
                    {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
                ],
            ),
            "was preempted",
        ),
        (
            status(conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "New"}]),
            "was disrupted",
        ),
    ],
)
def test_why_the_cluster_has_ended_a_pod(pod: dict[str, Any], words: str) -> None:
    assert disruption(pod) == f"the pod p {words}"
    assert state_of(pod, AT_0 + 1000).reason == (
        "" if state_of(pod, AT_0 + 1000).is_running else disruption(pod)
    )


def test_a_pod_that_nobody_else_has_ended_has_no_such_reason() -> None:
    assert disruption(status(over(1), phase="Failed")) == "" == state_of(status(over(1)), AT_0).reason


@pytest.mark.parametrize(
    ("image", "digest"),
    [
        ("docker-pullable://r.test/a/b@sha256:12", "sha256:12"),
        ("r.test:5000/a@sha256:12", "sha256:12"),
        ("sha256:12", ""),  # of an image that was loaded by hand: no registry has it
        ("", ""),
    ],
)
def test_the_digest_of_an_image_is_the_one_that_its_node_has_pulled(image: str, digest: str) -> None:
    started = status(containerStatuses=[{"name": "rank", "imageID": image}])
    assert image_digest(started) == digest and image_digest(status()) == ""


def test_a_deleted_pod_runs_until_its_end_is_reported_or_overdue() -> None:
    running = status({"running": {"startedAt": T.format(1)}}, phase="Running", meta=deleted(10, 5))
    assert state_of(running, AT_0 + 10 + OVERDUE_SECONDS).is_running
    lost = state_of(running, AT_0 + 11 + OVERDUE_SECONDS)
    assert (lost.is_running, lost.exit_code, lost.is_disrupted) == (False, None, True)
    pending = status(phase="Pending", meta=deleted(0, 0))
    assert state_of(pending, AT_0).is_running
    assert not state_of({**pending, "spec": {}}, AT_0).is_running, "no node will report its end"
    assert not state_of(status(phase="Failed", reason="Evicted"), AT_0).is_running


def test_why_a_rank_does_not_start() -> None:
    assert start_of(status({"running": {}})).has_started and start_of(status(over())).has_started
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes",
    }
    assert (
        start_of(status(phase="Pending", conditions=[unschedulable])).waits_for == "Unschedulable: 0/3 nodes"
    )
    pulling = start_of(status({"waiting": {"reason": "ErrImagePull", "message": "no such manifest"}}))
    assert pulling == (False, None, "ErrImagePull: no such manifest", True, False)
    creating = {"waiting": {"reason": "ContainerCreating"}}
    ready = {"type": "PodReadyToStartContainers", "status": "True"}
    assert start_of(status(creating, conditions=[ready])).is_pulling
    assert not start_of(status(creating, conditions=[{**ready, "status": "False"}])).is_pulling
    assert not start_of(status(creating)).is_pulling, "it may wait for a volume"
    invalid = start_of(status({"waiting": {"reason": "InvalidImageName"}}))
    assert isinstance(invalid.refusal, ImageMissingError)
    config = start_of(
        status({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}})
    )
    assert 'secret "x" not found' in str(config.refusal)
    assert "was deleted" in str(start_of(status(phase="Pending", meta=deleted(1, 0))).refusal)


@pytest.mark.parametrize(("code", "kind"), [(3, CodeFetchError), (1, EngineError)])
def test_code_that_is_not_fetched_says_why(code: int, kind: type[EngineError]) -> None:
    init = [{"name": "fetch-code", "state": {"terminated": {"exitCode": code, "message": "a\nno archive\n"}}}]
    found = start_of(
        status({"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=init, phase="Failed")
    )
    assert type(found.refusal) is kind and "the code was not fetched: no archive" in str(found.refusal)
