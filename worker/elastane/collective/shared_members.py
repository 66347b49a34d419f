"""A ring whose members share memory: agreement on it, messages between members, and its end.

When a ring forms, its members determine together whether each can read all others' memory (`agree`). From
then on they report their progress through pipes: a message is a few bytes and costs two context switches.

No wait can hang: a wait in a living process is ended by `leave`, which its ring calls when it is aborted or
breaks; a process that has left or died closes its ends of the pipes, which ends its peers' waits.

Memory is valid while its owner is in the ring. The owner clears its mark (`withdraw`) before it may use the
memory for anything else, and a reader checks all marks after reading (`all_present`): a reader that was
suspended in between reads other data, and detects it.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from typing import Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from elastane.collective.shared_memory import Arena, PeerMemory, open_of_process, own_arena
from elastane_common.errors import RefusedError

#: Larger rings span many machines, and would need as many pipes for each member.
MEMBERS_MAX: Final = 64
#: Time limit of the agreement. A member of another release gives no answer; then nobody shares.
AGREE_SECONDS: Final = 5.0
_NOT_SHARED: Final = "none"
_VERDICT: Final = "memory/verdict"
#: kind, tag, value
_MESSAGE: Final = struct.Struct("<Bqq")
#: Enough for everything a peer can have sent before it waits itself.
_READ_BYTES: Final = 1 << 16


class Kind(IntEnum):
    """Message kinds: progress of a member with one vector."""

    READY = 1
    SUMMED = 2
    COPIED = 3
    #: An orderly leave, after the last message; a pipe that ends without it means a failure.
    BYE = 4


class MemberLeft(Exception):  # noqa: N818
    """A member's end of a pipe is closed, ours was closed by `leave`, or nothing arrived in time."""


class SharedMembers:
    """This process's view of the ring. Only `withdraw` and `leave` may be called from any thread.

    own: arena from which memory for the others is allocated; peers: theirs, by rank; mark: a word of `own`
    that is 1 while this member is in the ring; marks: the peers'; inboxes, outboxes: pipes from and to each
    peer.
    """

    def __init__(
        self,
        own: Arena,
        peers: dict[int, PeerMemory],
        mark: Tensor,
        marks: dict[int, Tensor],
        inboxes: dict[int, int],
        outboxes: dict[int, int],
        timeout_seconds: float,
    ) -> None:
        self.own, self.peers = own, peers
        self._mark, self._marks = mark, marks
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._outboxes = outboxes
        self._left = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._hosts = {fd: host for host, fd in inboxes.items()}
        for fd in (self._wake, *inboxes.values()):
            self._poll.register(fd, select.POLLIN)
        # A wait may still poll inboxes after the ring has ended; outboxes remain if nobody called `leave`.
        weakref.finalize(self, _close_all, [self._wake, *inboxes.values()], outboxes).atexit = False
        #: Peers that have left in order, and whose messages are all read.
        self._gone: set[int] = set()
        self._partial: dict[int, bytes] = defaultdict(bytes)
        #: Messages that arrived before they were asked for: values in the order of arrival.
        self._arrived: dict[tuple[int, Kind, int], deque[int]] = defaultdict(deque)

    def tell(self, kind: Kind, tag: int, value: int = 0, hosts: Collection[int] | None = None) -> None:
        """Send a message to all others, or to `hosts`. Raises MemberLeft."""
        message = _MESSAGE.pack(kind, tag, value)
        with self._lock:
            if self._left:
                raise MemberLeft("this member has left the ring")
            for host in self.peers if hosts is None else hosts:
                try:
                    os.write(self._outboxes[host], message)
                except OSError as error:
                    raise MemberLeft(f"member {host} has left the ring ({error.strerror})") from error

    def hear(self, kind: Kind, tag: int, hosts: Collection[int] | None = None) -> dict[int, int]:
        """Wait for a message from each of the others, or of `hosts`; returns values by rank.

        Raises MemberLeft.
        """
        hosts = self.peers if hosts is None else hosts
        deadline = time.monotonic() + self._timeout_seconds
        wanted = {host for host in hosts if not self._arrived[host, kind, tag]}
        self._check_gone(wanted)
        while wanted:
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()) * 1e3)
            if not ready:
                raise MemberLeft(f"members {sorted(wanted)} said nothing for {self._timeout_seconds:g} s")
            for fd, _ in ready:
                self._read(fd)
            wanted = {host for host in wanted if not self._arrived[host, kind, tag]}
            self._check_gone(wanted)
        return {host: self._arrived[host, kind, tag].popleft() for host in hosts}

    def withdraw(self) -> None:
        """Declare this member's memory invalid. Idempotent.

        Must come before anybody here can know that the ring has ended and reuse that memory.
        """
        self._mark.zero_()

    def leave(self, *, in_order: bool = False) -> None:
        """Withdraw, and end all waits, here and at the peers. Idempotent.

        in_order: nothing is in progress here; peers that expect nothing more of this member are not
        disturbed.
        """
        self.withdraw()
        for host in self.peers if in_order else ():
            with suppress(MemberLeft):  # one by one: some have left before
                self.tell(Kind.BYE, 0, hosts=[host])
        with self._lock:
            if not self._left:
                self._left = True
                os.eventfd_write(self._wake, 1)
                _close(list(self._outboxes.values()))
                self._outboxes.clear()

    def all_present(self, hosts: Collection[int] | None = None) -> bool:
        """True if none of the others, or of `hosts`, has left.

        Then everything read of their memory so far was valid.
        """
        return all(bool(self._marks[host]) for host in (self.peers if hosts is None else hosts))

    def _check_gone(self, wanted: set[int]) -> None:
        """Raise MemberLeft for wanted members that have left.

        Others may leave once they have sent everything.
        """
        if gone := wanted & self._gone:
            raise MemberLeft(f"members {sorted(gone)} have left the ring")

    def _read(self, fd: int) -> None:
        if fd == self._wake:
            raise MemberLeft("this member has left the ring")
        host = self._hosts[fd]
        received = os.read(fd, _READ_BYTES)
        if not received:
            if not self._arrived[host, Kind.BYE, 0]:
                raise MemberLeft(f"member {host} has left the ring")
            self._poll.unregister(fd)
            self._gone.add(host)
            return
        received = self._partial[host] + received
        whole = len(received) // _MESSAGE.size * _MESSAGE.size
        for kind, tag, value in _MESSAGE.iter_unpack(received[:whole]):
            self._arrived[host, Kind(kind), tag].append(value)
        self._partial[host] = received[whole:]


def agree(store: Store, rank: int, size: int, *, share: bool, timeout_seconds: float) -> SharedMembers | None:
    """Determine with all members of a forming ring whether they share memory; all get the same answer.

    store: the ring's; share: this member is willing; timeout_seconds: of later waits. Raises RuntimeError if
    the store is unreachable.
    """
    if size > MEMBERS_MAX:
        return None
    attempt = _Attempt(store, rank, size)
    agreed = False
    try:
        try:
            able = share and attempt.announce() and attempt.open()
        except (OSError, ValueError, RefusedError):
            able = False
        agreed = attempt.settle(able)
    finally:
        if not agreed:
            attempt.give_up()  # also if the store is unreachable
    return attempt.members(timeout_seconds) if agreed else None


class _Attempt:
    """Resources of one member until the ring has agreed."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._others = [peer for peer in range(size) if peer != rank]
        self._wait = timedelta(seconds=AGREE_SECONDS)
        self._arena: Arena | None = None
        self._mark = torch.zeros(1, dtype=torch.int64)
        self._peers: dict[int, PeerMemory] = {}
        self._marks: dict[int, Tensor] = {}
        #: Both ends of the pipe in which each peer writes to us, and our end of the pipe in which we write to
        #: it.
        self._inboxes: dict[int, int] = {}
        self._lent: dict[int, int] = {}
        self._outboxes: dict[int, int] = {}

    def announce(self) -> bool:
        """Publish where our memory and pipes are: arena, mark, and (descriptor, inode) by rank."""
        self._arena = own_arena()
        if self._arena is None:
            return False
        self._mark = self._arena.empty(1, torch.int64)
        self._mark.fill_(1)
        words = [self._arena.announcement, str(self._arena.place_of(self._mark))]
        for peer in range(self._size):
            if peer == self._rank:
                words.append("-")
                continue
            self._inboxes[peer], self._lent[peer] = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            words.append(f"{self._lent[peer]}:{os.fstat(self._lent[peer]).st_ino}")
        self._store.set(f"memory/{self._rank}", " ".join(words))
        return True

    def open(self) -> bool:
        """Open the memory and pipes that the others have published; False if one of them does not share."""
        keys = [f"memory/{peer}" for peer in self._others]
        if not self._written(keys):
            return False
        for peer, announcement in zip(self._others, self._store.multi_get(keys), strict=True):
            words = bytes(announcement).decode("ascii")
            if words == _NOT_SHARED:
                return False
            arena, mark_offset, *pipes = words.split(" ")
            self._peers[peer] = memory = PeerMemory(arena)
            self._marks[peer] = memory.view(int(mark_offset), 1, torch.int64)
            fd, _, inode = pipes[self._rank].partition(":")
            # The inode proves that it is the announced pipe, not another file with that descriptor.
            self._outboxes[peer] = open_of_process(memory.pid, int(fd), f"pipe:[{int(inode)}]", os.O_WRONLY)
        return all(bool(mark) for mark in self._marks.values())

    def settle(self, able: bool) -> bool:
        """Agree on a verdict: "no" from the first member that is not able, "yes" from the last that is."""
        verdict = ""
        if not able:
            verdict = "no"
            self._store.set(f"memory/{self._rank}", _NOT_SHARED)  # so that nobody waits for it
        elif self._store.add("memory/able", 1) == self._size:
            verdict = "yes"
        elif not self._written([_VERDICT]):
            verdict = "no"
        if verdict:
            # The first verdict stands, so that a member that timed out and one that counted all agree.
            return bytes(self._store.compare_set(_VERDICT, "", verdict)) == b"yes"
        return bytes(self._store.get(_VERDICT)) == b"yes"

    def members(self, timeout_seconds: float) -> SharedMembers:
        """Build the members' view, once all have opened everything."""
        assert self._arena is not None
        # Close our copies of the peers' writing ends, so that a pipe ends when its peer dies.
        _close(list(self._lent.values()))
        return SharedMembers(
            self._arena,
            self._peers,
            self._mark,
            self._marks,
            self._inboxes,
            self._outboxes,
            timeout_seconds,
        )

    def give_up(self) -> None:
        """Release everything; nobody shares."""
        self._mark.zero_()
        _close([*self._lent.values(), *self._inboxes.values(), *self._outboxes.values()])

    def _written(self, keys: list[str]) -> bool:
        """Wait for the keys; False if they are not all written in time."""
        try:
            self._store.wait(keys, self._wait)
        except torch.distributed.DistStoreError:
            return False
        return True


def _close_all(descriptors: list[int], outboxes: dict[int, int]) -> None:
    _close([*descriptors, *outboxes.values()])


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        with suppress(OSError):
            os.close(fd)
