"""The software bill of materials: what the wheel needs, in the versions the tests ran with, as CycloneDX.

What needs what is read from the packages installed here; versions are the pins of constraints.txt, and
checksums those of requirements.lock. Extras whose packages the constraints do not pin are left out.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS: Final = ("containers", "demo", "kubernetes", "operator", "tracing", "worker")
"""Those that a user installs and whose packages are pinned; tools for development are no part of it."""

_LOCKED: Final = re.compile(r"^(\S+)==\S+ \\\n +--hash=sha256:([0-9a-f]{64})$", re.MULTILINE)
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)$", re.MULTILINE)


class MaterialsError(Exception):
    """The bill cannot be made from this environment; the text names the package."""


def pins(constraints: str) -> dict[str, str]:
    """Return the version of each package of constraints.txt, by normalized name."""
    return {canonicalize_name(name): version for name, version in _PIN.findall(constraints)}


def locked(lock: str) -> dict[str, str]:
    """Return the sha256 of each package of requirements.lock, by normalized name."""
    return dict(_LOCKED.findall(lock))


def required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield what an installed package needs here, with these extras. Raises MaterialsError."""
    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        raise MaterialsError(f"{name} is not installed: make the environment with `make`") from None
    for text in texts:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield requirement


def closure(root: str, extras: frozenset[str]) -> dict[str, set[str]]:
    """Return each package below `root`, with the packages that it needs itself. Raises MaterialsError."""
    found: dict[str, set[str]] = {root: set()}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        for requirement in required(name, wanted):
            needed = str(canonicalize_name(requirement.name))
            if needed != name:
                found[name].add(needed)
                found.setdefault(needed, set())
            waiting.append((needed, frozenset(requirement.extras)))
    return found


def render(wheel_name: str, wheel_sha256: str, version: str, made: int, root: Path) -> str:
    """Return the bill of a wheel as CycloneDX 1.6 in JSON: the same text for the same wheel.

    made: seconds since 1970. root: folder of constraints.txt and requirements.lock. Raises MaterialsError.
    """
    versions = pins((root / "constraints.txt").read_text(encoding="utf-8"))
    hashes = locked((root / "requirements.lock").read_text(encoding="utf-8"))
    always = closure("elastane", frozenset())
    needed = closure("elastane", frozenset(EXTRAS))
    components = {
        name: _component(name, versions, hashes, optional=name not in always)
        for name in needed
        if name != "elastane"
    }
    ours = Component(
        name="elastane",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"pkg:pypi/elastane@{version}",
        purl=PackageURL("pypi", None, "elastane", version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel_sha256)],
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        description=wheel_name,
    )
    bom = Bom(components=components.values(), serial_number=uuid.uuid5(uuid.NAMESPACE_URL, wheel_sha256))
    bom.metadata.component = ours
    bom.metadata.timestamp = datetime.fromtimestamp(made, UTC)
    for name, below in needed.items():
        owner = ours if name == "elastane" else components[name]
        bom.register_dependency(owner, [components[one] for one in sorted(below)])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(
    name: str, versions: Mapping[str, str], hashes: Mapping[str, str], *, optional: bool
) -> Component:
    installed = metadata.version(name)
    pinned = versions.get(name)
    if pinned is None or installed.partition("+")[0] != pinned:
        raise MaterialsError(f"{name} {installed} is installed; constraints.txt says {pinned or 'nothing'}")
    about = metadata.metadata(name)
    license_text = _license(about)
    return Component(
        name=name,
        version=pinned,
        bom_ref=f"pkg:pypi/{name}@{pinned}",
        purl=PackageURL("pypi", None, name, pinned),
        scope=ComponentScope.OPTIONAL if optional else ComponentScope.REQUIRED,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashes[name])] if name in hashes else [],
        licenses=[LicenseFactory().make_from_string(license_text)] if license_text else [],
        description=about.get("Summary"),
    )


def _license(about: metadata.PackageMetadata) -> str:
    """Return a package's licence as its metadata state it, most exact form first; empty if they do not."""
    if expression := about.get("License-Expression"):
        return str(expression)
    stated = str(about.get("License") or "").strip()
    if stated and "\n" not in stated:  # some packages put the licence's whole text there
        return stated
    named = [one for one in about.get_all("Classifier") or [] if one.startswith("License ::")]
    return named[0].rpartition(" :: ")[2] if named else ""
