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
            self._strangers.let_in(caller.number, asyncio.get_running_loop().time())
            caller.let_in()

    def asked(self, peer: str) -> None:
        """A call of `peer` came without a known token."""
        number = _number(peer)
        caller = self._connections.get(number)
        if self._strangers.asked(number, asyncio.get_running_loop().time()):
            self._end(number)
        elif caller is not None:
            caller.answered()

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

    def sent(self, number: int, count: int, *, too_many_calls: bool) -> bool:
        """So many bytes of a stranger were handed on, but no call too many; whether it is heard on."""
        now = asyncio.get_running_loop().time()
        return self._strangers.sent(number, count, now, too_many_calls=too_many_calls)

    def gone(self, number: int) -> None:
        """A connection has ended."""
        self._connections.pop(number, None)
        self._strangers.gone(number)

    def heard_again(self, number: int) -> None:
        """A stranger that was not heard is."""
        self._strangers.heard_again(number)

    def turn(self) -> float:
        """When a connection that was made now is to be handed to gRPC."""
        return self._strangers.turn(asyncio.get_running_loop().time())

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
            for number in self._strangers.unheard(loop.time()):
                self._connections[number].give_up()
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
        self._spent = False  # it said as many bytes as it may
        self._calls = CallCounter(front.limits.calls_max)
        self._held = bytearray()
        self._transport: asyncio.Transport | None = None
        self._server: _Server | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        address = str(peer[0]).removeprefix("::ffff:")
        self.origin = f"ipv6:[{address}]:{peer[1]}" if ":" in address else f"ipv4:{address}:{peer[1]}"
        self._server = _Server(self, self._front.buffer)
        self._front.arrived(self, address)
        if not transport.is_closing():
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._server))

    async def _connect(self, server: _Server) -> None:
        loop = asyncio.get_running_loop()
        try:
            if (wait_seconds := self._front.turn() - loop.time()) > 0:
                await asyncio.sleep(wait_seconds)
            if self._server is None:
                return
            inner = self._front.connect(self.number)
            await loop.create_unix_connection(lambda: server, sock=inner)
        except OSError as error:  # gRPC does not listen any more, or there are no descriptors left
            logger.warning("a connection could not be taken", peer=self.origin, error=str(error))
            self.abort()
        finally:
            self._connecting = None
        if self._server is None:  # the caller left meanwhile
            server.end()

    def let_in(self) -> None:
        """It is no stranger any more."""
        if self._stranger and self._server is not None:
            self._stranger, self._heard = False, True
            self._server.write(memoryview(self._held))
            self._held = bytearray()
            self.read(self._wanted)

    def give_up(self) -> None:
        """Ends gRPC's side. The caller's stands on unheard: ended, it would be made again at once."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def answered(self) -> None:
        """A call of this stranger was refused: if it was not heard for that, the next one is."""
        self._calls.answered()
        if self._stranger and not self._heard and not self._spent and self._server is not None:
            held, self._held, self._heard = memoryview(bytes(self._held)), bytearray(), True
            self._front.heard_again(self.number)
            self._hear(held, self._server)
            self.read(self._wanted)

    def _hear(self, data: memoryview, server: _Server) -> None:
        """Hands on what a stranger says, as far as it may."""
        allowed = self._calls.allowed(data)
        server.write(data[:allowed])
        self._held += data[allowed:]
        if not self._front.sent(self.number, allowed, too_many_calls=allowed < len(data)):
            self._heard = False
            self._spent = allowed == len(data)
            self.read(self._wanted)

    def abort(self) -> None:
        """Ends it at once, both ways."""
        if self._transport is not None:
            self._transport.abort()
        self._leave()

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
            self._ending = asyncio.get_running_loop().call_later(END_SECONDS, self.abort)

    def _leave(self) -> None:
        """Neither side refers to the other any more: thousands a second leave nothing to the collector."""
        self._front.gone(self.number)
        server, self._server = self._server, None
        if server is not None:
            server.end()
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._front.stranger_buffer if self._stranger else self._front.buffer

    def buffer_updated(self, nbytes: int) -> None:
        data, server = self.get_buffer(nbytes)[:nbytes], self._server
        if server is None:
            return
        if not self._stranger:
            server.write(data)
        elif not self._heard:  # it was read once more before that could be stopped
            self._held += data
        else:
            self._hear(data, server)

    def pause_writing(self) -> None:
        if self._server is not None:
            self._server.read(False)

    def resume_writing(self) -> None:
        if self._server is not None:
            self._server.read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._leave()


class _Server(asyncio.BufferedProtocol):
    """The connection to gRPC that belongs to a caller."""

    def __init__(self, caller: _Caller, buffer: memoryview) -> None:
        self._caller: _Caller | None = caller
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
        self._caller = None
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
        if self._caller is not None:
            self._caller.answer(self._buffer[:nbytes])

    def pause_writing(self) -> None:
        if self._caller is not None:
            self._caller.read(False)

    def resume_writing(self) -> None:
        if self._caller is not None:
            self._caller.read(True)

    def connection_lost(self, exc: Exception | None) -> None:
        caller, self._caller, self._transport = self._caller, None, None
        if caller is not None:
            caller.finish()


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
