"""Pods of a job: reading their state, and the meaning of their ends.

what is seen                                                   outcome
exit 0; 204 or 206 (no master)                                 left       replaced while the job wants it
deleted by somebody else, evicted, node gone or shut down      preempted  not counted in the budget
exit 137 or 143, unless memory ran out                         preempted
another exit code that is retryable; memory ran out            retryable  counted in the budget
any other exit code; the pod can never start                   permanent  the job fails
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from elastane_operator.decisions.pod_labels import (
    CAPACITY_ON_DEMAND,
    LABEL_CAPACITY,
    LABEL_DEVICE_TYPE,
    LABEL_INDEX,
    LABEL_PS_INDEX,
)
from elastane_operator.decisions.spec import ExitCodes, is_retryable, read_time

Outcome = Literal["left", "preempted", "retryable", "permanent", "released"]
Role = Literal["worker", "ps"]
"""Role of a pod; "ps": a parameter server."""

#: Codes of SIGKILL and SIGTERM, which are sent when a node is taken away.
_SIGNALLED = {137: "SIGKILL", 143: "SIGTERM"}
#: Codes of `elastane run` when no master answers or the master does not have the job (docs/exit-codes.md):
#: not a failure of the job, so not counted in its budget.
_NO_MASTER = {204: "no master answered", 206: "the master did not have the job"}
#: `status.reason` of pods that were taken away, or that a node rejected in the first place.
_TAKEN = frozenset(
    {
        "Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "Preempted",
        "NodeAffinity", "NodeAffinityChanged", "UnexpectedAdmissionError", "TaintManagerEviction",
    }
)  # fmt: skip
#: Reasons for waiting that never resolve by themselves.
_NEVER_STARTS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_REASON_CHARACTERS_MAX = 300


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """State of a pod.

    deleted: time of its deletion request. index: among pods of its role, -1 if it has none. device_type: of
    a pool; empty: none. on_demand: created for an on-demand node. restarts: of its container by the kubelet.
    """

    name: str
    uid: str
    index: int
    owner_uid: str = ""
    device_type: str = ""
    phase: str = "Pending"
    created: datetime
    deleted: datetime | None = None
    scheduled: bool = False
    ready: bool = False
    exit_code: int | None = None
    exit_reason: str = ""
    exit_message: str = ""
    reason: str = ""
    message: str = ""
    disruption: str = ""
    waiting: str = ""
    waiting_message: str = ""
    on_demand: bool = False
    role: Role = "worker"
    restarts: int = 0

    @property
    def kind(self) -> str:
        """Kind of its place: a device type of a pool, "on-demand", or ""."""
        return CAPACITY_ON_DEMAND if self.on_demand else self.device_type

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def live(self) -> bool:
        """True if its worker runs or can still start."""
        return not self.ended and self.deleted is None


class End(msgspec.Struct, frozen=True):
    """Meaning of a pod's end, with the reason in words."""

    outcome: Outcome
    reason: str


def pod_name(job: str, index: int, role: Role = "worker") -> str:
    """Name of the pod at an index. It is fixed, so a pod cannot be created twice."""
    return f"{job}-{role}-{index}"


def read_pod(body: Mapping[str, Any], container: str = "") -> PodView:
    """Read a pod as returned by the API server.

    container: name of the worker's container, if it has several.
    """
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels = metadata.get("labels") or {}
    index = labels.get(LABEL_INDEX) or labels.get(LABEL_PS_INDEX, "")
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    statuses = list(status.get("containerStatuses") or ())
    own = [each for each in statuses if each.get("name") == container] or statuses[:1]
    failed = [each for each in statuses if _terminated(each).get("exitCode")]
    ended = _terminated((failed if failed and not any(map(_terminated, own)) else own or [{}])[0])
    waiting = ((own or [{}])[0].get("state") or {}).get("waiting") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    disruption = conditions.get("DisruptionTarget") or {}
    return PodView(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        index=int(index) if index.isascii() and index.isdigit() else -1,
        owner_uid=owners[0] if owners else "",
        device_type=labels.get(LABEL_DEVICE_TYPE, ""),
        phase=status.get("phase") or "Pending",
        created=_created(metadata),
        deleted=read_time(metadata.get("deletionTimestamp")),
        scheduled=bool(spec.get("nodeName")),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason") or "",
        exit_message=(ended.get("message") or "")[:_REASON_CHARACTERS_MAX],
        reason=status.get("reason") or "",
        message=(status.get("message") or "")[:_REASON_CHARACTERS_MAX],
        disruption=(disruption.get("reason") or "DisruptionTarget")
        if disruption.get("status") == "True"
        else "",
        waiting=waiting.get("reason") or "",
        waiting_message=(waiting.get("message") or "")[:_REASON_CHARACTERS_MAX],
        on_demand=labels.get(LABEL_CAPACITY) == CAPACITY_ON_DEMAND,
        role="worker" if LABEL_INDEX in labels else "ps",
        restarts=sum(each.get("restartCount") or 0 for each in statuses),
    )


def judge(pod: PodView, codes: ExitCodes) -> End | None:
    """Classify the end of a pod that the operator did not delete; None while it runs or can still start."""
    why = pod.disruption or "deleted by somebody else"
    if pod.phase == "Succeeded" and (pod.disruption or pod.deleted is not None):
        # Seen late: it drained and exited before this look. Treated like a deletion seen in time.
        return End("preempted", f"{pod.name} was taken away: {why}; it left in good order")
    if pod.phase == "Succeeded":
        return End("left", f"{pod.name} left in good order (exit code 0)")
    if pod.phase == "Failed":
        return _judge_failure(pod, codes)
    if pod.deleted is not None:
        return End("preempted", f"{pod.name} is taken away: {why}")
    if pod.waiting in _NEVER_STARTS:
        return End(
            "permanent", f"{pod.name} can never start: {pod.waiting}: {pod.waiting_message}".rstrip(": ")
        )
    return None


def _judge_failure(pod: PodView, codes: ExitCodes) -> End:
    """Classify the end of a failed pod; see the module's table."""
    code = pod.exit_code
    # Before the signals: the kernel's OOM killer also ends a container with exit code 137.
    if pod.exit_reason == "OOMKilled":
        return End("retryable", f"{pod.name} ran out of memory (OOMKilled)")
    if pod.disruption or pod.reason in _TAKEN or pod.reason.startswith("OutOf"):
        why = ": ".join(part for part in (pod.disruption or pod.reason, pod.message) if part)
        return End("preempted", f"{pod.name} was taken away: {why}")
    if code in _SIGNALLED:
        return End("preempted", f"{pod.name} was taken away: exit code {code} ({_SIGNALLED[code]})")
    if pod.deleted is not None and code is None:
        return End("preempted", f"{pod.name} was taken away: deleted by somebody else")
    if code is None:
        why = ": ".join(part for part in (pod.reason or "no exit code is known", pod.message) if part)
        if pod.reason == "DeadlineExceeded":
            return End("permanent", f"{pod.name} failed: {why}")
        return End("preempted", f"{pod.name} ended without its container: {why}")
    if code == 0:
        return End("left", f"{pod.name} left in good order (exit code 0)")
    if code in _NO_MASTER:
        return End("left", f"{pod.name} gave up: {_NO_MASTER[code]} (exit code {code})")
    said = f": {pod.exit_message}" if pod.exit_message else ""
    if is_retryable(codes, code):
        return End("retryable", f"{pod.name} failed with exit code {code}, which is retryable{said}")
    return End("permanent", f"{pod.name} failed with exit code {code}, which is permanent{said}")


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (status.get("state") or {}).get("terminated") or {}
    return found


def _created(metadata: Mapping[str, Any]) -> datetime:
    time = read_time(metadata.get("creationTimestamp"))
    return time if time is not None else datetime.fromisoformat("1970-01-01T00:00:00Z")
