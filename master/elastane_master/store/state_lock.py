"""Ensures one master per state directory by a file lock, which the kernel releases when its holder ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from elastane_master.store.errors import EmbeddedStoreFailed, StateDirInUse


class StateLock:
    """Lock of one state directory, held until `release` or the end of the process."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir.absolute() / "master.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises StateDirInUse if another master has it, EmbeddedStoreFailed if it cannot be made.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(error, self._path.parent) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StateDirInUse(
                f"another master (process {holder}) serves the state directory {self._path.parent}",
                folder=self._path.parent,
                pid=holder,
            ) from None
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError as error:  # a full disk may have room for a file's name, but not for its content
            os.close(descriptor)
            raise _unusable(error, self._path.parent) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _unusable(error: OSError, folder: Path) -> EmbeddedStoreFailed:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return EmbeddedStoreFailed(
        f"the state directory {folder} cannot be written: {error.strerror or error}",
        hint="free some space there, or name another folder with --state-dir"
        if full
        else "name a folder that can be written with --state-dir",
        folder=folder,
    )
