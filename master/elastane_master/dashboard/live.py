"""Server-sent events: sends the changed parts of a page, at a limited rate.

All viewers of a job share the work: a change is gathered and rendered once, whatever their number. The stream
of a client that does not read, or has lost its right, is ended; so are all when the master stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from elastane_master.dashboard.facts import Gatherer, JobFacts
from elastane_master.dashboard.page_query import JobQuery
from elastane_master.dashboard.pages import NOTHING_ASKED, Visitor, asked_parts, job_parts
from elastane_master.decisions.events import Rejection
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.limits import require_room
from elastane_master.jobs.serving import require_serving
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.gate import HttpCall

PART_SECONDS_MIN: Final = 0.4
CLOCK_SECONDS: Final = 2.0
"""Maximum interval between two renderings: elapsed times and costs change even if nothing happens."""

SILENT_SECONDS: Final = 10.0
"""A comment is sent after this time without an event, because only writing reveals a dead connection."""

JOBS_KEPT: Final = 16

Parts = dict[str, str]


@dataclass(slots=True)
class _Made:
    """Rendered parts of a job's page, by whether the viewer may act.

    seen: the job's numbers of changes and events at that time. at: the event loop's time.
    """

    seen: tuple[int, int]
    at: float
    facts: JobFacts
    parts: dict[bool, Parts]


class PageRenderer:
    """Renders the parts of jobs' pages once for all viewers."""

    def __init__(self, gatherer: Gatherer) -> None:
        self._gatherer = gatherer
        self._made: dict[JobServer, _Made] = {}
        self._locks: dict[JobServer, asyncio.Lock] = {}

    async def parts(self, server: JobServer, visitor: Visitor, asked: JobQuery = NOTHING_ASKED) -> Parts:
        """Return the current parts of a job's page, as asked.

        Waits a moment if they were rendered just before, so that frequent changes are rendered together.
        """
        lock = self._locks.setdefault(server, asyncio.Lock())
        async with lock:
            made = self._made.get(server)
            clock = asyncio.get_running_loop().time
            if made is not None and (early := made.at + PART_SECONDS_MIN / 2 - clock()) > 0:
                await asyncio.sleep(early)
            seen = (server.changed.count, server.noted.count)
            if made is None or made.seen != seen or clock() - made.at > CLOCK_SECONDS / 2:
                made = self._made[server] = _Made(seen, clock(), await self._gatherer.facts(server), {})
            if visitor.acts not in made.parts:
                made.parts[visitor.acts] = job_parts(made.facts, visitor)
        while len(self._made) > JOBS_KEPT:
            oldest = min(self._made, key=lambda one: self._made[one].at)
            del self._made[oldest]
            self._locks.pop(oldest, None)
        return made.parts[visitor.acts] | asked_parts(made.facts, visitor, asked)


class Live:
    """All streams of server-sent events of one master's HTTP port.

    connections_max: the port's limit; live pages may use half of it, so that other requests still get in.
    write_seconds: time for a client to read one event.
    """

    def __init__(self, renderer: PageRenderer, connections_max: int, write_seconds: float = 30.0) -> None:
        self._renderer = renderer
        self._clients_max = connections_max // 2
        self._write_seconds = write_seconds
        self._clients = 0

    async def job(self, request: web.Request, server: JobServer, call: HttpCall) -> web.StreamResponse:
        """Stream a job's page until the client leaves. Raises Rejection only before the stream begins."""
        asked = JobQuery.of(request.query)

        async def pages() -> AsyncIterator[Parts]:
            with server.watching():
                while True:
                    seen = server.changed.count
                    require_serving(server)
                    yield await self._renderer.parts(server, Visitor.of(call.caller, known=True), asked)
                    await asyncio.sleep(PART_SECONDS_MIN)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CLOCK_SECONDS):
                            await server.changed.beyond(seen)

        return await self.serve(request, pages, call)

    async def jobs(
        self, request: web.Request, made: Callable[[], Awaitable[Parts]], call: HttpCall
    ) -> web.StreamResponse:
        """Stream the list of jobs, polled once a second because there is no common event for all jobs.

        made: renders the list.
        """

        async def pages() -> AsyncIterator[Parts]:
            while True:
                yield await made()
                await asyncio.sleep(1.0)

        return await self.serve(request, pages, call)

    async def serve(
        self, request: web.Request, pages: Callable[[], AsyncIterator[Parts]], call: HttpCall
    ) -> web.StreamResponse:
        """Stream the parts that `pages` yields, those that have changed, until the client leaves."""
        with self._counted():
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            response.headers["X-Accel-Buffering"] = "no"  # keeps proxies from buffering the stream
            try:
                await response.prepare(request)
                await self._write(response, b"retry: 1000\n\n")
                await self._follow(response, pages())
            except asyncio.CancelledError:
                if (refusal := call.refusal()) is None:
                    raise
                await self._refuse(response, refusal)
            except REFUSALS as error:
                await self._refuse(response, as_rejection(error), again=True)
            except (ConnectionError, TimeoutError):
                pass  # the client is gone, or does not read
            return response

    async def _follow(self, response: web.StreamResponse, pages: AsyncIterator[Parts]) -> None:
        sent: Parts = {}
        clock = asyncio.get_running_loop().time
        wrote = clock()
        async with contextlib.aclosing(pages) as following:  # type: ignore[type-var]
            async for parts in following:
                news = {name: html for name, html in parts.items() if sent.get(name) != html}
                if news:
                    sent.update(news)
                    await self._write(response, _event("parts", news))
                    wrote = clock()
                elif clock() - wrote > SILENT_SECONDS:
                    await self._write(response, b":\n\n")
                    wrote = clock()

    async def _refuse(self, response: web.StreamResponse, error: Rejection, *, again: bool = False) -> None:
        """Tell the page why its stream ends. again: say nothing, so that the browser reconnects."""
        if not again:
            with contextlib.suppress(ConnectionError, TimeoutError):
                await self._write(response, _event("refused", {"text": str(error)}))

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self._write_seconds):
            await response.write(data)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        require_room("http_connections_max", self._clients, self._clients_max, "live pages")
        self._clients += 1
        try:
            yield
        finally:
            self._clients -= 1


def _event(name: str, data: dict[str, str]) -> bytes:
    """Encode an event; JSON contains no line breaks, which would end it early."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
