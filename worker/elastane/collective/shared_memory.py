"""Memory that the workers of one machine read from one another.

Each process has one anonymous file (`Arena`) for memory that others may read. They reach it as
/proc/PID/fd/FD, which works for processes of one user in one PID namespace (a machine, or a container),
whatever the size of /dev/shm. Nobody writes to another's memory. The file has no name in any file system and
disappears with its last process, so a SIGKILL leaves nothing behind.

Rules on who may rely on another's memory, and until when: `shared_members`. docs/decisions/0014.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from elastane_common.errors import RefusedError

#: Size of the file, which is sparse: memory is used only where something is written.
ARENA_BYTES: Final = 1 << 50
#: From this size on, huge pages are requested.
_HUGE_BYTES: Final = 4 << 20
_PAGE_BYTES: Final = mmap.PAGESIZE
_NAME: Final = "elastane-"
_NONCE_CHARACTERS: Final = 32

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


class Arena:
    """Memory of this process that others may read.

    Raises OSError if the system has no such files, RefusedError if its memory cannot be mapped. Allocation is
    by page, and each range of the file is used once: a reader that still maps returned memory reads zeros,
    never another tensor's data.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._nonce = secrets.token_hex(_NONCE_CHARACTERS // 2)
        self._fd = os.memfd_create(_NAME + self._nonce, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._fd).atexit = False
        os.fchmod(self._fd, 0o600)
        os.ftruncate(self._fd, ARENA_BYTES)
        # A reader's mapping must never extend beyond the end of the file (SIGBUS).
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._end = 0
        self._lock = threading.Lock()
        #: File offset of each allocation, by its address in this process. An entry is removed before its
        #: mapping, because the address may be reused afterwards.
        self._offsets: dict[int, int] = {}

    def empty(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a 1-d tensor whose memory others may read.

        Its memory is freed when nobody in this process uses it any more.
        """
        size = _pages(elements, dtype)
        with self._lock:
            offset, self._end = self._end, self._end + size
        mapping = _Mapping(self._fd, size, offset)
        if size >= _HUGE_BYTES:
            # The kernel zeroes and maps huge pages in a tenth of the time.
            mapping.advise(mmap.MADV_HUGEPAGE)
        self._offsets[mapping.address] = offset
        return mapping.tensor(elements, dtype, self._give_back)

    def offset_of(self, tensor: Tensor) -> int | None:
        """Return the file offset of a tensor from `empty`; None for any other."""
        return self._offsets.get(tensor.data_ptr())

    def place_of(self, tensor: Tensor) -> int:
        """Return the file offset of a tensor that must be from `empty`."""
        offset = self.offset_of(tensor)
        assert offset is not None, "not this arena's memory"
        return offset

    @property
    def announcement(self) -> str:
        """All that others need to open this arena, as one word."""
        return f"{self._pid}:{self._fd}:{self._nonce}"

    @property
    def inherited(self) -> bool:
        """True in a fork, for the copy of its parent's arena."""
        return os.getpid() != self._pid

    def _give_back(self, mapping: _Mapping) -> None:
        del self._offsets[mapping.address]
        if not self.inherited:  # the parent still uses it
            mapping.advise(mmap.MADV_REMOVE)


class PeerMemory:
    """Another process's arena, read-only by convention.

    announcement: its owner's, which may be on any machine. Raises OSError, ValueError or RefusedError if it
    cannot be opened.
    """

    def __init__(self, announcement: str) -> None:
        pid, fd, nonce = announcement.split(":")
        if len(nonce) != _NONCE_CHARACTERS or not nonce.isalnum():
            raise ValueError(f"{nonce!r} is no arena's name")
        self.pid = int(pid)
        self._fd = open_of_process(self.pid, int(fd), f"/memfd:{_NAME}{nonce} (deleted)", os.O_RDWR)
        weakref.finalize(self, os.close, self._fd).atexit = False

    def view(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor:
        """Return a 1-d view of the owner's memory, valid while it is the owner's; must not be written to."""
        return _Mapping(self._fd, _pages(elements, dtype), offset).tensor(elements, dtype)


class _Mapping:
    """A part of an arena's file, mapped into this process. Raises RefusedError.

    Python's `mmap` is unsuitable: it keeps a descriptor for each mapping, and notifies of its end only when
    the address may already belong to another mapping.
    """

    __slots__ = ("address", "size")

    def __init__(self, fd: int, size: int, offset: int) -> None:
        self.size = size
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, offset)
        if address == _MAP_FAILED:
            raise RefusedError(
                f"{size} bytes of shared memory cannot be mapped: {os.strerror(ctypes.get_errno())}",
                hint="raise the limits on address space and mappings (ulimit -v, vm.max_map_count), or set"
                " ELASTANE_SHARED_MEMORY=0 on this worker",
            )
        self.address: int = address

    def advise(self, advice: int) -> None:
        """Call madvise; a kernel that does not know the advice ignores it."""
        _libc.madvise(self.address, self.size, advice)

    def tensor(
        self, elements: int, dtype: torch.dtype, before_end: Callable[[_Mapping], None] | None = None
    ) -> Tensor:
        """Return a 1-d tensor of the first elements; the mapping ends when nobody uses the tensor any more.

        before_end: called just before, from any thread.
        """
        memory = memoryview((ctypes.c_char * self.size).from_address(self.address))
        weakref.finalize(memory, self._unmap, before_end).atexit = False
        return torch.frombuffer(memory, dtype=dtype, count=max(1, elements))[:elements]

    def _unmap(self, before_end: Callable[[_Mapping], None] | None) -> None:
        if before_end is not None:
            before_end(self)
        _libc.munmap(self.address, self.size)


def _pages(elements: int, dtype: torch.dtype) -> int:
    """Return the bytes of the pages that this many elements occupy."""
    return -(-max(1, elements) * dtype.itemsize // _PAGE_BYTES) * _PAGE_BYTES


def open_of_process(pid: int, fd: int, name: str, flags: int) -> int:
    """Open, in this process, the file that process `pid` has open as `fd`; name: its expected name in /proc.

    With an announcement from another machine, `pid` may be an unrelated process: nothing with another name is
    opened, since opening alone can have effects. Raises OSError, or ValueError for another name.
    """
    path = Path(f"/proc/{pid}/fd/{fd}")
    if str(path.readlink()) != name:
        raise ValueError(f"{path} is not {name}")
    ours = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    # Checked again: the process may have ended between readlink and open, and its number been reused.
    if str(Path(f"/proc/self/fd/{ours}").readlink()) != name:
        os.close(ours)
        raise ValueError(f"{path} has become something else than {name}")
    return ours


_arena: Arena | None = None
_arena_lock: Final = threading.Lock()


def own_arena() -> Arena | None:
    """Return this process's arena, created at first use; None where there can be none."""
    global _arena
    with _arena_lock:
        if _arena is None or _arena.inherited:
            try:
                _arena = Arena() if sys.platform == "linux" else None
            except OSError:
                _arena = None
        return _arena
