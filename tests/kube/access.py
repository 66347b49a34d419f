"""The operator's access rights, as granted by the shipped manifests."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from kube.api import CORE, Api, ApiError, Object

#: Annotation on objects that these tests create outside their own namespaces.
MARK = "elastane.io/made-by-tests"
RBAC = "apis/rbac.authorization.k8s.io/v1"
PLACES = {
    "ServiceAccount": f"{CORE}/namespaces/{{namespace}}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
}


VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
RESOURCE = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)


class Rights:
    """Evaluates roles for an API without access rights.

    Roles and cluster roles are treated alike; only a real API checks the namespace.
    """

    def __init__(self, roles: list[Object]) -> None:
        self._rules = [rule for role in roles for rule in role["rules"]]

    def allow(self, method: str, path: str, *, is_watch: bool) -> bool:
        """True if the roles allow a request; paths that are not objects (discovery) are always allowed."""
        match = RESOURCE.fullmatch(path)
        if match is None:
            return True
        parts = {key: value or "" for key, value in match.groupdict().items()}
        verb = VERBS[method]
        if verb == "get" and not parts["name"]:
            verb = "watch" if is_watch else "list"
        resource = "/".join(part for part in (parts["plural"], parts["subresource"]) if part)
        return any(
            verb in rule["verbs"]
            and parts["group"] in rule.get("apiGroups", [])
            and resource in rule.get("resources", [])
            and (not rule.get("resourceNames") or parts["name"] in rule["resourceNames"])
            for rule in self._rules
        )


def shipped_rights(folder: Path) -> Rights:
    """Read the rights of the operator's roles, which have the same name as its service account."""
    objects = manifests(folder)
    account = next(item for item in objects if item["kind"] == "ServiceAccount")["metadata"]["name"]
    roles = [item for item in objects if item["kind"] in ("Role", "ClusterRole")]
    return Rights([role for role in roles if role["metadata"]["name"] == account])


def manifests(folder: Path) -> list[Object]:
    """Read all objects from a folder's YAML files."""
    found = [item for path in sorted(folder.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]
    return [item for item in found if item]


async def _create(api: Api, path: str, item: Object) -> None:
    """Create an object, replacing one that a killed run has left. Raises ApiError (409) for any other one."""
    own = f"{path}/{item['metadata']['name']}"
    try:
        await api.create(path, item)
    except ApiError as error:
        if error.status != 409 or MARK not in (await api.get(own))["metadata"].get("annotations", {}):
            raise
        await api.delete(own)
        await api.create(path, item)


@contextlib.asynccontextmanager
async def service_account(api: Api, folder: Path) -> AsyncIterator[str]:
    """Create the operator's service account with its rights; yield its user name; remove it afterwards."""
    objects = [item for item in manifests(folder) if item["kind"] in PLACES]
    account = next(item for item in objects if item["kind"] == "ServiceAccount")
    namespace = account["metadata"]["namespace"]
    made: list[str] = []
    try:
        with contextlib.suppress(ApiError):  # it may exist already
            await api.create(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
            made.append(f"{CORE}/namespaces/{namespace}")
        for item in objects:
            path = PLACES[item["kind"]].format(namespace=item["metadata"].get("namespace", ""))
            item["metadata"]["annotations"] = {MARK: "true"}
            await _create(api, path, item)
            made.append(f"{path}/{item['metadata']['name']}")
        yield f"system:serviceaccount:{namespace}:{account['metadata']['name']}"
    finally:
        for path in reversed(made):
            with contextlib.suppress(ApiError):
                await api.delete(path)
