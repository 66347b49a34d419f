"""A rank's state from its Pod's status: started or not, the image, how it ended, and why. Pure.

A pod that was deleted, evicted or preempted, or whose node is lost, is disrupted: its exit code says nothing
about the rank. What the API server had been told the end of before that keeps its code. Both are times of the
API server's, which notes when each part of a pod was written (`managedFields`): the clock of a node may be
wrong. They are whole seconds; an end within the same one as a disruption counts as disrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from elastane_runner.engine import CodeFetchError, EngineError, ImageMissingError
from elastane_runner.pod_plan import FETCH_CONTAINER, FETCH_EXIT_PERMANENT, RANK_CONTAINER
from elastane_runner.rank_client import ContainerState

Object = Mapping[str, Any]

#: A pod that should have ended so long ago, and does not: its node does not answer.
OVERDUE_SECONDS: Final = 60.0
_EXIT_NOT_FOUND: Final = 127

_OVER: Final = ("Succeeded", "Failed")
_NO_SUCH_IMAGE: Final = ("InvalidImageName", "ErrImageNeverPull")
_IMAGE_TROUBLE: Final = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable")
_REFUSED: Final = ("CreateContainerConfigError", "CreateContainerError")
_NEVER_RAN: Final = ("StartError", "ContainerCannotRun")
#: Reasons of the condition DisruptionTarget.
_DISRUPTIONS: Final = {
    "EvictionByEvictionAPI": "was evicted, as by a drain of its node",
    "TerminationByKubelet": "was evicted by its node",
    "PreemptionByScheduler": "was preempted",
    "DeletionByTaintManager": "was deleted, since its node was cut off or tainted",
    "DeletionByPodGC": "was deleted, since its node is gone",
}
_UNKNOWN: Final = "ContainerStatusUnknown"


class Start(NamedTuple):
    """Progress of a rank's start.

    refusal: it will not start. waits_for: what it waits for, in words. has_image_trouble: its image cannot be
    pulled at present. is_pulling: its node has all that it needs but an image, or fetches the code.
    """

    has_started: bool = False
    refusal: EngineError | None = None
    waits_for: str = ""
    has_image_trouble: bool = False
    is_pulling: bool = False


def state_of(pod: Object, now: float) -> ContainerState:
    """Return the state of a rank. now: seconds since the Unix epoch."""
    status = pod.get("status") or {}
    state = _state(pod, RANK_CONTAINER)
    if (ended := state.get("terminated")) is not None:
        told_at = max(_written_at(pod, "f:containerStatuses"), default=None)
        return ContainerState(
            False,
            _seconds(ended.get("startedAt")),
            _seconds(ended.get("finishedAt")),
            _exit_code(ended),
            any(at is None or told_at is None or at <= told_at for at in _disrupted_at(pod)),
            disruption(pod),
        )
    started_at = _seconds((state.get("running") or {}).get("startedAt"))
    if status.get("phase") in _OVER or _is_abandoned(pod, now):
        return ContainerState(False, started_at, None, None, True, disruption(pod))
    return ContainerState(True, started_at)


def start_of(pod: Object) -> Start:
    """Return the progress of a rank's start."""
    rank = _state(pod, RANK_CONTAINER)
    if rank.get("running") is not None or rank.get("terminated") is not None:
        return Start(has_started=True)
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    fetched = _state(pod, FETCH_CONTAINER).get("terminated")
    if fetched is not None and fetched.get("exitCode"):
        kind = CodeFetchError if fetched["exitCode"] == FETCH_EXIT_PERMANENT else EngineError
        said = str(fetched.get("message") or "").strip().splitlines()
        return Start(refusal=kind(f"the code was not fetched: {said[-1] if said else fetched['exitCode']}"))
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in _OVER:
        why = status.get("message") or status.get("reason") or "it was deleted"
        return Start(refusal=EngineError(f"the pod {name} has ended before its rank was started: {why}"))
    for container in (FETCH_CONTAINER, RANK_CONTAINER):
        waiting = _state(pod, container).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        words = ": ".join(filter(None, (reason, str(waiting.get("message") or ""))))
        if reason in _NO_SUCH_IMAGE:
            return Start(refusal=ImageMissingError(words))
        if reason in _IMAGE_TROUBLE:
            return Start(waits_for=words, has_image_trouble=True)
        if reason in _REFUSED:
            return Start(refusal=EngineError(f"the pod {name} does not start: {words}"))
    if _has_sandbox(status):
        return Start(waits_for="its node pulls the image, or fetches the code", is_pulling=True)
    return Start(waits_for=_waits_for(status))


def _has_sandbox(status: Object) -> bool:
    """True if a pod has its network and volumes. Clusters before Kubernetes 1.29 do not say so."""
    ready = (one for one in status.get("conditions") or () if one.get("type") == "PodReadyToStartContainers")
    return any(one.get("status") == "True" for one in ready)


def _waits_for(status: Object) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            words = (condition.get("reason"), condition.get("message"))
            return ": ".join(filter(None, words)) or "it is not scheduled"
    return str(status.get("phase") or "Pending")


def _state(pod: Object, container: str) -> Object:
    found: Object = _status(pod, container).get("state") or {}
    return found


def _status(pod: Object, container: str) -> Object:
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if one.get("name") == container:
            found: Object = one
            return found
    return {}


def _exit_code(ended: Object) -> int | None:
    reason = ended.get("reason")
    if reason == _UNKNOWN:
        return None
    return _EXIT_NOT_FOUND if reason in _NEVER_RAN else int(ended.get("exitCode", 0))


def _disrupted_at(pod: Object) -> Iterator[float | None]:
    """Yield each time at which the end of a pod was requested; None: time unknown."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if (due := _seconds(metadata.get("deletionTimestamp"))) is not None:
        yield due - float(metadata.get("deletionGracePeriodSeconds") or 0)
    if status.get("phase") == "Failed" and status.get("reason"):
        yield None
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            # The eviction API writes no managedFields; its clock is the API server's.
            written_at = _written_at(pod, "f:conditions", 'k:{"type":"DisruptionTarget"}')
            yield min(written_at, default=_seconds(condition.get("lastTransitionTime")))


def _written_at(pod: Object, *path: str) -> list[float]:
    """Return when the API server took the last writes of a field of the status, one of each writer."""
    found = []
    for entry in pod["metadata"].get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:status") or {}
        for name in path:
            fields = fields.get(name)
            if fields is None:
                break
        at = _seconds(entry.get("time"))
        if fields is not None and at is not None:
            found.append(at)
    return found


def image_digest(pod: Object) -> str:
    """Return the digest of the image that a node has pulled for a rank, "sha256:..."; "": it has none."""
    return str(_status(pod, RANK_CONTAINER).get("imageID") or "").partition("@")[2]


def disruption(pod: Object) -> str:
    """Return the reason, as text, for which the cluster ended a pod; "" if it did not."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = f"the pod {metadata['name']}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            words = _DISRUPTIONS.get(str(condition.get("reason")), "was disrupted")
            return _with_message(f"{name} {words}", condition)
    if status.get("phase") == "Failed" and status.get("reason"):
        words = "was evicted" if status["reason"] == "Evicted" else f"has failed ({status['reason']})"
        return _with_message(f"{name} {words}", status)
    return f"{name} was deleted" if metadata.get("deletionTimestamp") else ""


def _with_message(words: str, said: Object) -> str:
    return ": ".join(filter(None, (words, " ".join(str(said.get("message") or "").split()))))


def _is_abandoned(pod: Object, now: float) -> bool:
    """True for a deleted pod whose end will never be reported."""
    due = _seconds(pod["metadata"].get("deletionTimestamp"))
    if due is None:
        return False
    return not (pod.get("spec") or {}).get("nodeName") or now > due + OVERDUE_SECONDS


def _seconds(time: str | None) -> float | None:
    return datetime.fromisoformat(time).timestamp() if time else None
