"""The port of a master with tokens: takes connections, counts what strangers send, and hands it on to gRPC.

gRPC accepts connections itself, and bounds neither those of one address nor what one may send in headers
(its limit is one of each frame): megabytes are read, parsed and kept before anybody can say no. So gRPC
listens at a socket of this process alone, and the port is the front's. It passes bytes on as they are, TLS
included, and hands on only so much of a stranger (see `strangers`); the rest stays with whoever sends it.
Flow control is kept: a side that does not read stops the other.

The gate knows a caller by the name that gRPC gives it, which here is the number of the connection.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from typing import Any, Final, cast

import structlog

from elastane_master.cancellation import cancel
from elastane_master.security.frames import CallCounter
from elastane_master.security.strangers import StrangerLimits, Strangers

logger = structlog.get_logger(__name__)

READ_BYTES: Final = 256 * 1024
STRANGER_READ_BYTES: Final = 4 * 1024
"""At once: no more of a stranger is read before it is counted."""

LOOK_SECONDS: Final = 0.25
LOGGED_SECONDS: Final = 5.0
END_SECONDS: Final = 5.0
"""So long a caller whose call gRPC has ended has to take the rest of the answer."""

BACKLOG: Final = 1024
_PEER = "unix-abstract:"


class Front:
    """One port. Used from one event loop. inner: where gRPC is to listen. ended: connections it has ended."""

    def __init__(self, limits: StrangerLimits | None = None) -> None:
        self.ended = 0
        self._name = f"elastane-{os.getpid()}-{secrets.token_hex(8)}"
        self.limits = limits or StrangerLimits()
        self._strangers = Strangers(self.limits, random.Random())
        self._connections: dict[int, _Caller] = {}
        self._count = 0
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._keeping: asyncio.Task[None] | None = None
        # One for all connections: what was read is handed on before anything else is read.
        self.stranger_buffer = memoryview(bytearray(STRANGER_READ_BYTES))
        self.buffer = memoryview(bytearray(READ_BYTES))

    @property
    def inner(self) -> str:
        """The address for gRPC."""
        return _PEER + self._name

    def bind(self, host: str, port: int) -> int:
        """Binds the port (0: a free one), and returns it. Raises OSError."""
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for number, (family, _, _, _, address) in enumerate(found):
            try:
                bound = _bound(family, (address[0], port, *address[2:]), both=host == "[::]")
            except OSError:
                if not number:
                    raise
                continue  # a name's second address: it has no such network
            self._sockets.append(bound)
            port = bound.getsockname()[1]
        return port

    async def start(self) -> None:
        """Takes connections from here on; gRPC listens already."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            self._servers.append(await loop.create_server(self._take, sock=bound, backlog=BACKLOG))
        self._keeping = loop.create_task(self._keep())

    def close_port(self) -> None:
        """Takes no more connections; those that stand go on."""
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()

    async def stop(self) -> None:
        """Ends what still stands."""
        self.close_port()
        if self._keeping is not None:
            await cancel(self._keeping)
        for caller in list(self._connections.values()):
            caller.abort()

    # ---------------------------------------------------------------- for the gate

    def let_in(self, peer: str) -> None:
        """A call of `peer`, as gRPC names it, bore a known token."""
        caller = self._connections.get(_number(peer))
        if caller is not None:
            self._strangers.gone(caller.number)
            caller.let_in()

    def asked(self, peer: str) -> None:
        """A call of `peer` came without a known token."""
        number = _number(peer)
        if self._strangers.asked(number):
            self._end(number)

    def origin(self, peer: str) -> str:
        """Where `peer` comes from, as gRPC would name it at this port."""
        caller = self._connections.get(_number(peer))
        return caller.origin if caller is not None else peer

    # ---------------------------------------------------------------- connections

    def _take(self) -> _Caller:
        self._count += 1
        return _Caller(self, self._count)

    def arrived(self, caller: _Caller, address: str) -> None:
        """A connection was made."""
        self._connections[caller.number] = caller
        surplus = self._strangers.arrived(caller.number, address, asyncio.get_running_loop().time())
        if surplus is not None:
            self._end(surplus)

    def sent(self, number: int, count: int, allowed: int) -> bool:
        """A stranger sent so many bytes, and may send those allowed; whether it is heard on."""
        if allowed < count:
            self._strangers.exhausted(number)
            return False
        return self._strangers.sent(number, count)

    def gone(self, number: int) -> None:
        """A connection has ended."""
        self._connections.pop(number, None)
        self._strangers.gone(number)

    def connect(self, number: int) -> socket.socket:
        """A connection to gRPC that bears this number. Raises OSError."""
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            inner.bind(f"\0{self._name}-{number}")
            inner.connect(f"\0{self._name}")
        except OSError:
            inner.close()
            raise
        return inner

    def _end(self, number: int) -> None:
        caller = self._connections.get(number)
        if caller is not None:
            self.ended += 1
            caller.abort()

    async def _keep(self) -> None:
        """Ends who stands for too long without having shown a token."""
        loop = asyncio.get_running_loop()
        logged_at, logged = float("-inf"), 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for number in self._strangers.overdue(loop.time()):
                self._end(number)
            if self.ended > logged and loop.time() - logged_at > LOGGED_SECONDS:
                logger.warning("connections of strangers were ended", number=self.ended - logged)
                logged_at, logged = loop.time(), self.ended


class _Caller(asyncio.BufferedProtocol):
    """A connection at the port, and that to gRPC which belongs to it."""

    def __init__(self, front: Front, number: int) -> None:
        self.number = number
        self.origin = ""
        self._front = front
        self._stranger = self._heard = self._wanted = True
        self._calls = CallCounter(front.limits.calls_max)
        self._held = bytearray()
        self._transport: asyncio.Transport | None = None
        self._server = _Server(self, front.buffer)
        self._connecting: asyncio.Task[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        kind = "ipv6" if ":" in str(peer[0]) else "ipv4"
        self.origin = f"{kind}:[{peer[0]}]:{peer[1]}" if kind == "ipv6" else f"ipv4:{peer[0]}:{peer[1]}"
        self._front.arrived(self, str(peer[0]).removeprefix("::ffff:"))
        if not transport.is_closing():
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        try:
            inner = self._front.connect(self.number)
            await asyncio.get_running_loop().create_unix_connection(lambda: self._server, sock=inner)
        except OSError as error:  # gRPC does not listen any more, or there are no descriptors left
            logger.warning("a connection could not be taken", peer=self.origin, error=str(error))
            self.abort()
            return
        if self._transport is None:  # it left meanwhile
            self._server.end()

    def let_in(self) -> None:
        """It is no stranger any more."""
        if self._stranger:
            self._stranger, self._heard = False, True
            self._server.write(memoryview(self._held))
            self._held = bytearray()
            self.read(self._wanted)

    def abort(self) -> None:
        """Ends it at once, both ways."""
        if self._transport is not None:
            self._transport.abort()
        self._server.end()
        self._front.gone(self.number)

    def answer(self, data: memoryview) -> None:
        """Sends what gRPC says."""
        if self._transport is not None:
            self._transport.write(bytes(data))

    def read(self, wanted: bool) -> None:
        """Whether gRPC takes more; nor is a stranger read that said as much as it may."""
        self._wanted = wanted
        if self._transport is not None and not self._transport.is_closing():
            reads = wanted and self._heard
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def finish(self) -> None:
        """gRPC has ended the connection: the rest of what it said is sent."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(END_SECONDS, self.abort)

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._front.stranger_buffer if self._stranger else self._front.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self.get_buffer(nbytes)[:nbytes]
        if not self._stranger:
            self._server.write(data)
            return
        if not self._heard:  # it was read once more before that could be stopped
            self._held += data
            return
        allowed = self._calls.allowed(data)
        self._server.write(data[:allowed])
        self._held += data[allowed:]
        if not self._front.sent(self.number, nbytes, allowed):
            self._heard = False
            self.read(self._wanted)

    def pause_writing(self) -> None:
        self._server.read(False)

    def resume_writing(self) -> None:
        self._server.read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._front.gone(self.number)
        self._server.end()


class _Server(asyncio.BufferedProtocol):
    """The connection to gRPC that belongs to a caller."""

    def __init__(self, caller: _Caller, buffer: memoryview) -> None:
        self._caller = caller
        self._buffer = buffer
        # What comes before there is a connection: a stranger's, so not much.
        self._early = bytearray()
        self._transport: asyncio.Transport | None = None

    def write(self, data: memoryview) -> None:
        """Hands on what the caller said."""
        if self._transport is None:
            self._early += data
        else:
            self._transport.write(bytes(data))

    def read(self, wanted: bool) -> None:
        """Whether the caller takes more."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def end(self) -> None:
        """The caller is gone."""
        self._early.clear()
        if self._transport is not None:
            self._transport.abort()

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._early:
            self._transport.write(bytes(self._early))
            self._early.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._caller.answer(self._buffer[:nbytes])

    def pause_writing(self) -> None:
        self._caller.read(False)

    def resume_writing(self) -> None:
        self._caller.read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._caller.finish()


def _bound(family: int, address: tuple[Any, ...], *, both: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _number(peer: str) -> int:
    """Of the connection that gRPC names so; 0: of none."""
    number = peer.rpartition("-")[2]
    return int(number) if peer.startswith(_PEER) and number.isdecimal() else 0
