"""Memory that the workers of one machine read from one another, and how they find out that they can.

Each process has one anonymous file (`Arena`), in which it places what others may read. The others reach
it as /proc/PID/fd/FD, which works for processes of one user in one PID namespace (a machine, or a
container), whatever the size of /dev/shm. Nobody writes to another's memory. The file has no name in any
file system and goes with its last process, so a SIGKILL leaves nothing behind.

When a ring forms, its members find out together whether each can read all others (`agree`). Memory is
valid only as long as its owner is in the ring: the owner takes its mark down (`SharedMembers.leave`) before
it may use the memory for anything else, and a reader looks at the marks after reading (`all_present`).
docs/decisions/0014.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import sys
import threading
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

#: Size of the file, which is sparse: memory is used where something is written.
ARENA_BYTES: Final = 1 << 44
#: How long members wait for one another's word; one of another release gives none. Then nobody shares.
AGREE_SECONDS: Final = 5.0
#: From this size on the kernel is asked for huge pages.
_HUGE_BYTES: Final = 4 << 20
_PAGE_BYTES: Final = mmap.PAGESIZE
_NAME: Final = "elastane-"
_NONCE_CHARACTERS: Final = 32
_NOT_SHARED: Final = b"none"
_VERDICT: Final = "memory/verdict"


class Arena:
    """What this process lets others read. Raises OSError where the system has no such files.

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
        mapping = mmap.mmap(self._fd, size, offset=offset)
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

    def announcement(self, mark: Tensor) -> bytes:
        """What others need to open this arena; mark: a tensor of it, which they look at to be sure."""
        return f"{self._pid} {self._fd} {self._nonce} {self.offset_of(mark)}".encode()

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
    """Another process's arena, to be read. Raises OSError or ValueError when it cannot be.

    announcement: that of its owner, on any machine.
    """

    def __init__(self, announcement: bytes) -> None:
        pid, fd, nonce, mark_offset = announcement.decode("ascii").split(" ")
        if len(nonce) != _NONCE_CHARACTERS or not nonce.isalnum():
            raise ValueError(f"{nonce!r} is no arena's name")
        path, name = f"/proc/{int(pid)}/fd/{int(fd)}", f"/memfd:{_NAME}{nonce} (deleted)"
        # Another machine's process may have the same number here: its file has another name, and opening
        # whatever that is could have effects.
        if os.readlink(path) != name:
            raise ValueError(f"{path} is not {name}")
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._fd).atexit = False
        if os.readlink(f"/proc/self/fd/{self._fd}") != name:
            raise ValueError(f"{path} has become another file than {name}")
        self.mark = self.view(int(mark_offset), 1, torch.int64)

    def view(self, offset: int, elements: int, dtype: torch.dtype) -> Tensor:
        """What lies there, as its owner sees it, while it is the owner's; 1-d, not to be written to."""
        size = -(-max(1, elements) * dtype.itemsize // _PAGE_BYTES) * _PAGE_BYTES
        mapping = mmap.mmap(self._fd, size, offset=offset)
        return torch.frombuffer(mapping, dtype=dtype, count=max(1, elements))[:elements]


@dataclass(frozen=True)
class SharedMembers:
    """A ring whose members read one another's memory; peers: the others, by rank."""

    own: Arena
    peers: dict[int, PeerMemory]
    mark: Tensor

    def leave(self) -> None:
        """From here on nobody may rely on this member's memory. Any thread, any number of times."""
        self.mark.zero_()

    def all_present(self) -> bool:
        """Whether no member has left: then all that was read of their memory until now was valid."""
        return all(bool(peer.mark) for peer in self.peers.values())


def agree(store: Store, rank: int, size: int, *, share: bool) -> SharedMembers | None:
    """Find out, with all members of a ring that forms, whether they can share memory; all get the same answer.

    store: the ring's; share: whether this member is willing. Raises RuntimeError when the store is gone.
    """
    arena = own_arena() if share else None
    wait = timedelta(seconds=AGREE_SECONDS)
    if arena is None:
        store.set(f"memory/{rank}", _NOT_SHARED)
        _settle(store, b"no", wait)
        return None
    mark = arena.empty(1, torch.int64)
    mark.fill_(1)
    store.set(f"memory/{rank}", arena.announcement(mark))
    others = [peer for peer in range(size) if peer != rank]
    peers = _open(store, others, wait)
    if peers is None:
        verdict = _settle(store, b"no", wait)
    elif store.add("memory/able", 1) == size:
        verdict = _settle(store, b"yes", wait)
    else:
        verdict = _settle(store, b"", wait)
    return SharedMembers(arena, peers, mark) if peers is not None and verdict == b"yes" else None


def _open(store: Store, others: list[int], wait: timedelta) -> dict[int, PeerMemory] | None:
    keys = [f"memory/{peer}" for peer in others]
    if not _written(store, keys, wait):
        return None
    try:
        peers = {
            peer: PeerMemory(bytes(announcement))
            for peer, announcement in zip(others, store.multi_get(keys), strict=True)
        }
    except (OSError, ValueError):
        return None
    return peers if all(int(peer.mark) == 1 for peer in peers.values()) else None


def _settle(store: Store, verdict: bytes, wait: timedelta) -> bytes:
    """The ring's verdict: the first that anybody gives. Without one of our own, wait for it."""
    if not verdict and _written(store, [_VERDICT], wait):
        return bytes(store.get(_VERDICT))
    return bytes(store.compare_set(_VERDICT, "", (verdict or b"no").decode()))


def _written(store: Store, keys: list[str], wait: timedelta) -> bool:
    """Wait for the keys; False if they are not all written in time."""
    try:
        store.wait(keys, wait)
    except torch.distributed.DistStoreError:
        return False
    return True


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
