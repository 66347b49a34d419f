"""Files that protect a master and may change at runtime: detection of changes, reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from elastane_master.security.errors import BadSecurityFile

FILE_BYTES_MAX = 4 * 2**20

Stamp = tuple[tuple[int, int, int] | None, ...]


def stamp_of(paths: Sequence[Path | None]) -> Stamp:
    """Return a value that changes when a file does, or a link on its path (as in Kubernetes)."""
    stamp: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path) if path is not None else None  # noqa: PTH116 - once a handshake: the quick way
        except OSError:
            status = None
        stamp.append((status.st_mtime_ns, status.st_ino, status.st_size) if status is not None else None)
    return tuple(stamp)


def read_file(path: Path) -> bytes:
    """Read the whole file. Raises BadSecurityFile."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSecurityFile(path, error.strerror or str(error), "check its path and permissions") from error
    if len(content) > FILE_BYTES_MAX:
        raise BadSecurityFile(path, f"it has more than {FILE_BYTES_MAX} bytes")
    return content


def read_secret(path: Path) -> str:
    """Read a password: the file's text without trailing line ends. Raises BadSecurityFile."""
    try:
        secret = read_file(path).decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadSecurityFile(path, "it is not UTF-8 text") from error
    if not secret:
        raise BadSecurityFile(path, "it is empty")
    return secret


def open_to_others(path: Path) -> bool:
    """True if every user of this machine may read the file."""
    try:
        return bool(path.stat().st_mode & 0o004)
    except OSError:
        return False
