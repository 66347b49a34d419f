"""Choose a port for a process that will be started later."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_MIN: Final = 32_768  # Linux's default
_PORT_MIN: Final = 10_000
_TRIES: Final = 100


def unused_port() -> int:
    """Return a loopback port that is free now and unlikely to be assigned before the process binds it.

    The system assigns ephemeral ports to sockets that bind port 0 or connect, and processes take seconds to
    start. So a random port below the ephemeral range is chosen. Used for the rendezvous of stock DDP, and for
    stores.
    """
    least = first_ephemeral_port()
    if least - _PORT_MIN >= _TRIES:
        for port in random.SystemRandom().sample(range(_PORT_MIN, least), _TRIES):
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def first_ephemeral_port() -> int:
    """Return the first port of the range from which the system takes those of connections."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_EPHEMERAL.read_text().split()[0])
    return _EPHEMERAL_MIN
