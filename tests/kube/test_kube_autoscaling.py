"""A job that scales by itself: its pods are the master's target, also beside a HorizontalPodAutoscaler."""

from __future__ import annotations

import pytest

from kube.scene import JOB, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")
DEADLINE = "deadline=2099-12-04T18:00+01:00"


def autoscaler(name: str = JOB) -> dict[str, object]:
    target = {"apiVersion": "elastane.io/v1alpha1", "kind": "ElasticJob", "name": name}
    return {"metadata": {"name": "beside"}, "spec": {"scaleTargetRef": target, "maxReplicas": 4}}


async def test_an_autoscaler_beside_is_refused_in_words_and_has_no_effect(scene: Scene) -> None:
    # With one number in bounds the target stays, whatever the steps take.
    await scene.apply(ests=4, workers={"min": 2, "max": 2}, scaling={"mode": "efficiency"})
    await scene.wait_ready(2)
    assert (await scene.at_master()).settings.scaling == "efficiency=0.1"
    await scene.wait(lambda: scene.status.get("scaling", {}).get("target") == 2, "the target in the status")
    assert scene.condition("Scaling")["status"] == "True"
    path = f"apis/autoscaling/v1/namespaces/{scene.namespace}/horizontalpodautoscalers"
    await scene.cluster.api.create(path, autoscaler())
    await scene.scale(3)  # as it does
    await scene.wait(
        lambda: scene.condition("Scaling").get("reason") == "AutoscalerBeside", "the refusal in words"
    )
    assert "HorizontalPodAutoscaler beside" in scene.condition("Scaling")["message"]
    await scene.wait_event("AutoscalerBeside")
    step = scene.status.get("step", 0)
    await scene.wait(lambda: scene.status.get("step", 0) > step, "another look")
    assert (await scene.at_master()).settings.workers_max == 2 and len(scene.pods) == 2
    await scene.cluster.api.delete(f"{path}/beside")
    await scene.change(restartBudget=7)
    await scene.wait(lambda: scene.condition("Scaling").get("status") == "True", "it is gone")
    await scene.eventually(scene.at_master, lambda job: job.settings.workers_max == 3, "the bound")


async def test_another_jobs_autoscaler_is_none_of_this_jobs(scene: Scene) -> None:
    path = f"apis/autoscaling/v1/namespaces/{scene.namespace}/horizontalpodautoscalers"
    await scene.cluster.api.create(path, autoscaler("another"))
    await scene.apply(ests=4, workers={"min": 1, "max": 2}, scaling={"mode": "efficiency"})
    await scene.wait_ready(2)
    await scene.wait(lambda: scene.condition("Scaling").get("status") == "True", "the condition")
    await scene.cluster.api.delete(f"{path}/beside")


async def test_pods_of_a_deadline_with_nodes_on_demand_say_what_they_are(scene: Scene) -> None:
    on_demand = {"workers": 1, "nodeSelector": {"capacity": "on-demand"}}
    scaling = {"mode": DEADLINE, "onDemand": on_demand}
    await scene.apply(ests=4, workers={"min": 1, "max": 2}, scaling=scaling)
    await scene.wait_ready(2)
    assert (await scene.at_master()).settings.on_demand_workers == 1
    kinds = [pod["metadata"]["labels"]["elastane.io/capacity"] for pod in scene.pods.values()]
    assert kinds == ["spot", "spot"] and all("nodeSelector" not in pod["spec"] for pod in scene.pods.values())


async def test_a_mode_that_cannot_be_is_named_and_starts_nothing(scene: Scene) -> None:
    await scene.apply(ests=4, workers={"min": 1, "max": 2}, scaling={"mode": "deadline=+2h"})
    await scene.wait(lambda: scene.condition("Accepted").get("status") == "False", "it is refused")
    assert "means another time each time it is read" in scene.condition("Accepted")["message"]
    assert not scene.pods
