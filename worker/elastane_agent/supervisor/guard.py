"""Stops an embedded master and its store when the process that started them is gone.

Runs as a separate process, in a bare interpreter, and waits on a pipe whose other end only the starter holds:

    python -I -S guard.py STATE_DIR          (stdin: "PID\\n" whenever a master has been started)

The end of the pipe means that the starter has stopped the master, or was killed. The kernel's signal
(PR_SET_PDEATHSIG, see processes/launch.py) is not enough: the store server is meant to outlive its master,
and the kernel sends the signal again for each dying thread of the parent, but a master exits at the second
SIGTERM without stopping its store. And if the starter is killed while the master is down, no other process
knows of the store. The master defines the layout of the state directory: `store/lock` is held while the
server with the process id in `store/server.pid` lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from pathlib import Path

#: Time for the master, then for the store, to end after SIGTERM.
GRACE_SECONDS = 15.0


def main(state_dir: Path) -> None:
    """Wait for the end of stdin, then stop the last master whose id came in and the directory's store."""
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
    """Send SIGTERM, and SIGKILL after `grace_seconds`; does nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        if not _ended(pidfd, 0.0):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        if not _ended(pidfd, grace_seconds):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            _ended(pidfd, grace_seconds)


def stop_store(state_dir: Path, grace_seconds: float) -> None:
    """Stop the store server of the directory, if one runs."""
    store = state_dir / "store"
    if not _locked(store / "lock"):
        return
    try:
        pidfd = os.pidfd_open(int((store / "server.pid").read_text()))
    except (OSError, ValueError):
        return
    try:
        # Check again now that the pidfd pins the process: its number may have been reused before.
        if _locked(store / "lock"):
            end_process(pidfd, grace_seconds)
    finally:
        os.close(pidfd)


def _ended(pidfd: int, timeout_seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


def _locked(path: Path) -> bool:
    """True if another process holds the lock on this file."""
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
