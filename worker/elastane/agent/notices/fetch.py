"""One HTTP request to a metadata service: no proxies, no redirects, a bound on time and size."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Request:
    """What to ask. url: http only; metadata services have nothing else, and are on the node itself."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What was answered. headers: names in lower case."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)


Fetch = Callable[[Request], Reply]
"""Raises OSError when there is no whole answer in time."""


def fetcher(timeout_seconds: float) -> Fetch:
    """A `Fetch` that waits so long at most for connecting, and for the whole answer."""

    def fetch(request: Request) -> Reply:
        parts = urlsplit(request.url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        deadline = time.monotonic() + timeout_seconds
        # Without a port http.client would take the end of an IPv6 address for one.
        port = parts.port or http.client.HTTP_PORT
        connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=timeout_seconds)
        try:
            connection.request(request.method, target or "/", headers=dict(request.headers))
            answer = connection.getresponse()
            body = b""
            # Piece by piece: the socket's time-out alone would let a drip of bytes last for ever.
            while piece := answer.read1(4096):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise OSError(f"{request.url} answers with more than {ANSWER_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{request.url} did not end its answer in {timeout_seconds:g} s")
            if answer.length:  # what the other end promised and did not send
                raise OSError(f"{request.url}: the answer ends {answer.length} bytes early")
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, body.decode("utf-8", "replace"), headers)
        except http.client.HTTPException as error:
            raise OSError(f"{request.url}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    return fetch
