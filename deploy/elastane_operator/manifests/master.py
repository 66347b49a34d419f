"""Objects of a per-job master: StatefulSet, Service, and a NetworkPolicy that keeps others out.

The ElasticJob is the owner of all of them, so the cluster deletes them with the job.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from elastane_operator.decisions.pod_labels import LABEL_JOB, LABEL_ROLE
from elastane_operator.decisions.pods import Role
from elastane_operator.decisions.spec import Identity, JobSpec, OwnMaster
from elastane_operator.manifests.pods import owner

PORT = 50051
HTTP_PORT = 8080
OPERATOR_LABELS = {"app.kubernetes.io/name": "elastane-operator"}
_STATE, _TLS, _TOKENS, _STORE = (
    "/var/lib/elastane",
    "/etc/elastane/tls",
    "/etc/elastane/token",
    "/etc/elastane/store",
)


class MasterDefaults(msgspec.Struct, frozen=True):
    """Defaults for a per-job master. domain: the cluster's DNS domain.

    operator_namespace: namespace from which the operator's pods are admitted; empty: from any, because the
    operator runs outside the cluster.
    """

    image: str = "elastane-master:latest"
    domain: str = "cluster.local"
    operator_namespace: str = ""


def master_name(identity: Identity) -> str:
    """Name of all objects of a per-job master."""
    return f"{identity.name}-master"


def master_address(identity: Identity, spec: JobSpec, defaults: MasterDefaults) -> str:
    """Address of the job's master."""
    if spec.master.per_job is None:
        return spec.master.address
    return f"{master_name(identity)}.{identity.namespace}.svc.{defaults.domain}:{PORT}"


def master_objects(identity: Identity, spec: JobSpec, defaults: MasterDefaults) -> list[dict[str, Any]]:
    """Return all objects of a per-job master in creation order; empty if the job uses a shared one."""
    own = spec.master.per_job
    if own is None:
        return []
    return [
        _network_policy(identity, defaults),
        _service(identity),
        _stateful_set(identity, spec, own, own.image or defaults.image),
    ]


def _metadata(identity: Identity) -> dict[str, Any]:
    return {
        "name": master_name(identity),
        "namespace": identity.namespace,
        "labels": {**_labels(identity), "app.kubernetes.io/managed-by": "elastane-operator"},
        "ownerReferences": [owner(identity)],
    }


def _labels(identity: Identity) -> dict[str, str]:
    return {LABEL_JOB: identity.name, LABEL_ROLE: "master"}


def _network_policy(identity: Identity, defaults: MasterDefaults) -> dict[str, Any]:
    # Pods in other namespaces may carry the operator's label, too, so its namespace is required as well.
    home = {"matchLabels": {"kubernetes.io/metadata.name": defaults.operator_namespace}}
    allowed = [
        *(
            {"podSelector": {"matchLabels": {LABEL_JOB: identity.name, LABEL_ROLE: role}}}
            for role in get_args(Role)
        ),
        {
            "namespaceSelector": home if defaults.operator_namespace else {},
            "podSelector": {"matchLabels": OPERATOR_LABELS},
        },
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(identity),
        "spec": {
            "podSelector": {"matchLabels": _labels(identity)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": allowed, "ports": [{"port": PORT, "protocol": "TCP"}]}],
        },
    }


def _service(identity: Identity) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(identity),
        "spec": {
            "clusterIP": "None",
            # Workers wait for the master by themselves; a brief probe failure must not remove its address.
            "publishNotReadyAddresses": True,
            "selector": _labels(identity),
            "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "protocol": "TCP"}],
        },
    }


def _stateful_set(identity: Identity, spec: JobSpec, own: OwnMaster, image: str) -> dict[str, Any]:
    environment, volumes, mounts = _security(spec)
    mounts += [{"name": "state", "mountPath": _STATE}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes.append({"name": "tmp", "emptyDir": {}})
    claims: list[dict[str, Any]] = []
    if own.storage is None:
        volumes.append({"name": "state", "emptyDir": {}})
    else:
        claim: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": own.storage.size}},
        }
        if own.storage.storage_class_name:
            claim["storageClassName"] = own.storage.storage_class_name
        # Not the controlling owner, which is the StatefulSet; and the claim must not block the job's
        # deletion.
        keeper = owner(identity) | {"controller": False, "blockOwnerDeletion": False}
        claims.append({"metadata": {"name": "state", "ownerReferences": [keeper]}, "spec": claim})
    if own.store_url:
        environment.append({"name": "ELASTANE_STORE", "value": own.store_url})
    if own.store_secret is not None:
        volumes.append(_secret("store", own.store_secret.name, ["password"]))
        mounts.append({"name": "store", "mountPath": _STORE, "readOnly": True})
        environment.append({"name": "ELASTANE_MASTER_STORE_PASSWORD_FILE", "value": f"{_STORE}/password"})
    # As in deploy/kubernetes/base/master.yaml: the kubelet needs neither certificate nor token for it.
    scheme = "HTTP" if spec.master.tls_secret is None else "HTTPS"
    probe = {"httpGet": {"path": "/healthz", "port": "http", "scheme": scheme}, "timeoutSeconds": 5}
    container = {
        "name": "master",
        "image": image,
        "env": environment,
        "ports": [
            {"name": "grpc", "containerPort": PORT, "protocol": "TCP"},
            {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
        ],
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 60},
        "readinessProbe": {**probe, "periodSeconds": 10},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6},
        "volumeMounts": mounts,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if own.resources:
        container["resources"] = own.resources
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _metadata(identity),
        "spec": {
            "replicas": 1,
            "serviceName": master_name(identity),
            "selector": {"matchLabels": _labels(identity)},
            "volumeClaimTemplates": claims,
            "template": {
                "metadata": {"labels": _labels(identity)},
                "spec": {
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 10001,
                        "runAsGroup": 10001,
                        "fsGroup": 10001,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    }


def _security(spec: JobSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Environment, volumes and mounts for the master's TLS files and access tokens."""
    environment = [
        {"name": "ELASTANE_LISTEN", "value": f"0.0.0.0:{PORT}"},
        {"name": "ELASTANE_HTTP", "value": f"0.0.0.0:{HTTP_PORT}"},
        {"name": "ELASTANE_STATE_DIR", "value": f"{_STATE}/state"},
    ]
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if spec.master.tls_secret is not None:
        files = ["ca.crt", "tls.crt", "tls.key"]
        volumes.append(_secret("tls", spec.master.tls_secret.name, files))
        mounts.append({"name": "tls", "mountPath": _TLS, "readOnly": True})
        environment += [
            {"name": "ELASTANE_MASTER_TLS_CERT", "value": f"{_TLS}/tls.crt"},
            {"name": "ELASTANE_MASTER_TLS_KEY", "value": f"{_TLS}/tls.key"},
        ]
    if spec.master.token_secret is not None:
        volumes.append(_secret("tokens", spec.master.token_secret.name, ["tokens.toml"]))
        mounts.append({"name": "tokens", "mountPath": _TOKENS, "readOnly": True})
        environment.append({"name": "ELASTANE_MASTER_TOKEN_FILE", "value": f"{_TOKENS}/tokens.toml"})
    if spec.master.tls_secret is None or spec.master.token_secret is None:
        # The network policy keeps others out; TLS and tokens are optional in the spec.
        environment.append({"name": "ELASTANE_MASTER_INSECURE", "value": "1"})
    return environment, volumes, mounts


def _secret(name: str, secret: str, files: list[str]) -> dict[str, Any]:
    items = [{"key": file, "path": file} for file in files]
    return {"name": name, "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}}
