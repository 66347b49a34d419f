"""The operator's access rights, as the shipped manifests give them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from kube.api import CORE, Api, ApiError, Object

#: On what these tests make outside of their own namespaces.
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
    """What roles allow, for an API that does not know access rights itself. Roles and cluster roles alike:
    in which namespace is left to a real API."""

    def __init__(self, roles: list[Object]) -> None:
        self._rules = [rule for role in roles for rule in role["rules"]]

    def allow(self, method: str, path: str, *, is_watch: bool) -> bool:
        """Whether a request is within them; what is no object (discovery) is everybody's."""
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
    """Of the operator's roles: they bear the name of its service account."""
    objects = manifests(folder)
    account = next(item for item in objects if item["kind"] == "ServiceAccount")["metadata"]["name"]
    roles = [item for item in objects if item["kind"] in ("Role", "ClusterRole")]
    return Rights([role for role in roles if role["metadata"]["name"] == account])


def manifests(folder: Path) -> list[Object]:
    """All objects of a folder's files."""
    found = [item for path in sorted(folder.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]
    return [item for item in found if item]


async def _create(api: Api, path: str, item: Object) -> None:
    """Makes it, also where a run that was killed has left it. Raises ApiError (409) for somebody else's."""
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
    """The user name of the operator's service account, with its rights; taken back afterwards."""
    objects = [item for item in manifests(folder) if item["kind"] in PLACES]
    account = next(item for item in objects if item["kind"] == "ServiceAccount")
    namespace = account["metadata"]["namespace"]
    made: list[str] = []
    try:
        with contextlib.suppress(ApiError):  # it may be there already
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
