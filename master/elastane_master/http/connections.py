"""Connection limits of the HTTP port: number, idle time, slow clients.

aiohttp waits without limit for a request, and for a client that does not read its answer. Here a connection
without a request being served is ended after `idle_seconds`, whatever it does meanwhile: sends its headers
byte by byte, keeps itself alive, or leaves its answer unread. Long-running requests (server-sent events) are
watched by their handlers.

If there are too many connections, a new one replaces the one that has been idle longest, so that idle
connections do not keep a probe out. Only if all of them are serving a request is the new one refused.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from elastane_master.metrics.measures import HttpMeasures

HEADERS: Final = {
    "Server": "elastane",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # Not no-referrer: browsers would hide, too, from which page a form comes.
    "Referrer-Policy": "same-origin",
}
"""Headers of every answer."""


class ConnectionLimiter:
    """Creates and counts the connections of one server. server: aiohttp's, of an AppRunner that is set up."""

    def __init__(
        self, server: web.Server, measures: HttpMeasures, *, connections_max: int, idle_seconds: float
    ) -> None:
        self.measures = measures
        self.connections_max = connections_max
        self.idle_seconds = idle_seconds
        self._server = server
        # Connections without a request, longest idle first.
        self._idle: dict[Connection, None] = {}

    def idles(self, connection: Connection) -> None:
        """Mark a connection as idle: it waits for a request."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def is_served(self, connection: Connection) -> None:
        """Mark a connection as not idle: it has a request, or is gone."""
        self._idle.pop(connection, None)

    def make_room(self, newcomer: Connection) -> None:
        """If there is one connection too many, end the longest idle one, or else the new one."""
        if self.measures.connections > self.connections_max:
            next(iter(self._idle), newcomer).end()

    def __call__(self) -> Connection:
        """Return a protocol for the next connection; the factory for `loop.create_server`."""
        # No decompression: forms are small, so a compressed body is either a decompression bomb or malformed,
        # and aiohttp would log the latter.
        return Connection(
            self,
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,
        )


class Connection(web.RequestHandler):
    """One HTTP connection with its idle timer."""

    __slots__ = ("_counted", "_idle_timer", "_limiter", "_serving")

    def __init__(self, limiter: ConnectionLimiter, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limiter = limiter
        self._idle_timer: asyncio.TimerHandle | None = None
        self._serving = 0
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        measures = self._limiter.measures
        super().connection_made(transport)
        self._counted = True
        measures.connections += 1
        self._limiter.make_room(self)
        if self._counted:
            self._wait_for_request()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        self._uncount()
        super().connection_lost(exc)

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._limiter.measures.connections -= 1

    def request_begins(self) -> None:
        """A handler has begun a request: stop the idle timer."""
        self._serving += 1
        self._stop_waiting()

    def request_ends(self) -> None:
        """The handler has answered: the client has `idle_seconds` to read it and to send the next request."""
        self._serving -= 1
        if not self._serving and self.transport is not None:
            self._wait_for_request()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are not a request. Not logged, because anybody can send them."""
        text = f"{status}: {HTTPStatus(status).phrase}\n"
        response = web.Response(status=status, text=text, headers=HEADERS)
        response.force_close()
        return response

    def _wait_for_request(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._limiter.idle_seconds, self.end)
        self._limiter.idles(self)

    def _stop_waiting(self) -> None:
        self._limiter.is_served(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def end(self) -> None:
        """End the connection at once."""
        self._stop_waiting()
        self._uncount()  # another connection may arrive before the loop reports the loss of this one
        self._limiter.measures.refused += 1
        transport = self.transport
        if transport is not None:
            # Not close(), which would wait until the client has read what was written.
            transport.abort()
