"""Actions of the operator, as data; `edge.controller` carries them out in the given order.

Every action is idempotent: pods have fixed names, deletions name a uid, and a request goes to the master only
if the master's own view shows that it has not been carried out.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from elastane_operator.decisions.pods import Role


class CreatePod(msgspec.Struct, frozen=True, tag=True):
    """Create the pod of an index. device_type: of a pool, or CAPACITY_ON_DEMAND; empty: none."""

    index: int
    reason: str
    device_type: str = ""
    role: Role = "worker"


class DeletePod(msgspec.Struct, frozen=True, tag=True):
    """Delete the pod if it still has this uid; its worker drains during the grace period."""

    name: str
    uid: str
    reason: str


class CreateObject(msgspec.Struct, frozen=True, tag=True):
    """Create an object of the job's own master."""

    kind: str
    body: dict[str, Any]
    reason: str


class DeleteObject(msgspec.Struct, frozen=True, tag=True):
    """Delete an object of the job's own master."""

    kind: str
    name: str
    reason: str


class AskMaster(msgspec.Struct, frozen=True, tag=True):
    """Call the rpc of JobService with this name; SetScaling is a Scale that only sets the scaling."""

    what: Literal["Create", "Scale", "SetScaling", "Suspend", "Resume", "Cancel", "SetPrices"]
    reason: str


class AddFinalizer(msgspec.Struct, frozen=True, tag=True):
    """Add the finalizer: the object must not be deleted before the master is notified."""


class RemoveFinalizer(msgspec.Struct, frozen=True, tag=True):
    """Remove the finalizer: the object may be deleted."""


Action = CreatePod | DeletePod | CreateObject | DeleteObject | AskMaster | AddFinalizer | RemoveFinalizer


class Note(msgspec.Struct, frozen=True):
    """An Event to post for the ElasticJob. reason: one word for machines; message: for people."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
