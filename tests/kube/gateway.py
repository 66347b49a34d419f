"""A proxy between one operator and the API that records writes and can cut it off at a chosen write.

Every operator of a scenario has one. It forwards all requests; if the API enforces access rights, it does so
as the service account of the shipped manifests, which shows that the shipped rights suffice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import aiohttp.web

from kube.api import Connection

WRITES = ("POST", "PUT", "PATCH", "DELETE")
#: Headers that are not forwarded: hop-by-hop, or set by the gateway itself.
DROPPED = ("host", "authorization", "content-length", "transfer-encoding", "connection", "accept-encoding")


@dataclass(frozen=True)
class Write:
    """A write of the operator, and the API's answer."""

    method: str
    path: str
    body: Any
    status: int


@dataclass
class Cut:
    """A cut at the `at`-th write from now (1: the next): `then` is called, and the operator gets no answer.

    side: "before": the API does not get the write; "after": it has executed it.
    """

    at: int
    side: Literal["before", "after"]
    then: Callable[[], None]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Gateway:
    """Serves one operator."""

    def __init__(
        self, target: Connection, impersonate: str = "", rights: Callable[..., bool] | None = None
    ) -> None:
        self.target, self.rights = target, rights
        self.writes: list[Write] = []
        self.refused: list[str] = []
        self.cut: Cut | None = None
        self.closed = False
        self.url = ""
        self._headers = dict(target.headers)
        if impersonate:
            self._headers |= {"Impersonate-User": impersonate}
        self._open: list[aiohttp.web.BaseRequest] = []

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[Gateway]:
        """Listen on loopback inside the block."""
        connector = aiohttp.TCPConnector(ssl=self.target.tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            runner = aiohttp.web.ServerRunner(
                aiohttp.web.Server(self._handle), handle_signals=False, shutdown_timeout=0.1
            )
            await runner.setup()
            site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                self.close()
                await runner.cleanup()

    def close(self) -> None:
        """Make the API unreachable: abort all connections, and refuse new ones until `open`."""
        self.closed = True
        for request in list(self._open):
            if request.transport is not None:
                request.transport.abort()

    def open(self) -> None:
        """Make the API reachable again."""
        self.closed = False

    async def _handle(self, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        if self.closed:
            return _hang_up(request)
        self._open.append(request)
        try:
            return await self._forward(request)
        except (aiohttp.ClientError, ConnectionError):
            return _hang_up(request)
        finally:
            self._open.remove(request)

    async def _forward(self, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        body = await request.read()
        is_watch = request.query.get("watch") in ("true", "1")
        if self.rights is not None and not self.rights(request.method, request.path, is_watch=is_watch):
            self.refused.append(f"{request.method} {request.path}")
            return aiohttp.web.json_response(
                {"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403
            )
        is_write = request.method in WRITES and "/leases/" not in request.path
        cut = self.cut if is_write else None
        if cut is not None:
            cut.at -= 1
            if cut.at == 0 and cut.side == "before":
                return self._carry_out(cut, request)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
        async with self._session.request(
            request.method,
            self.target.url + request.path_qs,
            data=body or None,
            headers=headers | self._headers,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            content = json.loads(body) if body else None
            if is_write:
                self.writes.append(Write(request.method, request.path, content, answer.status))
            if answer.status == 403:
                refusal = await answer.read()
                if b" cannot " in refusal:  # otherwise admission refused it, not a missing right
                    self.refused.append(f"{request.method} {request.path}: {refusal.decode()}")
                return aiohttp.web.Response(body=refusal, status=403, content_type=answer.content_type)
            if cut is not None and cut.at == 0 and cut is self.cut:  # it may have been withdrawn meanwhile
                return self._carry_out(cut, request)
            response = aiohttp.web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            if answer.content_length is not None:
                response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    def _carry_out(self, cut: Cut, request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        self.cut = None
        cut.then()
        cut.done.set()
        return _hang_up(request)


def _hang_up(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return aiohttp.web.Response(status=503)
