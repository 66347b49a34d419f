"""Networks that can be broken: a relay between a worker and its master, and a namespace behind a link.

Relay       TCP connections through this process. Works for all users; affects only the worker's traffic
            to the master, not between workers.
Namespace   a network namespace whose only connection is a pair of TUN devices, with this process
            carrying the packets between them. So loss, delay and partition, of one direction too, affect
            everything that a node sends, as on a real network, and the kernel needs no netem for it. Needs
            root.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from elastane_cli.chaos.machine import run_quietly
from elastane_common.errors import ElastaneError

_READ_BYTES = 256 * 1024
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_CLONE_NEWNET = 0x40000000
_MTU_BYTES = 1500


class NetworkError(ElastaneError):
    """The network could not be built."""

    code = "ELA415"


@dataclass
class Direction:
    """One direction. Changed while in use: loss in 0..1; cut: nothing passes, and no side is notified."""

    delay_seconds: float = 0.0
    loss: float = 0.0
    cut: bool = False

    def heal(self) -> None:
        self.delay_seconds, self.loss, self.cut = 0.0, 0.0, False


class Relay:
    """Listens, and carries each connection to `target`. up: from the client to the target; down: back.

    A cut direction is not read any more, so that the sender's data accumulates and the other side
    acknowledges nothing: a half-open connection.
    """

    def __init__(self, target: str, listen_host: str = "127.0.0.1") -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.up, self.down = Direction(), Direction()
        self._listener = socket.create_server((listen_host, 0), backlog=64)
        self.address = f"{listen_host}:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closing = False
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def reset(self) -> None:
        """Break every connection with RST."""
        with self._lock:
            found = list(self._open)
        for one in found:
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Restore both directions."""
        self.up.heal()
        self.down.heal()

    def close(self) -> None:
        """Close the relay. Idempotent."""
        self._closing = True
        self.heal()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=self._carry, args=(server, client, self.down), daemon=True)
        back.start()
        self._carry(client, server, self.up)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _carry(self, source: socket.socket, sink: socket.socket, path: Direction) -> None:
        try:
            while data := self._read(source, path):
                if path.delay_seconds:
                    time.sleep(path.delay_seconds)
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _read(self, source: socket.socket, path: Direction) -> bytes:
        while path.cut and not self._closing:
            time.sleep(0.02)  # polled: a cut has no event for its end
        return source.recv(_READ_BYTES)


@dataclass(order=True)
class _Packet:
    due: float
    number: int
    sink: int = field(compare=False)
    data: bytes = field(compare=False)


class Namespace:
    """A network namespace `name` behind a link: this side is `near`, its own side `far`.

    outward: from the namespace to here; inward: to it. Raises NetworkError if it cannot be created.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        subnet = f"10.{200 + number // 250 % 50}.{number % 250}"
        self.near, self.far = f"{subnet}.1", f"{subnet}.2"
        self.outward, self.inward = Direction(), Direction()
        self._rng = random.Random(number)
        self._tuns: list[int] = []
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe()
        if said := run_quietly("ip", "netns", "add", name):
            raise NetworkError(f"no network namespace can be made here: {said}")
        try:
            device = f"ch{number}"
            self._tuns = [_open_tun(device), self._within(lambda: _open_tun(device))]
            outside, inside = ["ip"], ["ip", "-n", name]
            for prefix, own, peer in ((outside, self.near, self.far), (inside, self.far, self.near)):
                for command in (
                    ["addr", "add", own, "peer", peer, "dev", device],
                    ["link", "set", device, "mtu", str(_MTU_BYTES), "up"],
                ):
                    if said := run_quietly(*prefix, *command):
                        raise NetworkError(f"the link to the namespace cannot be set up: {said}")
            run_quietly("ip", "-n", name, "link", "set", "lo", "up")
        except (OSError, NetworkError) as error:
            self.close()
            raise NetworkError(f"no network namespace can be linked here: {error}") from error
        self._thread = threading.Thread(target=self._carry, name=f"link {name}", daemon=True)
        self._thread.start()

    def command(self, command: list[str]) -> list[str]:
        """Return the command to run in the namespace. The process keeps its pid, because `ip` execs it."""
        return ["/usr/bin/env", "ip", "netns", "exec", self.name, *command]

    def heal(self) -> None:
        self.outward.heal()
        self.inward.heal()

    def close(self) -> None:
        """Remove the namespace. Idempotent."""
        if self._wake_write < 0:
            return
        os.close(self._wake_write)  # ends the thread's select
        self._wake_write = -1
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_read)
        for tun in self._tuns:
            os.close(tun)
        run_quietly("ip", "netns", "del", self.name)

    def _within(self, action: Callable[[], int]) -> int:
        """Return the result of `action`, called in a thread that has entered the namespace."""
        found: list[int] = []
        failed: list[OSError] = []

        def move() -> None:
            try:
                with Path(f"/var/run/netns/{self.name}").open() as file:
                    libc = ctypes.CDLL(None, use_errno=True)
                    if libc.setns(file.fileno(), _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns failed")
                found.append(action())
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=move)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return found[0]

    def _carry(self) -> None:
        near, far = self._tuns
        ways = {near: (far, self.inward), far: (near, self.outward)}
        waiting: list[_Packet] = []
        number = 0
        while True:
            timeout = max(0.0, waiting[0].due - time.monotonic()) if waiting else None
            ready, _, _ = select.select([*ways, self._wake_read], [], [], timeout)
            if self._wake_read in ready:
                return
            now = time.monotonic()
            with contextlib.suppress(OSError):  # a packet for a link that is being removed
                for tun in ready:
                    sink, path = ways[tun]
                    data = os.read(tun, 65536)
                    if not path.cut and self._rng.random() >= path.loss:
                        number += 1
                        delay = (
                            path.delay_seconds * self._rng.uniform(0.5, 1.5) if path.delay_seconds else 0.0
                        )
                        heapq.heappush(waiting, _Packet(now + delay, number, sink, data))
                while waiting and waiting[0].due <= time.monotonic():
                    packet = heapq.heappop(waiting)
                    os.write(packet.sink, packet.data)


def _open_tun(device: str) -> int:
    """Open a TUN device of that name in the thread's namespace."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(tun)
        raise
    return tun
