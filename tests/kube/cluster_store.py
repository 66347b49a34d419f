"""Emulates how a Kubernetes API server stores objects, as far as the operator depends on it, without HTTP.

`kmock` keeps objects, but has no resourceVersion, uid, generation, selectors, subresources, schema,
grace periods or owners. This module adds conflicts (409), no-op writes without an event, status and scale as
subresources, structural pruning and defaults, deletion that waits for finalizers and for the kubelet, and
garbage collection of owned objects.
"""

from __future__ import annotations

import asyncio
import copy
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema

Object = dict[str, Any]
#: Group, plural, namespace ("" for cluster-scoped objects), name.
Key = tuple[str, str, str, str]

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
OVER = ("Succeeded", "Failed")


class Refusal(Exception):  # noqa: N818 - an answer
    """An error answer. reason: as in Kubernetes' Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


@dataclass
class Kind:
    """Definition of a resource. schema: of a custom resource; subresources: by name."""

    kind: str
    schema: Object | None = None
    subresources: Mapping[str, Object] = field(default_factory=dict)


class ClusterStore:
    """All objects, the ordered events of their changes, and the watches that wait for more."""

    def __init__(self, kinds: dict[tuple[str, str], Kind]) -> None:
        self.kinds = kinds
        self.objects: dict[Key, Object] = {}
        self.events: list[tuple[int, Key, str, Object]] = []
        self.version = 1
        self._changed = asyncio.Condition()

    # ------------------------------------------------------------------ reading

    def get(self, key: Key) -> Object:
        """Return an object. Raises Refusal (404)."""
        if key not in self.objects:
            raise Refusal(404, "NotFound", f"{key[1]} {key[3]!r} not found")
        return self.objects[key]

    def list(
        self, group: str, plural: str, namespace: str, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """Return the objects of a namespace ("": of all) that the selectors match."""
        return [
            item
            for key, item in self.objects.items()
            if _covers(key, group, plural, namespace) and selects(item, labels, fields)
        ]

    async def watch(
        self, group: str, plural: str, namespace: str, since: int | None, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Object]:
        """Yield changes after the version `since`; None: first all existing objects."""
        start = self.version if since is None else since
        if since is None:
            for item in self.list(group, plural, namespace, labels, fields):
                yield {"type": "ADDED", "object": item}
        # Versions grow by one with each event, so an event's index in the list follows from its version.
        place = next((at for at, event in enumerate(self.events) if event[0] > start), len(self.events))
        while True:
            while place < len(self.events):
                _, key, kind, item = self.events[place]
                place += 1
                if _covers(key, group, plural, namespace) and selects(item, labels, fields):
                    yield {"type": kind, "object": item}
            async with self._changed:
                await self._changed.wait_for(lambda at=place: at < len(self.events))

    # ------------------------------------------------------------------ writing

    async def create(self, group: str, plural: str, namespace: str, body: Object) -> Object:
        """Create an object. Raises Refusal (409, 422)."""
        item = copy.deepcopy(body)
        meta = item.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        key = (group, plural, namespace, str(meta.get("name", "")))
        if not NAME.fullmatch(key[3]):
            raise Refusal(422, "Invalid", f"metadata.name: Invalid value: {key[3]!r}")
        if key in self.objects:
            raise Refusal(409, "AlreadyExists", f"{plural} {key[3]!r} already exists")
        kind = self.kinds[group, plural]
        if namespace:
            meta["namespace"] = namespace
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": _stamp(), "generation": 1}
        for name in ("resourceVersion", "deletionTimestamp"):
            meta.pop(name, None)
        if "status" in kind.subresources:
            item.pop("status", None)
        if plural == "pods":
            item["spec"].setdefault("terminationGracePeriodSeconds", 30)
            item["status"] = {"phase": "Pending"}
        item = self._admitted(kind, item)
        self.objects[key] = item
        await self._tell(key, "ADDED")
        return self.objects[key]

    async def update(self, key: Key, body: Object, subresource: str = "") -> Object:
        """Replace an object, or its status. Raises Refusal (404, 409, 422)."""
        old = self.get(key)
        kind = self.kinds[key[:2]]
        new = copy.deepcopy(body)
        version = new.get("metadata", {}).get("resourceVersion")
        if version is not None and version != old["metadata"]["resourceVersion"]:
            raise Refusal(
                409, "Conflict", "the object has been modified; please apply your changes to the latest"
            )
        uid = new.get("metadata", {}).get("uid", old["metadata"]["uid"])
        if uid != old["metadata"]["uid"]:
            raise Refusal(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
        if subresource == "status":
            new = old | {"status": new.get("status", {})}
        elif "status" in kind.subresources:
            new.pop("status", None)
            new |= {"status": old["status"]} if "status" in old else {}
        if key[1] == "pods" and _without_node(new.get("spec")) != _without_node(old.get("spec")):
            raise Refusal(422, "Invalid", "spec: Forbidden: pod updates may not change fields")
        new["metadata"] = self._metadata(
            old["metadata"], new.get("metadata", {}), status=subresource == "status"
        )
        new = self._admitted(kind, new)
        if new == old:
            return old
        was, told = (one.get("status", {}).get("containerStatuses") for one in (old, new))
        if key[1] == "pods" and told != was:
            new["metadata"] = new["metadata"] | {"managedFields": [_kubelet_wrote()]}
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        self.objects[key] = new
        await self._tell(key, "MODIFIED")
        new = self.objects[key]
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            await self._remove_when_due(key, new["metadata"].get("deletionGracePeriodSeconds", 0))
        return new

    async def delete(self, key: Key, options: Object | None = None) -> Object:
        """Delete an object, or mark it as deleted if finalizers or the kubelet must act first.

        Raises Refusal (404, 409).
        """
        item, options = self.get(key), options or {}
        meta = item["metadata"]
        expected = options.get("preconditions", {}).get("uid")
        if expected and expected != meta["uid"]:
            raise Refusal(409, "Conflict", f"Precondition failed: UID in precondition: {expected}")
        grace = 0
        if key[1] == "pods" and item["spec"].get("nodeName") and item["status"].get("phase") not in OVER:
            grace = item["spec"]["terminationGracePeriodSeconds"]
            grace = options["gracePeriodSeconds"] if options.get("gracePeriodSeconds") is not None else grace
        if (grace or meta.get("finalizers")) and not meta.get("deletionTimestamp"):
            due = datetime.now(UTC) + timedelta(seconds=grace)
            marks = {"deletionTimestamp": _stamp(due), "deletionGracePeriodSeconds": grace}
            self.objects[key] = item | {"metadata": meta | marks}
            await self._tell(key, "MODIFIED")
            return self.objects[key]
        if not meta.get("finalizers"):
            await self._remove_when_due(key, grace)
        elif grace < meta.get(
            "deletionGracePeriodSeconds", 0
        ):  # a later one shortens the grace since the first
            due = datetime.fromisoformat(meta["deletionTimestamp"])
            due += timedelta(seconds=grace - meta["deletionGracePeriodSeconds"])
            marks = {"deletionTimestamp": _stamp(due), "deletionGracePeriodSeconds": grace}
            self.objects[key] = item | {"metadata": meta | marks}
            await self._tell(key, "MODIFIED")
        return item

    async def _remove_when_due(self, key: Key, grace: int) -> None:
        item = self.objects[key]
        if grace and item["metadata"].get("deletionTimestamp"):
            return  # the kubelet completes the deletion
        await self._tell(key, "DELETED")
        del self.objects[key]
        uid = item["metadata"]["uid"]
        owned = [
            other
            for other, found in self.objects.items()
            if any(owner["uid"] == uid for owner in found["metadata"].get("ownerReferences", []))
        ]
        inside = [other for other in self.objects if key[1] == "namespaces" and other[2] == key[3]]
        for other in owned + inside:
            if other in self.objects:
                await self.delete(other)

    async def _tell(self, key: Key, change: str) -> None:
        self.version += 1
        item = self.objects[key]
        self.objects[key] = item = item | {
            "metadata": item["metadata"] | {"resourceVersion": str(self.version)}
        }
        self.events.append((self.version, key, change, item))
        async with self._changed:
            self._changed.notify_all()

    # ------------------------------------------------------------------ rules

    @staticmethod
    def _metadata(old: Object, new: Object, *, status: bool) -> Object:
        """Merge the metadata that a write may change; a write to the status changes none."""
        if status:
            return old
        fixed = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion")
        fixed += ("deletionTimestamp", "deletionGracePeriodSeconds")
        kept = {
            name: value for name, value in new.items() if name not in fixed and value not in ({}, [], None)
        }
        return {name: old[name] for name in fixed if name in old} | kept

    @staticmethod
    def _admitted(kind: Kind, item: Object) -> Object:
        """Apply the schema: prune unknown fields, set defaults, validate. Raises Refusal (422)."""
        if kind.schema is None:
            return item
        item = _structural(item, kind.schema)
        errors = jsonschema.Draft202012Validator(kind.schema).iter_errors(item)
        told = [f"{_path(error)}: Invalid value: {error.message}" for error in errors]
        if told:
            name = item["metadata"].get("name")
            raise Refusal(422, "Invalid", f"{kind.kind} {name!r} is invalid: {'; '.join(told)}")
        return item


def selects(item: Object, labels: str, fields: str) -> bool:
    """Match label and field selectors: equality, and existence of a label."""
    own = item["metadata"].get("labels", {})
    for term in filter(None, labels.split(",")):
        name, _, value = term.replace("==", "=").partition("=")
        if (own.get(name) != value) if "=" in term else (name not in own):
            return False
    for term in filter(None, fields.split(",")):
        path, _, value = term.replace("==", "=").partition("=")
        found: Any = item
        for part in path.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        if found != value:
            return False
    return True


def _covers(key: Key, group: str, plural: str, namespace: str) -> bool:
    return key[:2] == (group, plural) and namespace in ("", key[2])


def _kubelet_wrote() -> Object:
    fields = {"f:status": {"f:containerStatuses": {}}}
    return {
        "manager": "kubelet", "operation": "Update", "subresource": "status", "time": _stamp(),
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }  # fmt: skip


def _stamp(when: datetime | None = None) -> str:
    return (when or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _without_node(spec: Any) -> Object:
    return {name: value for name, value in (spec or {}).items() if name != "nodeName"}


def _path(error: jsonschema.ValidationError) -> str:
    """Return the path of the invalid field as the API server writes it."""
    parts = list(error.absolute_path)
    if error.validator == "required":
        parts.append(next(name for name in error.validator_value if name not in error.instance))
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _structural(value: Any, schema: Object, *, top: bool = True) -> Any:
    """Prune unknown fields and set defaults, as an API server does for a custom resource."""
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        free = schema.get("x-kubernetes-preserve-unknown-fields")
        always = ("apiVersion", "kind", "metadata") if top else ()
        out = {
            name: _structural(inner, known.get(name, {}), top=False)
            for name, inner in value.items()
            if name in known or name in always or free
        }
        for name, inner in known.items():
            if name not in out and "default" in inner:
                out[name] = _structural(copy.deepcopy(inner["default"]), inner, top=False)
        return out
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        inner = schema["additionalProperties"]
        return {name: _structural(found, inner, top=False) for name, found in value.items()}
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_structural(found, schema["items"], top=False) for found in value]
    return value
