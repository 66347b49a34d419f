"""Manifests of a launch's Service and Pods, from its plan and the runner's options. Pure.

The pods fit the level "restricted" of Pod Security: no root, no privileges, no capabilities, a root that they
cannot write to. Labels and annotations say which runner, run, attempt and rank a pod is, so that the next
runner finds it. The Service owns the pods and gives each rank a name, by which all ranks of a run meet.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from elastane_runner.engine import AttemptPlan, EngineError, RankPlan, SecretKey
from elastane_runner.rank_labels import ATTEMPT, LOG_CAP_BYTES, RANKS, RUN, RUNNER, labels

Object = dict[str, Any]

#: Where a rank finds the run's code, and is started.
CODE: Final = "/elastane/code"
#: Where the init container writes it.
FETCHED: Final = "/elastane/fetched"
TEMPORARY: Final = "/tmp"
SHARED_MEMORY: Final = "/dev/shm"

#: The container of a pod that runs its rank, and the one that fetches its code before.
RANK_CONTAINER: Final = "rank"
FETCH_CONTAINER: Final = "fetch-code"
#: Exit code of the latter if the same would happen again.
FETCH_EXIT_PERMANENT: Final = 3
#: Keeps a pod that was deleted until its exit code and its log are recorded.
FINALIZER: Final = "elastane.io/recorded"
#: Label of pods and services, by which network policies and people find them.
NAME_LABEL: Final = "app.kubernetes.io/name"
NAME: Final = "elastane-rank"

_ANNOTATED: Final = (RANKS, LOG_CAP_BYTES)
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9._-]+")
_USER: Final = re.compile(r"([1-9][0-9]*)(?::([0-9]+))?")
_SERVICE_LENGTH_MAX: Final = 50
_DIGEST_LENGTH: Final = 8
_DEFAULT_GROUP: Final = "10001"


class Mount(NamedTuple):
    """A named object of the namespace that is mounted into containers at a path."""

    name: str
    path: str


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """Limits of the ranks of an attempt, and resources that they may use.

    fetch_image: with elastane, fetches code; "": image. user: UID or UID:GID, not root. memory_bytes, cpus,
    gpus: requests and limits at once; None: neither. gpu_resource: name of what is counted as GPUs; "": none.
    temporary_bytes: of /tmp, on the node's disk; shared_memory_bytes: of /dev/shm, which is memory.
    pull_secrets: for images. service_account: whose token is not mounted. environment_secrets: all of whose
    keys are variables of ranks and of what fetches code. worker_secret: files for workers of elastic runs.
    claims: volumes that ranks can write to. run_secrets: those that runs may name. node_selector: labels of
    nodes.
    """

    image: str
    namespace: str = "default"
    fetch_image: str = ""
    user: str = "10001:10001"
    memory_bytes: int | None = None
    cpus: float | None = None
    gpu_resource: str = ""
    gpus: int = 1
    temporary_bytes: int = 1024**3
    shared_memory_bytes: int = 1024**3
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    environment_secrets: tuple[str, ...] = ()
    worker_secret: Mount | None = None
    claims: tuple[Mount, ...] = ()
    run_secrets: frozenset[str] = frozenset()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""


def options_of(plan: AttemptPlan, options: PodOptions) -> PodOptions:
    """Return the options of an attempt: its own image if it names one, and resources for all slots of a rank.

    options: of the runner; its resources are those of one slot.
    """
    slots = plan.slots_per_rank
    return replace(
        options,
        image=plan.image or options.image,
        fetch_image=options.fetch_image or options.image,
        memory_bytes=None if options.memory_bytes is None else options.memory_bytes * slots,
        cpus=None if options.cpus is None else options.cpus * slots,
        gpus=options.gpus * slots,
    )


def check_options(options: PodOptions) -> None:
    """Refuse options that do not confine a rank, or that no cluster accepts. Raises EngineError."""
    if not options.image:
        raise EngineError("no image is named", hint="give the algorithm an image")
    if not _USER.fullmatch(options.user):
        raise EngineError(
            f"ranks cannot run as {options.user!r}", hint="a user is UID or UID:GID as numbers, and not root"
        )
    if not _DNS_LABEL.fullmatch(options.namespace):
        raise EngineError(f"{options.namespace!r} is not the name of a namespace")
    if options.gpu_resource and not _RESOURCE.fullmatch(options.gpu_resource):
        raise EngineError(
            f"{options.gpu_resource!r} is not the name of a resource",
            hint="it has a domain, as nvidia.com/gpu",
        )
    if options.cpus is not None and not options.cpus >= 0.001:
        raise EngineError(f"{options.cpus} processors are too few", hint="0.001 at least")
    mounts = (*options.claims, *((options.worker_secret,) if options.worker_secret else ()))
    names = (*options.pull_secrets, *options.environment_secrets, *(one.name for one in mounts))
    for name in (*names, *filter(None, (options.service_account, options.priority_class))):
        if not _DNS_NAME.fullmatch(name):
            raise EngineError(f"{name!r} names nothing in a namespace")
    taken = {CODE, FETCHED, TEMPORARY, SHARED_MEMORY}
    for mount in mounts:
        parts = mount.path.split("/")
        if (
            not mount.path.startswith("/")
            or ".." in parts
            or ":" in mount.path
            or mount.path in ("/", *taken)
        ):
            raise EngineError(
                f"{mount.name} cannot be seen at {mount.path!r}", hint="the path is absolute, and not '/'"
            )
        taken.add(mount.path)


def check_runner(runner: str) -> None:
    """Refuse an id that cannot be the value of a label. Raises EngineError."""
    if not _LABEL.fullmatch(runner):
        raise EngineError(
            f"the runner {runner!r} cannot be the value of a label",
            hint="63 letters, digits, '.', '_' and '-' at most, the first and last a letter or digit",
        )


def check_secrets(plan: AttemptPlan, options: PodOptions) -> None:
    """Refuse secrets that runs may not name: all who submit runs could read them. Raises EngineError."""
    for rank in plan.ranks:
        for variable, (secret, _) in rank.secret_keys.items():
            if secret not in options.run_secrets:
                raise EngineError(
                    f"the secret {secret} of {variable} is not for runs", hint="--run-secret allows it"
                )


def service_name(runner: str, run: str, attempt: int) -> str:
    """Return the name of a launch's Service, another for each launch: lower-case letters, digits and '-'."""
    plain = f"{runner}-{run}-{attempt}"
    digest = hashlib.sha256(f"{runner}/{run}/{attempt}".encode()).hexdigest()[:_DIGEST_LENGTH]
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    room = _SERVICE_LENGTH_MAX - len("elastane--") - _DIGEST_LENGTH
    # The end tells launches apart, for people.
    return f"elastane-{slug[-room:].strip('-')}-{digest}"


def rank_host(runner: str, namespace: str, run: str, attempt: int, rank: int) -> str:
    """Return the name by which the other ranks of a run reach one, in the cluster."""
    return f"rank-{rank}.{service_name(runner, run, attempt)}.{namespace}.svc"


def service(plan: AttemptPlan, *, runner: str, namespace: str) -> Object:
    """Return the headless Service of a launch, which gives its ranks their names and owns its pods."""
    marks = {RUNNER: runner, RUN: plan.run, ATTEMPT: str(plan.attempt)}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(runner, plan.run, plan.attempt),
            "namespace": namespace,
            "labels": {NAME_LABEL: NAME, **marks},
        },
        "spec": {
            "clusterIP": "None",
            "selector": marks,
            # Ranks meet before anything says that they are ready.
            "publishNotReadyAddresses": True,
        },
    }


def pod(plan: AttemptPlan, rank: RankPlan, options: PodOptions, *, runner: str, owner: Object) -> Object:
    """Return the Pod of one rank of a plan. options: of the attempt. owner: the Service that was created."""
    marks = labels(runner, plan, rank.rank)
    name = service_name(runner, plan.run, plan.attempt)
    spec: Object = {
        "restartPolicy": "Never",
        "hostname": f"rank-{rank.rank}",
        "subdomain": name,
        "terminationGracePeriodSeconds": math.ceil(plan.grace_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # As the first process of its container, a script would ignore SIGTERM unless it handles it.
        "shareProcessNamespace": True,
        "securityContext": _pod_security(options),
        "containers": [_rank_container(plan, rank, options)],
        "volumes": _volumes(plan, options),
    }
    if plan.code.is_fetched:
        spec["initContainers"] = [_fetch_container(plan, options)]
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": one} for one in options.pull_secrets]
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    metadata = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{rank.rank}",
            "namespace": options.namespace,
            "labels": {NAME_LABEL: NAME, **{key: one for key, one in marks.items() if key not in _ANNOTATED}},
            "annotations": {key: marks[key] for key in _ANNOTATED},
            "finalizers": [FINALIZER],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"]}
            ],
        },
        "spec": spec,
    }


def _pod_security(options: PodOptions) -> Object:
    found = _USER.fullmatch(options.user)
    assert found is not None
    group = int(found[2] or _DEFAULT_GROUP)
    security: Object = {
        "runAsNonRoot": True,
        "runAsUser": int(found[1]),
        "runAsGroup": group,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return security | ({"fsGroup": group} if group else {})


def _walls() -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _rank_container(plan: AttemptPlan, rank: RankPlan, options: PodOptions) -> Object:
    environment = {"HOME": TEMPORARY, "PYTHONUNBUFFERED": "1", **rank.environment}
    container = {
        "name": RANK_CONTAINER,
        "image": options.image,
        "command": [_literal(word) for word in rank.command],
        "workingDir": plan.code.folder or CODE,
        "env": [
            *({"name": name, "value": _literal(value)} for name, value in environment.items()),
            *(_secret_variable(name, one) for name, one in rank.secret_keys.items()),
        ],
        "envFrom": [{"secretRef": {"name": one}} for one in options.environment_secrets],
        "resources": _resources(options),
        "securityContext": _walls(),
        "volumeMounts": _mounts(plan, options),
    }
    return {key: one for key, one in container.items() if one}


def _fetch_container(plan: AttemptPlan, options: PodOptions) -> Object:
    code = plan.code
    source = {
        "service_url": code.service_url,
        "archive_sha256": code.archive_sha256,
        "git_url": code.git_url,
        "git_commit": code.git_commit,
    }
    given = json.dumps({key: one for key, one in source.items() if one}, sort_keys=True)
    command = ["python", "-P", "-m", "elastane_runner.fetch_code", given, FETCHED]
    container = {
        "name": FETCH_CONTAINER,
        "image": options.fetch_image or options.image,
        "command": [_literal(word) for word in command],
        "workingDir": FETCHED,
        "env": [{"name": "HOME", "value": FETCHED}],
        "envFrom": [{"secretRef": {"name": one}} for one in options.environment_secrets],
        "resources": _resources(replace(options, gpu_resource="")),
        "securityContext": _walls(),
        # The reason is read from its status, without its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "code", "mountPath": FETCHED},
            *_claim_mounts(options),
        ],
    }
    return {key: one for key, one in container.items() if one}


def _mounts(plan: AttemptPlan, options: PodOptions) -> list[Object]:
    code: Object = {"name": "code", "mountPath": CODE, "readOnly": True}
    if plan.code.is_fetched:
        code["subPath"] = "code"
    mounts = [
        {"name": "tmp", "mountPath": TEMPORARY},
        {"name": "shm", "mountPath": SHARED_MEMORY},
        code,
        *_claim_mounts(options),
    ]
    if plan.is_elastic and options.worker_secret is not None:
        mounts.append({"name": "worker", "mountPath": options.worker_secret.path, "readOnly": True})
    return mounts


def _claim_mounts(options: PodOptions) -> list[Object]:
    return [{"name": f"claim-{number}", "mountPath": one.path} for number, one in enumerate(options.claims)]


def _volumes(plan: AttemptPlan, options: PodOptions) -> list[Object]:
    volumes: list[Object] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": str(options.temporary_bytes)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(options.shared_memory_bytes)}},
        {"name": "code", "emptyDir": {}},
    ]
    volumes += [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": one.name}}
        for number, one in enumerate(options.claims)
    ]
    if plan.is_elastic and options.worker_secret is not None:
        secret = {"secretName": options.worker_secret.name, "defaultMode": 0o440}
        volumes.append({"name": "worker", "secret": secret})
    return volumes


def _resources(options: PodOptions) -> Object:
    """Return requests equal to limits: no rank is throttled or killed because of others on its node."""
    amounts: dict[str, str] = {}
    if options.memory_bytes is not None:
        amounts["memory"] = str(options.memory_bytes)
    if options.cpus is not None:
        amounts["cpu"] = f"{round(options.cpus * 1000)}m"
    if options.gpu_resource:
        amounts[options.gpu_resource] = str(options.gpus)
    return {"requests": dict(amounts), "limits": amounts} if amounts else {}


def _secret_variable(name: str, one: SecretKey) -> Object:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": one.secret, "key": one.key}}}


def _literal(text: str) -> str:
    """Escape a text for Kubernetes, which replaces $(NAME) and $$ in commands and variables."""
    return text.replace("$", "$$")
