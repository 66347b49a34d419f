"""Files by which engine and shims know of each other, and the identities of processes.

The folder of an attempt has `plan.json` before any of its processes exists, `launched.json` when all of them
do, `closed.json` from when no further one may be started, `stop.json` from when it is to end. The folder of a
rank, `ranks/N`, has `process.json` before the rank's command runs and `exit.json` when nothing of it is left;
its shim holds a lock on `lock` for as long as it lives. Standard library alone: shims use it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

PLAN: Final = "plan.json"
LAUNCHED: Final = "launched.json"
CLOSED: Final = "closed.json"
STOP: Final = "stop.json"
PROCESS: Final = "process.json"
EXIT: Final = "exit.json"
LOCK: Final = "lock"
#: Variable that marks every process of a rank, so that they are found when its shim was killed.
MARK: Final = "ELASTANE_RANK_PROCESS"

_START_TIME: Final = 19  # of the fields of /proc/PID/stat after the name in brackets: field 22 of proc(5)
_PARENT: Final = 1
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Identity(NamedTuple):
    """Permanent identity of a process. started: in clock ticks since boot; a pid alone may be reused."""

    pid: int
    started: int
    boot: str


def identity_of(pid: int) -> Identity | None:
    """Return the identity of a process; None if there is none."""
    fields = _stat_fields(pid)
    return Identity(pid, int(fields[_START_TIME]), _BOOT.read_text().strip()) if fields else None


def open_process(identity: Identity) -> int | None:
    """Return a pidfd of exactly this process; None if it is gone or its pid is another one's.

    Raises OSError if that cannot be known: a process that may live must not be taken for gone.
    """
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    if identity_of(identity.pid) == identity:
        return handle
    os.close(handle)
    return None


def parents() -> dict[int, int]:
    """Return the parent of each process of this machine by pid."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {pid: int(fields[_PARENT]) for pid in pids if (fields := _stat_fields(pid))}


def marked(mark: str) -> list[int]:
    """Return the processes that were started with this mark, zombies left out."""
    pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return [pid for pid in pids if has_mark(pid, mark)]


def has_mark(pid: int, mark: str) -> bool:
    """True if a process was started with this mark; False for those of other users and for zombies."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in variables


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a file whole or not at all; what was there is replaced. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """Read a file of `write_record`; None if there is none, or a crash of the machine left it unreadable."""
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def read_identity(record: dict[str, Any] | None, name: str) -> Identity | None:
    """Return an identity in a record; None if it has none."""
    value = (record or {}).get(name)
    return Identity(*value) if isinstance(value, list) and len(value) == 3 else None


def lock(folder: Path) -> int | None:
    """Return an open file that holds the lock of a folder; None if another process holds it."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()
