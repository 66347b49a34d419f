"""Messages between the trainer and its data workers: batches pass through shared memory.

torch.multiprocessing passes each tensor's file descriptor through a server thread in the sender and a
connection per tensor, and needs a living sender and a descriptor per tensor. Here every message is one
datagram on a socket pair: a fixed header, the pickled body, and the descriptors themselves.

- A storage of SHARE_BYTES_MIN or more is sent as the shared memory it lies in (default_collate in a data
  worker already builds it there), at most DESCRIPTORS_MAX of them in a message.
- All others are copied into the body. So a batch of a thousand small tensors needs no descriptor at all.
- A body over BODY_BYTES_MAX is sent as a memory file, so a datagram always fits and is sent whole or not.

Pickling is safe here: both ends are one program, one forked from the other.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import io
import mmap
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

SHARE_BYTES_MIN = 64 * 1024
DESCRIPTORS_MAX = 32
BODY_BYTES_MAX = 48 * 1024

_HEADER = struct.Struct("<qqqB")  # session, virtual rank, batch, whether the body is in a memory file
_ANCILLARY_BYTES = socket.CMSG_SPACE((DESCRIPTORS_MAX + 1) * array.array("i").itemsize)


@dataclass(slots=True)
class Message:
    """A received message; call either `load`, which unpickles it, or `close`, which drops it, once."""

    session: int
    rank: int
    batch: int
    body: bytes
    descriptors: list[int]
    body_in_file: bool

    def load(self) -> Any:
        """Return the object. Its big tensors lie in the shared memory of the message."""
        try:
            with self._open_body() as body:
                _attaching.slots, _attaching.descriptors = {}, self.descriptors
                return pickle.loads(body)
        finally:
            _attaching.slots = _attaching.descriptors = None
            self.close()

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    @contextlib.contextmanager
    def _open_body(self) -> Iterator[bytes | mmap.mmap]:
        if not self.body_in_file:
            yield self.body
            return
        with mmap.mmap(self.descriptors[-1], 0, access=mmap.ACCESS_READ) as mapped:
            yield mapped


@dataclass(slots=True)
class Packet:
    """A message ready to be sent. Its descriptors live as long as it does."""

    body: bytes
    descriptors: list[int]
    _keep: list[Any]
    _owned: list[int]

    def close(self) -> None:
        for descriptor in self._owned:
            os.close(descriptor)
        self._owned = []


def pack(session: int, rank: int, batch: int, payload: object) -> Packet:
    """Pack `payload` into a message. Errors of pickling pass through.

    Storages of its tensors may be moved to shared memory in place, as torch.multiprocessing does.
    """
    buffer = io.BytesIO()
    storages = _Storages()
    pickler = ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL)
    # torch's own reductions for tensors, ours for their storages
    pickler.dispatch_table = {**pickler.dispatch_table, torch.UntypedStorage: storages.reduce}
    pickler.dump(payload)
    descriptors, owned = storages.descriptors, []
    in_file = buffer.tell() > BODY_BYTES_MAX
    body = b""
    if in_file:
        file = os.memfd_create("elastane-batch", os.MFD_CLOEXEC)
        owned.append(file)
        descriptors = [*descriptors, file]
        view = buffer.getbuffer()
        written = 0
        while written < len(view):  # a single write stops at 2 GiB
            written += os.write(file, view[written:])
    else:
        body = buffer.getvalue()
    return Packet(_HEADER.pack(session, rank, batch, in_file) + body, descriptors, storages.kept, owned)


def send(connection: socket.socket, packet: Packet, *, wait: bool) -> bool:
    """Send and close the packet.

    With wait=False return False if that would block, and keep the packet open.
    """
    flags = socket.MSG_NOSIGNAL | (0 if wait else socket.MSG_DONTWAIT)
    ancillary: list[tuple[int, int, Any]] = []
    if packet.descriptors:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", packet.descriptors))]
    try:
        connection.sendmsg([packet.body], ancillary, flags)
    except BlockingIOError:
        return False
    except OSError:
        packet.close()
        raise
    packet.close()
    return True


def receive(connection: socket.socket, *, wait: bool) -> Message | None:
    """Return the next message, or None at the end of the connection.

    Raises BlockingIOError if there is none yet and `wait` is False, OSError if descriptors have run out.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    data, ancillary, received_flags, _ = connection.recvmsg(
        _HEADER.size + BODY_BYTES_MAX, _ANCILLARY_BYTES, flags
    )
    if not data:
        return None
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    # The kernel drops descriptors that exceed the process's limit and delivers the rest.
    if received_flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError("the process has no file descriptors left for a batch; raise `ulimit -n`")
    session, rank, batch, in_file = _HEADER.unpack_from(data)
    return Message(session, rank, batch, data[_HEADER.size :], descriptors.tolist(), bool(in_file))


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected ends that keep message boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class _Attaching(threading.local):
    """Descriptors and storages of the message being unpickled in this thread."""

    slots: dict[int, torch.UntypedStorage] | None = None
    descriptors: list[int] | None = None


_attaching = _Attaching()


class _Storages:
    """The storages of one message, collected by its pickler."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.kept: list[torch.UntypedStorage] = []  # a descriptor is valid while its storage lives
        self._slots: dict[int, int] = {}

    def reduce(self, storage: torch.UntypedStorage) -> tuple[Any, ...]:
        """Reduce a storage, in place of torch's reduction."""
        if storage.device.type != "cpu":
            return reductions.reduce_storage(storage)
        slot = self._slots.get(storage._cdata)
        if slot is not None:  # another Python object of the same storage: views must stay views
            return _slot, (slot,)
        slot = self._slots[storage._cdata] = len(self._slots)
        self.kept.append(storage)
        size = storage.nbytes()
        if size < SHARE_BYTES_MIN or len(self.descriptors) == DESCRIPTORS_MAX:
            return _copied, (slot, ctypes.string_at(storage.data_ptr(), size) if size else b"")
        descriptor, size = storage._share_fd_cpu_()
        self.descriptors.append(descriptor)
        return _shared, (slot, len(self.descriptors) - 1, size)


def _slot(slot: int) -> torch.UntypedStorage:
    assert _attaching.slots is not None
    return _attaching.slots[slot]


def _copied(slot: int, content: bytes) -> torch.UntypedStorage:
    assert _attaching.slots is not None
    storage = torch.UntypedStorage(len(content))
    if content:
        ctypes.memmove(storage.data_ptr(), content, len(content))
    _attaching.slots[slot] = storage
    return storage


def _shared(slot: int, index: int, size: int) -> torch.UntypedStorage:
    assert _attaching.slots is not None and _attaching.descriptors is not None
    # torch duplicates the descriptor, so the message closes its own.
    storage = torch.UntypedStorage._new_shared_fd_cpu(  # type: ignore[attr-defined]
        _attaching.descriptors[index], size
    )
    _attaching.slots[slot] = storage
    return storage
