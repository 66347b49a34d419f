"""Lists of files with sizes and digests, as in the manifests of artifacts and of datasets.

The content hash of a list is the sha256 of its lines `SHA256  PATH`, sorted by path. Other programs get the
same one of the folder:

    find . -type f -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from elastane_common.storage import Folder

PATH_BYTES_MAX: Final = 1024
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")


class FileEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file below the folder of its manifest. path: with "/" on all systems. kind: as in Artifact, or ""."""

    path: str
    size_bytes: int = msgspec.field(name="size")
    sha256: str
    kind: str = ""


def content_hash(files: Iterable[FileEntry]) -> str:
    """Return the hash of a list of files, 64 hexadecimal digits. Order and kinds have no influence."""
    digest = hashlib.sha256()
    for entry in sorted(files, key=lambda entry: entry.path.encode()):
        digest.update(f"{entry.sha256}  {entry.path}\n".encode())
    return digest.hexdigest()


def path_fault(path: str) -> str:
    """Return why `path` may not be in a manifest; "" if it may.

    It must stay below the folder on every storage, and be one line.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX} bytes"
    if _FORBIDDEN.search(path):
        return "has a control character or a backslash"
    if any(part in ("", ".", "..") for part in path.split("/")):
        return 'is not a relative path without empty parts, "." and ".."'
    return ""


def list_fault(files: Iterable[FileEntry]) -> str:
    """Return what is wrong in a list of files, naming the first one; "" if nothing is."""
    seen = set()
    for entry in files:
        if fault := path_fault(entry.path):
            return f"the path {entry.path[:80]!r} {fault}"
        if entry.path in seen:
            return f"{entry.path} is listed twice"
        if entry.size_bytes < 0 or not _SHA256.fullmatch(entry.sha256):
            return f"{entry.path} has no valid size and sha256"
        seen.add(entry.path)
    return ""


def file_faults(folder: Folder, files: Iterable[FileEntry]) -> Iterator[str]:
    """Read all files, and yield a line for each that is missing or differs. Raises the folder's error."""
    for entry in files:
        found = folder.sha256(entry.path)
        if found is None:
            yield f"{entry.path} is missing"
        elif found[0] != entry.size_bytes:
            yield f"{entry.path} has {found[0]} bytes instead of {entry.size_bytes}"
        elif found[1] != entry.sha256:
            yield f"{entry.path} has the sha256 {found[1]} instead of {entry.sha256}"
