"""Connections of a worker to parameter servers, opened when they are first needed."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from elastane.slots.connection import PsConnection
from elastane.slots.frames import SlotFrameError
from elastane.slots.handshake import PsHandshakeError

_log = structlog.get_logger(__name__)


@dataclass
class OpenConnections:
    """Open connections by parameter server. encrypted: whether they are TLS."""

    encrypted: bool
    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: dict[str, tuple[tuple[str, bytes], PsConnection]] = field(default_factory=dict)
    #: Held while one is opened: a host that does not answer keeps nobody else waiting.
    opening: dict[str, threading.Lock] = field(default_factory=dict)
    closed: bool = False

    def standing(self, owner: str, address: tuple[str, bytes] | None) -> PsConnection | None:
        """Return a connection that is open already; None if there is none."""
        known, connection = self.opened.get(owner, (None, None))
        stands = connection is not None and known == address and connection.error is None
        return connection if stands else None

    def open(self, owner: str, address: tuple[str, bytes]) -> PsConnection | None:
        """Return a connection that stands; None if it cannot be opened now.

        Raises RefusedError if the server does not encrypt and should.
        """
        with self.lock:
            opening = self.opening.setdefault(owner, threading.Lock())
        with opening:
            if (connection := self.standing(owner, address)) is not None:
                return connection
            if owner in self.opened:
                self.opened[owner][1].close()
            try:
                opened = PsConnection(*address, encrypted=self.encrypted)
            except (OSError, SlotFrameError, PsHandshakeError) as error:
                _log.debug("a parameter server cannot be reached", ps=owner, error=str(error))
                return None
            with self.lock:
                if self.closed:
                    opened.close()
                    return None
                self.opened[owner] = (address, opened)
            return opened

    def close(self) -> None:
        with self.lock:
            self.closed = True
            opened = [connection for _, connection in self.opened.values()]
            self.opened.clear()
        for connection in opened:
            with suppress(OSError):
                connection.close()
