"""Ports that are reserved until the rank that needs them is started.

A port that was found free is not held: another process may take it before the rank listens. So it stays
bound, without listening, until just before the rank is started. It is taken from below the range of ports
that the system gives to connections, which would else take it in the moment in between.
"""

from __future__ import annotations

import random
import socket
from typing import Final

from elastane_common.errors import ElastaneError
from elastane_common.ports import first_ephemeral_port

_PORT_MIN: Final = 10_000
_TRIES: Final = 200


class PortError(ElastaneError):
    """No port is free on this machine."""

    code = "ELA454"


class HeldPort:
    """A port of all addresses of this machine, bound from now until `release`. Raises PortError."""

    def __init__(self) -> None:
        self._socket = _bound()
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Release the port; does nothing the second time."""
        self._socket.close()


def _bound() -> socket.socket:
    candidates = range(_PORT_MIN, max(_PORT_MIN + _TRIES, first_ephemeral_port()))
    for port in [*random.SystemRandom().sample(candidates, _TRIES), 0]:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", port))
        except OSError:
            held.close()
        else:
            return held
    raise PortError("no port is free on this machine", hint="end what uses them, or use another machine")
