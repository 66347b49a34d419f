"""A dedicated master of a job: its objects are created, repaired, and deleted with the job.

Its pod runs nothing here, so the operator cannot reach it; how a job continues is tested with a shared master
in the other scenarios.
"""

from __future__ import annotations

from typing import Any

import pytest

from kube.api import CORE, ApiError, Object
from kube.scene import JOB, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")
APPS, NETWORKING = "apis/apps/v1", "apis/networking.k8s.io/v1"
PLACES = {"StatefulSet": (APPS, "statefulsets"), "Service": (CORE, "services")}
PLACES["NetworkPolicy"] = (NETWORKING, "networkpolicies")
NAME = f"{JOB}-master"
OWN: dict[str, Any] = {"perJob": {"image": "master.invalid/master:1", "storage": {"size": "1Gi"}}}
#: Timeout for the garbage collector, which is slow in a real cluster.
COLLECT_SECONDS = 90.0


def path(scene: Scene, kind: str) -> str:
    base, plural = PLACES[kind]
    return f"{base}/namespaces/{scene.namespace}/{plural}/{NAME}"


async def there(scene: Scene) -> dict[str, Object]:
    """Return the master's existing objects by kind."""
    found = {}
    for kind in PLACES:
        try:
            item = await scene.cluster.api.get(path(scene, kind))
        except ApiError as error:
            assert error.status == 404
            continue
        if not item["metadata"].get("deletionTimestamp"):
            found[kind] = item
    return found


async def test_a_job_has_a_master_of_its_own_that_goes_with_it(scene: Scene) -> None:
    job = await scene.apply(workers={"min": 1, "max": 2}, master=OWN, checkpoint={"timeoutSeconds": 1})
    objects = await scene.eventually(lambda: there(scene), lambda found: len(found) == 3, "three objects")
    for item in objects.values():
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
    template = objects["StatefulSet"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["image"] == "master.invalid/master:1"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert template["spec"]["securityContext"]["runAsNonRoot"]
    selector = objects["Service"]["spec"]["selector"]
    assert selector.items() <= template["metadata"]["labels"].items()
    assert scene.status["masterAddress"].startswith(f"{NAME}.{scene.namespace}.")
    await scene.wait(lambda: scene.condition("MasterReachable").get("status") == "False", "the condition")
    workers = [name for name in scene.mirror.pods if not name.startswith(NAME)]
    assert workers == [], "nothing is begun before the master answers"
    await scene.cluster.api.delete(path(scene, "Service"))
    await scene.eventually(lambda: there(scene), lambda found: len(found) == 3, "the service made again")
    await scene.delete()
    await scene.wait(lambda: not scene.job, "the job gone")
    await scene.eventually(lambda: there(scene), lambda found: not found, "its master gone", COLLECT_SECONDS)


async def test_somebody_elses_objects_are_left_alone(scene: Scene) -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"clusterIP": "None", "ports": [{"port": 1}]},
    }
    made = await scene.cluster.api.create(f"{CORE}/namespaces/{scene.namespace}/services", service)
    await scene.apply(workers={"min": 1, "max": 2}, master=OWN)
    await scene.wait(lambda: scene.condition("Accepted").get("reason") == "NameTaken", "the condition")
    assert NAME in scene.status["reason"]
    await scene.delete()
    await scene.wait(lambda: not scene.job, "the job gone")
    assert (await there(scene))["Service"]["metadata"]["uid"] == made["metadata"]["uid"]
