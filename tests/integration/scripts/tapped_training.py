"""Runs a training script in a worker whose connections to other workers pass somebody who listens in.

    tapped_training.py FOLDER SCRIPT [ARGUMENT...]

Writes to FOLDER what was sent to this worker's port and from it (PID.heard), and what this worker wanted to
send (PID.said). With OLD_RELEASE and ELASTANE_RING_TLS=0 the worker is like one of an older release: it
announces nothing about TLS and opens plain connections.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from elastane.collective import cpu_group
from elastane.collective.rendezvous import MemberStore, listen
from elastane.collective.socket_group import SocketGroup

FOLDER = Path(sys.argv[1])
_announce, _set, _send = cpu_group._announce, MemberStore.set, SocketGroup.send


def announce(store, rank, words):
    address, _, port = words.rpartition(" ")
    listener = listen(address)
    threading.Thread(target=_listen_in, args=(listener, (address, int(port))), daemon=True).start()
    _announce(store, rank, f"{address} {listener.getsockname()[1]}")


def announce_as_before(store, key, value):
    if not key.startswith("tls/"):
        _set(store, key, value)


def send(group, tensor, peer, tag):
    with (FOLDER / f"{os.getpid()}.said").open("ab") as file:
        file.write(tensor.detach().numpy().tobytes())
    return _send(group, tensor, peer, tag)


def _listen_in(listener: socket.socket, place: tuple[str, int]) -> None:
    with (FOLDER / f"{os.getpid()}.heard").open("ab", buffering=0) as heard:
        while True:
            caller, _ = listener.accept()
            try:
                called = socket.create_connection(place)
            except ConnectionRefusedError:  # the ring stands
                caller.close()
                continue
            for one, other in ((caller, called), (called, caller)):
                threading.Thread(target=_pass_on, args=(one, other, heard), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket, heard: BinaryIO) -> None:
    with suppress(OSError, ValueError):
        while part := one.recv(1 << 16):
            heard.write(part)
            other.sendall(part)
    for end in (one, other):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    cpu_group._announce, SocketGroup.send = announce, send
    if os.environ.get("OLD_RELEASE"):
        MemberStore.set = announce_as_before
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")
