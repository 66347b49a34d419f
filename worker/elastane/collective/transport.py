"""Messages between the workers of one generation; any thread can end every wait.

A worker that waits for a silent peer must leave the collective the moment the master announces a change of
membership, and torch offers nothing for that: `ProcessGroupGloo.abort()` does not end a wait. A receive that
times out does: gloo then reports the timeout to every pair of connections of the group, and every wait on one
of them, to send or to receive, raises within milliseconds. So `RingTransport.abort` starts a receive that no
peer will ever serve, waits a millisecond for it, and the group is dead. Groups are cheap: the next generation
forms its own.

Workers that train on GPUs use NCCL (`nccl`), whose groups can be aborted.

    RingTransport     one per generation, whose members meet at a RendezvousStore
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store

from elastane.collective.nccl import NcclGroup, nccl_group
from elastane.collective.rendezvous import MemberStore
from elastane.collective.ring_errors import RingAborted, RingBroken, RingError
from elastane.collective.shared_members import SharedMembers, agree

#: Time limit of a message, after which the ring counts as broken.
TIMEOUT_SECONDS: Final = 600.0
#: Tags of a step's messages are below this one, those of a state hand-over start here.
HANDOVER_TAG: Final = 1 << 20
#: A tag that carries no message: a receive on it can only time out.
_SILENT_TAG: Final = (1 << 31) - 1
#: Polling interval for the cancellation of a forming group.
_CANCEL_POLL_SECONDS: Final = 0.002
#: How long process exit waits for threads that are still forming an unwanted group.
_EXIT_GRACE_SECONDS: Final = 0.5
_CPU: Final = torch.device("cpu")


class Cancel(Protocol):
    """Cancels the forming of a group; `threading.Event` is one."""

    def is_set(self) -> bool:
        """True if the group is no longer wanted."""
        ...


class _GlooGroup(Protocol):
    """Methods used of `ProcessGroupGloo`, which torch's stubs omit."""

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> dist.Work: ...
    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> dist.Work: ...


_Group = _GlooGroup | NcclGroup


class Transfer:
    """A message in transit; the tensor must not be changed until `wait` has returned."""

    __slots__ = ("_in_stream", "_transport", "_work")

    def __init__(self, transport: RingTransport, work: dist.Work, *, in_stream: bool = False) -> None:
        self._transport = transport
        self._work = work
        self._in_stream = in_stream

    def wait(self) -> None:
        """Return when the message is sent or received.

        A message of `exchange` between GPUs is only queued then: the current stream waits for it, and
        `RingTransport.synchronize` returns when it has arrived. Raises RingAborted or RingBroken.
        """
        try:
            self._work.wait()
            if not self._in_stream:
                self._transport.synchronize()
        except RuntimeError as error:
            raise self._transport._failed(error) from error
        self._transport._ended_one()


class RingTransport:
    """Point-to-point messages between the members of one generation.

    Built by `form`. Messages between two members with the same tag arrive in the order of sending. `send`,
    `recv` and `exchange` may be called from one thread at a time, `abort` and `Transfer.wait` from any.
    """

    def __init__(
        self,
        group: _Group | None,
        rank: int,
        size: int,
        members: SharedMembers | None = None,
    ) -> None:
        assert (group is None) == (size == 1)
        #: Given if all members can read one another's memory.
        self.members = members
        self.rank = rank
        self.size = size
        self._group = group
        self._aborted = False
        #: Reason why the ring broke.
        self._broken = ""
        #: Messages started and not yet successfully waited for.
        self._in_flight = 0
        self._waits_ended = False
        self._lock = threading.Lock()
        #: Callbacks for the end of the ring; None: it has ended.
        self._ended_callbacks: list[Callable[[], None]] | None = []

    @classmethod
    def form(
        cls,
        *,
        store_address: str,
        prefix: str,
        rank: int,
        size: int,
        cancel: Cancel,
        secret: bytes = b"",
        device: torch.device = _CPU,
        timeout_seconds: float = TIMEOUT_SECONDS,
        shared_memory: bool = True,
    ) -> RingTransport:
        """Meet the other members and connect to them; called by every member of a generation.

        store_address: "host:port" of the first member's RendezvousStore. prefix: the same for all members,
        used for no other group; secret: of this prefix at that store. device: of the messages' tensors, of
        the same type at all members. shared_memory: this member lets the others read its memory if they are
        on its machine. Raises RingAborted as soon as `cancel` is set, RingBroken if the store or a peer is
        unreachable or does not come within the timeout.
        """
        if cancel.is_set():
            raise RingAborted("the group was cancelled before it formed")
        forming = Forming(store_address, prefix, secret, rank, size, device, timeout_seconds, shared_memory)
        return forming.result(cancel)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Transfer:
        """Start to send a contiguous tensor. Raises RingAborted or RingBroken."""
        assert tensor.is_contiguous()
        group = self._usable()
        try:
            if isinstance(group, NcclGroup):
                return self._started(group.exchange([(tensor, peer)], []))
            return self._started(group.send([tensor], peer, tag))
        except RuntimeError as error:
            raise self._failed(error) from error

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Transfer:
        """Start to receive into a contiguous tensor. Raises RingAborted or RingBroken."""
        assert tensor.is_contiguous()
        group = self._usable()
        try:
            if isinstance(group, NcclGroup):
                return self._started(group.exchange([], [(tensor, peer)]))
            return self._started(group.recv([tensor], peer, tag))
        except RuntimeError as error:
            raise self._failed(error) from error

    def exchange(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]], tag: int
    ) -> list[Transfer]:
        """Start messages of both directions, (tensor, peer) each, that must not wait for one another.

        NCCL executes the messages of a group one after the other, unless they are started together; gloo
        does not need this. Raises RingAborted or RingBroken.
        """
        if not sends and not receives:
            return []
        group = self._usable()
        if not isinstance(group, NcclGroup):
            received = [self.recv(tensor, peer, tag) for tensor, peer in receives]
            return received + [self.send(tensor, peer, tag) for tensor, peer in sends]
        try:
            return [self._started(group.exchange(list(sends), list(receives)), in_stream=True)]
        except RuntimeError as error:
            raise self._failed(error) from error

    def synchronize(self) -> None:
        """Return when all messages awaited in the current stream have arrived.

        Immediate between CPUs. Raises RingAborted or RingBroken; received data must then not be used.
        """
        if isinstance(self._group, NcclGroup):
            self._group.synchronize()
            self.check()

    def broken(self, reason: str) -> RingError:
        """Return the error for a ring found broken by other means than its messages; ends all waits."""
        return self._failed(RuntimeError(reason))

    def check(self) -> None:
        """Raise RingAborted or RingBroken if the ring has ended."""
        if self._aborted:
            raise RingAborted("the ring of this generation was aborted")
        if self._broken:
            raise self._break()

    def abort(self) -> None:
        """End every wait of this ring at once, here and, by closing the connections, at its peers.

        May be called from any thread, any number of times; returns when the waits have ended, with one
        exception: gloo does not end the wait for a message that is partly sent or received. A thread in such
        a wait must be abandoned (`ring_thread`).
        """
        # First: this worker may reuse its shared memory as soon as it knows that the ring has ended.
        self._withdraw()
        self._aborted = True
        self._end_waits()

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the ring was aborted or broke and its waits have ended; at once if it has.

        It is called from the thread that ends the ring, and must not block.
        """
        with self._lock:
            if self._ended_callbacks is not None:
                self._ended_callbacks.append(callback)
                return
        callback()

    def close(self) -> None:
        """Drop the group's connections; remaining waits are ended first. Idempotent."""
        if self._in_flight:
            self.abort()
        self._withdraw()
        self._aborted = True
        if self.members is not None:
            self.members.leave(in_order=True)
        if isinstance(self._group, NcclGroup):
            self._end_group_waits()  # this ends its threads and frees its memory
        self._tell_ended()
        self._group = None

    def _started(self, work: dist.Work, *, in_stream: bool = False) -> Transfer:
        with self._lock:
            self._in_flight += 1
        return Transfer(self, work, in_stream=in_stream)

    def _ended_one(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def _usable(self) -> _Group:
        self.check()
        group = self._group
        assert group is not None, "a ring of one member sends no messages"
        return group

    def _failed(self, error: RuntimeError) -> RingError:
        """Return the typed error for one of the group's, and end all waits, here and at the peers."""
        if self._aborted:
            return RingAborted("the ring of this generation was aborted")
        self._withdraw()
        self._broken = self._broken or _first_line(error)
        self._end_waits()
        return self._break()

    def _withdraw(self) -> None:
        if self.members is not None:
            self.members.withdraw()

    def _break(self) -> RingBroken:
        return RingBroken(f"the ring broke: {self._broken}", rank=self.rank, size=self.size)

    def _end_waits(self) -> None:
        if self.members is not None:
            self.members.leave()
        try:
            self._end_group_waits()
        finally:
            self._tell_ended()

    def _tell_ended(self) -> None:
        with self._lock:
            callbacks, self._ended_callbacks = self._ended_callbacks or [], None
        for callback in callbacks:
            callback()

    def _end_group_waits(self) -> None:
        with self._lock:
            group = self._group
            if group is None or self._waits_ended:
                return
            if isinstance(group, NcclGroup):
                group.abort()
            else:
                nothing = torch.empty(1, dtype=torch.uint8)
                for peer in range(self.size):
                    # A connection that is already closed raises without notifying the others, so try all of
                    # them.
                    if peer != self.rank and _times_out(group, nothing, peer):
                        break
            self._waits_ended = True


def _times_out(group: _GlooGroup, nothing: Tensor, peer: int) -> bool:
    """True if a receive from `peer` really timed out, which ends all waits of the group."""
    try:
        work = group.recv([nothing], peer, _SILENT_TAG)
    except RuntimeError:
        return False
    try:
        work.wait(timedelta(milliseconds=1))
    except RuntimeError as error:
        return "Timed out" in str(error)
    raise AssertionError("a message came on the silent tag")


class Forming:
    """One attempt to build a group; arguments as for `RingTransport.form`.

    The group is built in a separate thread, because nothing can interrupt the building. A thread whose group
    is cancelled is abandoned, and drops its group once it has one.
    """

    #: Threads that are still forming a group; process exit waits briefly for them.
    running: Final[set[threading.Thread]] = set()

    def __init__(
        self,
        store_address: str,
        prefix: str,
        secret: bytes,
        rank: int,
        size: int,
        device: torch.device = _CPU,
        timeout_seconds: float = TIMEOUT_SECONDS,
        shared_memory: bool = True,
    ) -> None:
        self._store_address = store_address
        self._prefix, self._rank, self._size, self._device = prefix, rank, size, device
        self._secret = secret
        self._timeout = timedelta(seconds=timeout_seconds)
        self._shared_memory = shared_memory
        self._members: SharedMembers | None = None
        self._unwanted = False
        self._finished = threading.Event()
        self._group: _Group | None = None
        self._error: RuntimeError | OSError | None = None
        if size == 1:
            self._finished.set()
            return
        thread = threading.Thread(target=self._run, name=f"elastane-form-{prefix}", daemon=True)
        self.running.add(thread)
        thread.start()

    def result(self, cancel: Cancel) -> RingTransport:
        """Wait for the group. Raises RingAborted once `cancel` is set, RingBroken if it cannot be built."""
        while not (self._finished.wait(_CANCEL_POLL_SECONDS) or cancel.is_set()):
            pass
        if cancel.is_set():
            self.give_up()
            raise RingAborted(f"group {self._prefix} was cancelled while it formed")
        if self._group is None and self._size > 1:
            raise RingBroken(
                f"group {self._prefix} did not form: {_first_line(self._error)}",
                rank=self._rank,
                size=self._size,
            ) from self._error
        return RingTransport(self._group, self._rank, self._size, self._members)

    def give_up(self) -> None:
        """Abandon the group: whatever exists of it, now or later, ends for the peers too. Idempotent."""
        self._unwanted = True
        if not self._finished.is_set():
            return  # `_run` calls this again
        if self._members is not None:
            self._members.leave()
        if isinstance(self._group, NcclGroup):
            self._group.abort()

    def _run(self) -> None:
        try:
            self._group = self._build()
        except (RuntimeError, OSError) as error:
            self._error = error
        finally:
            self._finished.set()
            if self._unwanted:
                self.give_up()
            self.running.discard(threading.current_thread())

    def _build(self) -> _Group:
        host, _, port = self._store_address.rpartition(":")
        host = host.strip("[]")
        store = MemberStore(host, int(port), self._prefix, self._secret, self._timeout.total_seconds())
        try:
            if self._device.type == "cuda":
                return nccl_group(store, host, self._rank, self._size, self._timeout, self._device)
            group = _gloo_group(
                store, self._rank, self._size, self._timeout, _address_towards(host, int(port))
            )
            self._members = agree(
                store,
                self._rank,
                self._size,
                share=self._shared_memory,
                timeout_seconds=self._timeout.total_seconds(),
            )
            return group
        finally:
            store.close()  # no longer needed by the group


def _address_towards(host: str, port: int) -> str:
    """Return this host's address on the route to another one; sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _gloo_group(store: Store, rank: int, size: int, timeout: timedelta, address: str) -> _GlooGroup:
    """Build a group whose connections bind to `address`, unless the user names an interface for gloo.

    gloo's default is the address that the host's name resolves to, which in a container may be anything.
    """
    gloo = cast(Any, dist).ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        options._devices = [gloo.create_default_device()]
    else:
        options._devices = [gloo.create_device(hostname=address)]
    return cast(_GlooGroup, gloo(store, rank, size, options))


def warm_up() -> None:
    """Pay the one-time costs of a process's first group (libraries, threads, name look-ups).

    Called once, before the worker joins a ring, so that survivors of a change do not wait for a joining
    worker.
    """
    store = HashStore()
    timeout = timedelta(seconds=30)
    other: list[_GlooGroup] = []
    thread = threading.Thread(
        target=lambda: other.append(_gloo_group(store, 1, 2, timeout, "127.0.0.1")), daemon=True
    )
    thread.start()
    mine = _gloo_group(store, 0, 2, timeout, "127.0.0.1")
    thread.join()
    token = torch.zeros(1)
    received = other[0].recv([torch.zeros(1)], 0, 0)
    mine.send([token], 1, 0).wait()
    received.wait()


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@atexit.register
def _join_forming() -> None:
    """Wait for forming threads: one that wakes in C++ during interpreter shutdown would abort the process."""
    for thread in list(Forming.running):
        thread.join(_EXIT_GRACE_SECONDS)
