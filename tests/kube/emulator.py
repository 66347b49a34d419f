"""Emulates a Kubernetes API: `kmock` does HTTP and discovery, `ClusterStore` the behaviour of objects."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp.web
import jsonpatch
import kmock
import yaml
from kubernetes_validate import ValidationError, validate

from kube.cluster_store import ClusterStore, Key, Kind, Object, Refusal

#: Kubernetes release whose schemas validate the created objects.
RELEASE = "1.34"
#: Kinds that are validated against the release's schemas when they are created.
CHECKED = ("Pod", "Service", "Secret", "NetworkPolicy", "StatefulSet", "Deployment", "PersistentVolumeClaim")


CLUSTER_WIDE = ("namespaces", "nodes", "customresourcedefinitions", "priorityclasses", "elasticpools")
#: Group, version, plural: kind and subresources.
BUILT_IN: dict[tuple[str, str, str], tuple[str, tuple[str, ...]]] = {
    ("", "v1", "namespaces"): ("Namespace", ("status",)),
    ("", "v1", "nodes"): ("Node", ("status",)),
    ("", "v1", "pods"): ("Pod", ("status", "binding")),
    ("", "v1", "services"): ("Service", ("status",)),
    ("", "v1", "secrets"): ("Secret", ()),
    ("", "v1", "events"): ("Event", ()),
    ("apps", "v1", "statefulsets"): ("StatefulSet", ("status", "scale")),
    ("networking.k8s.io", "v1", "networkpolicies"): ("NetworkPolicy", ()),
    ("autoscaling", "v1", "horizontalpodautoscalers"): ("HorizontalPodAutoscaler", ("status",)),
    ("scheduling.k8s.io", "v1", "priorityclasses"): ("PriorityClass", ()),
    ("coordination.k8s.io", "v1", "leases"): ("Lease", ()),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions"): ("CustomResourceDefinition", ("status",)),
}
PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)


@dataclass(frozen=True)
class Request:
    """A parsed request for one object, or all of a kind. (kmock's own parser fails at /namespaces.)"""

    method: str
    group: str
    version: str
    plural: str
    namespace: str
    name: str
    subresource: str
    params: Mapping[str, str]
    content_type: str
    body: Any

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> Key:
        return (self.group, self.plural, self.namespace, self.name)

    @property
    def selectors(self) -> tuple[str, str]:
        return self.params.get("labelSelector", ""), self.params.get("fieldSelector", "")


class Emulator(kmock.KubernetesEmulator):
    """kmock's server with its objects in a `ClusterStore`."""

    store: ClusterStore

    async def __call__(self, raw_request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        match = PATH.fullmatch(raw_request.path)
        if match is None:
            return await super().__call__(raw_request)
        parts = {name: value or "" for name, value in match.groupdict().items()}
        request = Request(
            method=raw_request.method,
            params=dict(raw_request.query),
            content_type=raw_request.headers.get("Content-Type", ""),
            body=json.loads(await raw_request.read() or b"null"),
            **(parts | {"version": parts["version"] or "v1"}),
        )
        if (request.group, request.plural) not in self.store.kinds:
            return _answer(_status(404, "NotFound", f"no resource {request.plural!r} here"), 404)
        try:
            if (request.plural, request.subresource) == ("pods", "log"):
                return await self._log(request, raw_request)
            if request.params.get("watch") in ("true", "1"):
                return await self._watch(request, raw_request)
            return _answer(*await self._serve(request))
        except Refusal as error:
            return _answer(_status(error.code, error.reason, error.message), error.code)

    async def _serve(self, request: Request) -> tuple[Object, int]:
        store, key, body = self.store, request.key, request.body
        kind = store.kinds[request.group, request.plural]
        head = {"kind": kind.kind, "apiVersion": request.api_version}
        match request.method, bool(request.name), request.subresource:
            case "GET", False, _:
                items = store.list(*key[:3], *request.selectors)
                metadata = {"resourceVersion": str(store.version)}
                return head | {"kind": f"{kind.kind}List", "metadata": metadata, "items": items}, 200
            case "POST", False, _:
                _check(body | head)
                _admit(store, body | head)
                return await store.create(*key[:3], body | head), 201
            case "DELETE", False, _:
                for item in store.list(*key[:3], *request.selectors):
                    await store.delete((*key[:3], item["metadata"]["name"]), body)
                return _status(200, "", "deleted"), 200
            case "POST", True, "binding":
                pod = store.get(key)
                if pod["spec"].get("nodeName"):
                    raise Refusal(409, "Conflict", f"pod {request.name} is already assigned to a node")
                spec = pod["spec"] | {"nodeName": body["target"]["name"]}
                await store.update(key, pod | {"spec": spec})
                return _status(201, "", "bound"), 201
            case "GET", True, "scale":
                return _scale(kind, store.get(key)), 200
            case (("PUT" | "PATCH"), True, "scale"):
                scale = _scale(kind, store.get(key))
                wanted = body if request.method == "PUT" else _patched(scale, request)
                patch: Any = wanted["spec"]["replicas"]
                for part in reversed(kind.subresources["scale"]["specReplicasPath"].split(".")[1:]):
                    patch = {part: patch}
                return _scale(kind, await store.update(key, _merge(store.get(key), patch))), 200
            case "GET", True, _:
                return store.get(key), 200
            case "PUT", True, subresource:
                return await store.update(key, body, subresource), 200
            case "PATCH", True, subresource:
                return await store.update(key, _patched(store.get(key), request), subresource), 200
            case "DELETE", True, _:
                return await store.delete(key, body), 200
        raise Refusal(405, "MethodNotAllowed", f"{request.method} {request.plural}")

    async def _log(
        self, request: Request, raw_request: aiohttp.web.BaseRequest
    ) -> aiohttp.web.StreamResponse:
        """Pass on what the kubelet of the pod's node says of its log."""
        node = self.store.get(("", "nodes", "", self.store.get(request.key)["spec"].get("nodeName", "")))
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        container = request.params["container"]
        url = f"https://127.0.0.1:{port}/containerLogs/{request.namespace}/{request.name}/{container}"
        given = {name: one for name, one in request.params.items() if name == "follow"}
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
                session.get(url, params=given, ssl=False) as answer,
            ):
                if answer.status != 200:
                    raise Refusal(answer.status, "BadRequest", await answer.text())
                response = aiohttp.web.StreamResponse(headers={"Content-Type": "text/plain"})
                await response.prepare(raw_request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                return response
        except aiohttp.ClientConnectorError as error:
            raise Refusal(500, "InternalError", f"the node does not answer: {error}") from error

    async def _watch(
        self, request: Request, raw_request: aiohttp.web.BaseRequest
    ) -> aiohttp.web.StreamResponse:
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(raw_request)
        version = request.params.get("resourceVersion", "")
        since = int(version) if version not in ("", "0") else None
        changes = self.store.watch(*request.key[:3], since, *request.selectors)
        seconds = float(request.params.get("timeoutSeconds", "inf"))
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                async for change in changes:
                    await response.write(json.dumps(change).encode() + b"\n")
        await changes.aclose()
        return response


@contextlib.asynccontextmanager
async def emulated_cluster(*crd_paths: Path) -> AsyncIterator[str]:
    """Run a server with the built-in resources and custom ones; yield its URL."""
    async with Emulator() as emulator, kmock.Server(emulator) as server:
        kinds = {}
        for (own_group, own_version, plural), (kind, subresources) in BUILT_IN.items():
            kinds[own_group, plural] = Kind(kind, subresources={name: {} for name in subresources})
            _declare(emulator, kmock.resource(own_group, own_version, plural), kinds[own_group, plural])
        for crd_path in crd_paths:
            crd = yaml.safe_load(crd_path.read_text())
            group, names, version = crd["spec"]["group"], crd["spec"]["names"], crd["spec"]["versions"][0]
            custom = Kind(names["kind"], version["schema"]["openAPIV3Schema"], version["subresources"])
            kinds[group, names["plural"]] = custom
            _declare(emulator, kmock.resource(group, version["name"], names["plural"]), custom)
        store = ClusterStore(kinds)
        emulator.store = store
        for name in ("default", "kube-system"):
            await store.create("", "namespaces", "", {"metadata": {"name": name}})
        yield str(server.url).rstrip("/")


def _declare(emulator: Emulator, resource: kmock.resource, kind: Kind) -> None:
    """Add a resource to the API's discovery."""
    emulator.resources[resource] = kmock.ResourceInfo(
        namespaced=resource.plural not in CLUSTER_WIDE,
        kind=kind.kind,
        verbs={"get", "list", "watch", "create", "update", "patch", "delete"},
        subresources=set(kind.subresources),
    )


def _check(item: Object) -> None:
    """Raise Refusal (422) for an object that Kubernetes' schemas reject."""
    if item["kind"] in CHECKED:
        try:
            validate(item, RELEASE, strict=True)
        except ValidationError as error:
            raise Refusal(422, "Invalid", f"{item['kind']} is invalid: {error.message}") from error


def _admit(store: ClusterStore, item: Object) -> None:
    """Raise Refusal (403) for a pod with an unknown priority class."""
    priority = item["spec"].get("priorityClassName") if item["kind"] == "Pod" else None
    if priority and ("scheduling.k8s.io", "priorityclasses", "", priority) not in store.objects:
        name = item["metadata"].get("name")
        said = f"pods {name!r} is forbidden: no PriorityClass with name {priority} was found"
        raise Refusal(403, "Forbidden", said)


def _patched(item: Object, request: Request) -> Object:
    if "json-patch" in request.content_type:
        try:
            return dict(jsonpatch.apply_patch(item, request.body))
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise Refusal(422, "Invalid", f"the server rejected our request: {error}") from error
    return dict(_merge(item, request.body))


def _merge(item: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    out = dict(item) if isinstance(item, dict) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = _merge(out.get(name), value)
    return out


def _scale(kind: Kind, item: Object) -> Object:
    paths = kind.subresources["scale"]

    def at(path: str) -> Any:
        found: Any = item
        for part in path.split(".")[1:]:
            found = found.get(part, {}) if isinstance(found, dict) else {}
        return found

    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            name: item["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")
        },
        "spec": {"replicas": at(paths["specReplicasPath"]) or 0},
        "status": {
            "replicas": at(paths["statusReplicasPath"]) or 0,
            "selector": at(paths["labelSelectorPath"]) or "",
        },
    }


def _status(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if code < 400 else "Failure",
        "code": code,
        "reason": reason,
        "message": message,
    }


def _answer(body: Object, status: int) -> aiohttp.web.Response:
    return aiohttp.web.json_response(body, status=status)
