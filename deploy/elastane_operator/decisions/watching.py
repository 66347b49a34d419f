"""Interprets a list and its following watches: changed objects, and where the next watch starts.

A list has one resourceVersion, and a watch from there delivers every later change. The server drops old
versions (410, or an event ERROR); then a new list is needed, and objects missing in it were deleted
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name of an object."""


class ListAgainError(Exception):
    """The watch cannot continue from its position; the text says why."""


class Change(msgspec.Struct, frozen=True):
    """An object that exists (new or changed), or that was deleted.

    object: as the server sent it; after a missed deletion, only namespace, name, uid and labels in its
    `metadata`.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class _Known(msgspec.Struct, frozen=True):
    """Stored form of an object: its last essence, and the report for its deletion."""

    essence: object
    metadata: dict[str, Any]

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid"))


class WatchState:
    """The objects of one list and its watches.

    resource_version: start of the next watch; empty: a list is needed first. essence: returns the relevant
    part of an object; events that leave it unchanged are ignored. Without it, every event is a change.
    """

    def __init__(self, essence: Callable[[Object], object] | None = None) -> None:
        self.resource_version = ""
        self._essence = essence
        self._known: dict[Key, _Known] = {}

    def expire(self) -> None:
        """Require a list before the next watch."""
        self.resource_version = ""

    def listed(self, answer: Object) -> list[Change]:
        """Process a list; return missed deletions, then each object in the list.

        Unchanged objects are also returned, because they may have changed in between. Raises ListAgainError
        if the answer is no list.
        """
        try:
            version = str(answer["metadata"]["resourceVersion"])
            now = {_key(item): item for item in answer.get("items") or ()}
        except (KeyError, TypeError, AttributeError):
            raise ListAgainError("the answer is not a list of objects") from None
        before, self._known = self._known, {key: self._keep(item) for key, item in now.items()}
        changes = []
        for key, known in before.items():
            if key not in self._known or self._known[key].uid != known.uid:
                changes.append(Change("DELETED", {"metadata": known.metadata}))
        for key, item in now.items():
            is_known = key in before and before[key].uid == self._known[key].uid
            changes.append(Change("MODIFIED" if is_known else "ADDED", item))
        self.resource_version = version
        return changes

    def received(self, line: bytes) -> Change | None:
        """Process one line of a watch; return the relevant change, or None.

        Raises ListAgainError for an event ERROR and for an invalid line; the next watch then needs a list.
        """
        try:
            event = json.loads(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                self.expire()
                raise ListAgainError(_refusal(item))
            if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
                raise ValueError(kind)
            version = str(item["metadata"]["resourceVersion"])
            change = self._changed(kind, item) if kind != "BOOKMARK" else None
        except (ValueError, KeyError, TypeError, AttributeError):
            self.expire()
            raise ListAgainError(f"not an event: {line[:200].decode(errors='replace')!r}") from None
        self.resource_version = version
        return change

    def _changed(self, kind: Literal["ADDED", "MODIFIED", "DELETED"], item: Object) -> Change | None:
        key = _key(item)
        if kind == "DELETED":
            self._known.pop(key, None)
            return Change(kind, item)
        old, new = self._known.get(key), self._keep(item)
        self._known[key] = new
        if self._essence is not None and old is not None and old.essence == new.essence:
            return None
        return Change(kind, item)

    def _keep(self, item: Object) -> _Known:
        metadata = {name: item["metadata"].get(name) for name in ("namespace", "name", "uid", "labels")}
        return _Known(None if self._essence is None else self._essence(item), metadata)


def job_essence(job: Object) -> str:
    """Return the parts of an ElasticJob whose change requires a look: all but its status.

    The operator's own updates of the status come back as events; reacting to them would never end.
    """
    metadata = job["metadata"]
    counted = [metadata.get(name) for name in ("uid", "generation", "deletionTimestamp", "finalizers")]
    return json.dumps([*counted, job.get("spec")], sort_keys=True)


def _key(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def _refusal(status: Object) -> str:
    """Return the message of an ERROR event, which has a metav1.Status as its object."""
    words = (status.get("code"), status.get("reason"), status.get("message"))
    return " ".join(str(word) for word in words if word) or "the server ended the watch with an error"
