"""Ends what an embedded master leaves behind when the process that started it is gone.

A process of its own, in a bare interpreter, that waits on a pipe whose other end only the starter holds:

    python -I -S guard.py STATE_DIR          (stdin: "PID\\n" whenever a master has been started)

The end of the pipe means that the starter has stopped the master, or was killed. Why not leave it to the
kernel alone (PR_SET_PDEATHSIG, see launch.py)? The store server outlives its master on purpose, and the
kernel sends the signal again for each dying thread of the parent: a master takes the second SIGTERM for
impatience and leaves its store. And when the starter is killed while the master is down, nobody else knows
of the store. The layout of the state directory (`store/lock` is held while the server `store/server.pid`
lives) is the master's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from pathlib import Path

#: How long a master, then a store, has to end by itself.
GRACE_SECONDS = 15.0


def main(state_dir: Path) -> None:
    """Until the pipe ends; then until nothing of the state directory runs."""
    master = -1
    for line in sys.stdin:
        if master >= 0:
            os.close(master)
        try:
            master = os.pidfd_open(int(line))
        except ProcessLookupError:
            master = -1
    if master >= 0:
        end_process(master, GRACE_SECONDS)
    stop_store(state_dir, GRACE_SECONDS)


def end_process(pidfd: int, grace_seconds: float) -> None:
    """SIGTERM, and SIGKILL after `grace_seconds`; nothing happens if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        if not _ended(pidfd, 0.0):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not _ended(pidfd, grace_seconds):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _ended(pidfd, grace_seconds)


def stop_store(state_dir: Path, grace_seconds: float) -> None:
    """End the store server of the directory, if one lives."""
    store = state_dir / "store"
    if not _locked(store / "lock"):
        return
    try:
        pidfd = os.pidfd_open(int((store / "server.pid").read_text()))
    except (OSError, ValueError):
        return
    try:
        # Looked at again with the process in hand: the number may have changed hands before.
        if _locked(store / "lock"):
            end_process(pidfd, grace_seconds)
    finally:
        os.close(pidfd)


def _ended(pidfd: int, timeout_seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


def _locked(path: Path) -> bool:
    """Whether somebody holds the lock on this file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
