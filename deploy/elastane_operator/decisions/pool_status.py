"""The status of an ElasticPool: the decision, written in one request before any pod changes.

The operator keeps no other state of a pool. Its successor reads the status and continues with the same
shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from elastane_operator.decisions.status import Condition

Devices = dict[str, int]
"""Devices by type, without types of which there are none."""


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Part of the status; field names follow Kubernetes' spelling."""


class Share(_Part, frozen=True):
    """A job's share of the pool.

    planned: by the policy. granted: devices for its pods now; rises to the plan as others' pods end. at: when
    the plan changed. taken_at: when the plan last became smaller. started_on: the type on which it first
    trained, and stays. revision: grows with each change of `granted`. outstanding: the largest grant that the
    job may still act on, because it has not acknowledged the current revision.
    """

    namespace: str
    name: str
    uid: str
    queue: str = "default"
    planned: Devices = {}
    granted: Devices = {}
    reason: str = ""
    predicted_finish: datetime | None = None
    at: datetime | None = None
    taken_at: datetime | None = None
    started_on: str = ""
    revision: int = 0
    outstanding: Devices = {}


class PoolStatus(_Part, frozen=True):
    """offered, granted: devices by type. inputs: digest of the last plan's inputs.

    quiet_until: until then running jobs are changed only if necessary.
    """

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    offered: Devices = {}
    granted: Devices = {}
    running: int = 0
    waiting: int = 0
    summary: str = ""
    last_decision: str = ""
    decided_at: datetime | None = None
    quiet_until: datetime | None = None
    wake_at: datetime | None = None
    inputs: str = ""
    shares: tuple[Share, ...] = ()

    def share_of(self, uid: str) -> Share | None:
        """Return the share of the job with this uid, or None."""
        return next((share for share in self.shares if share.uid == uid), None)


def read_pool_status(body: Mapping[str, Any]) -> PoolStatus:
    """Read the status of a pool. Fields that cannot be read get their defaults."""
    given = body.get("status") or {}
    try:
        return msgspec.convert(given, PoolStatus)
    except msgspec.ValidationError:
        kept = {key: value for key, value in given.items() if _readable(key, value)}
        return msgspec.convert(kept, PoolStatus)


def write_pool_status(status: PoolStatus) -> dict[str, Any]:
    """Encode the status as a decoded API answer has it."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    return plain | {"running": status.running, "waiting": status.waiting}


def _readable(key: str, value: Any) -> bool:
    try:
        msgspec.convert({key: value}, PoolStatus)
    except msgspec.ValidationError:
        return False
    return True
