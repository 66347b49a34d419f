"""What the operator makes: pods from a template, a master of a job's own; valid, and restricted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from elastane_cli.commands.catalogue import load
from elastane_operator.decisions.pods import read_pod
from elastane_operator.decisions.pool_spec import DeviceType
from elastane_operator.manifests.master import MasterDefaults, master_address, master_objects
from elastane_operator.manifests.pods import worker_pod
from elastane_operator.settings import OperatorSettings
from unit.deploy.elastic_jobs import identity, spec_of

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = ("1.29", "1.34")
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def environment(pod: dict[str, Any]) -> dict[str, str]:
    [container] = pod["spec"]["containers"]
    return {each["name"]: each.get("value", "from a field") for each in container["env"]}


def test_a_container_needs_no_arguments_beyond_its_script() -> None:
    pod = worker_pod(identity(), spec_of(spot={"provider": "AWS"}), 2, "master:50051")
    told = environment(pod)
    assert told["ELASTANE_MASTER"] == "master:50051" and told["ELASTANE_JOB"] == "ml.digits-01234567"
    assert told["ELASTANE_SPOT"] == "aws" and told["ELASTANE_EXIT_CODES"] == "pod"
    assert (told["ELASTANE_LOCAL_WORKERS"], told["ELASTANE_GRACE"]) == ("1", "55")
    metadata = pod["metadata"]
    assert metadata["name"] == "digits-worker-2" and metadata["ownerReferences"][0]["controller"]
    assert metadata["labels"]["elastane.io/worker-index"] == "2"
    assert pod["spec"]["restartPolicy"] == "Never"


def test_every_variable_is_an_option_of_elastane_run_or_its_connection() -> None:
    known = {parameter.envvar for parameter in load("run").params if parameter.envvar}
    assert "ELASTANE_ESTS" in known
    connection = {"ELASTANE_STORE_HOST", "ELASTANE_TLS_CA", "ELASTANE_TLS_CERT", "ELASTANE_TLS_KEY"}
    connection |= {"ELASTANE_TOKEN_FILE"}
    master = {
        "address": "m:1",
        "tokenSecret": {"name": "t"},
        "tlsSecret": {"name": "s", "clientCertificate": True},
    }
    told = set(environment(worker_pod(identity(), spec_of(master=master), 0, "m:1")))
    assert told <= known | connection, told - known - connection


def test_pods_on_demand_are_told_apart_by_their_nodes_and_report_it() -> None:
    on_demand = {
        "workers": 2,
        "nodeSelector": {"capacity": "on-demand"},
        "tolerations": [{"key": "dear", "operator": "Exists"}],
    }
    scaling = {"mode": "deadline=2026-12-04T18:00Z", "onDemand": on_demand}
    worker = {"name": "worker", "image": "i", "env": [{"name": "ELASTANE_CAPACITY", "value": "on-demand"}]}
    template = {"spec": {"containers": [worker], "nodeSelector": {"zone": "a", "capacity": "spot"}}}
    spec = spec_of(template=template, scaling=scaling)
    spot = worker_pod(identity(), spec, 0, "m:1")
    dear = worker_pod(identity(), spec, 1, "m:1", on_demand=True)
    assert spot["spec"]["nodeSelector"] == {"zone": "a", "capacity": "spot"}
    assert dear["spec"]["nodeSelector"] == {"zone": "a", "capacity": "on-demand"}
    assert "tolerations" not in spot["spec"] and dear["spec"]["tolerations"] == on_demand["tolerations"]
    assert environment(spot)["ELASTANE_CAPACITY"] == "spot"
    assert environment(dear)["ELASTANE_CAPACITY"] == "on-demand"
    for made, kind in ((spot, ""), (dear, "on-demand")):
        made["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
        assert read_pod(made).kind == kind
        for version in VERSIONS:
            kubernetes_validate.validate(made, version, strict=True)
    plain = worker_pod(identity(), spec_of(scaling={"mode": "efficiency"}), 0, "m:1")
    assert "elastane.io/capacity" not in plain["metadata"]["labels"]
    assert "ELASTANE_CAPACITY" not in environment(plain)


def test_what_the_template_says_stays() -> None:
    template = {
        "metadata": {"labels": {"team": "a", "elastane.io/job-name": "not this"}, "annotations": {"x": "y"}},
        "spec": {
            "containers": [
                {"name": "proxy", "image": "p"},
                {"name": "worker", "image": "w", "env": [{"name": "ELASTANE_SPOT", "value": "none"}]},
            ],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 15,
            "restartPolicy": "Always",
            "priorityClassName": "mine",
            "aFieldOfTomorrow": {"kept": True},
        },
    }
    spec = spec_of(template=template, priorityClassName="other", queueName="team-a")
    pod = worker_pod(identity(), spec, 0, "m:1")
    assert pod["metadata"]["labels"]["team"] == "a" and pod["metadata"]["annotations"] == {"x": "y"}
    assert pod["metadata"]["labels"]["elastane.io/job-name"] == "digits"
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert pod["spec"]["aFieldOfTomorrow"] == {"kept": True} and pod["spec"]["priorityClassName"] == "mine"
    assert pod["spec"]["restartPolicy"] == "Never" and pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    proxy, worker = pod["spec"]["containers"]
    assert "env" not in proxy
    told = {each["name"]: each.get("value") for each in worker["env"]}
    assert told["ELASTANE_SPOT"] == "none" and told["ELASTANE_GRACE"] == "12"
    assert len(worker["env"]) == len(told), "a variable is set twice"
    assert "env" not in template["spec"]["containers"][0], "the template itself was changed"  # type: ignore[index]


def test_a_pod_of_a_pool_goes_to_nodes_of_its_type() -> None:
    template = {
        "spec": {
            "containers": [{"name": "worker", "image": "train:1"}],
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
        }
    }
    spec = spec_of(template=template, scheduling={"pool": "gpus"}, checkpoint={"url": "s3://bucket/digits"})
    device = DeviceType("l4", 4, {"gpu": "l4"}, ({"key": "gpu", "operator": "Exists"},))
    pod = worker_pod(identity(), spec, 0, "m:1", device)
    assert pod["spec"]["nodeSelector"] == {"zone": "a", "gpu": "l4"}
    assert [each["key"] for each in pod["spec"]["tolerations"]] == ["spot", "gpu"]
    assert pod["metadata"]["labels"]["elastane.io/pool"] == "gpus"
    assert pod["metadata"]["labels"]["elastane.io/device-type"] == "l4"
    assert read_pod(pod).device_type == "l4"
    kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)


def test_workers_of_a_shared_master_get_the_workers_token_and_no_other() -> None:
    master = {"address": "m:1", "tokenSecret": {"name": "tokens"}, "tlsSecret": {"name": "tls"}}
    pod = worker_pod(identity(), spec_of(master=master), 0, "m:1")
    items = {each["name"]: each["secret"]["items"] for each in pod["spec"]["volumes"]}
    assert items["elastane-token"] == [{"key": "worker", "path": "worker"}]
    assert items["elastane-tls"] == [{"key": "ca.crt", "path": "ca.crt"}]
    assert environment(pod)["ELASTANE_TOKEN_FILE"] == "/etc/elastane/token/worker"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "master",
    [
        {"address": "m:1"},
        {"perJob": {}},
        {
            "perJob": {
                "image": "master:1",
                "storeUrl": "rediss://redis:6379",
                "storeSecret": {"name": "redis"},
                "resources": {"requests": {"cpu": "1"}},
                "storage": {"size": "1Gi", "storageClassName": "fast"},
            },
            "tokenSecret": {"name": "tokens"},
            "tlsSecret": {"name": "tls"},
        },
    ],
)
def test_objects_are_valid_for_kubernetes(master: dict[str, Any], version: str) -> None:
    spec = spec_of(master=master)
    made = [*master_objects(identity(), spec, MasterDefaults()), worker_pod(identity(), spec, 0, "m:1")]
    for body in made:
        kubernetes_validate.validate(body, version, strict=True)
        assert body["metadata"]["ownerReferences"][0]["uid"] == identity().uid
    assert len(made) == (1 if "address" in master else 4)


def test_a_master_of_a_jobs_own_is_restricted_and_open_to_its_job_alone() -> None:
    policy, service, stateful = master_objects(
        identity(), spec_of(master={"perJob": {}}), MasterDefaults("m:9", operator_namespace="elastane")
    )
    [container] = stateful["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "m:9" and container["securityContext"] == RESTRICTED
    assert stateful["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == service["spec"]["selector"] == labels
    workers, _, operator = policy["spec"]["ingress"][0]["from"]
    assert operator["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "elastane"}}
    assert (
        workers["podSelector"]["matchLabels"].items()
        <= worker_pod(identity(), spec_of(), 0, "m")["metadata"]["labels"].items()
    )
    storage = spec_of(master={"perJob": {"storage": {"size": "1Gi"}}})
    [*_, kept] = master_objects(identity(), storage, MasterDefaults())
    [claim] = kept["spec"]["volumeClaimTemplates"]
    [keeper] = claim["metadata"]["ownerReferences"]
    # The StatefulSet's controller makes it, and may not set finalizers of ElasticJobs.
    assert (keeper["uid"], keeper["controller"], keeper["blockOwnerDeletion"]) == (
        identity().uid,
        False,
        False,
    )
    address = master_address(identity(), spec_of(master={"perJob": {}}), MasterDefaults())
    assert address == "digits-master.ml.svc.cluster.local:50051"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_manifests_are_valid_and_grant_what_the_operator_uses(version: str) -> None:
    folder = ROOT / "deploy" / "kubernetes" / "operator"
    found = []
    for path in sorted(folder.glob("*.yaml")):
        for body in yaml.safe_load_all(path.read_text()):
            found.append(body["kind"])
            if body["kind"] != "Kustomization":
                kubernetes_validate.validate(body, version, strict=True)
            if body["kind"] == "ClusterRole" and body["metadata"]["name"] == "elastane-operator":
                assert all("*" not in rule["verbs"] + rule["resources"] for rule in body["rules"])
                [secrets] = [rule for rule in body["rules"] if "secrets" in rule["resources"]]
                assert secrets["verbs"] == ["get"]
            if body["kind"] == "Deployment":
                [container] = body["spec"]["template"]["spec"]["containers"]
                assert container["securityContext"] == RESTRICTED
                told = {each["name"].removeprefix("ELASTANE_OPERATOR_").lower() for each in container["env"]}
                assert told <= set(OperatorSettings.model_fields)
    assert {"Deployment", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role"} <= set(found)
