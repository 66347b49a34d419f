"""Routes of the HTTP port: translation of requests and refusals. The gate decides on access.

/         the dashboard, and all below /jobs and /runs (elastane_master.dashboard)
/metrics  Prometheus' text format, or OpenMetrics if requested; needs a reader's right
/healthz  200 while the process serves its event loop
/readyz   200 while requests are served, else 503 with the reason
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import hdrs, web

from elastane_master.dashboard.answers import FORM_BYTES_MAX
from elastane_master.dashboard.routes import DashboardRoutes, is_form
from elastane_master.decisions.events import Rejection
from elastane_master.http.connections import HEADERS, Connection
from elastane_master.http.gather import Served, gather
from elastane_master.metrics.exposition import ProcessFigures, render
from elastane_master.security.tokens import ANYBODY, Principal

logger = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATUS: Final = {
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "limit_exceeded": 413,
}


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the metrics. open_metrics: for everybody. certificate: callers must have presented one."""

    open_metrics: bool = False
    certificate: bool = False


class Routes:
    """Handlers of one master's HTTP port."""

    def __init__(self, master: Served, access: Access, connections_max: int) -> None:
        self._master = master
        self._access = access
        self._dashboard = DashboardRoutes(master, connections_max, certificate=access.certificate)
        self._process = ProcessFigures()
        self._scraping = asyncio.Semaphore(1)

    def application(self) -> web.Application:
        """Build the application with all routes."""
        app = web.Application(middlewares=[self._serve], client_max_size=FORM_BYTES_MAX)
        app.on_response_prepare.append(_add_headers)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        self._dashboard.add(app)
        return app

    # ---------------------------------------------------------------- handlers

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        why = self._master.not_ready()
        return web.Response(text=f"{why}\n", status=503) if why else web.Response(text="ok\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        caller = self._let_in(request)
        async with self._scraping:  # each has all figures in memory; scrapers can wait for one another
            samples = await gather(self._master, caller)
            accept = request.headers.get(hdrs.ACCEPT, "")
            body, content_type = await asyncio.to_thread(render, samples, self._process, accept)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    # ---------------------------------------------------------------- around them

    def _let_in(self, request: web.Request) -> Principal:
        """Return the caller's identity. Raises Rejection."""
        if self._access.open_metrics:
            return ANYBODY
        self._dashboard.require_certificate(request)
        # The dashboard's cookie is accepted, too: its pages link here.
        return self._master.gate.let_in(request.path, self._dashboard.authorization(request))

    @web.middleware
    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.request_begins()
        status = 500
        try:
            response = await self._answer(request, handler)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else "other"
            self._master.measures.http.requests[(route, status)] += 1
            connection.request_ends()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.body_exists and not is_form(request):  # it is not waited for
                raise Rejection("limit_exceeded", "requests with a body are not accepted")
            return await handler(request)
        except Rejection as error:
            response = web.Response(text=_text(error), status=_STATUS.get(error.reason, 503))
            if error.reason == "unauthenticated":
                response.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
            elif error.reason == "limit_exceeded":
                response.force_close()
            return response
        except web.HTTPException as error:
            return web.Response(
                text=f"{error.status}: {error.reason}\n",
                status=error.status,
                headers={hdrs.ALLOW: error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else None,
            )
        except asyncio.CancelledError:
            raise
        except Exception:  # a bug ends one request and is reported only in the log
            logger.exception("a request could not be answered", path=request.path)
            return web.Response(text="500: the master's log says why\n", status=500)


def _text(error: Rejection) -> str:
    return f"{error}\n" + (f"{error.hint}\n" if error.hint else "")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
