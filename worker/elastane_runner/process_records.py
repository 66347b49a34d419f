"""Files by which engine and shims communicate, and the identities of processes.

The folder of an attempt has `plan.json` before any of its processes exists, `launched.json` when all of them
do, `closed.json` from when no further one may be started, `stop.json` from when it is to end. The folder of a
rank, `ranks/N`, has `process.json` before the rank's command runs and `exit.json` when nothing of it is left;
its shim holds a lock on `lock` for as long as it lives. Standard library alone: shims use it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Set as AbstractSet
from enum import Enum, auto
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

#: Indices into the fields of /proc/PID/stat after the name in brackets, which proc(5) numbers from 3.
_STATE: Final = 0
_PARENT: Final = 1
_FLAGS: Final = 6
_START_TIME: Final = 19
_END_OF_CODE: Final = 24
_ENVIRONMENT: Final = slice(47, 49)
_KERNEL_THREAD: Final = 0x200000
_PROC: Final = Path("/proc")
_BOOT: Final = _PROC / "sys" / "kernel" / "random" / "boot_id"


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
    return {pid: int(fields[_PARENT]) for pid in _pids() if (fields := _stat_fields(pid))}


class Marked(Enum):
    """Whether a process was started with a mark. OVER: it has ended, or is a kernel thread.

    UNKNOWN: it is in an exec, and shows no variables until that is done.
    """

    YES = auto()
    NO = auto()
    OVER = auto()
    UNKNOWN = auto()


class Survey(NamedTuple):
    """Result of one search of all processes for a mark.

    found: those that bear it. others: those that do not, or are over. is_whole: no process that bears it can
    have been missed.
    """

    found: list[int]
    others: frozenset[int]
    is_whole: bool


def survey(mark: str, others: AbstractSet[int] = frozenset()) -> Survey:
    """Search for processes that were started with a mark. others: of the previous search.

    A process that was listed and is over when it is looked at may have left a child that was not listed. So
    a look is whole if all listed ones have shown their variables, but for those that the look before knew.
    """
    looks = {pid: has_mark(pid, mark) for pid in _pids()}
    return Survey(
        found=[pid for pid, one in looks.items() if one is Marked.YES],
        others=frozenset(pid for pid, one in looks.items() if one in (Marked.NO, Marked.OVER)),
        is_whole=all(one in (Marked.YES, Marked.NO) or pid in others for pid, one in looks.items()),
    )


def has_mark(pid: int, mark: str) -> Marked:
    """Return whether a process was started with this mark; NO for those of other users."""
    try:
        variables = (_PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return Marked.OVER
    except OSError:
        return Marked.NO
    if variables:
        return Marked.YES if f"{MARK}={mark}".encode() in variables.split(b"\0") else Marked.NO
    fields = _stat_fields(pid)
    if not fields or fields[_STATE] in "ZX" or int(fields[_FLAGS]) & _KERNEL_THREAD:
        return Marked.OVER
    start, end = fields[_ENVIRONMENT]
    return Marked.NO if start == end and fields[_END_OF_CODE] != "0" else Marked.UNKNOWN


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write a file atomically, replacing an existing one. Raises OSError."""
    # Not `elastane_common.atomic_writes`: a shim's interpreter may not find that package.
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


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdigit()]


def _stat_fields(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text[text.rindex(")") + 2 :].split()
