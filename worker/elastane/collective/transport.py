"""Messages between the workers of one generation; any thread can end every wait.

A worker that waits for a silent peer must leave the collective the moment the master announces a change of
membership. What carries the messages is a group that can be aborted:

    SocketGroup   between CPUs: the members' own connections (`socket_group`)
    GlooGroup     between CPUs, if a member's settings or release ask for it (`gloo`)
    NcclGroup     between GPUs (`nccl`)

    RingTransport     one per generation, whose members meet at a RendezvousStore
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Protocol

import torch
from torch import Tensor

from elastane.collective.cpu_group import CpuGroup, Messages, cpu_group, report_unencrypted
from elastane.collective.gloo import GlooGroup
from elastane.collective.nccl import NcclGroup, nccl_group
from elastane.collective.rendezvous import MemberStore
from elastane.collective.ring_errors import RingAborted, RingBroken, RingError
from elastane.collective.shared_members import SharedMembers, agree
from elastane.collective.socket_group import SocketGroup
from elastane.collective.socket_mesh import Interrupt
from elastane_common.errors import RefusedError
from elastane_common.process_tls import Offer

#: Time limit of a message, after which the ring counts as broken.
TIMEOUT_SECONDS: Final = 600.0
#: Tags of a step's messages are below this one, those of a state hand-over start here.
HANDOVER_TAG: Final = 1 << 20
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


class _Work(Protocol):
    """A message in transit in a group; `wait` raises RuntimeError."""

    def wait(self) -> object: ...


_Group = CpuGroup | NcclGroup


class Transfer:
    """A message in transit; the tensor must not be changed until `wait` has returned."""

    __slots__ = ("_in_stream", "_transport", "_work")

    def __init__(self, transport: RingTransport, work: _Work, *, in_stream: bool = False) -> None:
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
        messages: Messages = "sockets",
        tls: Offer = "off",
    ) -> RingTransport:
        """Meet the other members and connect to them; called by every member of a generation.

        store_address: "host:port" of the first member's RendezvousStore. prefix: the same for all members,
        used for no other group; secret: of this prefix at that store. device: of the messages' tensors, of
        the same type at all members. shared_memory: this member lets the others read its memory if they are
        on its machine. messages: what carries them between CPUs; gloo if one member asks for it. tls: whether
        this member wants or can encrypt those over sockets (`process_tls.offer_of`). Raises RingAborted as
        soon as `cancel` is set, RingBroken if the store or a peer is unreachable or does not come within the
        timeout.
        """
        if cancel.is_set():
            raise RingAborted("the group was cancelled before it formed")
        forming = Forming(
            store_address, prefix, secret, rank, size, device, timeout_seconds, shared_memory, messages, tls
        )
        return forming.result(cancel)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Transfer:
        """Start to send a contiguous tensor. Raises RingAborted or RingBroken."""
        assert tensor.is_contiguous()
        group = self._usable()
        try:
            if isinstance(group, NcclGroup):
                return self._started(group.exchange([(tensor, peer)], []))
            return self._started(group.send(tensor, peer, tag))
        except RuntimeError as error:
            raise self._failed(error) from error

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Transfer:
        """Start to receive into a contiguous tensor. Raises RingAborted or RingBroken."""
        assert tensor.is_contiguous()
        group = self._usable()
        try:
            if isinstance(group, NcclGroup):
                return self._started(group.exchange([], [(tensor, peer)]))
            return self._started(group.recv(tensor, peer, tag))
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
        elif isinstance(self._group, SocketGroup):
            self._group.close()
        self._tell_ended()
        self._group = None

    def _started(self, work: _Work, *, in_stream: bool = False) -> Transfer:
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
            group.abort()
            self._waits_ended = True


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
        messages: Messages = "sockets",
        tls: Offer = "off",
    ) -> None:
        self._store_address = store_address
        self._prefix, self._rank, self._size, self._device = prefix, rank, size, device
        self._secret = secret
        self._timeout = timedelta(seconds=timeout_seconds)
        self._shared_memory = shared_memory
        self._messages: Messages = messages
        self._tls: Offer = tls
        self._interrupt = Interrupt()
        self._members: SharedMembers | None = None
        self._unwanted = False
        self._finished = threading.Event()
        self._group: _Group | None = None
        self._error: RuntimeError | OSError | RefusedError | None = None
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
        self._interrupt.set()
        if not self._finished.is_set():
            return  # `_run` calls this again
        if self._members is not None:
            self._members.leave()
        if self._group is not None and not isinstance(self._group, GlooGroup):
            self._group.abort()

    def _run(self) -> None:
        try:
            self._group = self._build()
        except (RuntimeError, OSError, RefusedError) as error:
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
                if self._tls == "wanted":
                    report_unencrypted(
                        "NCCL carries the messages between GPUs",
                        "it has no encryption: see SECURITY.md for how to isolate the workers' network",
                    )
                return nccl_group(store, host, self._rank, self._size, self._timeout, self._device)
            group = cpu_group(
                store,
                (host, int(port)),
                self._rank,
                self._size,
                group=self._prefix,
                secret=self._secret,
                timeout_seconds=self._timeout.total_seconds(),
                messages=self._messages,
                tls=self._tls,
                interrupt=self._interrupt,
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


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@atexit.register
def _join_forming() -> None:
    """Wait for forming threads: one that wakes in C++ during interpreter shutdown would abort the process."""
    for thread in list(Forming.running):
        thread.join(_EXIT_GRACE_SECONDS)
