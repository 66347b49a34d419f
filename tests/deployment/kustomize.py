"""What `kubectl apply -k` would send, for machines that have no kubectl: as deploy/ has it.

Anything else in a kustomization is an error here, so that a manifest never counts as checked when it was not
understood. Where kubectl is at hand, test_manifests.py holds this module to what the real kustomize renders.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

#: What identifies an entry of a list of objects, in Kubernetes' strategic merge; other lists are replaced.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
_UNDERSTOOD = {
    "apiVersion", "kind", "namespace", "labels", "resources", "components", "patches", "images",
}  # fmt: skip
#: Kinds without a namespace.
_CLUSTER = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "PriorityClass"}


class NotUnderstoodError(Exception):
    """A kustomization uses what this module cannot do."""


def render(folder: Path) -> list[Resource]:
    """All resources of the kustomization in `folder`. Raises NotUnderstoodError, OSError."""
    return _applied(folder, [])


def identity(resource: Resource) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    metadata = resource["metadata"]
    return resource["kind"], metadata.get("namespace", ""), metadata["name"]


def _applied(folder: Path, before: list[Resource]) -> list[Resource]:
    """`before` and what the kustomization in `folder` adds and changes."""
    asked = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(asked) - _UNDERSTOOD:
        raise NotUnderstoodError(f"{folder}: {', '.join(sorted(unknown))}")
    resources = list(before)
    for name in asked.get("resources", ()):
        path = folder / name
        resources += render(path) if path.is_dir() else load(path)
    for name in asked.get("components", ()):
        resources = _applied(folder / name, resources)
    if namespace := asked.get("namespace"):
        _set_namespace(resources, namespace)
    for labels in asked.get("labels", ()):
        if set(labels) != {"pairs"}:
            raise NotUnderstoodError(f"{folder}: labels with {', '.join(sorted(set(labels) - {'pairs'}))}")
        for resource in resources:
            resource["metadata"].setdefault("labels", {}).update(labels["pairs"])
    for patch in asked.get("patches", ()):
        resources = _patched(resources, patch, folder)
    for image in asked.get("images", ()):
        _set_image(resources, image)
    return resources


def load(path: Path) -> list[Resource]:
    """The documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _set_namespace(resources: list[Resource], namespace: str) -> None:
    for resource in resources:
        if resource["kind"] == "Namespace":
            resource["metadata"]["name"] = namespace
        elif resource["kind"] not in _CLUSTER:
            resource["metadata"]["namespace"] = namespace
        for subject in resource.get("subjects", ()) if resource["kind"].endswith("RoleBinding") else ():
            if "namespace" in subject or subject["name"] == "default":
                subject["namespace"] = namespace


def _patched(resources: list[Resource], asked: dict[str, Any], folder: Path) -> list[Resource]:
    if set(asked) - {"path", "patch"}:
        raise NotUnderstoodError(
            f"{folder}: a patch with {', '.join(sorted(set(asked) - {'path', 'patch'}))}"
        )
    text = (folder / asked["path"]).read_text() if "path" in asked else asked["patch"]
    for patch in yaml.safe_load_all(text):
        if not isinstance(patch, dict):
            raise NotUnderstoodError(f"{folder}: a patch that is no resource")
        named = (patch["kind"], patch["metadata"]["name"])
        found = [resource for resource in resources if identity(resource)[::2] == named]
        if len(found) != 1:
            raise NotUnderstoodError(f"{folder}: a patch for {named}, of which there are {len(found)}")
        if patch.get("$patch") == "delete":
            resources = [resource for resource in resources if resource is not found[0]]
        else:
            merged = _merged(found[0], patch)
            resources = [merged if resource is found[0] else resource for resource in resources]
    return resources


def _merged(old: Any, new: Any, key: str = "") -> Any:
    """`new` laid over `old`: maps by key, lists of named objects by name, everything else replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        if "$patch" in new:
            raise NotUnderstoodError(f"$patch: {new['$patch']} within a resource")
        result = dict(old)
        for name, value in new.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = _merged(old.get(name), value, name)
        return result
    if isinstance(old, list) and isinstance(new, list) and key in MERGE_KEYS:
        by = MERGE_KEYS[key]
        given = {entry[by]: entry for entry in new}
        # kustomize puts what is patched or added first.
        kept = {entry[by]: entry for entry in old}
        first = [_merged(kept.get(name), entry) for name, entry in given.items()]
        return first + [entry for name, entry in kept.items() if name not in given]
    return copy.deepcopy(new)


def _set_image(resources: list[Resource], asked: dict[str, str]) -> None:
    for resource in resources:
        for container in containers(resource):
            name, _, tag = container["image"].partition(":")
            if name == asked["name"]:
                tag = asked.get("newTag", tag)
                container["image"] = asked.get("newName", name) + (f":{tag}" if tag else "")


def pod_template(resource: Resource) -> Resource | None:
    """The template of the pods that the resource makes; None for one that makes none."""
    if resource["kind"] not in {"Deployment", "StatefulSet", "DaemonSet", "Job"}:
        return None
    template: Resource = resource["spec"]["template"]
    return template


def containers(resource: Resource) -> list[dict[str, Any]]:
    """Containers of the resource's pods, those of initialization too."""
    template = pod_template(resource)
    if template is None:
        return []
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]
