"""The pods of workers and parameter servers: the user's template plus their environment.

The container's command may be just `elastane run train.py`: job, master, credentials and the source of
spot-termination notices are passed as variables. Values set by the user in the template take precedence.
A parameter server uses the same container with another command, because it needs the script's torch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from elastane_operator import API_VERSION, KIND
from elastane_operator.decisions.pod_labels import (
    CAPACITY_ON_DEMAND,
    CAPACITY_SPOT,
    LABEL_CAPACITY,
    LABEL_DEVICE_TYPE,
    LABEL_INDEX,
    LABEL_JOB,
    LABEL_POOL,
    LABEL_PS_INDEX,
    LABEL_ROLE,
)
from elastane_operator.decisions.pods import Role, pod_name
from elastane_operator.decisions.pool_spec import DeviceType
from elastane_operator.decisions.spec import Identity, JobSpec, job_name

LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
WORKER_CONTAINER = "worker"
GRACE_SECONDS = 60
"""Time for a worker to drain at the end of its step; a spot node's notice may be shorter."""
SERVER_COMMAND = ("python", "-P", "-m", "elastane_ps")

_CAPACITY = "ELASTANE_CAPACITY"
_POD_IP = {"fieldRef": {"fieldPath": "status.podIP"}}
_TLS_FOLDER = "/etc/elastane/tls"
_TOKEN_FOLDER = "/etc/elastane/token"
#: Fields of the template's container that concern its command.
_OF_THE_COMMAND = (
    "args",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "startupProbe",
    "tty",
    "stdin",
)


def worker_pod(
    identity: Identity,
    spec: JobSpec,
    index: int,
    master: str,
    device: DeviceType | None = None,
    *,
    on_demand: bool = False,
) -> dict[str, Any]:
    """Build the worker's pod of an index.

    master: address of the job's master. device: type in the job's pool. on_demand: on a node as described by
    scaling.onDemand.
    """
    body = _from_template(identity, spec, index, "worker")
    pod, labels = body["spec"], body["metadata"]["labels"]
    pod["restartPolicy"] = "Never"
    if device is not None and spec.scheduling is not None:
        labels |= {LABEL_POOL: spec.scheduling.pool, LABEL_DEVICE_TYPE: device.name}
        _place(pod, device.node_selector, device.tolerations)
    given_capacity = ""
    if spec.scaling is not None and spec.scaling.on_demand is not None:
        given_capacity = CAPACITY_ON_DEMAND if on_demand else CAPACITY_SPOT
        labels[LABEL_CAPACITY] = given_capacity
        if on_demand:
            _place(pod, spec.scaling.on_demand.node_selector, spec.scaling.on_demand.tolerations)
    container = _container(pod, spec)
    _give_environment(container, _of_worker(pod, spec), given_capacity)
    _reach_master(pod, container, identity, spec, master)
    return body


def server_pod(identity: Identity, spec: JobSpec, index: int, master: str) -> dict[str, Any]:
    """Build the parameter server's pod of an index. master: address of the job's master."""
    servers = spec.parameter_servers
    assert servers is not None
    body = _from_template(identity, spec, index, "ps")
    pod: dict[str, Any] = body["spec"]
    container = _container(pod, spec)
    pod["containers"] = [container]
    pod.pop("initContainers", None)
    # The kubelet restarts a container that dies, with growing delays; after a regular exit the pod ends.
    pod["restartPolicy"] = "OnFailure"
    if servers.node_selector is not None:
        pod["nodeSelector"] = servers.node_selector
    if servers.tolerations is not None:
        pod["tolerations"] = list(servers.tolerations)
    for field in _OF_THE_COMMAND:
        container.pop(field, None)
    container["command"] = list(SERVER_COMMAND)
    # Not the template's resources, as workers may have devices.
    container["resources"] = copy.deepcopy(servers.resources)
    values: list[dict[str, Any]] = [
        {"name": "ELASTANE_PS_ID", "value": f"ps-{index}"},
        {"name": "ELASTANE_PS_HOST", "valueFrom": _POD_IP},
        {"name": "ELASTANE_NOTICE_SECONDS", "value": str(_agent_grace(pod["terminationGracePeriodSeconds"]))},
        # Elementwise work, one push at a time.
        {"name": "OMP_NUM_THREADS", "value": "1"},
    ]
    if "memory" in (servers.resources.get("limits") or {}):
        limit = {"resourceFieldRef": {"resource": "limits.memory"}}
        values.append({"name": "ELASTANE_PS_MEMORY_BYTES", "valueFrom": limit})
    _give_environment(container, values, "")
    _reach_master(pod, container, identity, spec, master)
    return body


def _from_template(identity: Identity, spec: JobSpec, index: int, role: Role) -> dict[str, Any]:
    template: dict[str, Any] = copy.deepcopy(spec.template)
    given = template.get("metadata") or {}
    pod: dict[str, Any] = template["spec"]
    pod.setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
    # The pod runs the user's code, which needs no access to the API server unless the template grants it.
    pod.setdefault("automountServiceAccountToken", False)
    if spec.priority_class_name:
        pod.setdefault("priorityClassName", spec.priority_class_name)
    labels = {
        **(given.get("labels") or {}),
        "app.kubernetes.io/managed-by": "elastane-operator",
        LABEL_JOB: identity.name,
        LABEL_ROLE: role,
        LABEL_INDEX if role == "worker" else LABEL_PS_INDEX: str(index),
    }
    if spec.queue_name:
        labels.setdefault(LABEL_QUEUE, spec.queue_name)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(identity.name, index, role),
            "namespace": identity.namespace,
            "labels": labels,
            "annotations": dict(given.get("annotations") or {}),
            "ownerReferences": [owner(identity)],
        },
        "spec": pod,
    }


def _place(pod: dict[str, Any], selector: Mapping[str, str], tolerations: Sequence[dict[str, Any]]) -> None:
    """Add to a pod's own node selector and tolerations."""
    pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **selector}
    if tolerations:
        pod["tolerations"] = [*(pod.get("tolerations") or []), *tolerations]


def owner(identity: Identity) -> dict[str, Any]:
    """Owner reference that deletes an object together with its ElasticJob."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": identity.name,
        "uid": identity.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def worker_container(spec: JobSpec) -> str:
    """Name of the container that trains."""
    names: list[str] = [container["name"] for container in spec.template["spec"]["containers"]]
    return WORKER_CONTAINER if WORKER_CONTAINER in names else names[0]


def _container(pod: dict[str, Any], spec: JobSpec) -> dict[str, Any]:
    wanted = worker_container(spec)
    found: dict[str, Any] = next(each for each in pod["containers"] if each["name"] == wanted)
    return found


def _of_worker(pod: dict[str, Any], spec: JobSpec) -> list[dict[str, Any]]:
    """Variables of `elastane run`."""
    return [
        {"name": "ELASTANE_LOCAL_WORKERS", "value": "1"},
        {"name": "ELASTANE_SPOT", "value": spec.spot.provider.lower()},
        # 1 to 127 permanent, 128 to 255 retryable (docs/exit-codes.md).
        {"name": "ELASTANE_EXIT_CODES", "value": "pod"},
        # The agent must have killed workers that do not drain before the kubelet kills the agent.
        {"name": "ELASTANE_GRACE", "value": str(_agent_grace(pod["terminationGracePeriodSeconds"]))},
        # Address for ranks that other workers connect to: a pod's name does not resolve in the cluster, its
        # IP address does.
        {"name": "ELASTANE_STORE_HOST", "valueFrom": _POD_IP},
    ]


def _reach_master(
    pod: dict[str, Any], container: dict[str, Any], identity: Identity, spec: JobSpec, master: str
) -> None:
    """Add the job, its master, and the credentials for it."""
    values: list[dict[str, Any]] = [
        {"name": "ELASTANE_MASTER", "value": master},
        {"name": "ELASTANE_JOB", "value": job_name(identity, spec)},
    ]
    if (tls := spec.master.tls_secret) is not None:
        files = ["ca.crt"]
        values.append({"name": "ELASTANE_TLS_CA", "value": f"{_TLS_FOLDER}/ca.crt"})
        if tls.client_certificate and spec.master.per_job is None:
            files += ["tls.crt", "tls.key"]
            values.append({"name": "ELASTANE_TLS_CERT", "value": f"{_TLS_FOLDER}/tls.crt"})
            values.append({"name": "ELASTANE_TLS_KEY", "value": f"{_TLS_FOLDER}/tls.key"})
        _mount(pod, container, "elastane-tls", _TLS_FOLDER, tls.name, files)
    elif spec.master.token_secret is not None and spec.master.per_job is not None:
        values.append({"name": "ELASTANE_INSECURE", "value": "1"})  # inside the job's own network policy
    if spec.master.token_secret is not None:
        values.append({"name": "ELASTANE_TOKEN_FILE", "value": f"{_TOKEN_FOLDER}/worker"})
        _mount(pod, container, "elastane-token", _TOKEN_FOLDER, spec.master.token_secret.name, ["worker"])
    _give_environment(container, values, "")


def _give_environment(container: dict[str, Any], values: list[dict[str, Any]], capacity: str) -> None:
    """Prepend variables to the container's own, which are kept. capacity: empty: the container's."""
    environment: list[dict[str, Any]] = container.setdefault("env", [])
    if capacity:  # it depends on the node, and both kinds share the template
        environment = [each for each in environment if each["name"] != _CAPACITY]
        values.append({"name": _CAPACITY, "value": capacity})
    present = {each["name"] for each in environment}
    container["env"] = [each for each in values if each["name"] not in present] + environment


def _agent_grace(pod_seconds: int) -> int:
    """Seconds of the pod's grace period that workers may use to drain; the rest is for the agent."""
    return max(1, pod_seconds - min(5, pod_seconds // 4))


def _mount(
    pod: dict[str, Any], container: dict[str, Any], name: str, path: str, secret: str, files: list[str]
) -> None:
    """Mount only the given files of a secret."""
    items = [{"key": file, "path": file} for file in files]
    source = {"name": name, "secret": {"secretName": secret, "items": items}}
    pod["volumes"] = [*(pod.get("volumes") or []), source]
    mounts = [*(container.get("volumeMounts") or []), {"name": name, "mountPath": path, "readOnly": True}]
    container["volumeMounts"] = mounts
