"""Ends connections of strangers that stand too long, send or ask too much, or are too many (see `strangers`).

gRPC accepts connections itself, and bounds neither those of one address nor what one may send in headers
(its limit is one of each frame), nor has it a way to end one. This process owns the sockets all the same:
the doorkeeper looks through its descriptors for those of the port, and gives one up by a duplicate of the
descriptor, after having made sure that it still is the same socket. gRPC then finds its connection broken,
as if the caller had died.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import os
import random
import socket
import stat
import struct
from contextlib import suppress
from urllib.parse import unquote

import structlog

from elastane_master.security.strangers import Place, StrangerLimits, Strangers

logger = structlog.get_logger(__name__)

_DESCRIPTORS = "/proc/self/fd"
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOWHERE = struct.pack("=H14x", socket.AF_UNSPEC)
"""An address to connect to that means none: TCP gives up the connection at once. After a mere shutdown one
whose bytes gRPC does not read at the moment would stand on."""

IDLE_LOOK_SECONDS = 0.25
LOOK_SECONDS = 0.01
"""Between two looks, while a stranger is there: what arrives meanwhile is what they take beyond limits."""

IDLE_SHARE_MAX, SHARE_MAX = 0.02, 0.2
"""What looking may take of the loop's time: with ten thousand connections it is looked less often."""

_BYTES_RECEIVED = struct.Struct("=128xQ")
"""Where the kernel's tcp_info has them."""

LOGGED_SECONDS = 5.0


class Doorkeeper:
    """Keeps one port of this process. Used from one event loop. ended: how many connections it has ended."""

    def __init__(self, limits: StrangerLimits | None = None) -> None:
        self.ended = 0
        self._strangers = Strangers(limits or StrangerLimits(), random.Random())
        self._sockets = PortSockets()
        self._members: set[str] = set()
        self._look = asyncio.Event()

    def let_in(self, peer: str) -> None:
        """A call of `peer`, as gRPC names it, bore a known token."""
        if peer not in self._members and (place := place_of(peer)) is not None:
            self._members.add(peer)
            self._strangers.let_in(place, _now())

    def asked(self, peer: str) -> None:
        """A call of `peer` came without a known token."""
        place = place_of(peer)
        if place is not None and self._strangers.asked(place, _now()) and not self._end(place):
            self._look.set()

    async def keep(self, port: int) -> None:
        """Ends what must not stand, until it is cancelled."""
        loop = asyncio.get_running_loop()
        logged_at, logged = float("-inf"), 0
        while True:
            began = loop.time()
            self._look.clear()
            self._sockets.find(port)
            for place in self._strangers.standing(self._sockets.identities(), self._sockets.received, began):
                self._end(place)
            self._members.clear()  # each says so again with its next call
            now, any_there = loop.time(), self._strangers.any
            if self.ended > logged and now - logged_at > LOGGED_SECONDS:
                logger.warning("connections of strangers were ended", number=self.ended - logged)
                logged_at, logged = now, self.ended
            await asyncio.sleep(max(LOOK_SECONDS, (now - began) / SHARE_MAX))
            if not any_there:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(IDLE_LOOK_SECONDS, (now - began) / IDLE_SHARE_MAX)):
                        await self._look.wait()

    def _end(self, place: Place) -> bool:
        """Whether it was there to be ended."""
        if not self._sockets.shut(place):
            return False
        self.ended += 1
        return True


class PortSockets:
    """The sockets that this process has accepted at a port."""

    def __init__(self) -> None:
        # By descriptor: which socket it is, and where that comes from; None: none of the port's.
        self._known: dict[int, tuple[int, Place | None]] = {}
        self._descriptors: dict[Place, int] = {}

    def find(self, port: int) -> None:
        """Looks what there is now."""
        known, self._known = self._known, {}
        self._descriptors = {}
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 (thousands, a hundred times a second)
            descriptor = int(name)
            try:
                found = os.fstat(descriptor)
            except OSError:  # the folder's own, or one that was closed meanwhile
                continue
            if not stat.S_ISSOCK(found.st_mode):
                continue
            before = known.get(descriptor)
            if before is None or before[0] != found.st_ino:
                before = (found.st_ino, _accepted_at(descriptor, port))
            self._known[descriptor] = before
            if before[1] is not None:
                self._descriptors[before[1]] = descriptor

    def identities(self) -> dict[Place, int]:
        """What identifies each connection, by its place."""
        return {place: self._known[descriptor][0] for place, descriptor in self._descriptors.items()}

    def received(self, place: Place) -> int:
        """How many bytes the kernel has had from there; 0 where the connection is gone."""
        # Not by a duplicate: that would take most of a look. At worst the number is another socket's by
        # now, and `shut` looks again whose it is.
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=self._descriptors[place])
        try:
            told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.size)
        except OSError:
            return 0
        finally:
            connection.detach()
        # A kernel before 4.1 says less.
        return int(_BYTES_RECEIVED.unpack(told)[0]) if len(told) == _BYTES_RECEIVED.size else 0

    def shut(self, place: Place) -> bool:
        """Ends the connection of `place`; whether there was one."""
        descriptor = self._descriptors.pop(place, None)
        if descriptor is None:
            return False
        with suppress(OSError), _duplicate(descriptor) as connection:
            # gRPC may have closed it since: the number could be any other socket's.
            if _place(connection.getpeername()) == place:
                return bool(_LIBC.connect(connection.fileno(), _NOWHERE, len(_NOWHERE)) == 0)
        return False


def _accepted_at(descriptor: int, port: int) -> Place | None:
    """Where the connection comes from; None for other sockets than those accepted at `port`."""
    with suppress(OSError), _duplicate(descriptor) as connection:
        if (
            connection.family in (socket.AF_INET, socket.AF_INET6)
            and connection.type == socket.SOCK_STREAM
            and connection.getsockname()[1] == port
        ):
            return _place(connection.getpeername())
    return None


def _duplicate(descriptor: int) -> socket.socket:
    copy = os.dup(descriptor)
    try:
        return socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        raise


def _place(name: tuple[object, ...]) -> Place:
    return _plain(str(name[0])), int(str(name[1]))


def place_of(peer: str) -> Place | None:
    """The place of a peer as gRPC names it ("ipv4:10.0.0.1:50312", "ipv6:%5B::1%5D:50312"); None: no such."""
    family, _, rest = unquote(peer).partition(":")
    address, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _plain(address.strip("[]")), int(port)


def _plain(address: str) -> str:
    """One form for each address: IPv4 callers of a socket for both families are IPv4 ones."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _now() -> float:
    return asyncio.get_running_loop().time()
