"""What an agent tries itself before any worker starts: a worker would meet the same, after minutes."""

from __future__ import annotations

import errno
import os
import tempfile
import uuid
from pathlib import Path

from elastane.errors import RefusedError

#: A store's file grows in pieces: a disk with less room than this will not take the next one.
_ROOM_BYTES = 64 * 1024


def try_checkpoint_url(url: str) -> None:
    """Writes a small file into the folder and takes it away again. Raises RefusedError with the cause."""
    from elastane.state.storage import CheckpointError, Folder

    name = f".tried-{uuid.uuid4().hex}"
    try:
        folder = Folder(url)
        folder.write(name, [b"elastane"])
        folder.remove_file(name)
    except CheckpointError as error:
        raise RefusedError(
            f"no checkpoint could be written to {url}: {error.args[0]}",
            hint=error.hint or "mend the URL, its rights or its credentials, or leave --checkpoint out",
            url=url,
        ) from error
    except Exception as error:  # each protocol's package has errors of its own
        raise RefusedError(
            f"no checkpoint could be written to {url}: {type(error).__name__}: {error}",
            hint="mend the URL, its rights or its credentials, or leave --checkpoint out",
            url=url,
        ) from error


def room_fault(folder: Path) -> str:
    """Why nothing more can be written into the folder ("No space left on device"); empty: it can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\1" * _ROOM_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_full(folder: Path) -> bool:
    """Whether the folder's disk has no room, without writing to it; asked again and again."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return found.f_bavail * found.f_frsize < _ROOM_BYTES
