"""What the operator does, as data; `edge.controller` carries it out in the order given.

Each can be done twice without harm: pods have fixed names, deletions name a uid, and what is asked of a
master is asked only when the master's own view says that it has not been done.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class CreatePod(msgspec.Struct, frozen=True, tag=True):
    """Make the pod of an index."""

    index: int
    reason: str


class DeletePod(msgspec.Struct, frozen=True, tag=True):
    """Delete a pod, if it is still the one of that uid; its worker drains in its grace time."""

    name: str
    uid: str
    reason: str


class CreateObject(msgspec.Struct, frozen=True, tag=True):
    """Make an object of the job's own master."""

    kind: str
    body: dict[str, Any]
    reason: str


class DeleteObject(msgspec.Struct, frozen=True, tag=True):
    """Delete an object of the job's own master."""

    kind: str
    name: str
    reason: str


class AskMaster(msgspec.Struct, frozen=True, tag=True):
    """Ask the master for something: the rpc of JobService of that name."""

    what: Literal["Create", "Scale", "Suspend", "Resume", "Cancel", "SetPrices"]
    reason: str


class AddFinalizer(msgspec.Struct, frozen=True, tag=True):
    """The object is not to go before the master knows."""


class RemoveFinalizer(msgspec.Struct, frozen=True, tag=True):
    """The object may go."""


Action = CreatePod | DeletePod | CreateObject | DeleteObject | AskMaster | AddFinalizer | RemoveFinalizer


class Note(msgspec.Struct, frozen=True):
    """Becomes an Event of the ElasticJob. reason: one word for machines; message: for people."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
