"""CPU time of frames to a parameter server in clear and with TLS: microseconds, both ends, there and back.

    python benchmarks/tls_cost.py [ROUNDS]

Both ends are threads of one process, joined by loopback, and take turns: a segment in clear, then one with
TLS. Figures are medians over the rounds, 7 by default.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import threading
import time
from contextlib import closing

from elastane.slots.connection import PsConnection, connect
from elastane.slots.frames import CopyDone, Inspect
from elastane.slots.handshake import admit
from elastane.slots.wire import read_header, read_into, read_prefix, write_frame
from elastane_common.process_tls import own_tls

SECRET = bytes(32)
#: Bytes of a body, and frames in a segment.
SIZES = ((64 << 10, 300), (1 << 20, 60))
CONNECTIONS = 50


def echo(listener: socket.socket) -> None:
    """Answer each frame with its body, on every connection, one after the other."""
    body = memoryview(bytearray(max(size for size, _ in SIZES)))
    while True:
        connection, _ = listener.accept()
        with connection:
            stream = admit(connection, SECRET, own_tls)
            while (prefix := read_prefix(stream)) is not None:
                read_header(stream, prefix)
                there = body[: prefix.body_bytes]
                read_into(stream, there)
                write_frame(stream, CopyDone(1, 0, 0), prefix.number, [there])


def listening() -> str:
    """Start a server; return its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=echo, args=(listener,), daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def frames(connection: PsConnection, body: memoryview, count: int) -> float:
    """Return the microseconds of CPU of a frame there and back."""
    began = time.process_time()
    for _ in range(count):
        connection.send(Inspect(1), [body], lambda header, size: [body]).result()
    return (time.process_time() - began) / count * 1e6


def openings(address: str, encrypted: bool) -> float:
    """Return the microseconds of CPU of opening a connection."""
    began = time.process_time()
    for _ in range(CONNECTIONS):
        connect(address, SECRET, encrypted=encrypted).close()
    return (time.process_time() - began) / CONNECTIONS * 1e6


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    ways = (False, True)
    connections = {way: PsConnection(listening(), SECRET, encrypted=way) for way in ways}
    with closing(connections[False]), closing(connections[True]):
        for size, count in SIZES:
            body = memoryview(bytearray(os.urandom(size)))
            found = {way: list[float]() for way in ways}
            for _ in range(rounds):
                for way in ways:
                    found[way].append(frames(connections[way], body, count))
            show(f"a frame of {size >> 10} KiB", found)
    address = listening()
    found = {way: list[float]() for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(openings(address, way))
    show("opening a connection", found)


def show(what: str, found: dict[bool, list[float]]) -> None:
    """Print medians with their range, and the ratio."""
    clear, tls = (statistics.median(found[way]) for way in (False, True))
    texts = [f"{statistics.median(each):,.0f} [{min(each):,.0f}-{max(each):,.0f}]" for each in found.values()]
    print(f"{what}: in clear {texts[0]} us, with TLS {texts[1]} us, {tls / clear:.2f} x")


if __name__ == "__main__":
    main()
