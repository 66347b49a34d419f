"""Messages between the members of a generation over their own TCP connections, into and out of tensors.

    frame   header (16 bytes, little-endian: magic, tag, length of the body), body: the bytes of a tensor

A message is read straight into the tensor of the receive that was posted for its tag, and written straight
out of the sender's. Messages of a connection arrive in the order of sending; one that overtakes the receives
posted so far is kept in memory if another one is awaited behind it, else it stays in the kernel, so that its
sender waits.

No thread of its own: whoever waits for a message does the I/O of all connections until it is complete
(`SocketGroup.wait`), one thread at a time, and blocks in the kernel while there is nothing to do. `send`
writes what the kernel takes at once; the rest follows while anybody waits.

With TLS (`socket_mesh`) a frame travels in records of 16 KiB. What a record holds beyond the current message
is then in OpenSSL's memory, where the kernel does not report it: it is asked for before each wait.

A member that leaves in order says so in its last frame; after that only those who still expect something of
it fail. A connection that ends without that frame ends the whole group, so that a break reaches all members.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

from elastane_common.process_tls import BLOCKED

_HEADER: Final = struct.Struct("<IIQ")
HEADER_BYTES: Final = _HEADER.size
MAGIC: Final = 0xE1A57C01
#: Tag of the frame with which a member leaves in order.
BYE_TAG: Final = (1 << 32) - 1
#: Limit of the messages kept because they came before their receives were posted.
UNCLAIMED_BYTES_MAX: Final = 1 << 30
#: Bytes by which the memory of such a message grows: a header alone must not make this process allocate.
_GROWTH_BYTES: Final = 1 << 18
#: Bytes of a record of TLS: those of the first one that are sent together with the header.
_RECORD_BYTES: Final = 1 << 14
_EVER: Final = select.EPOLLRDHUP
_LEFT: Final = "this member has left the ring"


class SocketGroupError(RuntimeError):
    """The group has ended, or a peer has failed, left, or been silent for longer than the timeout."""


class Message:
    """A message in transit to or from a peer; the tensor must not be changed until `wait` has returned."""

    __slots__ = ("_group", "body", "is_done", "link", "position", "tag", "tensor")

    def __init__(self, group: SocketGroup, link: _Link, tensor: Tensor, tag: int) -> None:
        self._group = group
        self.link = link
        self.tensor = tensor
        self.body = _bytes_of(tensor)
        self.tag = tag
        #: Bytes transferred so far; of a message to send, with its header.
        self.position = 0
        self.is_done = False

    def wait(self) -> None:
        """Return when the message is received, or in the kernel. Raises SocketGroupError."""
        if not self.is_done:
            self._group.wait(self)


class _Link:
    """This member's connection to one peer. Used under the group's lock."""

    def __init__(self, peer: int, connection: socket.socket) -> None:
        self.peer = peer
        self.connection = connection
        self.interest = _EVER
        self.outgoing: deque[Message] = deque()
        #: Receives by tag, in the order of posting; those that no message has completed.
        self.posted: dict[int, deque[Message]] = defaultdict(deque)
        self.posted_count = 0
        #: Messages that came before their receives.
        self.unclaimed: dict[int, deque[bytearray]] = defaultdict(deque)
        self.header = bytearray(HEADER_BYTES)
        self.header_filled = 0
        #: The message whose body is being read: into a posted receive, or into `early`.
        self.tag = 0
        self.length = 0
        self.current: Message | None = None
        self.early: bytearray | None = None
        #: The peer has closed its side: whatever it sent is in the kernel.
        self.hung_up = False
        #: It said that it leaves.
        self.said_bye = False
        self.is_gone = False
        #: Bytes transferred, of both directions.
        self.moved = 0

    @property
    def wants_to_read(self) -> bool:
        return (self.posted_count > 0 or self.hung_up) and not self.is_gone

    @property
    def has_decrypted(self) -> bool:
        """True if bytes were taken from the kernel, with the record they came in, that nobody has read."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    @property
    def between_messages(self) -> bool:
        return self.current is None and self.early is None and self.header_filled == 0

    def write(self, message: Message) -> int:
        """Send more of a message, from its position on; return the bytes that were taken. Raises OSError.

        After an error that says to try again, OpenSSL requires the same bytes: the next call sends them.
        """
        at = message.position
        if at >= HEADER_BYTES:
            return self.connection.send(message.body[at - HEADER_BYTES :])
        header = memoryview(_HEADER.pack(MAGIC, message.tag, len(message.body)))[at:]
        if isinstance(self.connection, ssl.SSLSocket):
            first = message.body[: _RECORD_BYTES - len(header)]
            return self.connection.send(b"".join((header, first)))
        return self.connection.sendmsg([header, message.body])


class SocketGroup:
    """The members' messages; built from a connection to every other member, by rank.

    `send` and `recv` may be called by one thread at a time each, `Message.wait` and `abort` by any.
    timeout_seconds: longest silence of a peer while a message to or from it is awaited.
    """

    def __init__(self, connections: Mapping[int, socket.socket], timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._links = {peer: _Link(peer, connection) for peer, connection in connections.items()}
        self._by_descriptor = {link.connection.fileno(): link for link in self._links.values()}
        self._changed = threading.Condition(threading.Lock())
        #: A thread does the I/O; others wait for `_changed`.
        self._is_driven = False
        self._followers = 0
        self._unclaimed_bytes = 0
        self._error = ""
        self._is_closed = False
        self._epoll = select.epoll()
        #: Ends the wait in epoll; sockets, which the garbage collector closes.
        self._wake_read, self._wake_write = socket.socketpair()
        self._epoll.register(self._wake_read.fileno(), select.EPOLLIN)
        for link in self._links.values():
            link.connection.setblocking(False)
            self._epoll.register(link.connection.fileno(), link.interest)

    def send(self, tensor: Tensor, peer: int, tag: int) -> Message:
        """Start to send a contiguous CPU tensor. Raises SocketGroupError."""
        link = self._links[peer]
        message = Message(self, link, tensor, tag)
        with self._changed:
            self._check()
            link.outgoing.append(message)
            if len(link.outgoing) == 1:
                self._attempt(self._flush, link)
        return message

    def recv(self, tensor: Tensor, peer: int, tag: int) -> Message:
        """Start to receive into a contiguous CPU tensor. Raises SocketGroupError."""
        link = self._links[peer]
        message = Message(self, link, tensor, tag)
        with self._changed:
            self._check()
            early = link.unclaimed.get(tag)
            if early:
                body = early.popleft()
                if not early:
                    del link.unclaimed[tag]
                self._unclaimed_bytes -= len(body)
                self._claim(link, message, body)
                return message
            link.posted[tag].append(message)
            link.posted_count += 1
            if self._is_driven:
                self._watch(link)
        return message

    def wait(self, message: Message) -> None:
        """Return when a message is complete; until then do the I/O of all, unless another thread does."""
        link, moved = message.link, -1
        with self._changed:
            deadline = 0.0
            while not message.is_done:
                self._check()
                if link.is_gone:
                    self._fail(f"member {link.peer} has left the ring")
                if moved != link.moved:
                    moved, deadline = link.moved, time.monotonic() + self._timeout_seconds
                left = deadline - time.monotonic()
                if left <= 0:
                    self._fail(f"Timed out: member {link.peer} was silent for {self._timeout_seconds:g} s")
                if self._is_driven:
                    self._followers += 1
                    self._changed.wait(left)
                    self._followers -= 1
                    continue
                self._is_driven = True
                try:
                    self._attempt(self._drive, message, deadline)
                finally:
                    self._is_driven = False
                    if self._followers or self._is_closed:
                        self._changed.notify_all()

    def abort(self) -> None:
        """End all waits, here and at the peers, and close the connections. Idempotent, from any thread."""
        # Before the lock is taken: its holder may be in the middle of a long message, and looks for this.
        self._error = self._error or _LEFT
        self._end(in_order=False)

    def close(self) -> None:
        """Leave in order: peers that expect nothing more of this member are not disturbed. Idempotent."""
        self._end(in_order=True)

    # ------------------------------------------------------------------ under the lock

    def _check(self) -> None:
        if self._error:
            raise SocketGroupError(self._error)

    def _fail(self, reason: str) -> None:
        self._error = self._error or reason
        self._changed.notify_all()
        with suppress(OSError):
            self._wake_write.send(b"\0")
        raise SocketGroupError(self._error)

    def _attempt(self, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except OSError as error:
            self._fail(f"a connection broke: {error.strerror or error}")

    def _drive(self, message: Message, deadline: float) -> None:
        """Do I/O until `message` is complete, or until `deadline` on the monotonic clock."""
        link = message.link
        # The awaited message may have arrived already.
        if link.outgoing:
            self._flush(link)
        if link.wants_to_read and not message.is_done:
            self._fill(link, message)
        while not message.is_done and not self._error and not link.is_gone:
            for other in self._links.values():
                if other.posted_count or other.outgoing or other.interest != _EVER:
                    self._watch(other)
                if other.wants_to_read and other.has_decrypted:
                    self._fill(other, message)
                    if self._followers:
                        self._changed.notify_all()
            if message.is_done or self._error or link.is_gone:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._changed.release()
            try:
                events = self._epoll.poll(left)
            finally:
                self._changed.acquire()
            for descriptor, flags in events:
                ready = self._by_descriptor.get(descriptor)
                if ready is None:
                    with suppress(OSError):
                        self._wake_read.recv(64)
                    continue
                if flags & select.EPOLLOUT and ready.outgoing:
                    self._flush(ready)
                if flags & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    ready.hung_up = True
                if ready.wants_to_read:
                    self._fill(ready, message)
            if self._followers:
                self._changed.notify_all()

    def _watch(self, link: _Link) -> None:
        """Tell the kernel for which events of the connection to wake the thread that does the I/O."""
        if link.is_gone:
            return
        interest = _EVER
        if link.wants_to_read:
            interest |= select.EPOLLIN
        if link.outgoing:
            interest |= select.EPOLLOUT
        if interest != link.interest:
            link.interest = interest
            self._epoll.modify(link.connection.fileno(), interest)

    def _flush(self, link: _Link) -> None:
        """Write what the kernel takes."""
        outgoing = link.outgoing
        try:
            while outgoing and not self._error:
                message = outgoing[0]
                sent = link.write(message)
                message.position += sent
                link.moved += sent
                if message.position == HEADER_BYTES + len(message.body):
                    outgoing.popleft()
                    message.is_done = True
        except BLOCKED:
            if self._is_driven:
                self._watch(link)

    def _fill(self, link: _Link, awaited: Message) -> None:
        """Read what is there, up to the end of the awaited message."""
        connection = link.connection
        try:
            while link.wants_to_read and not awaited.is_done and not self._error:
                if link.current is not None:
                    message = link.current
                    count = connection.recv_into(message.body[message.position :])
                    message.position += count
                    if count and message.position == link.length:
                        self._complete(link, message)
                elif link.early is not None:
                    data = connection.recv(min(_GROWTH_BYTES, link.length - len(link.early)))
                    count = len(data)
                    link.early += data
                    if len(link.early) == link.length:
                        self._keep(link, link.early)
                else:
                    view = memoryview(link.header)[link.header_filled :]
                    count = connection.recv_into(view)
                    link.header_filled += count
                    if link.header_filled == HEADER_BYTES:
                        self._begin(link)
                if not count:
                    self._ended(link)
                    return
                link.moved += count
        except BLOCKED:
            pass
        except ConnectionResetError:
            if not link.said_bye:
                raise
            self._ended(link)

    def _begin(self, link: _Link) -> None:
        """Find the receive for the message whose header is complete."""
        magic, link.tag, link.length = _HEADER.unpack(link.header)
        link.header_filled = 0
        if magic != MAGIC:
            self._fail(f"member {link.peer} sent something that is no message")
        if link.tag == BYE_TAG:
            link.said_bye = True
            return
        posted = link.posted.get(link.tag)
        if posted:
            message = posted[0]
            self._check_length(link, message, link.length)
            link.current = message
            if not link.length:
                self._complete(link, message)
            return
        self._unclaimed_bytes += link.length
        if self._unclaimed_bytes > UNCLAIMED_BYTES_MAX:
            self._fail(f"member {link.peer} sent {link.length} bytes that nobody here awaits")
        link.early = bytearray()
        if not link.length:
            self._keep(link, link.early)

    def _complete(self, link: _Link, message: Message) -> None:
        link.current = None
        posted = link.posted[message.tag]
        posted.popleft()
        if not posted:
            del link.posted[message.tag]
        link.posted_count -= 1
        message.is_done = True

    def _keep(self, link: _Link, body: bytearray) -> None:
        """Store a message that came early, unless its receive was posted meanwhile."""
        link.early = None
        if posted := link.posted.get(link.tag):
            self._unclaimed_bytes -= len(body)
            self._claim(link, posted[0], body)
            self._complete(link, posted[0])
        else:
            link.unclaimed[link.tag].append(body)

    def _claim(self, link: _Link, message: Message, body: bytearray) -> None:
        self._check_length(link, message, len(body))
        message.body[:] = body
        message.is_done = True

    def _check_length(self, link: _Link, message: Message, length: int) -> None:
        if length != len(message.body):
            self._fail(
                f"member {link.peer} sent {length} bytes with tag {message.tag}, "
                f"where {len(message.body)} were expected"
            )

    def _ended(self, link: _Link) -> None:
        """The stream of a peer is over."""
        if not (link.said_bye and link.between_messages):
            self._fail(f"member {link.peer} closed its connection")
        link.is_gone = True
        self._epoll.unregister(link.connection.fileno())

    # ------------------------------------------------------------------ the end

    def _end(self, *, in_order: bool) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            if in_order and not self._error:
                for link in self._links.values():
                    self._say_bye(link)
            self._error = self._error or _LEFT
            with suppress(OSError):
                self._wake_write.send(b"\0")
            self._changed.notify_all()
            while self._is_driven:
                self._changed.wait()
            for link in self._links.values():
                if in_order:
                    _drain(link.connection)
                link.connection.close()
            self._epoll.close()
            self._wake_read.close()
            self._wake_write.close()

    def _say_bye(self, link: _Link) -> None:
        if link.outgoing:
            return  # a message of which a part is not sent: for the peer this is a break
        with suppress(OSError):
            link.connection.send(_HEADER.pack(MAGIC, BYE_TAG, 0))


def _drain(connection: socket.socket) -> None:
    """Read what has arrived: closing a connection with unread data would discard what it has yet to send."""
    with suppress(OSError):
        while connection.recv(_GROWTH_BYTES):
            pass


def _bytes_of(tensor: Tensor) -> memoryview:
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
