"""Somebody between two ends of a connection, who listens in or stands between them."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress


class Between(threading.Thread):
    """Stands between one caller and the server at `to`, (host, port), and passes on what both say.

    hosts, calls: contexts with which it ends TLS on both sides; without them it passes on what it is sent.
    place: (host, port) at which it is called. heard: all that it could read, of both directions.
    """

    def __init__(
        self, to: tuple[str, int], hosts: ssl.SSLContext | None = None, calls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()[:2]
        self._to, self._hosts, self._calls = to, hosts, calls
        self.heard = bytearray()
        self.start()

    def run(self) -> None:
        caller, _ = self._listener.accept()
        called = socket.create_connection(self._to)
        if self._hosts is not None and self._calls is not None:
            caller = self._hosts.wrap_socket(caller, server_side=True)
            called = self._calls.wrap_socket(called)
        for pair in ((caller, called), (called, caller)):
            threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while part := one.recv(1 << 16):
                self.heard += part
                other.sendall(part)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
