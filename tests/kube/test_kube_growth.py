"""Pods come and go with the spec: creation, scaling both ways, capacity, standbys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kube.api import CORE
from kube.operator_process import Cluster
from kube.scene import JOB, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")


def uids(scene: Scene) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in scene.pods.items()}


@pytest_asyncio.fixture(loop_scope="session")
async def priority(cluster: Cluster) -> AsyncIterator[str]:
    """A priority class."""
    name, path = f"elastane-test-{uuid.uuid4().hex[:8]}", "apis/scheduling.k8s.io/v1/priorityclasses"
    await cluster.api.create(path, {"metadata": {"name": name}, "value": 1})
    yield name
    await cluster.api.delete(f"{path}/{name}")


async def test_a_job_gets_its_pods_and_its_status(scene: Scene, priority: str) -> None:
    job = await scene.apply(
        workers={"min": 1, "max": 2}, queueName="gpus", priorityClassName=priority, seed=7
    )
    await scene.wait_ready(2)
    assert set(scene.pods) == {f"{JOB}-worker-0", f"{JOB}-worker-1"}
    for name, pod in scene.pods.items():
        assert pod["spec"]["restartPolicy"] == "Never"
        assert pod["spec"]["priorityClassName"] == priority
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["kind"]) == (
            job["metadata"]["uid"],
            True,
            "ElasticJob",
        )
        assert scene.kubelet.trainers[name].job == scene.status["jobName"]
    await scene.wait(lambda: scene.status.get("step", 0) > 0, "a step in the status")
    status = scene.status
    counts = {"desired": 2, "ready": 2, "attending": 2, "pending": 0, "summary": "2/2"}
    assert status["workers"] == counts
    assert (status["replicas"], status["restarts"], status["preemptions"]) == (2, 0, 0)
    assert status["observedGeneration"] == scene.job["metadata"]["generation"]
    assert status["masterAddress"] == scene.master_address
    assert status["generation"] >= 1
    assert status["startTime"]
    assert "completionTime" not in status
    path = f"{CORE}/namespaces/{scene.namespace}/pods"
    found = await scene.cluster.api.call("GET", path, labelSelector=status["selector"])
    assert {pod["metadata"]["name"] for pod in found["items"]} == set(scene.pods)
    at_master = await scene.at_master()
    assert (at_master.settings.ests, at_master.settings.seed) == (4, 7)
    assert (at_master.settings.workers_min, at_master.settings.workers_max) == (1, 2)
    created = await scene.wait(lambda: [e for e in scene.events() if "worker 1" in e["message"]], "its event")
    assert created[0]["type"] == "Normal"
    assert len(created[0]["message"].split()) > 2, "an event says why, in words"


async def test_more_pods_when_scaled_up_and_the_last_ones_drain_when_scaled_down(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 2})
    await scene.wait_ready(2)
    first = uids(scene)
    await scene.change(workers={"max": 4})
    await scene.wait_ready(4)
    assert uids(scene).items() >= first.items()
    step = (await scene.at_master()).step
    leaving = [scene.kubelet.trainers[f"{JOB}-worker-{index}"] for index in (2, 3)]
    await scene.scale(2)
    await scene.wait_ready(2)
    await scene.wait(lambda: len(scene.mirror.pods) == 2, "the drained pods gone")
    assert uids(scene) == first
    at_master = await scene.at_master()
    assert at_master.settings.workers_max == 2
    assert at_master.step >= step
    assert all(trainer.protocol.drain or trainer.protocol.done for trainer in leaving), "drained, not killed"
    assert (scene.status["preemptions"], scene.status["restarts"]) == (0, 0)
    assert (scene.job["spec"]["workers"], len(scene.mirror.pods_seen)) == ({"min": 1, "max": 2}, 4)


async def test_workers_beyond_the_logical_ones_stand_by(scene: Scene) -> None:
    await scene.apply(ests=2, workers={"min": 1, "max": 3})
    await scene.wait(lambda: len(scene.kubelet.trainers) == 3, "three workers")
    await scene.wait(lambda: scene.status.get("workers", {}).get("ready") == 3, "three ready")
    await scene.wait(lambda: len(scene.attending()) == 2, "two in the ring")
    assert len((await scene.at_master()).workers) == 3


async def test_it_trains_with_what_fits_and_grows_when_there_is_room(scene: Scene) -> None:
    scene.kubelet.capacity = 1
    await scene.apply(workers={"min": 1, "max": 3})
    await scene.wait(lambda: scene.status.get("phase") == "Running", "running with one")
    await scene.wait(lambda: scene.status["workers"]["ready"] == 1, "one ready")
    await scene.wait(lambda: scene.status["workers"]["attending"] == 1, "one attends")
    counts = {"desired": 3, "ready": 1, "attending": 1, "pending": 2, "summary": "1/3"}
    assert scene.status["workers"] == counts
    scene.kubelet.capacity = 3
    await scene.mirror.changed()
    await scene.wait_ready(3)


async def test_a_pod_that_the_api_refuses_is_told_and_tried_again(scene: Scene) -> None:
    await scene.apply(workers={"min": 1, "max": 1}, priorityClassName="elastane-test-no-such-class")
    event = await scene.wait_event("ActionFailed")
    assert event["type"] == "Warning"
    assert "elastane-test-no-such-class" in event["message"]
    assert not scene.mirror.pods_seen
    await scene.change(priorityClassName=None)
    await scene.wait_ready(1)


async def test_nothing_is_written_about_a_job_that_only_waits(scene: Scene) -> None:
    scene.kubelet.capacity = 0
    await scene.apply(workers={"min": 1, "max": 2})
    await scene.wait(lambda: len(scene.pods) == 2 and scene.status.get("replicas") == 2, "two pods that wait")
    await scene.wait_quiet(1.0)
    before = len(scene.operator.gateway.writes)
    await asyncio.sleep(2.5)  # there is no event to wait for if nothing must happen
    assert scene.operator.gateway.writes[before:] == []
