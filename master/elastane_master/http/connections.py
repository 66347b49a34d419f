"""Connections of the HTTP port: not too many, and none that only takes up room.

aiohttp waits for a request as long as the client likes, and for a client that does not read its answer. Here
a connection without a request that is being served is ended after `idle_seconds`, whatever it does
meanwhile: sends its headers byte by byte, keeps itself alive, or leaves its answer unread. A request that is
served for long (server-sent events) is its handler's to watch.

Where there are too many, a new connection takes the place of the one that has stood longest without a
request, so that whoever merely stands there does not keep a probe out. Only where all are being served is
it refused.
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
"""Of every answer."""


class Doorkeeper:
    """Makes the connections of one server. server: aiohttp's, of an AppRunner that is set up."""

    def __init__(
        self, server: web.Server, measures: HttpMeasures, *, connections_max: int, idle_seconds: float
    ) -> None:
        self.measures = measures
        self.connections_max = connections_max
        self.idle_seconds = idle_seconds
        self._server = server
        # Connections without a request, the one that has been so longest first.
        self._idle: dict[Connection, None] = {}

    def idles(self, connection: Connection) -> None:
        """It waits for a request."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def is_served(self, connection: Connection) -> None:
        """It has a request, or is gone."""
        self._idle.pop(connection, None)

    def make_room(self, newcomer: Connection) -> None:
        """Ends a connection where there is one too many: one that only stands there, else the newcomer."""
        if self.measures.connections > self.connections_max:
            next(iter(self._idle), newcomer).end()

    def __call__(self) -> Connection:
        """A protocol for the next connection; what `loop.create_server` asks for."""
        # Forms are small: what is compressed wants to be large here, or is spoiled, which aiohttp would log.
        return Connection(
            self,
            self._server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            auto_decompress=False,
        )


class Connection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_counted", "_doorkeeper", "_idle_timer", "_serving")

    def __init__(self, doorkeeper: Doorkeeper, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._doorkeeper = doorkeeper
        self._idle_timer: asyncio.TimerHandle | None = None
        self._serving = 0
        self._counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        measures = self._doorkeeper.measures
        super().connection_made(transport)
        self._counted = True
        measures.connections += 1
        self._doorkeeper.make_room(self)
        if self._counted:
            self._wait_for_request()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        self._uncount()
        super().connection_lost(exc)

    def _uncount(self) -> None:
        if self._counted:
            self._counted = False
            self._doorkeeper.measures.connections -= 1

    def request_begins(self) -> None:
        """A handler has the request: no time runs."""
        self._serving += 1
        self._stop_waiting()

    def request_ends(self) -> None:
        """The handler has answered; the client has `idle_seconds` to read it and to ask again."""
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
        """The answer to bytes that are no request. Not logged: anybody can send them."""
        text = f"{status}: {HTTPStatus(status).phrase}\n"
        response = web.Response(status=status, text=text, headers=HEADERS)
        response.force_close()
        return response

    def _wait_for_request(self) -> None:
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(self._doorkeeper.idle_seconds, self.end)
        self._doorkeeper.idles(self)

    def _stop_waiting(self) -> None:
        self._doorkeeper.is_served(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def end(self) -> None:
        """Ends it at once, whatever it does."""
        self._stop_waiting()
        self._uncount()  # the next newcomer may come before the loop has told us that it is gone
        self._doorkeeper.measures.refused += 1
        transport = self.transport
        if transport is not None:
            # Not closed: that would wait until what was written is read.
            transport.abort()
