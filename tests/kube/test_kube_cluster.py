"""Tests of the emulated API's behaviour, run against a real API too, so that both must agree."""

from __future__ import annotations

import asyncio
from datetime import datetime

import pytest

from kube.api import CORE, JOBS, ApiError
from kube.mirror import Mirror
from kube.operator_process import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")
POD = {"spec": {"schedulerName": "elastane-test", "containers": [{"name": "c", "image": "i.invalid/i:1"}]}}


async def refusal(call: object) -> int:
    try:
        await call
    except ApiError as error:
        return error.status
    return 200


async def test_objects_have_versions_and_conflicts(cluster: Cluster) -> None:
    api, path = cluster.api, f"{CORE}/namespaces/default/pods"
    pod = await api.create(path, {"metadata": {"generateName": "elastane-test-", "labels": {"a": "b"}}} | POD)
    own = f"{path}/{pod['metadata']['name']}"
    try:
        assert await refusal(api.create(path, {"metadata": {"name": pod["metadata"]["name"]}} | POD)) == 409
        changed = await api.patch(own, {"metadata": {"annotations": {"x": "y"}}})
        assert int(changed["metadata"]["resourceVersion"]) > int(pod["metadata"]["resourceVersion"])
        same = await api.patch(own, {"metadata": {"annotations": {"x": "y"}}})
        assert same["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]
        assert await refusal(api.replace(own, pod)) == 409
        assert await refusal(api.patch(own, {"metadata": {"uid": "other"}})) in (409, 422)
        assert await refusal(api.patch(own, {"spec": {"restartPolicy": "Never", "hostNetwork": True}})) == 422
        found = await api.call("GET", path, labelSelector="a=b")
        assert [item["metadata"]["name"] for item in found["items"]] == [pod["metadata"]["name"]]
        assert (await api.call("GET", path, labelSelector="a=c"))["items"] == []
    finally:
        await api.delete(own, {"gracePeriodSeconds": 0})


async def test_a_bound_pod_waits_for_its_kubelet_and_an_unbound_or_ended_one_does_not(
    cluster: Cluster,
) -> None:
    api, path = cluster.api, f"{CORE}/namespaces/default/pods"
    async with Mirror(api, "default") as mirror:
        for name in ("elastane-test-unbound", "elastane-test-bound", "elastane-test-ended"):
            await api.create(path, {"metadata": {"name": name}} | POD)
            if name != "elastane-test-unbound":
                target = {"apiVersion": "v1", "kind": "Node", "name": cluster.node}
                binding = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": name},
                    "target": target,
                }
                await api.create(f"{path}/{name}/binding", binding)
            if name == "elastane-test-ended":
                await api.patch(f"{path}/{name}/status", {"status": {"phase": "Failed"}})
            await api.delete(f"{path}/{name}")
        await mirror.wait(lambda: set(mirror.pods) == {"elastane-test-bound"}, "only the bound one")
        bound = mirror.pods["elastane-test-bound"]["metadata"]
        assert bound["deletionTimestamp"]
        assert bound["deletionGracePeriodSeconds"] == 30
        wrong = {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}}
        assert await refusal(api.delete(f"{path}/elastane-test-bound", wrong)) == 409
        await api.delete(f"{path}/elastane-test-bound", {"gracePeriodSeconds": 0})
        await mirror.wait(lambda: not mirror.pods, "none")


async def test_a_second_deletion_counts_its_grace_from_the_time_of_the_first(cluster: Cluster) -> None:
    """A kubelet ends each deletion by one without grace: when it was asked for is still to be seen."""
    api, path = cluster.api, f"{CORE}/namespaces/default/pods"
    name = "elastane-test-deleted"
    await api.create(path, {"metadata": {"name": name, "finalizers": ["elastane.io/test"]}} | POD)
    try:
        target = {"apiVersion": "v1", "kind": "Node", "name": cluster.node}
        await api.create(
            f"{path}/{name}/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target},
        )
        asked_at = set()
        for grace_seconds in (30, 20, 0):
            await api.delete(f"{path}/{name}", {"gracePeriodSeconds": grace_seconds})
            meta = (await api.get(f"{path}/{name}"))["metadata"]
            assert meta["deletionGracePeriodSeconds"] == grace_seconds
            asked_at.add(datetime.fromisoformat(meta["deletionTimestamp"]).timestamp() - grace_seconds)
            await asyncio.sleep(1.1)  # its times have whole seconds
        assert len(asked_at) == 1
    finally:
        await api.patch(f"{path}/{name}", {"metadata": {"finalizers": None}})


async def test_status_and_scale_are_subresources(cluster: Cluster) -> None:
    api, path = cluster.api, f"{JOBS}/namespaces/default/elasticjobs"
    spec = {"ests": 4, "workers": {"max": 2}, "master": {"address": "127.0.0.1:1"}, "template": POD}
    body = {"apiVersion": "elastane.io/v1alpha1", "kind": "ElasticJob", "metadata": {"name": "elastane-test"}}
    job = await api.create(path, body | {"spec": spec | {"unknown": 1}, "status": {"phase": "Failed"}})
    own = f"{path}/elastane-test"
    try:
        assert "status" not in job
        assert job["spec"]["workers"] == {"min": 1, "max": 2}
        assert job["spec"]["recoveryPolicy"] == "Elastic"
        assert "unknown" not in job["spec"]
        told = await api.patch(
            f"{own}/status", {"spec": {"ests": 8}, "status": {"phase": "Running", "replicas": 2}}
        )
        assert (told["spec"]["ests"], told["status"]["phase"], told["metadata"]["generation"]) == (
            4,
            "Running",
            1,
        )
        scale = await api.get(f"{own}/scale")
        assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
        scale["spec"]["replicas"] = 3
        await api.replace(f"{own}/scale", scale)
        after = await api.get(own)
        assert after["spec"]["workers"] == {"min": 1, "max": 3}
        assert after["metadata"]["generation"] == 2
    finally:
        await api.patch(own, {"metadata": {"finalizers": None}})
        await api.delete(own)
