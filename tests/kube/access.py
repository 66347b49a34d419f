"""The operator's access rights, as the shipped manifests give them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from kube.api import CORE, Api, ApiError, Object

RBAC = "apis/rbac.authorization.k8s.io/v1"
PLACES = {
    "ServiceAccount": f"{CORE}/namespaces/{{namespace}}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{namespace}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{namespace}}/rolebindings",
}


def manifests(folder: Path) -> list[Object]:
    """All objects of a folder's files."""
    found = [item for path in sorted(folder.glob("*.yaml")) for item in yaml.safe_load_all(path.read_text())]
    return [item for item in found if item]


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
            await api.create(path, item)
            made.append(f"{path}/{item['metadata']['name']}")
        yield f"system:serviceaccount:{namespace}:{account['metadata']['name']}"
    finally:
        for path in reversed(made):
            with contextlib.suppress(ApiError):
                await api.delete(path)
