"""Pods of parameter servers come, are replaced and scaled with the spec, and go with the job."""

from __future__ import annotations

from typing import Any

import pytest

from elastane_proto.v1 import job_pb2
from kube.scene import JOB, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_parameter_servers_are_kept_at_their_number_and_leave_with_the_job(scene: Scene) -> None:
    def servers(count: int) -> bool:
        names = {f"{JOB}-ps-{index}" for index in range(count)} | {f"{JOB}-worker-0"}
        ready = scene.status.get("parameterServers", {}).get("ready")
        return ready == count and set(scene.pods) == names

    given: dict[str, Any] = {"count": 2, "replicas": 1, "resources": {"limits": {"memory": "1Gi"}}}
    await scene.apply(
        workers={"min": 1, "max": 1},
        checkpoint={"url": "file:///tmp/slots"},
        parameterServers=given,
        seed=7,
    )
    await scene.wait(lambda: servers(2), "two parameter servers")
    settings = (await scene.at_master()).settings
    assert (settings.ps_slots, settings.ps_replicas) == (64, 1)
    assert settings.ps_nonfinite == job_pb2.PS_NONFINITE_REFUSE
    pod = scene.pods[f"{JOB}-ps-1"]
    assert (pod["spec"]["restartPolicy"], pod["metadata"]["labels"]["elastane.io/role"]) == (
        "OnFailure",
        "ps",
    )
    was = pod["metadata"]["uid"]
    await scene.kubelet.lose_node_of(f"{JOB}-ps-1")
    await scene.wait(lambda: servers(2) and scene.pods[f"{JOB}-ps-1"]["metadata"]["uid"] != was, "another")
    for count in (3, 2):
        await scene.change(parameterServers={"count": count})
        await scene.wait(lambda count=count: servers(count), f"{count} parameter servers")  # type: ignore[misc]
    assert scene.status.get("preemptions", 0) == 0, "only workers are counted"
    await scene.change(suspend=True)
    await scene.wait_phase("Suspended")
    assert not scene.mirror.pods
    await scene.change(suspend=False)
    await scene.wait(lambda: servers(2), "all are back")
    await scene.delete()
    await scene.wait_gone()
