"""Events of an ElasticJob, as shown by `kubectl describe`; repeated ones increase their count."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import structlog

from elastane_operator import API_VERSION, KIND
from elastane_operator.decisions.actions import Note
from elastane_operator.decisions.spec import Identity, write_time
from elastane_operator.edge.kube import KubeClient, KubeError

COMPONENT = "elastane-operator"
_MESSAGE_CHARACTERS_MAX = 1000

_log = structlog.get_logger(__name__)


async def post(kube: KubeClient, identity: Identity, note: Note, now: datetime) -> None:
    """Post an Event. Never raises: reporting must not delay the actions."""
    body = event(identity, note, now)
    name = body["metadata"]["name"]
    try:
        await kube.create("Event", identity.namespace, body)
    except KubeError as error:
        if not error.conflict:
            _log.warning("event_not_posted", job=identity.full_name, reason=note.reason, error=str(error))
            return
        try:
            there = await kube.get("Event", identity.namespace, name)
            patch = {"count": int(there.get("count") or 1) + 1, "lastTimestamp": write_time(now)}
            await kube.patch("Event", identity.namespace, name, patch)
        except KubeError as again:
            _log.warning("event_not_posted", job=identity.full_name, reason=note.reason, error=str(again))


def event(identity: Identity, note: Note, now: datetime) -> Mapping[str, Any]:
    """Build the Event. Equal notes of one object get the same name, so a repetition is counted, not added."""
    digest = hashlib.sha256(f"{identity.uid}\0{note.reason}\0{note.message}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{identity.name}.{digest}", "namespace": identity.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": identity.name,
            "namespace": identity.namespace,
            "uid": identity.uid,
        },
        "type": note.kind,
        "reason": note.reason,
        "message": note.message[:_MESSAGE_CHARACTERS_MAX],
        "source": {"component": COMPONENT},
        "firstTimestamp": write_time(now),
        "lastTimestamp": write_time(now),
        "count": 1,
    }
