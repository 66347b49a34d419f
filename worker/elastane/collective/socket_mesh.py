"""TCP connections between all members of a generation, opened with a proof of the generation's secret.

Every member listens on a free port of one of its addresses, and announces it in the rendezvous store. Each
then opens a connection to every member before it in the ring, and accepts one from every member after it. A
connection counts once both ends have proved that they know the secret of the generation, for these two
members of this group (`elastane_common.challenge`). When all are there, the port is closed.

A stranger gets 32 random bytes, can send no more than a challenge's messages, is disconnected after ten
seconds, and holds up nobody: one loop serves all connections, and none of them blocks it.

With TLS the challenge takes place inside, and its proofs cover the certificate of the member that was called:
a connection that somebody has come between fails (`elastane_common.process_tls`). A stranger then gets a
handshake as well.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import ssl
import struct
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from elastane_common.challenge import CallerChallenge, ChallengeFailedError, HostChallenge
from elastane_common.process_tls import BLOCKED, OwnTls, binding_of, digest_of_peer
from elastane_common.tcp_options import prepare

GREETING: Final = b"elastane ring 1\n"
#: Time limit for a caller to prove the secret.
STRANGER_SECONDS: Final = 10.0
#: Limit on connections that have not proved it yet.
STRANGERS_MAX: Final = 256
#: Ranks of the caller and of the member that it calls.
_SUBJECT: Final = struct.Struct("<II")


class SocketMeshError(RuntimeError):
    """A member is unreachable, does not know the secret, or is late; or the wait was interrupted."""


class Interrupt:
    """Lets another thread give up a mesh while it forms."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()

    def set(self) -> None:
        """End it. Idempotent."""
        with suppress(OSError):
            self._write.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Descriptor that can be read once the interrupt is set."""
        return self._read.fileno()


class _Opening:
    """A connection during its challenge. peer: the member that was called; None: it called this one."""

    def __init__(self, connection: socket.socket, peer: int | None) -> None:
        self.connection = connection
        self.peer = peer
        self.since = time.monotonic()
        self.is_connected = peer is None
        #: None until the connection is there, with TLS its handshake, too.
        self.challenge: CallerChallenge | HostChallenge | None = None
        self.received = b""
        self.unsent = b""


@dataclass(frozen=True, eq=False, repr=False)
class SocketMesh:
    """One member's connections to all others, while they form. Used once, by `connect`.

    addresses: (host, port) of each other member's listener, by rank. rank: of this member. group: name of the
    group, the same at all members. interrupt: ends the forming. tls: of this process, if the members encrypt;
    given to all of them or to none.
    """

    listener: socket.socket
    addresses: Mapping[int, tuple[str, int]]
    rank: int
    group: bytes
    secret: bytes
    timeout_seconds: float
    interrupt: Interrupt
    tls: OwnTls | None = None
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector, init=False)
    #: Oldest first.
    _opening: OrderedDict[socket.socket, _Opening] = field(default_factory=OrderedDict, init=False)
    _open: dict[int, socket.socket] = field(default_factory=dict, init=False)

    def connect(self) -> dict[int, socket.socket]:
        """Return a connection to every other member, by rank; closes `listener`.

        Raises SocketMeshError, also once `interrupt` is set.
        """
        try:
            self._form()
        except BaseException:
            for connection in self._open.values():
                connection.close()
            raise
        finally:
            for connection in (self.listener, *self._opening):
                connection.close()
            self._selector.close()
        return self._open

    def _form(self) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        self.listener.setblocking(False)
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self.interrupt, selectors.EVENT_READ)
        for peer in self.addresses:
            if peer < self.rank:
                self._call(peer)
        while len(self._open) < len(self.addresses):
            left = deadline - time.monotonic()
            if left <= 0:
                missing = sorted(set(self.addresses) - set(self._open))
                raise SocketMeshError(
                    f"Timed out: members {missing} did not connect within {self.timeout_seconds:g} s"
                )
            for selected, events in self._selector.select(min(left, self._until_next())):
                ready = selected.fileobj
                if ready is self.interrupt:
                    raise SocketMeshError("the group was given up while it formed")
                if ready is self.listener:
                    self._accept()
                elif isinstance(ready, socket.socket) and ready in self._opening:
                    self._serve(self._opening[ready], events)
            self._end_late()

    def _call(self, peer: int) -> None:
        host, port = self.addresses[peer]
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        connection = socket.socket(family, socket.SOCK_STREAM)
        self._opening[connection] = _Opening(connection, peer)
        # Before the first byte: the short messages of handshake and challenge must not wait for one another.
        prepare(connection)
        connection.setblocking(False)
        code = connection.connect_ex(place)
        if code not in (0, errno.EINPROGRESS):
            raise self._unreachable(peer, os.strerror(code))
        self._selector.register(connection, selectors.EVENT_WRITE)

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError:  # descriptors have run out, or the caller is gone again
            self._drop_oldest()
            return
        try:
            prepare(connection)
            connection.setblocking(False)
            if self.tls is not None:
                connection = self.tls.host.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
        except OSError:  # the caller is gone again
            connection.close()
            return
        opening = self._opening[connection] = _Opening(connection, None)
        self._selector.register(connection, selectors.EVENT_READ)
        if self.tls is None:
            self._challenge(opening, b"")
        if len(self._opening) > STRANGERS_MAX + len(self.addresses):
            self._drop_oldest()

    def _encrypt(self, opening: _Opening, tls: OwnTls) -> None:
        """Put TLS, whose handshake is still to come, around a connection to a member that was called."""
        plain = opening.connection
        self._selector.unregister(plain)
        del self._opening[plain]
        # `wrap_socket` takes the descriptor over, and closes it if it fails.
        opening.connection = tls.caller.wrap_socket(plain, do_handshake_on_connect=False)
        self._opening[opening.connection] = opening
        self._selector.register(opening.connection, selectors.EVENT_READ)

    def _shake_hands(self, opening: _Opening) -> None:
        connection = opening.connection
        assert isinstance(connection, ssl.SSLSocket) and self.tls is not None
        try:
            connection.do_handshake()
        except ssl.SSLWantWriteError:
            self._selector.modify(connection, selectors.EVENT_WRITE)
            raise
        except ssl.SSLWantReadError:
            self._selector.modify(connection, selectors.EVENT_READ)
            raise
        certified = self.tls.digest if opening.peer is None else digest_of_peer(connection)
        self._challenge(opening, binding_of(certified))

    def _challenge(self, opening: _Opening, binding: bytes) -> None:
        """Begin the challenge. binding: what its proofs cover beside the group and its two members."""
        context = self.group + binding
        if opening.peer is None:
            opening.challenge = HostChallenge(
                GREETING,
                self.secret,
                subject_bytes=_SUBJECT.size,
                context=context,
                accepts=self._is_awaited,
            )
            self._selector.modify(opening.connection, selectors.EVENT_READ)
            return
        challenge = CallerChallenge(
            GREETING, self.secret, subject=_SUBJECT.pack(self.rank, opening.peer), context=context
        )
        opening.challenge, opening.unsent = challenge, challenge.opening
        self._send(opening)

    def _is_awaited(self, subject: bytes) -> bool:
        caller, called = _SUBJECT.unpack(subject)
        return (
            called == self.rank
            and caller > self.rank
            and caller in self.addresses
            and caller not in self._open
        )

    def _serve(self, opening: _Opening, events: int) -> None:
        try:
            if not opening.is_connected:
                self._check_connected(opening)
                if self.tls is None:
                    self._challenge(opening, b"")
                else:
                    self._encrypt(opening, self.tls)
                    self._shake_hands(opening)
                return
            if opening.challenge is None:
                self._shake_hands(opening)
            elif events & selectors.EVENT_WRITE:
                self._send(opening)
            if events & selectors.EVENT_READ:
                self._receive(opening)
        except BLOCKED:
            pass
        except (OSError, ChallengeFailedError) as error:
            if opening.peer is not None:
                raise self._unreachable(opening.peer, str(error)) from error
            self._drop(opening)

    def _check_connected(self, opening: _Opening) -> None:
        if code := opening.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        opening.is_connected = True

    def _send(self, opening: _Opening) -> None:
        challenge = opening.challenge
        assert challenge is not None
        if opening.unsent:
            with suppress(*BLOCKED):
                opening.unsent = opening.unsent[opening.connection.send(opening.unsent) :]
        waits = selectors.EVENT_READ | (selectors.EVENT_WRITE if opening.unsent else 0)
        self._selector.modify(opening.connection, waits)
        if challenge.is_proved and not opening.unsent:
            self._finish(opening)

    def _receive(self, opening: _Opening) -> None:
        challenge = opening.challenge
        assert challenge is not None
        # Until it blocks: what TLS has taken out of the kernel does not wake the selector. Once the secret is
        # proved the caller already sends messages, which stay where they are.
        while not challenge.is_proved:
            # Never more than the challenge's next message: what follows the last one belongs to the group.
            part = opening.connection.recv(challenge.expected_bytes - len(opening.received))
            if not part:
                raise ChallengeFailedError("the connection ended before the secret was proved")
            opening.received += part
            if len(opening.received) == challenge.expected_bytes:
                message, opening.received = opening.received, b""
                opening.unsent += challenge.hear(message)
                self._send(opening)

    def _finish(self, opening: _Opening) -> None:
        challenge, peer = opening.challenge, opening.peer
        if isinstance(challenge, HostChallenge):
            if not self._is_awaited(challenge.subject):
                raise ChallengeFailedError("the member is connected already")
            peer, _ = _SUBJECT.unpack(challenge.subject)
        assert peer is not None
        del self._opening[opening.connection]
        self._selector.unregister(opening.connection)
        self._open[peer] = opening.connection

    def _until_next(self) -> float:
        """Return the seconds until the next stranger is disconnected."""
        strangers = (one.since for one in self._opening.values() if one.peer is None)
        return max(0.0, next(strangers, time.monotonic()) + STRANGER_SECONDS - time.monotonic())

    def _end_late(self) -> None:
        now = time.monotonic()
        for opening in list(self._opening.values()):
            if opening.peer is None and now >= opening.since + STRANGER_SECONDS:
                self._drop(opening)

    def _drop_oldest(self) -> None:
        oldest = next((one for one in self._opening.values() if one.peer is None), None)
        if oldest is not None:
            self._drop(oldest)

    def _drop(self, opening: _Opening) -> None:
        del self._opening[opening.connection]
        self._selector.unregister(opening.connection)
        opening.connection.close()

    def _unreachable(self, peer: int, why: str) -> SocketMeshError:
        host, port = self.addresses[peer]
        return SocketMeshError(f"member {peer} cannot be reached at {host}:{port}: {why}")
