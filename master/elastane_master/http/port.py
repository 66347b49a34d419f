"""The HTTP port of a master: bound before the jobs are taken over, served until the master has stopped."""

from __future__ import annotations

import asyncio
import socket
import ssl

from aiohttp import web

from elastane_master.errors import CannotListen
from elastane_master.http.connections import ConnectionLimiter
from elastane_master.http.gather import Served
from elastane_master.http.routes import Access, Routes

_WILDCARDS = frozenset({"::", "0.0.0.0"})

IDLE_SECONDS = 15.0
"""Longest time a connection may idle without a request, or leave an answer unread."""


class HttpPort:
    """One HTTP port. Used from one event loop. address: HOST:PORT as bound, once started."""

    def __init__(
        self,
        master: Served,
        access: Access,
        *,
        connections_max: int,
        tls: ssl.SSLContext | None = None,
        grace_seconds: float = 2.0,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self.address = ""
        self._master = master
        self._connections_max = connections_max
        self._tls = tls
        self._idle_seconds = idle_seconds
        application = Routes(master, access, connections_max).application()
        self._runner = web.AppRunner(
            application, handle_signals=False, access_log=None, shutdown_timeout=grace_seconds
        )
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Serve at host:port (port 0: a free one) on return. Raises HttpCannotListen."""
        bare = host.strip("[]")
        try:
            listening = _listen(bare, port)
        except OSError as error:
            raise HttpCannotListen(f"{host}:{port}", error.strerror or str(error)) from error
        await self._runner.setup()
        assert self._runner.server is not None
        limiter = ConnectionLimiter(
            self._runner.server,
            self._master.measures.http,
            connections_max=self._connections_max,
            idle_seconds=self._idle_seconds,
        )
        self._server = await asyncio.get_running_loop().create_server(
            limiter,
            sock=listening,
            ssl=self._tls,
            # Until the handshake is done aiohttp has no Connection object that could time out.
            ssl_handshake_timeout=self._idle_seconds if self._tls is not None else None,
        )
        bound = listening.getsockname()[1]
        self.address = f"{'127.0.0.1' if bare in _WILDCARDS else host}:{bound}"

    async def stop(self) -> None:
        """Stop accepting, let requests finish within the grace time, and close the rest."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()


class HttpCannotListen(CannotListen):
    """The address of the HTTP port cannot be bound."""

    code = "ELA205"
    hint = "choose another --http HOST:PORT, or end what listens there"


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; "::" listens on all interfaces of both families. Raises OSError."""
    if host == "::" and socket.has_dualstack_ipv6():
        return socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
    if host == "::":
        host = "0.0.0.0"
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)
