"""The port of a master with tokens: accepts connections, limits what strangers send, and forwards to gRPC.

If gRPC accepted connections itself, it would limit neither their number per address nor the total size of
headers (its limit applies to each frame): megabytes are read, parsed and kept before the gate can refuse. So
gRPC listens on an abstract socket, which only processes of the same network namespace can reach, and this
module owns the port and forwards bytes, but only a limited number from a stranger (see `forwarding`).

With TLS, the front terminates it (see `tls_forwarding`), so that what strangers send inside is counted, too.
Their handshakes are done outside the loop, by turns (see `handshakes`), and those that are broken off count
as refusals.

The gate identifies a caller by its peer name in gRPC, which here is an unguessable name per connection; it
refuses calls of peers that the front has not named, because they have passed neither it nor TLS.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import secrets
import socket
from typing import Any, Final

import structlog

from elastane_common.cancellation import cancel
from elastane_master.security.forwarding import STRANGER_READ_BYTES, Caller
from elastane_master.security.handshakes import Handshakes
from elastane_master.security.strangers import StrangerLimits, Strangers
from elastane_master.security.tls import ServerTls
from elastane_master.security.tls_forwarding import TlsCaller

logger = structlog.get_logger(__name__)

READ_BYTES: Final = 256 * 1024
LOOK_SECONDS: Final = 0.25
LOGGED_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 0.25
"""Time for sending the last refusal before the connection is ended."""

BACKLOG: Final = 1024
_PEER = "unix-abstract:"


class Front:
    """One port. Used from one event loop.

    inner: address for gRPC. tls: None for a port without. ended: number of connections it ended.
    """

    def __init__(self, limits: StrangerLimits | None = None, tls: ServerTls | None = None) -> None:
        self.ended = 0
        self.tls = tls
        self.handshakes = Handshakes()
        self._name = f"elastane-{os.getpid()}-{secrets.token_hex(8)}"
        self.limits = limits or StrangerLimits()
        self._strangers = Strangers(self.limits, random.Random())
        self._connections: dict[int, Caller] = {}
        self._count = 0
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        #: Connections by their peer name in gRPC, which nobody can guess.
        self._peers: dict[str, Caller] = {}
        self._waiting: dict[int, Caller] = {}
        self._news = asyncio.Event()
        # Shared by all connections: data is forwarded before anything else is read into them.
        self.stranger_buffer = memoryview(bytearray(STRANGER_READ_BYTES))
        self.buffer = memoryview(bytearray(READ_BYTES))

    @property
    def inner(self) -> str:
        """Address at which gRPC must listen."""
        return _PEER + self._name

    def bind(self, host: str, port: int) -> int:
        """Bind the port (0: a free one), and return it. Raises OSError."""
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        missing: OSError | None = None
        for family, _, _, _, address in found:
            try:
                bound = _bound(family, (address[0], port, *address[2:]), both=host == "[::]")
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # an address of a name in a network that this machine lacks
                continue
            self._sockets.append(bound)
            port = bound.getsockname()[1]
        if missing is not None and not self._sockets:
            raise missing
        return port

    async def start(self) -> None:
        """Accept connections from now on; gRPC must be listening."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            self._servers.append(await loop.create_server(self._take, sock=bound, backlog=BACKLOG))
        self._tasks = [loop.create_task(self._keep()), loop.create_task(self._turns())]

    def close_port(self) -> None:
        """Accept no more connections; existing ones continue."""
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()

    async def stop(self) -> None:
        """End all connections."""
        self.close_port()
        await cancel(*self._tasks)
        for caller in list(self._connections.values()):
            caller.abort()
        self.handshakes.close()

    # ---------------------------------------------------------------- for the gate

    def let_in(self, peer: str) -> None:
        """Mark a connection as trusted: a call of `peer`, gRPC's name for it, carried a known token."""
        caller = self._peers.get(peer)
        if caller is not None:
            self._strangers.let_in(caller.number, asyncio.get_running_loop().time())
            caller.let_in()

    def asked(self, peer: str) -> None:
        """Record that a call of `peer` is being refused because it carried no known token."""
        caller = self._peers.get(peer)
        if caller is None:
            return
        loop = asyncio.get_running_loop()
        if self._strangers.asked(caller.number, loop.time()):
            loop.call_later(ANSWER_SECONDS, self._end_stranger, caller.number)
        caller.answered()

    def answered(self, peer: str) -> None:
        """Record that a call of `peer` that needs no token is being answered."""
        caller = self._peers.get(peer)
        if caller is not None:
            caller.answered()

    def vouches(self, peer: str) -> bool:
        """True if `peer` is connected through this port, and so has passed its limits and its TLS."""
        caller = self._peers.get(peer)
        return caller is not None and caller.is_forwarded

    def origin(self, peer: str) -> str:
        """Address of `peer`, as gRPC would name it without this module."""
        caller = self._peers.get(peer)
        return caller.origin if caller is not None else peer

    # ---------------------------------------------------------------- connections

    def _take(self) -> Caller:
        self._count += 1
        if self.tls is not None:
            return TlsCaller(self, self._count, self.tls)
        return Caller(self, self._count)

    def arrived(self, caller: Caller, address: str) -> None:
        """Register a new connection: forward it, or let it wait for its turn."""
        now = asyncio.get_running_loop().time()
        self._connections[caller.number] = caller
        surplus = self._strangers.arrived(caller.number, address, now)
        if surplus is not None:
            self._end(surplus)
        if caller.number not in self._connections:
            return
        if self._strangers.take_turns(address, now):
            self.wait(caller)
        else:
            caller.hand_on()

    def wait(self, caller: Caller) -> None:
        """Put a connection in the queue for its turn."""
        self._waiting[caller.number] = caller
        self._news.set()

    async def _turns(self) -> None:
        """Forward waiting connections in random order: by arrival, one address could starve all others."""
        dice, seconds = random.Random(), 1 / self.limits.turns_per_second
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                self._waiting.pop(dice.choice(list(self._waiting))).hand_on()
                await asyncio.sleep(seconds)

    def sent(self, number: int, count: int, *, too_many_calls: bool) -> bool:
        """Count a stranger's forwarded bytes; False if it must not be forwarded further for now."""
        now = asyncio.get_running_loop().time()
        return self._strangers.sent(number, count, now, too_many_calls=too_many_calls)

    def broke_off(self, number: int) -> None:
        """Record that a caller ends its connection although a handshake was spent on it."""
        self._strangers.broke_off(number, asyncio.get_running_loop().time())

    def heard_again(self, number: int) -> None:
        """Record that a paused stranger is forwarded again."""
        self._strangers.heard_again(number)

    def gone(self, caller: Caller) -> None:
        """Forget an ended connection."""
        self._connections.pop(caller.number, None)
        self._waiting.pop(caller.number, None)
        self._peers.pop(caller.peer, None)
        self._strangers.gone(caller.number)

    def connect(self, caller: Caller) -> socket.socket:
        """Open a connection to gRPC by which the gate can identify the caller. Raises OSError."""
        name = f"{self._name}-{caller.number}-{secrets.token_hex(8)}"
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            inner.bind(f"\0{name}")
            inner.connect(f"\0{self._name}")
        except OSError:
            inner.close()
            raise
        caller.peer = _PEER + name
        self._peers[caller.peer] = caller
        return inner

    def _end_stranger(self, number: int) -> None:
        if number in self._strangers:  # otherwise it has shown a token meanwhile
            self._end(number)

    def _end(self, number: int) -> None:
        caller = self._connections.get(number)
        if caller is not None:
            self.ended += 1
            caller.abort()

    async def _keep(self) -> None:
        """Periodically end connections that have not shown a token in time."""
        loop = asyncio.get_running_loop()
        logged_at, logged = float("-inf"), 0
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            if loop.time() > due + LOOK_SECONDS:
                continue  # the loop was busy, so the gate's reports are late, too
            for number in self._strangers.overdue(loop.time()):
                self._end(number)
            for number, refused in self._strangers.unheard(loop.time()).items():
                self._end(number) if refused else self._connections[number].give_up()
            if self.ended > logged and loop.time() - logged_at > LOGGED_SECONDS:
                logger.warning("connections of strangers were ended", number=self.ended - logged)
                logged_at, logged = loop.time(), self.ended


def _bound(family: int, address: tuple[Any, ...], *, both: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        bound.bind(address)
        bound.listen(BACKLOG)  # without listen(), another process could bind the same port
    except OSError:
        bound.close()
        raise
    return bound
