"""Connections at the port of a master with tokens, each with its counterpart to gRPC.

Bytes are forwarded unchanged, those of a stranger only as far as its limits allow (see `strangers`).

Flow control is preserved: a side that does not read stops the other. What a stranger may not send yet is held
here, and the rest stays with the sender, because it is not read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final, Protocol, cast

import structlog

from elastane_master.security.frames import CallCounter
from elastane_master.security.handshakes import Handshakes
from elastane_master.security.strangers import StrangerLimits

logger = structlog.get_logger(__name__)

STRANGER_READ_BYTES: Final = 4 * 1024
"""Read size for strangers: at most this much is buffered before it is counted."""

END_SECONDS: Final = 5.0
"""Time for a caller to receive the rest of an answer after gRPC has closed the connection."""


class Port(Protocol):
    """The port that a connection came to (`front.Front`), as its connections use it.

    stranger_buffer, buffer: shared by all of them, for a single read.
    """

    limits: StrangerLimits
    handshakes: Handshakes
    stranger_buffer: memoryview
    buffer: memoryview

    def arrived(self, caller: Caller, address: str) -> None: ...

    def wait(self, caller: Caller) -> None: ...

    def connect(self, caller: Caller) -> socket.socket: ...

    def gone(self, caller: Caller) -> None: ...

    def sent(self, number: int, count: int, *, too_many_calls: bool) -> bool: ...

    def broke_off(self, number: int) -> None: ...

    def heard_again(self, number: int) -> None: ...


class Caller(asyncio.BufferedProtocol):
    """A connection at the port, with its counterpart to gRPC."""

    def __init__(self, port: Port, number: int) -> None:
        self.number = number
        self.origin = self.peer = self.network = ""
        self._port = port
        self._stranger = self._heard = self._wanted = True
        self._handed_on = False
        self._spent = False  # it has used up its limit of bytes
        self._calls = CallCounter(port.limits.calls_max)
        self._held = bytearray()
        self._transport: asyncio.Transport | None = None
        self._server: GrpcSide | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername") or ("", 0)
        address = str(peer[0]).removeprefix("::ffff:")
        self.origin = f"ipv6:[{address}]:{peer[1]}" if ":" in address else f"ipv4:{address}:{peer[1]}"
        self._server = GrpcSide(self, self._port.buffer)
        self.network = network(address)
        self._port.arrived(self, self.network)

    @property
    def is_forwarded(self) -> bool:
        """True as long as the connection to gRPC is this caller's."""
        return self._server is not None and self._server.is_open

    def hand_on(self) -> None:
        """Start connecting to gRPC."""
        if self._server is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._server))

    async def _connect(self, server: GrpcSide) -> None:
        try:
            inner = self._port.connect(self)
            try:
                await asyncio.get_running_loop().create_unix_connection(lambda: server, sock=inner)
            except BaseException:
                inner.close()
                raise
        except BlockingIOError:  # gRPC has not accepted the previous ones yet
            self._port.wait(self)
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
            self._port.heard_again(self.number)
            self._hear(held, self._server)
            self._go_on()

    def _go_on(self) -> None:
        """Resume reading, as far as the caller's limits allow."""
        self.read(self._wanted)

    def _hear(self, data: memoryview, server: GrpcSide) -> None:
        """Forward a stranger's data as far as its limits allow."""
        allowed = self._calls.allowed(data)
        server.write(data[:allowed])
        self._held += data[allowed:]
        if not self._port.sent(self.number, allowed, too_many_calls=allowed < len(data)):
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
        self._port.gone(self)
        self._held.clear()
        server, self._server = self._server, None
        if server is not None:
            server.end()
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._port.stranger_buffer if self._stranger else self._port.buffer

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


class GrpcSide(asyncio.BufferedProtocol):
    """The connection to gRPC that belongs to a caller."""

    def __init__(self, caller: Caller, buffer: memoryview) -> None:
        self._caller: Caller | None = caller
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
