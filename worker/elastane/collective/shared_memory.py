"""Memory that the workers of one machine read from one another.

Each process has one anonymous file (`Arena`), in which it places what others may read. The others reach
it as /proc/PID/fd/FD, which works for processes of one user in one PID namespace (a machine, or a
container), whatever the size of /dev/shm. Nobody writes to another's memory. The file has no name in any
file system and goes with its last process, so a SIGKILL leaves nothing behind.

Who may rely on another's memory, and until when: `shared_members`. docs/decisions/0014.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import sys
import threading
import weakref
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from elastane.errors import RefusedError

#: Size of the file, which is sparse: memory is used where something is written.
ARENA_BYTES: Final = 1 << 50
#: From this size on the kernel is asked for huge pages.
_HUGE_BYTES: Final = 4 << 20
_PAGE_BYTES: Final = mmap.PAGESIZE
_NAME: Final = "elastane-"
_NONCE_CHARACTERS: Final = 32


class Arena:
    """What this process lets others read. Raises OSError where the system has no such files, and RefusedError
    where memory of it cannot be mapped.

    Allocation is by page, and a place in the file is used once: who still maps memory that was given back
    reads zeros from it, never somebody else's.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._nonce = secrets.token_hex(_NONCE_CHARACTERS // 2)
        self._fd = os.memfd_create(_NAME + self._nonce, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._fd).atexit = False
        os.fchmod(self._fd, 0o600)
        os.ftruncate(self._fd, ARENA_BYTES)
        # A reader's mapping must never end up behind the end of the file (SIGBUS).
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._end = 0
        self._lock = threading.Lock()
        #: Where what lies at an address of this process is in the file.
        self._offsets: dict[int, int] = {}

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A 1-d tensor whose memory others may read; it is given back when nobody here uses it any more."""
        size = -(-max(1, elements) * dtype.itemsize // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            offset, self._end = self._end, self._end + size
        mapping = _mapped(self._fd, size, offset)
        if size >= _HUGE_BYTES:
            # What the kernel does with small pages, it does with huge ones in a tenth of the time.
            mapping.madvise(mmap.MADV_HUGEPAGE)
        tensor = torch.frombuffer(mapping, dtype=dtype, count=max(1, elements))
        address = tensor.data_ptr()
        self._offsets[address] = offset
        weakref.finalize(mapping, self._give_back, address, offset, size).atexit = False
        return tensor[:elements]

    def offset_of(self, tensor: Tensor) -> int | None:
        """Where a tensor that `empty` gave lies in the file; None for any other."""
        return self._offsets.get(tensor.data_ptr())

    @property
    def announcement(self) -> str:
        """What others need to open this arena; one word."""
        return f"{self._pid}:{self._fd}:{self._nonce}"

    @property
    def inherited(self) -> bool:
        """Whether this is a fork's copy of its parent's arena."""
        return os.getpid() != self._pid

    def _give_back(self, address: int, offset: int, size: int) -> None:
        self._offsets.pop(address, None)
        if self.inherited:
            return  # the parent goes on using it
        with mmap.mmap(self._fd, size, offset=offset) as mapping:
            mapping.madvise(mmap.MADV_REMOVE)


class PeerMemory:
    """Another process's arena, to be read. Raises OSError, ValueError or RefusedError when it cannot be.

    announcement: that of its owner, on any machine.
    """

    def __init__(self, announcement: str) -> None:
        pid, fd, nonce = announcement.split(":")
        if len(nonce) != _NONCE_CHARACTERS or not nonce.isalnum():
            raise ValueError(f"{nonce!r} is no arena's name")
        self.pid = int(pid)
        self._fd = open_of_process(self.pid, int(fd), f"/memfd:{_NAME}{nonce} (deleted)", os.O_RDWR)
        weakref.finalize(self, os.close, self._fd).atexit = False

    def view(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor:
        """What lies there, as its owner sees it, while it is the owner's; 1-d, not to be written to."""
        size = -(-max(1, elements) * dtype.itemsize // _PAGE_BYTES) * _PAGE_BYTES
        mapping = _mapped(self._fd, size, offset)
        return torch.frombuffer(mapping, dtype=dtype, count=max(1, elements))[:elements]


def _mapped(fd: int, size: int, offset: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, size, offset=offset)
    except OSError as error:
        raise RefusedError(
            f"{size} bytes of shared memory cannot be mapped: {error.strerror}",
            hint="raise the limits on address space and mappings (ulimit -v, vm.max_map_count), or set"
            " ELASTANE_SHARED_MEMORY=0 on this worker",
        ) from error


def open_of_process(pid: int, fd: int, name: str, flags: int) -> int:
    """A descriptor of ours for what process `pid` has open as `fd`; name: what the kernel must call it.

    On another machine that may be a process of somebody else: nothing is opened that has another name,
    since opening alone can have effects. Raises OSError, or ValueError for another name.
    """
    path = Path(f"/proc/{pid}/fd/{fd}")
    if str(path.readlink()) != name:
        raise ValueError(f"{path} is not {name}")
    ours = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    if str(Path(f"/proc/self/fd/{ours}").readlink()) != name:
        os.close(ours)
        raise ValueError(f"{path} has become something else than {name}")
    return ours


_arena: Arena | None = None
_arena_lock: Final = threading.Lock()


def own_arena() -> Arena | None:
    """This process's arena, made when it is first wanted; None where there can be none."""
    global _arena
    with _arena_lock:
        if _arena is None or _arena.inherited:
            try:
                _arena = Arena() if sys.platform == "linux" else None
            except OSError:
                _arena = None
        return _arena
