"""HTTP requests to a metadata service: without proxies and redirects, limited in time and size."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

ANSWER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True)
class Request:
    """An HTTP request. url: http only; metadata services have no https, and are on the node itself."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """An HTTP response. headers: names in lower case."""

    status: int
    body: str
    headers: Mapping[str, str] = field(default_factory=dict)


Fetch = Callable[[Request], Reply]
"""Sends a request. Raises OSError if there is no complete answer in time."""


def fetcher(timeout_seconds: float) -> Fetch:
    """Return a `Fetch` that allows `timeout_seconds` for connecting and for the whole answer."""

    def fetch(request: Request) -> Reply:
        parts = urlsplit(request.url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        deadline = time.monotonic() + timeout_seconds
        # Without an explicit port http.client would parse the end of an IPv6 address as one.
        port = parts.port or http.client.HTTP_PORT
        connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=timeout_seconds)
        try:
            connection.request(request.method, target or "/", headers=dict(request.headers))
            answer = connection.getresponse()
            body = b""
            # Read in pieces: the socket's timeout restarts with every byte, so a slow drip would never end.
            while piece := answer.read1(4096):
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise OSError(f"the answer of {request.url} exceeds {ANSWER_BYTES_MAX} bytes")
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{request.url} did not complete its answer within {timeout_seconds:g} s"
                    )
            if answer.length:  # bytes of Content-Length that were not sent
                raise OSError(f"{request.url}: the answer ends {answer.length} bytes early")
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, body.decode("utf-8", "replace"), headers)
        except http.client.HTTPException as error:
            raise OSError(f"{request.url}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()

    return fetch
