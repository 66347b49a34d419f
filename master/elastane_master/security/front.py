"""The port of a master with tokens: accepts connections, limits what strangers send, and forwards to gRPC.

If gRPC accepted connections itself, it would limit neither their number per address nor the total size of
headers (its limit applies to each frame): megabytes are read, parsed and kept before the gate can refuse. So
gRPC listens on an abstract socket, which only processes of the same network namespace can reach, and this
module owns the port. It forwards bytes unchanged, but only a limited number from a stranger
(see `strangers`); the rest stays with the sender. Flow control is preserved: a side that does not read stops
the other.

With TLS, the front terminates it (see `tls_session`), so that what strangers send inside is counted, too.
Their handshakes are done outside the loop, by turns (see `handshakes`), and those that are broken off count
as refusals.

The gate identifies a caller by its peer name in gRPC, which here is an unguessable name per connection; it
refuses calls of peers that the front has not named, because they have passed neither it nor TLS.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import random
import secrets
import socket
from typing import Any, Final, cast

import structlog

from elastane_master.cancellation import cancel
from elastane_master.security.frames import CallCounter
from elastane_master.security.handshakes import Handshakes
from elastane_master.security.strangers import StrangerLimits, Strangers
from elastane_master.security.tls import ServerTls
from elastane_master.security.tls_session import PIECE_BYTES, TlsBroken, TlsSession, whole_records

logger = structlog.get_logger(__name__)

READ_BYTES: Final = 256 * 1024
STRANGER_READ_BYTES: Final = 4 * 1024
"""Read size for strangers: at most this much is buffered before it is counted."""

LOOK_SECONDS: Final = 0.25
LOGGED_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 0.25
"""Time for sending the last refusal before the connection is ended."""

END_SECONDS: Final = 5.0
"""Time for a caller to receive the rest of an answer after gRPC has closed the connection."""

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
        self._connections: dict[int, _Caller] = {}
        self._count = 0
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        #: Connections by their peer name in gRPC, which nobody can guess.
        self._peers: dict[str, _Caller] = {}
        self._waiting: dict[int, _Caller] = {}
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

    def _take(self) -> _Caller:
        self._count += 1
        if self.tls is not None:
            return _TlsCaller(self, self._count, self.tls)
        return _Caller(self, self._count)

    def arrived(self, caller: _Caller, address: str) -> None:
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

    def wait(self, caller: _Caller) -> None:
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

    def gone(self, caller: _Caller) -> None:
        """Forget an ended connection."""
        self._connections.pop(caller.number, None)
        self._waiting.pop(caller.number, None)
        self._peers.pop(caller.peer, None)
        self._strangers.gone(caller.number)

    def connect(self, caller: _Caller) -> socket.socket:
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


class _Caller(asyncio.BufferedProtocol):
    """A connection at the port, with its counterpart to gRPC."""

    def __init__(self, front: Front, number: int) -> None:
        self.number = number
        self.origin = self.peer = self.network = ""
        self._front = front
        self._stranger = self._heard = self._wanted = True
        self._handed_on = False
        self._spent = False  # it has used up its limit of bytes
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
        self.network = network(address)
        self._front.arrived(self, self.network)

    @property
    def is_forwarded(self) -> bool:
        """True as long as the connection to gRPC is this caller's."""
        return self._server is not None and self._server.is_open

    def hand_on(self) -> None:
        """Start connecting to gRPC."""
        if self._server is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._server))

    async def _connect(self, server: _Server) -> None:
        try:
            inner = self._front.connect(self)
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: server, sock=inner)
            except BaseException:
                inner.close()
                raise
        except BlockingIOError:  # gRPC has not accepted the previous ones yet
            self._front.wait(self)
            return
        except OSError as error:  # gRPC does not listen any more, or there are no descriptors left
            logger.warning("a connection could not be taken", peer=self.origin, error=str(error))
            self.abort()
        finally:
            self._connecting = None
        if self._server is None:  # the caller left meanwhile
            server.end()
            return
        held, self._held, self._handed_on = memoryview(bytes(self._held)), bytearray(), True
        self._hear(held, server)
        self._go_on()

    def let_in(self) -> None:
        """Remove the stranger limits: a known token was shown."""
        if self._server is None:
            self.abort()  # given up before the gate's report: the caller will reconnect
        elif self._stranger:
            self._stranger, self._heard = False, True
            self._server.write(memoryview(self._held))
            self._held = bytearray()
            self._go_on()

    def give_up(self) -> None:
        """Close only gRPC's side.

        The caller's stays open but unread, because it would reconnect at once if closed.
        """
        if self._server is not None:
            self._server.end()
            self._server = None

    def answered(self) -> None:
        """Handle a refusal: a stranger paused for a surplus call may send its next call."""
        self._calls.answered()
        if self._stranger and not self._heard and not self._spent and self._server is not None:
            held, self._held, self._heard = memoryview(bytes(self._held)), bytearray(), True
            self._front.heard_again(self.number)
            self._hear(held, self._server)
            self._go_on()

    def _go_on(self) -> None:
        """Resume reading, as far as the caller's limits allow."""
        self.read(self._wanted)

    def _hear(self, data: memoryview, server: _Server) -> None:
        """Forward a stranger's data as far as its limits allow."""
        allowed = self._calls.allowed(data)
        server.write(data[:allowed])
        self._held += data[allowed:]
        if not self._front.sent(self.number, allowed, too_many_calls=allowed < len(data)):
            self._heard = False
            self._spent = allowed == len(data)
            self.read(self._wanted)

    def abort(self) -> None:
        """Close both sides at once."""
        if self._transport is not None:
            self._transport.abort()
        self._leave()

    def answer(self, data: memoryview) -> None:
        """Forward gRPC's answer to the caller."""
        if self._transport is not None:
            self._transport.write(bytes(data))

    def read(self, wanted: bool) -> None:
        """Set whether gRPC takes more data. A stranger over its limits is not read in any case."""
        self._wanted = wanted
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if self._reads() else self._transport.pause_reading)()

    def _reads(self) -> bool:
        return self._wanted and self._heard and self._handed_on

    def finish(self, farewell: bytes = b"") -> None:
        """gRPC closed its side: send the rest of its answer, then close."""
        if self._transport is not None:
            if farewell:
                self._transport.write(farewell)
            self._transport.close()
            self._ending = asyncio.get_running_loop().call_later(END_SECONDS, self.abort)

    def _leave(self) -> None:
        """Break the reference cycle between both sides, so that the garbage collector has nothing to do."""
        self._front.gone(self)
        self._held.clear()
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
        self._received(self.get_buffer(nbytes)[:nbytes])

    def _received(self, data: memoryview) -> None:
        """Forward the caller's data, or hold it."""
        server = self._server
        if server is None:
            return
        if not self._stranger:
            server.write(data)
        elif not (self._heard and self._handed_on):  # one more read came before reading was paused
            self._held += data
            self.read(self._wanted)
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


class _TlsCaller(_Caller):
    """A connection at the port with TLS: a handshake first, then one to gRPC for what is inside.

    While a step of the handshake is done in a thread, the session is that thread's.
    """

    def __init__(self, front: Front, number: int, tls: ServerTls) -> None:
        super().__init__(front, number)
        self._tls = tls
        self._session: TlsSession | None = None
        self._may_shake = self._shaking = False
        self._received_raw = bytearray()  # not given to the session yet
        self._given = b""

    # ---------------------------------------------------------------- the handshake

    def hand_on(self) -> None:
        """Let the handshake begin; it is done already if gRPC could not take the connection at once."""
        if self._is_open:
            super().hand_on()
        else:
            self._may_shake = True
            self._shake()

    def wanted(self) -> bool:
        """See `handshakes.Step`."""
        return self._is_there

    def run(self) -> bytes:
        """See `handshakes.Step`."""
        if self._session is None:
            self._session = self._tls.session()
        return self._session.shake(self._given)

    def done(self, result: asyncio.Future[bytes]) -> None:
        """See `handshakes.Step`."""
        self._shaking, self._given = False, b""
        try:
            answer = result.result()
        except TlsBroken as error:
            self._break_off(error.farewell)
            return
        except RuntimeError:  # no thread for it could be started
            self._break_off()
            return
        if self._transport is None or not self._is_there:
            return
        self._transport.write(answer)
        if self._session is not None and self._session.is_open:
            self._session.feed(self._received_raw)
            self._received_raw = bytearray()
            super().hand_on()
        else:
            self._shake()

    def _shake(self) -> None:
        """Submit the next step of the handshake once a whole record for it has arrived."""
        whole = whole_records(self._received_raw)
        spent = len(self._received_raw) + (self._session.opaque if self._session is not None else 0)
        if spent > self._front.limits.opaque_bytes_max:
            self._break_off()
        elif whole:
            self._given, self._received_raw = bytes(self._received_raw[:whole]), self._received_raw[whole:]
            self._shaking = True
            self._front.handshakes.submit(self.network, self)
        self.read(self._wanted)

    def _break_off(self, farewell: bytes = b"") -> None:
        """End the connection, because the caller has ended it or violates TLS."""
        self._front.broke_off(self.number)
        self.give_up()
        self.finish(farewell)

    @property
    def _is_there(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def _is_open(self) -> bool:
        return not self._shaking and self._session is not None and self._session.is_open

    # ---------------------------------------------------------------- inside TLS

    def answer(self, data: memoryview) -> None:
        if self._transport is None or self._session is None:
            return
        try:
            self._transport.write(self._session.write(data))
        except TlsBroken:
            self.abort()

    def finish(self, farewell: bytes = b"") -> None:
        if not farewell and self._session is not None and self._is_open:
            farewell = self._session.end()
        super().finish(farewell)

    def _go_on(self) -> None:
        self._decrypt()
        super()._go_on()

    def _decrypt(self) -> None:
        """Decrypt data as far as the caller's limits allow; the rest stays in the session."""
        session = self._session
        if session is None or self._transport is None or not self._is_there:
            return
        try:
            while self._server is not None:
                if not self._stranger:
                    if not (data := session.read(PIECE_BYTES)):
                        break
                    self._server.write(data)
                elif not (self._heard and self._handed_on):
                    return
                elif data := session.read(STRANGER_READ_BYTES):
                    self._received(memoryview(data))
                elif session.opaque > self._front.limits.opaque_bytes_max:
                    self._break_off()
                    return
                else:
                    break
            if answer := session.unsent():
                self._transport.write(answer)
        except TlsBroken as error:
            self._break_off(error.farewell)

    def _reads(self) -> bool:
        if self._is_open:
            return super()._reads()
        return self._may_shake and not self._shaking

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def buffer_updated(self, nbytes: int) -> None:
        data, session = self.get_buffer(nbytes)[:nbytes], self._session
        if not self._is_there:
            return
        if session is None or not self._is_open:
            self._received_raw += data
            if self._may_shake and not self._shaking:
                self._shake()
            else:  # one more read came before reading was paused
                self.read(self._wanted)
            return
        for at in range(0, nbytes, PIECE_BYTES):
            session.feed(data[at : at + PIECE_BYTES])
            self._decrypt()
        if self._stranger:
            self.read(self._wanted)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._session is not None:
            self._front.broke_off(self.number)
        super().connection_lost(exc)


class _Server(asyncio.BufferedProtocol):
    """The connection to gRPC that belongs to a caller."""

    def __init__(self, caller: _Caller, buffer: memoryview) -> None:
        self._caller: _Caller | None = caller
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        """True until either side ends the connection."""
        return self._transport is not None and not self._transport.is_closing()

    def write(self, data: memoryview | bytes) -> None:
        """Forward the caller's data."""
        if self._transport is not None:
            self._transport.write(bytes(data))

    def read(self, wanted: bool) -> None:
        """Set whether the caller takes more data."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def end(self) -> None:
        """Close: the caller is gone."""
        self._caller = None
        if self._transport is not None:
            self._transport.abort()

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

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


def network(address: str) -> str:
    """Return what counts as one address: for IPv6 the /64, since a host chooses the lower bits freely.

    An IPv4 caller at a dual-stack port comes as ::ffff:a.b.c.d; it counts as its IPv4 address.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


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
