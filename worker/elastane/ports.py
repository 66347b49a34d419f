"""A port for a process that is yet to be started."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_MIN: Final = 32_768  # Linux's, where nothing says otherwise
_PORT_MIN: Final = 10_000
_TRIES: Final = 100


def unused_port() -> int:
    """A port of loopback that nobody listens at now, nor is likely to be given before the process binds it.

    Whoever binds port 0 or connects is given an ephemeral port, and processes take seconds to begin: so it
    is one below those, by lot. Used for the rendezvous of stock DDP, and for stores.
    """
    least = _EPHEMERAL_MIN
    with contextlib.suppress(OSError, ValueError, IndexError):
        least = int(_EPHEMERAL.read_text().split()[0])
    if least - _PORT_MIN >= _TRIES:
        for port in random.SystemRandom().sample(range(_PORT_MIN, least), _TRIES):
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return port
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
