"""Jobs and pods of a pool, as read from the API server: the input of the pool's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from elastane_operator.decisions.pod_labels import LABEL_DEVICE_TYPE
from elastane_operator.decisions.pool_spec import PoolSpec
from elastane_operator.decisions.pool_status import Devices
from elastane_operator.decisions.spec import InvalidSpecError, read_identity, read_spec, read_time
from elastane_operator.decisions.status import read_status


class PoolPod(msgspec.Struct, frozen=True):
    """A pod that holds a device of a pool until it has ended, also while it is being deleted.

    owner_uid: of its ElasticJob. gated: not admitted yet, for example by Kueue.
    """

    owner_uid: str
    device_type: str
    gated: bool = False


class PoolJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that names the pool.

    active: whether it may have devices: not over, not suspended, not being deleted, its spec valid.
    est_seconds: measured seconds of one EST's part of a step; None: not measured. est_seconds_on: by the
    types on which it was measured. in_ring: it has trained before. acknowledged: devices that its pods may
    use according to its status. revision: of the share that it read last; -1: it creates no more pods.
    unusable: types excluded by its template. mixes: different processors of one vendor may train it together.
    """

    namespace: str
    name: str
    uid: str
    created: datetime
    active: bool
    ests: int = 1
    workers_min: int = 1
    workers_max: int = 1
    queue: str = "default"
    priority: int = 0
    weight: int = 1
    deadline: datetime | None = None
    step: int = 0
    steps: int = 0
    est_seconds: float | None = None
    est_seconds_on: dict[str, float] = {}
    in_ring: bool = False
    acknowledged: Devices = {}
    revision: int = 0
    unusable: frozenset[str] = frozenset()
    mixes: bool = False

    @property
    def full_name(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


def pool_of(body: Mapping[str, Any]) -> str:
    """Return the pool that an ElasticJob names; empty: none."""
    scheduling = (body.get("spec") or {}).get("scheduling") or {}
    return str(scheduling.get("pool") or "")


def read_pool_job(body: Mapping[str, Any], pool: PoolSpec) -> PoolJob:
    """Read a job of the pool. One whose spec is invalid is not active."""
    identity, status = read_identity(body), read_status(body)
    created = read_time(body["metadata"].get("creationTimestamp")) or datetime.fromisoformat(
        "1970-01-01T00:00:00Z"
    )
    scheduled = status.scheduling
    # A finished job creates no more pods; existing ones are counted separately.
    acknowledged = {} if scheduled is None or status.finished else scheduled.devices
    bare = PoolJob(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        created=created,
        active=False,
        acknowledged=acknowledged,
        revision=-1 if status.finished else 0 if scheduled is None else scheduled.revision,
    )
    try:
        spec = read_spec(body)
    except InvalidSpecError:
        # It keeps its devices and pods until its spec is corrected.
        return bare
    assert spec.scheduling is not None
    return msgspec.structs.replace(
        bare,
        active=not (status.finished or spec.suspend or identity.deleted is not None),
        ests=spec.ests,
        workers_min=spec.workers.min,
        workers_max=spec.workers.max,
        queue=spec.scheduling.queue,
        priority=spec.scheduling.priority,
        weight=spec.scheduling.weight,
        deadline=spec.scheduling.deadline,
        step=status.step,
        steps=status.steps,
        est_seconds=_seconds(scheduled.est_seconds if scheduled is not None else ""),
        est_seconds_on={
            kind: seconds
            for kind, text in (scheduled.est_seconds_on if scheduled is not None else {}).items()
            if (seconds := _seconds(text)) is not None
        },
        in_ring=status.generation > 0,
        unusable=_unusable(spec.template, pool),
        mixes=spec.determinism == "D2" and not _asks_for_gpu(spec.template),
    )


def read_pool_pod(body: Mapping[str, Any]) -> PoolPod | None:
    """Read a pod; None if it holds no device any more."""
    metadata = body["metadata"]
    if (body.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return None
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    return PoolPod(
        owner_uid=owners[0] if owners else "",
        device_type=(metadata.get("labels") or {}).get(LABEL_DEVICE_TYPE, ""),
        gated=bool((body.get("spec") or {}).get("schedulingGates")),
    )


def _unusable(template: Mapping[str, Any], pool: PoolSpec) -> frozenset[str]:
    """Types whose nodes the template's own node selector excludes."""
    own: Mapping[str, str] = (template.get("spec") or {}).get("nodeSelector") or {}
    return frozenset(
        each.name
        for each in pool.types
        if any(own.get(key, value) != value for key, value in each.node_selector.items())
    )


def _asks_for_gpu(template: Mapping[str, Any]) -> bool:
    """True if a container requests a GPU, judged by the resource's name: GPU models never mix."""
    containers = (template.get("spec") or {}).get("containers") or ()
    parts = [
        (each.get("resources") or {}).get(part) or {}
        for each in containers
        for part in ("limits", "requests")
    ]
    return any("gpu" in name for part in parts for name in part)


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e9 else None
