"""deploy/kubernetes/example: a job that the API server would take, and a pod that the namespace would."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deployment.kustomize import Resource, render
from elastane_operator.decisions import pod_labels
from elastane_operator.decisions.pods import Role
from elastane_operator.decisions.pool_spec import read_pool_spec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = render(ROOT / "deploy/kubernetes/example")


def one(kind: str) -> Resource:
    [found] = [resource for resource in EXAMPLE if resource["kind"] == kind]
    return found


def schema() -> dict[str, Any]:
    definition = yaml.safe_load((ROOT / "deploy/kubernetes/crd/elasticjob.yaml").read_text())
    [version] = definition["spec"]["versions"]
    closed: dict[str, Any] = _closed(version["schema"]["openAPIV3Schema"])
    return closed


def _closed(part: Any) -> Any:
    """The schema as the API server has it when it is told to be strict: no unknown fields."""
    if isinstance(part, dict):
        part = {name: _closed(value) for name, value in part.items()}
        if "properties" in part and not part.get("x-kubernetes-preserve-unknown-fields"):
            part.setdefault("additionalProperties", False)
    return part


def test_the_pool_is_an_elastic_pool() -> None:
    [pool] = render(ROOT / "deploy/kubernetes/example-pool")
    definition = yaml.safe_load((ROOT / "deploy/kubernetes/crd/elasticpool.yaml").read_text())
    [version] = definition["spec"]["versions"]
    assert (pool["apiVersion"], pool["kind"]) == (
        f"{definition['spec']['group']}/{version['name']}",
        definition["spec"]["names"]["kind"],
    )
    jsonschema.validate({"spec": pool["spec"]}, _closed(version["schema"]["openAPIV3Schema"]))
    spec = read_pool_spec(pool)
    assert spec.names == ("h100", "l4")
    assert spec.queues[0].guaranteed == {"h100": 4}


@pytest.mark.parametrize("folder", ["crd", "operator", "example", "example-pool", "runner", "base"])
def test_each_manifest_of_a_folder_is_in_its_kustomization(folder: str) -> None:
    """What `kubectl apply -k` does not name is not applied."""
    place = ROOT / "deploy/kubernetes" / folder
    named = yaml.safe_load((place / "kustomization.yaml").read_text())["resources"]
    assert sorted(named) == sorted(path.name for path in place.glob("*.yaml") if path.stem != "kustomization")


def test_the_job_is_an_elastic_job() -> None:
    job = one("ElasticJob")
    jsonschema.validate({"spec": job["spec"]}, schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [("ests", 0), ("wrokers", {}), ("restartBudget", "six"), ("spot", {"price": "0,31"})],
)
def test_the_schema_would_refuse_a_bad_one(path: str, value: object) -> None:
    job = one("ElasticJob")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"spec": {**job["spec"], path: value}}, schema())


def test_its_pod_is_valid_and_restricted() -> None:
    template = one("ElasticJob")["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "digits-worker-0"},
        "spec": template["spec"],
    }
    kubernetes_validate.validate(pod, "1.29.0", strict=True)
    assert one("Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["spec"]["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in template["spec"]["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert template["spec"]["terminationGracePeriodSeconds"] > 30, "more than the agent's own grace"


def test_the_others_are_valid() -> None:
    for kind in ("Namespace", "NetworkPolicy"):
        kubernetes_validate.validate(one(kind), "1.29.0", strict=True)


def test_its_policies_choose_the_pods_that_the_operator_makes() -> None:
    [worker] = [one("NetworkPolicy")["spec"]["podSelector"]]
    assert worker["matchExpressions"] == [
        {"key": pod_labels.LABEL_JOB, "operator": "Exists"},
        {"key": pod_labels.LABEL_ROLE, "operator": "In", "values": list(get_args(Role))},
    ]
    assert one("NetworkPolicy")["spec"]["ingress"] == [{"from": [{"podSelector": worker}]}]


def test_it_may_speak_to_the_masters_it_names() -> None:
    host, _, port = one("ElasticJob")["spec"]["master"]["address"].partition(":")
    masters = render(ROOT / "deploy/kubernetes/overlays/redis")
    [service] = [r for r in masters if r["kind"] == "Service" and "grpc" in str(r["spec"]["ports"])]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert host == f"{name}.{namespace}.svc"
    assert int(port) in [each["port"] for each in service["spec"]["ports"]]
    [policy] = [r for r in masters if r["kind"] == "NetworkPolicy" and r["metadata"]["name"] == name]
    allowed = [peer["namespaceSelector"]["matchLabels"] for rule in policy["spec"]["ingress"]
               for peer in rule["from"] if "namespaceSelector" in peer]  # fmt: skip
    labels = one("Namespace")["metadata"]["labels"].items()
    assert any(set(labels) >= set(wanted.items()) for wanted in allowed)
