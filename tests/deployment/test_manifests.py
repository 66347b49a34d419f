"""deploy/kubernetes is what Kubernetes takes, fits together, and fits the product: overlay by overlay."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

import patience
from deployment.kustomize import (
    NotUnderstoodError,
    Resource,
    containers,
    identity,
    pod_template,
    render,
)
from deployment.product import SECRETS, master_variables, operator_variables

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = sorted(path.parent for path in (KUBERNETES / "overlays").glob("*/kustomization.yaml"))
IDS = [path.name for path in OVERLAYS]
VERSIONS = [v for v in sorted(set(all_versions())) if tuple(map(int, v.split(".")[:2])) >= (1, 29)]
#: Kinds of other projects; whoever owns them checks them.
FOREIGN = {"ServiceMonitor": "monitoring.coreos.com", "PrometheusRule": "monitoring.coreos.com"}


@functools.cache
def rendered(overlay: Path) -> str:
    return json.dumps(render(overlay))


@pytest.fixture(params=OVERLAYS, ids=IDS)
def resources(request: pytest.FixtureRequest) -> list[Resource]:
    return json.loads(rendered(request.param))


@pytest.fixture
def everything() -> list[Resource]:
    """A namespace with Redis, masters, operator and monitoring."""
    found: dict[tuple[str, str, str], Resource] = {}
    for overlay in OVERLAYS:
        if overlay.name != "external-redis":
            found |= {identity(resource): resource for resource in json.loads(rendered(overlay))}
    return list(found.values())


def of_kind(resources: list[Resource], *kinds: str) -> list[Resource]:
    return [resource for resource in resources if resource["kind"] in kinds]


def pods(resources: list[Resource]) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
    """Name, labels and specification of each kind of pod."""
    return [
        (resource["metadata"]["name"], template["metadata"]["labels"], template["spec"])
        for resource in resources
        if (template := pod_template(resource)) is not None
    ]


def chosen(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "Exists"
        if expression["key"] not in labels:
            return False
    wanted = selector.get("matchLabels", {})
    return all(labels.get(name) == value for name, value in wanted.items())


# ---------------------------------------------------------------------------- what Kubernetes takes


def test_there_are_overlays_and_versions_to_check() -> None:
    assert {"redis", "external-redis", "operator"} <= set(IDS)
    assert len(VERSIONS) >= 5


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid(version: str) -> None:
    overlays = [json.loads(rendered(overlay)) for overlay in OVERLAYS]
    different = {json.dumps(resource): resource for resources in overlays for resource in resources}
    for resource in different.values():
        if resource["kind"] in FOREIGN:
            assert resource["apiVersion"].startswith(FOREIGN[resource["kind"]])
        else:
            kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelt_field_is_found(everything: list[Resource]) -> None:
    [broken] = of_kind(everything, "Namespace")
    broken["metadata"]["nmae"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=IDS)
@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="needs kubectl, whose kustomize it is held against"
)
def test_kustomize_renders_the_same(overlay: Path) -> None:
    done = patience.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, timeout=60)
    if "unknown" in done.stderr and done.returncode:
        pytest.skip(f"this kubectl is too old: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    theirs = {identity(resource): resource for resource in yaml.safe_load_all(done.stdout)}
    assert {identity(resource): resource for resource in json.loads(rendered(overlay))} == theirs


def test_what_is_not_understood_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n")
    with pytest.raises(NotUnderstoodError, match="namePrefix"):
        render(tmp_path)


def test_names_are_unique(resources: list[Resource]) -> None:
    names = [identity(resource) for resource in resources]
    assert len(names) == len(set(names))


# ---------------------------------------------------------------------------- what fits together


def test_selectors_find_the_pods_they_are_for(everything: list[Resource]) -> None:
    found = pods(everything)
    for resource in of_kind(everything, "Deployment", "StatefulSet"):
        assert chosen(resource["spec"]["selector"], resource["spec"]["template"]["metadata"]["labels"])
    for resource in of_kind(everything, "Service"):
        selector = {"matchLabels": resource["spec"]["selector"]}
        assert [name for name, labels, _ in found if chosen(selector, labels)], resource["metadata"]["name"]
    for resource in of_kind(everything, "PodDisruptionBudget"):
        assert [name for name, labels, _ in found if chosen(resource["spec"]["selector"], labels)]
    for _, labels, spec in found:
        for constraint in spec.get("topologySpreadConstraints", ()):
            assert chosen(constraint["labelSelector"], labels)


def test_services_lead_to_ports_of_their_pods(everything: list[Resource]) -> None:
    for service in of_kind(everything, "Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        for _, labels, spec in pods(everything):
            if chosen(selector, labels):
                named = {
                    port["name"]: port["containerPort"] for c in spec["containers"] for port in c["ports"]
                }
                for port in service["spec"]["ports"]:
                    # Headless: nothing translates a port.
                    assert named[port["targetPort"]] == port["port"]


def test_policies_open_ports_that_are_there(everything: list[Resource]) -> None:
    found = pods(everything)
    for policy in of_kind(everything, "NetworkPolicy"):
        selected = [spec for _, labels, spec in found if chosen(policy["spec"]["podSelector"], labels)]
        ports = {port["name"] for spec in selected for c in spec["containers"] for port in c.get("ports", ())}
        for rule in policy["spec"].get("ingress", ()):
            for port in rule.get("ports", ()):
                assert port["port"] in ports, policy["metadata"]["name"]
            for peer in rule.get("from", ()):
                if peer.get("podSelector"):
                    assert [n for n, labels, _ in found if chosen(peer["podSelector"], labels)]


def test_the_masters_may_reach_their_store_a_collector_that_is_let_in_and_nothing_more(
    everything: list[Resource],
) -> None:
    [policy] = [r for r in of_kind(everything, "NetworkPolicy") if r["metadata"]["name"] == "elastane-master"]
    [master] = [r for r in of_kind(everything, "Deployment") if r["metadata"]["name"] == "elastane-master"]
    store = re.fullmatch(
        r"rediss?://elastane@([\w.-]+):(\d+)/0", variables(containers(master)[0])["ELASTANE_STORE"]
    )
    assert store is not None
    [service] = [r for r in of_kind(everything, "Service") if r["metadata"]["name"] == store[1]]
    dns, to_store, to_collector = policy["spec"]["egress"]
    # Nobody has the label unless somebody gives it.
    assert to_collector["to"] == [{"namespaceSelector": {"matchLabels": {"elastane.io/traces": "allowed"}}}]
    assert to_collector["ports"] == [{"port": 4317}]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert to_store["to"] == [{"podSelector": {"matchLabels": service["spec"]["selector"]}}]
    assert (
        [port["port"] for port in to_store["ports"]]
        == [int(store[2])]
        == [port["port"] for port in service["spec"]["ports"]]
    )


def test_what_pods_mount_is_there(everything: list[Resource]) -> None:
    accounts = {r["metadata"]["name"] for r in of_kind(everything, "ServiceAccount")}
    for resource in everything:
        template = pod_template(resource)
        if template is None:
            continue
        spec = template["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", ())}
        volumes |= {claim["metadata"]["name"] for claim in resource["spec"].get("volumeClaimTemplates", ())}
        assert {m["name"] for c in containers(resource) for m in c.get("volumeMounts", ())} == volumes
        assert spec["serviceAccountName"] in accounts
        for volume in spec.get("volumes", ()):
            if "secret" in volume:
                assert volume["secret"]["secretName"] in SECRETS


def test_prometheus_finds_the_masters_and_may_ask_them(everything: list[Resource]) -> None:
    for monitor in of_kind(everything, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]
        services = [
            r for r in of_kind(everything, "Service") if chosen(selector, r["metadata"].get("labels", {}))
        ]
        assert [service["metadata"]["name"] for service in services] == ["elastane-master"]
        for endpoint in monitor["spec"]["endpoints"]:
            assert endpoint["port"] in {port["name"] for port in services[0]["spec"]["ports"]}
            for named in (endpoint["authorization"]["credentials"], endpoint["tlsConfig"]["ca"]["secret"]):
                assert named["key"] in SECRETS[named["name"]]
            assert endpoint["scheme"] == "https"


def test_files_that_variables_name_are_mounted_and_in_their_secret(resources: list[Resource]) -> None:
    for resource in resources:
        for container in containers(resource):
            mounts = {m["mountPath"]: m["name"] for m in container.get("volumeMounts", ())}
            secrets = {
                volume["name"]: volume["secret"]["secretName"]
                for volume in resource["spec"]["template"]["spec"].get("volumes", ())
                if "secret" in volume
            }
            for name, value in variables(container).items():
                if value.startswith("/secrets/"):
                    folder, _, file = value.rpartition("/")
                    assert file in SECRETS[secrets[mounts[folder]]], f"{name}={value}"


def test_the_operators_account_is_bound_to_roles_that_exist(everything: list[Resource]) -> None:
    roles = {(r["kind"], r["metadata"]["name"]) for r in of_kind(everything, "Role", "ClusterRole")}
    accounts = {identity(r)[1:] for r in of_kind(everything, "ServiceAccount")}
    bound = of_kind(everything, "RoleBinding", "ClusterRoleBinding")
    assert bound
    for binding in bound:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        for subject in binding["subjects"]:
            assert (subject["namespace"], subject["name"]) in accounts


def test_no_role_gives_more_than_is_named(everything: list[Resource]) -> None:
    for role in of_kind(everything, "Role", "ClusterRole"):
        for rule in role["rules"]:
            for part in ("apiGroups", "resources", "verbs"):
                assert "*" not in rule[part], role["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert set(rule["verbs"]) <= {"get"}


# ---------------------------------------------------------------------------- what fits the product


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}


def ours(resources: list[Resource]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Containers of our images, with the target that makes each."""
    for resource in resources:
        for container in containers(resource):
            if container["image"].startswith("elastane-"):
                yield container["image"].partition(":")[0].removeprefix("elastane-"), container


def test_images_are_targets_of_the_dockerfile(everything: list[Resource]) -> None:
    targets = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.M)
    used = {target for target, _ in ours(everything)}
    assert used == {"master", "operator"}
    assert used <= set(targets)


def test_their_tag_is_the_version(everything: list[Resource]) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    for _, container in ours(everything):
        assert container["image"].partition(":")[2] == version[1]


def test_every_variable_is_a_setting(resources: list[Resource]) -> None:
    known = {"master": master_variables(), "operator": operator_variables()}
    for target, container in ours(resources):
        for name in variables(container):
            if name.startswith("ELASTANE_"):
                assert name in known[target], f"{target} knows no {name}"


def test_the_master_serves_where_it_says(resources: list[Resource]) -> None:
    image = dict(re.findall(r"(ELASTANE_\w+)=(\S+)", (ROOT / "Dockerfile").read_text()))
    for target, container in ours(resources):
        if target == "master":
            given = image | variables(container)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert given["ELASTANE_LISTEN"] == f"0.0.0.0:{ports['grpc']}"
            assert given["ELASTANE_ADVERTISE"] == f"$(POD_IP):{ports['grpc']}"
            assert given["ELASTANE_HTTP"] == f"0.0.0.0:{ports['http']}"
            names = [entry["name"] for entry in container["env"]]
            assert names.index("POD_IP") < names.index("ELASTANE_ADVERTISE")


def test_pods_are_restricted(resources: list[Resource]) -> None:
    """The rules of Pod Security's level "restricted", and a read-only root."""
    for name, _, spec in pods(resources):
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0
        assert security["seccompProfile"]["type"] == "RuntimeDefault"
        assert spec.get("enableServiceLinks") is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for volume in spec.get("volumes", ()):
            assert volume.keys() & {"emptyDir", "secret", "configMap", "projected"}, volume
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["readOnlyRootFilesystem"] is True
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "livenessProbe" in container
            assert not any("hostPort" in port for port in container.get("ports", ()))


def test_only_who_asks_the_api_server_gets_a_token_for_it(everything: list[Resource]) -> None:
    accounts = {r["metadata"]["name"]: r for r in of_kind(everything, "ServiceAccount")}
    bound = {
        s["name"] for b in of_kind(everything, "RoleBinding", "ClusterRoleBinding") for s in b["subjects"]
    }
    for _, _, spec in pods(everything):
        account = accounts[spec["serviceAccountName"]]
        automount = spec.get(
            "automountServiceAccountToken", account.get("automountServiceAccountToken", True)
        )
        assert automount == (spec["serviceAccountName"] in bound)


def test_the_namespace_holds_pods_to_the_restricted_level(everything: list[Resource]) -> None:
    [namespace] = of_kind(everything, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_one_standby_at_least_and_a_node_with_the_leader_can_be_drained(everything: list[Resource]) -> None:
    [master] = [r for r in of_kind(everything, "Deployment") if r["metadata"]["name"] == "elastane-master"]
    assert master["spec"]["replicas"] >= 2
    [budget] = [
        r for r in of_kind(everything, "PodDisruptionBudget") if r["metadata"]["name"] == "elastane-master"
    ]
    assert budget["spec"]["maxUnavailable"] == 1
    # A standby that did not count as ready would block both rollouts and evictions of the leader.
    assert containers(master)[0]["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_probes_ask_what_the_master_serves(everything: list[Resource]) -> None:
    [master] = [r for r in of_kind(everything, "Deployment") if r["metadata"]["name"] == "elastane-master"]
    container = containers(master)[0]
    ports = {port["name"] for port in container["ports"]}
    served = (ROOT / "master/elastane_master/http/routes.py").read_text()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] in ports
        assert f'add_get("{asked["path"]}"' in served
        # The port has the certificate of the gRPC port.
        assert asked["scheme"] == ("HTTPS" if "ELASTANE_MASTER_TLS_CERT" in variables(container) else "HTTP")
