"""Parameter servers of an ElasticJob: they come, are replaced and scaled, and leave after the workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import kubernetes_validate
import pytest

from elastane_operator.decisions.observed import Tasks
from elastane_operator.decisions.pods import read_pod
from elastane_operator.edge import translate
from elastane_operator.manifests.master import MasterDefaults, master_objects
from elastane_operator.manifests.pods import server_pod
from elastane_proto.v1 import job_pb2, shard_pb2
from elastane_ps.environment import PsEnvironment
from unit.deploy.elastic_jobs import Cluster, identity, spec_of

SERVERS: dict[str, Any] = {
    "ests": 1,
    "workers": {"min": 1, "max": 2},
    "checkpoint": {"url": "s3://bucket/clicks", "timeoutSeconds": 20},
    "parameterServers": {"count": 2, "replicas": 1},
}


def training(**spec: Any) -> Cluster:
    """A job at rest whose workers do tasks."""
    cluster = Cluster(**(SERVERS | spec))
    cluster.settle()
    cluster.at_master(tasks=Tasks(done=3, total=10, over=False))
    cluster.settle()
    return cluster


def servers(cluster: Cluster) -> list[int]:
    return sorted(pod.index for pod in cluster.live("ps"))


def test_they_are_there_beside_the_workers_and_in_the_status() -> None:
    cluster = training()
    assert (cluster.indexes(), servers(cluster)) == ([0, 1], [0, 1])
    status = cluster.read()
    assert cluster.status["parameterServers"] == {"desired": 2, "ready": 2, "pending": 0, "restarts": 0}
    assert (status.workers.summary, status.replicas, status.progress) == ("2/2", 2, "30%")


def test_a_job_whose_workers_do_tasks_runs_although_its_master_waits_for_a_ring() -> None:
    cluster = training()
    cluster.at_master(phase="waiting", reason="no worker is in a ring")
    cluster.look()
    assert (cluster.read().phase, cluster.read().reason) == ("Running", "2 workers do tasks")


def test_one_that_is_gone_is_replaced_and_no_failure_of_one_is_counted() -> None:
    cluster = training()
    del cluster.pods["digits-ps-0"]
    cluster.settle()
    assert servers(cluster) == [0, 1]
    cluster.wait(60)
    cluster.change("digits-ps-1", phase="Failed", reason="Evicted", ready=False)
    cluster.settle()
    assert servers(cluster) == [0, 1] and cluster.pods["digits-ps-1"].uid != "pod-4"
    status = cluster.read()
    assert (status.restarts, status.preemptions, status.ended) == (0, 0, ())


def test_a_node_that_rejects_them_does_not_get_a_pod_a_second() -> None:
    cluster = training(restartBackoffSeconds=10)
    cluster.change("digits-ps-1", phase="Failed", reason="OutOfmemory", ready=False, created=cluster.now)
    made = cluster.made
    cluster.settle()
    decided = cluster.decide()
    assert cluster.made == made and decided.next_look is not None and decided.next_look <= 10
    cluster.wait(10)
    cluster.settle()
    assert cluster.made == made + 1 and servers(cluster) == [0, 1]


def test_more_and_fewer() -> None:
    cluster = training()
    cluster.spec = spec_of(**(SERVERS | {"parameterServers": {"count": 4, "replicas": 1}}))
    cluster.settle()
    assert servers(cluster) == [0, 1, 2, 3]
    cluster.spec = spec_of(**(SERVERS | {"parameterServers": {"count": 2, "replicas": 1}}))
    cluster.look()
    leaving = [pod.name for pod in cluster.pods.values() if pod.deleted is not None]
    assert leaving == ["digits-ps-2", "digits-ps-3"]
    cluster.settle()
    assert servers(cluster) == [0, 1]


def test_a_suspended_job_has_none_and_they_leave_after_the_workers() -> None:
    cluster = training()
    cluster.set_spec(suspend=True)
    while cluster.live():
        cluster.look()
    assert servers(cluster) == [0, 1], "workers that drain may still push"
    assert cluster.read().phase == "Suspending"
    status = cluster.settle()
    assert status.phase == "Suspended" and not cluster.pods
    cluster.set_spec(suspend=False)
    cluster.settle()
    assert (cluster.indexes(), servers(cluster)) == ([0, 1], [0, 1])


def test_the_job_succeeds_once_all_tasks_are_done_and_all_scripts_have_ended() -> None:
    cluster = training()
    cluster.fail(0, 0)
    cluster.settle()
    cluster.wait(60)
    cluster.settle()
    assert cluster.indexes() == [0, 1], "tasks are open: a worker that has left is replaced"
    cluster.at_master(tasks=Tasks(done=10, total=10, over=True))
    cluster.fail(0, 0)
    cluster.wait(60)
    assert cluster.settle().phase == "Running"
    assert cluster.indexes() == [1], "its script is over: it would begin again"
    cluster.fail(1, 200)
    assert cluster.settle().phase == "Waiting", "it comes back, and ends its script"
    cluster.wait(60)
    cluster.settle()
    assert cluster.indexes() == [1]
    cluster.fail(1, 0)
    cluster.look()
    assert cluster.read().phase == "Succeeded"
    assert servers(cluster) == [] and len([p for p in cluster.pods.values() if p.role == "ps"]) == 2
    assert "Cancel" not in cluster.asked, "they still save their slots"
    status = cluster.settle()
    assert (status.phase, status.settled) == ("Succeeded", True) and cluster.asked[-1] == "Cancel"


def test_a_worker_that_dies_at_the_end_comes_back_while_another_goes_on() -> None:
    cluster = training()
    cluster.at_master(tasks=Tasks(done=10, total=10, over=True))
    cluster.fail(0, 200)
    cluster.settle()
    cluster.wait(60)
    assert cluster.settle().phase == "Running" and cluster.indexes() == [0, 1]


def test_a_pod_that_no_node_has_room_for_does_not_hold_the_end_up() -> None:
    cluster = training()
    cluster.change("digits-worker-1", phase="Pending", scheduled=False, ready=False)
    cluster.at_master(tasks=Tasks(done=10, total=10, over=True))
    cluster.look()
    assert cluster.read().phase == "Running"
    cluster.fail(0, 0)
    cluster.look()
    assert cluster.read().phase == "Succeeded"
    cluster.wait(60)
    cluster.settle()
    assert not cluster.live()


@pytest.mark.parametrize("phase", ["failed", "cancelled"])
def test_the_end_of_the_job_is_theirs(phase: str) -> None:
    cluster = training()
    cluster.at_master(phase=phase, reason="so it is", workers=())
    cluster.settle()
    assert cluster.read().finished and not cluster.live("ps")


def test_they_go_with_what_the_job_had_made() -> None:
    cluster = training(ttlSecondsAfterFinished=100)
    cluster.at_master(phase="succeeded", workers=())
    for _ in range(3):
        cluster.settle()
        cluster.wait(101)
    assert not cluster.pods and cluster.read().cleaned_time is not None


def test_the_masters_settings_are_those_of_the_spec() -> None:
    given = {
        "count": 3,
        "slots": 32,
        "replicas": 1,
        "staleness": 0,
        "snapshotSeconds": 5,
        "nonFinite": "Skip",
    }
    settings = translate.job_settings(spec_of(**(SERVERS | {"parameterServers": given})))
    assert (settings.ps_slots, settings.ps_replicas, settings.ps_snapshot.ToTimedelta()) == (
        32,
        1,
        timedelta(seconds=5),
    )
    assert settings.HasField("ps_staleness") and settings.ps_staleness == 0
    assert settings.ps_nonfinite == job_pb2.PS_NONFINITE_SKIP and settings.ps_wire == job_pb2.PS_WIRE_FLOAT32
    assert not translate.job_settings(spec_of(**SERVERS)).HasField("ps_staleness")


def test_progress_is_that_of_all_data_sets() -> None:
    over = shard_pb2.Progress(epoch=1, epochs=2, done=8, failed=2, total=10, complete=True)
    under_way = shard_pb2.Progress(epoch=1, epochs=4, done=5, todo=5, total=10)
    view = translate.job_view(job_pb2.Job(), [over, under_way])
    assert view.tasks == Tasks(done=20 + 15, total=60, over=False)
    assert translate.job_view(job_pb2.Job()).tasks is None


TEMPLATE = {
    "spec": {
        "initContainers": [{"name": "fetch", "image": "i"}],
        "containers": [
            {"name": "sidecar", "image": "s"},
            {
                "name": "worker",
                "image": "train:1",
                "args": ["train.py"],
                "env": [{"name": "AWS_REGION", "value": "eu"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
                "livenessProbe": {"exec": {"command": ["true"]}},
            },
        ],
        "nodeSelector": {"gpu": "l4"},
        "tolerations": [{"operator": "Exists"}],
    }
}


def test_a_pod_has_the_image_of_the_worker_and_resources_of_its_own() -> None:
    given = {
        "count": 2,
        "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}},
        "nodeSelector": {},
        "tolerations": [],
    }
    master = {"address": "m:1", "tokenSecret": {"name": "tokens"}, "tlsSecret": {"name": "tls"}}
    spec = spec_of(**(SERVERS | {"template": TEMPLATE, "parameterServers": given, "master": master}))
    pod = server_pod(identity(), spec, 1, "m:1")
    for version in ("1.29", "1.34"):
        kubernetes_validate.validate(pod, version, strict=True)
    [container] = pod["spec"]["containers"]
    assert (container["image"], container["resources"]) == ("train:1", given["resources"])
    assert container["command"] == ["python", "-P", "-m", "elastane_ps"]
    assert not {"args", "livenessProbe"} & container.keys() and "initContainers" not in pod["spec"]
    assert (pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]) == ({}, [])
    assert pod["spec"]["restartPolicy"] == "OnFailure" and pod["metadata"]["name"] == "digits-ps-1"
    told = {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}
    known = {f"ELASTANE_{name.upper()}" for name in PsEnvironment.model_fields}
    connection = {"ELASTANE_TLS_CA", "ELASTANE_TOKEN_FILE"}
    assert {name for name in told if name.startswith("ELASTANE_")} <= known | connection
    assert told["ELASTANE_PS_ID"] == "ps-1" and told["AWS_REGION"] == "eu"
    assert (told["ELASTANE_MASTER"], told["ELASTANE_JOB"]) == ("m:1", "ml.digits-01234567")
    assert told["ELASTANE_PS_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert told["ELASTANE_PS_MEMORY_BYTES"] == {"resourceFieldRef": {"resource": "limits.memory"}}
    assert told["ELASTANE_NOTICE_SECONDS"] == "55"
    assert told["ELASTANE_TOKEN_FILE"] == "/etc/elastane/token/worker"
    pod["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod["status"] = {"containerStatuses": [{"name": "worker", "restartCount": 3}]}
    view = read_pod(pod, "worker")
    assert (view.role, view.index, view.restarts) == ("ps", 1, 3)


def test_without_settings_of_its_own_it_goes_where_workers_go() -> None:
    pod = server_pod(identity(), spec_of(**(SERVERS | {"template": TEMPLATE})), 0, "m:1")
    assert pod["spec"]["nodeSelector"] == {"gpu": "l4"} and pod["spec"]["tolerations"]
    [container] = pod["spec"]["containers"]
    assert container["resources"] == {} and len(container["env"]) == len(
        {e["name"] for e in container["env"]}
    )


def test_a_master_of_the_jobs_own_lets_them_in() -> None:
    policy, *_ = master_objects(identity(), spec_of(master={"perJob": {}}), MasterDefaults())
    roles = [
        peer["podSelector"]["matchLabels"].get("elastane.io/role")
        for peer in policy["spec"]["ingress"][0]["from"]
    ]
    assert {"worker", "ps"} <= set(roles)
