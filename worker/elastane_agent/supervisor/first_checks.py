"""Checks that an agent makes before it starts workers, which would meet the same faults minutes later."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import tempfile
import uuid
from pathlib import Path

from elastane_common.errors import RefusedError

#: Least free space: a store's file grows in pieces, and a disk with less room cannot take the next one.
_ROOM_BYTES = 64 * 1024


def try_checkpoint_url(url: str) -> None:
    """Write a small file into the checkpoint folder and remove it. Raises RefusedError with the cause."""
    from elastane_common.storage import CheckpointError, Folder

    name = f".tried-{uuid.uuid4().hex}"
    try:
        folder = Folder(url)
        folder.write(name, [b"elastane"])
        folder.remove_file(name)
    except CheckpointError as error:
        raise RefusedError(
            f"no checkpoint could be written to {url}: {error.args[0]}",
            hint=error.hint or "correct the URL, its permissions or its credentials, or omit --checkpoint",
            url=url,
        ) from error
    except Exception as error:  # every fsspec protocol has its own error classes
        raise RefusedError(
            f"no checkpoint could be written to {url}: {type(error).__name__}: {error}",
            hint="correct the URL, its permissions or its credentials, or omit --checkpoint",
            url=url,
        ) from error


def require_torch() -> None:
    """Raise RefusedError if workers cannot start on this machine, because torch is not installed.

    Each would fail with the same traceback until its restarts are used up.
    """
    if importlib.util.find_spec("torch") is None:
        raise RefusedError(
            f"workers need torch, which is not installed in {sys.prefix}",
            hint="pip install 'elastane[worker]'; without it this is a client, and a machine for masters",
        )


def room_fault(folder: Path) -> str:
    """Try to write into the folder; return why it fails ("No space left on device"), or "" if it works."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\1" * _ROOM_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_full(folder: Path) -> bool:
    """True if the folder's disk has no room. Writes nothing, so it can be called often."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return found.f_bavail * found.f_frsize < _ROOM_BYTES
