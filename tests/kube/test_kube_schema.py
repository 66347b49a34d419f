"""Validation of ElasticJobs: every invalid field is refused, with a message that names it.

Rules across fields are checked by the API server from Kubernetes 1.25 on; in older versions and in the
emulated API, the operator reports a violation in the condition Accepted and starts nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from integration.master_support import ROOT
from kube.api import ApiError
from kube.scene import Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")

CRD = ROOT / "deploy" / "kubernetes" / "crd" / "elasticjob.yaml"
MASTER = {"address": "127.0.0.1:50051"}
CONTAINERS = [{"name": "worker", "image": "i.invalid/i:1"}]

#: Invalid part of the spec, and the name of the field in the message.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"ests": 0}, "ests"),
    ({"ests": 65537}, "ests"),
    ({"ests": 1.5}, "ests"),
    ({"ests": None}, "ests"),
    ({"workers": {"min": 1}}, "max"),
    ({"workers": {"max": 0}}, "workers.max"),
    ({"workers": {"min": 0, "max": 2}}, "workers.min"),
    ({"workers": {"max": "2"}}, "workers.max"),
    ({"workers": None}, "workers"),
    ({"maxWaitSeconds": -1}, "maxWaitSeconds"),
    ({"recoveryPolicy": "Sometimes"}, "recoveryPolicy"),
    ({"restartBudget": -1}, "restartBudget"),
    ({"restartBackoffSeconds": 3601}, "restartBackoffSeconds"),
    ({"exitCodes": {"retryable": ["0"]}}, "exitCodes.retryable"),
    ({"exitCodes": {"retryable": ["256"]}}, "exitCodes.retryable"),
    ({"exitCodes": {"retryable": ["128-"]}}, "exitCodes.retryable"),
    ({"suspend": "yes"}, "suspend"),
    ({"ttlSecondsAfterFinished": -1}, "ttlSecondsAfterFinished"),
    ({"activeDeadlineSeconds": 0}, "activeDeadlineSeconds"),
    ({"checkpoint": {"url": ""}}, "checkpoint.url"),
    ({"checkpoint": {"intervalSteps": -1}}, "checkpoint.intervalSteps"),
    ({"checkpoint": {"keep": 0}}, "checkpoint.keep"),
    ({"checkpoint": {"onDelete": "Maybe"}}, "checkpoint.onDelete"),
    ({"checkpoint": {"timeoutSeconds": 0}}, "checkpoint.timeoutSeconds"),
    ({"spot": {"provider": "aws"}}, "spot.provider"),
    ({"spot": {"price": "-1"}}, "spot.price"),
    ({"spot": {"price": 0.5}}, "spot.price"),
    ({"spot": {"onDemandPrice": "1.2345678"}}, "spot.onDemandPrice"),
    ({"spot": {"currency": "euro"}}, "spot.currency"),
    ({"priorityClassName": "High!"}, "priorityClassName"),
    ({"queueName": "a_b"}, "queueName"),
    ({"seed": "7"}, "seed"),
    ({"torchThreads": 0}, "torchThreads"),
    ({"determinism": "D3"}, "determinism"),
    ({"jobName": "-j"}, "jobName"),
    ({"master": None}, "master"),
    ({"master": {"address": "no-port"}}, "master.address"),
    ({"master": MASTER | {"tokenSecret": {}}}, "name"),
    ({"master": {"perJob": {"storeUrl": "http://x"}}}, "master.perJob.storeUrl"),
    ({"master": {"perJob": {"storage": {"size": "big"}}}}, "master.perJob.storage.size"),
    ({"parameterServers": {}}, "parameterServers.count"),
    ({"parameterServers": {"count": 0}}, "parameterServers.count"),
    ({"parameterServers": {"count": 2, "slots": 4097}}, "parameterServers.slots"),
    ({"parameterServers": {"count": 2, "replicas": 2}}, "parameterServers.replicas"),
    ({"parameterServers": {"count": 2, "staleness": -1}}, "parameterServers.staleness"),
    ({"parameterServers": {"count": 2, "wire": "Float16"}}, "parameterServers.wire"),
    ({"template": None}, "template"),
    ({"template": {}}, "spec"),
    ({"template": {"spec": {"containers": []}}}, "template.spec.containers"),
    ({"template": {"spec": {"containers": [{"image": "i"}]}}}, "name"),
    ({"template": {"metadata": {"labels": {"a": 1}}, "spec": {"containers": CONTAINERS}}}, "labels"),
]

KEPT = {"checkpoint": {"url": "file:///tmp/kept"}}

#: The same for rules across fields.
BAD_TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"workers": {"min": 3, "max": 2}}, "workers.min"),
    ({"workers": {"min": 5, "max": 5}, "ests": 4}, "workers.min"),
    ({"checkpoint": {"intervalSteps": 5}}, "checkpoint.url"),
    ({"checkpoint": {"onDelete": "Save"}}, "checkpoint.url"),
    ({"parameterServers": {"count": 2}}, "parameterServers needs a checkpoint.url"),
    (KEPT | {"parameterServers": {"count": 2}, "pipeline": {}}, "parameterServers excludes"),
    (KEPT | {"parameterServers": {"count": 1, "replicas": 1}}, "parameterServers.replicas needs a count"),
    ({"master": {}}, "master.address or master.perJob"),
    ({"master": {"address": "127.0.0.1:1", "perJob": {}}}, "master.address or master.perJob"),
]


async def test_bad_fields_are_refused_by_name(scene: Scene) -> None:
    for bad, field in BAD:
        with pytest.raises(ApiError) as refused:
            await scene.apply(**bad)
        assert refused.value.status == 422, bad
        assert field in refused.value.message, bad
    assert not scene.mirror.jobs


@pytest.mark.parametrize(("bad", "said"), BAD_TOGETHER, ids=[str(bad) for bad, _ in BAD_TOGETHER])
async def test_fields_that_do_not_go_together_are_refused(
    scene: Scene, bad: dict[str, Any], said: str
) -> None:
    if scene.cluster.is_real and scene.cluster.version >= (1, 25):
        with pytest.raises(ApiError) as refused:
            await scene.apply(**bad)
        assert refused.value.status == 422
        assert said in refused.value.message
        return
    await scene.apply(**bad)
    await scene.wait(lambda: scene.condition("Accepted").get("status") == "False", "the condition Accepted")
    condition = scene.condition("Accepted")
    assert said in condition["message"]
    assert condition["observedGeneration"] == scene.job["metadata"]["generation"]
    event = await scene.wait_event(condition["reason"])
    assert (event["type"], said in event["message"]) == ("Warning", True)
    assert not scene.mirror.pods_seen


async def test_a_spec_that_is_mended_is_taken_up(scene: Scene) -> None:
    if scene.cluster.is_real and scene.cluster.version >= (1, 25):
        pytest.skip("this API server refuses such a spec itself")
    await scene.apply(workers={"min": 3, "max": 2})
    await scene.wait(lambda: scene.condition("Accepted").get("status") == "False", "the condition Accepted")
    await scene.change(workers={"min": 1})
    await scene.wait_ready(2)
    assert scene.condition("Accepted")["status"] == "True"


async def test_what_decides_the_result_cannot_be_changed(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 1}, seed=7)
    await scene.wait_ready(1)
    for change in ({"ests": 8}, {"seed": 8}):
        try:
            await scene.change(**change)
        except ApiError as refused:
            assert refused.status == 422
            assert "cannot be changed" in refused.message
            continue
        assert not (scene.cluster.is_real and scene.cluster.version >= (1, 25))
        await scene.wait(
            lambda: scene.condition("Accepted").get("status") == "False", "the condition Accepted"
        )
        assert next(iter(change)) in scene.condition("Accepted")["message"]
        assert (await scene.at_master()).settings.ests == 4
        await scene.change(**{name: {"ests": 4, "seed": 7}[name] for name in change})
        await scene.wait(lambda: scene.condition("Accepted").get("status") == "True", "accepted again")
    assert len(scene.mirror.pods_seen) == 1


async def test_what_the_master_is_told_once_cannot_be_changed(scene: Scene) -> None:
    fixed: dict[str, Any] = {
        "maxWaitSeconds": 60,
        "recoveryPolicy": "Fixed",
        "torchThreads": 2,
        "determinism": "D2",
        "checkpoint": {"url": "file:///tmp/a", "intervalSteps": 5, "keep": 2},
        "spot": {"currency": "EUR"},
        "parameterServers": {"count": 2, "staleness": 3},
    }
    other: list[tuple[str, Any]] = [
        ("maxWaitSeconds", 61),
        ("recoveryPolicy", "Elastic"),
        ("torchThreads", 1),
        ("determinism", "D1"),
        ("checkpoint", {"url": "file:///tmp/b"}),
        ("checkpoint", {"url": None, "intervalSteps": 0}),
        ("checkpoint", {"intervalSteps": 6}),
        ("checkpoint", {"keep": 3}),
        ("spot", {"currency": "USD"}),
        ("parameterServers", {"slots": 32}),
        ("parameterServers", {"staleness": None}),
        ("parameterServers", {"wire": "Bfloat16"}),
    ]
    if not (scene.cluster.is_real and scene.cluster.version >= (1, 25)):
        rules = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        said = [each["message"] for each in rules["properties"]["spec"]["x-kubernetes-validations"]]
        assert all(any(field in text and "once" in text for text in said) for field, _ in other)
        return  # this API does not evaluate them
    await scene.apply(suspend=True, **fixed)
    for field, value in other:
        with pytest.raises(ApiError, match="set once, when the master creates the job") as refused:
            await scene.change(**{field: value})
        assert (refused.value.status, field in refused.value.message) == (422, True)
    await scene.change(
        checkpoint={"onDelete": "Save", "timeoutSeconds": 7},
        spot={"price": "0.5"},
        parameterServers={"count": 3},
    )
