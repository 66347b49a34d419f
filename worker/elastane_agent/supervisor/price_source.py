"""Reads a price list from a file or over HTTP(S): limited in bytes, time and redirects.

A feed is not trusted: it may hang, send without end, or redirect to internal addresses.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final
from urllib.parse import urljoin, urlsplit

import aiohttp

BYTES_MAX: Final = 1024 * 1024
TIMEOUT_SECONDS: Final = 10.0
REDIRECTS_MAX: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_SCHEMES: Final = ("http", "https")


def is_url(location: str) -> bool:
    """True for an http(s) URL; False for the path of a file. Raises ValueError for any other URL."""
    if "://" not in location:
        return False
    parts = urlsplit(location)
    if parts.scheme.lower() not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{_shown(location)} is neither a file nor an http:// or https:// URL")
    return True


def read_source(location: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """Return the text at a path or URL. Raises OSError, also if it is too long or too slow."""
    try:
        content = asyncio.run(_get(location, timeout_seconds)) if is_url(location) else _read(Path(location))
        return content.decode("utf-8-sig")
    except TimeoutError as error:
        raise TimeoutError(f"{_shown(location)} did not answer within {timeout_seconds:g} s") from error
    except (aiohttp.ClientError, ValueError) as error:
        raise OSError(f"{_shown(location)}: {str(error) or type(error).__name__}") from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise ValueError(f"more than {BYTES_MAX} bytes")
    return content


async def _get(url: str, timeout_seconds: float) -> bytes:
    # The time limit includes all redirects, and a body that arrives byte by byte.
    async with (
        asyncio.timeout(timeout_seconds),
        aiohttp.ClientSession(
            auto_decompress=False,  # compressed, a few bytes could become gigabytes
            trust_env=True,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
        ) as session,
    ):
        for _ in range(REDIRECTS_MAX + 1):
            async with session.get(url, allow_redirects=False) as answer:
                if answer.status in _REDIRECTS:
                    url = _redirected(url, answer.headers.get("Location", ""))
                    continue
                if answer.status != 200:
                    raise ValueError(f"it answers {answer.status}")
                if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise ValueError("its answer is compressed, which was not asked for")
                content = bytearray()
                async for piece in answer.content.iter_any():
                    content += piece
                    if len(content) > BYTES_MAX:
                        raise ValueError(f"its answer has more than {BYTES_MAX} bytes")
                return bytes(content)
        raise ValueError(f"more than {REDIRECTS_MAX} redirects")


def _redirected(url: str, target: str) -> str:
    """Return the target of a redirect. Raises ValueError unless http(s), and if https leads to http."""
    found = urljoin(url, target)
    scheme, parts = urlsplit(url).scheme.lower(), urlsplit(found)
    if not target or parts.scheme.lower() not in _SCHEMES or not parts.hostname:
        raise ValueError(
            f"it redirects to {_shown(target) or 'nowhere'}, which is no http:// or https:// URL"
        )
    if scheme == "https" and parts.scheme.lower() == "http":
        raise ValueError(f"it redirects to {_shown(found)}, without TLS")
    return found


def _shown(location: str) -> str:
    """Return a location without password and query, which may be secret."""
    try:
        parts = urlsplit(location)
        if not parts.netloc:
            return location[:200]
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"[:200]
    except ValueError:
        return location.partition("?")[0][:200]
