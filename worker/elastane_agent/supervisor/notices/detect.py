"""Selects the source of spot notices: the configured one, or the cloud whose metadata service answers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from elastane_agent.supervisor.notices.fetch import Fetch
from elastane_agent.supervisor.notices.sources import CLOUDS, File, Http, Source
from elastane_common.errors import RefusedError

AUTO: Final = "auto"
NONE: Final = "none"


def check_choice(choice: str) -> str:
    """Return a valid choice unchanged; raise RefusedError for any other.

    choice: "auto", "none", a cloud's name, "file:PATH", the http URL of a hook, or several, comma-separated.
    """
    for one in choices(choice):
        named = one in (AUTO, NONE, *CLOUDS)
        if not (named or one.startswith("http://") or (one.startswith("file:") and one != "file:")):
            raise RefusedError(
                f"unknown source of spot notices: {one!r}",
                hint=(
                    f"use {AUTO}, {NONE}, {', '.join(CLOUDS)}, file:PATH or http://URL; separate several "
                    "by commas"
                ),
            )
    return choice


def choices(choice: str) -> list[str]:
    """Split a comma-separated choice. All sources are polled; the first announced reclaim counts."""
    return list(dict.fromkeys(one.strip() for one in choice.split(",")))


def chosen_source(choice: str, fetch: Fetch, base_url: str = "") -> Source | None:
    """Return the source that is named; None for "auto" and "none". base_url: of its metadata service."""
    check_choice(choice)
    if choice.startswith("file:"):
        return File(fetch, choice.removeprefix("file:"))
    if choice.startswith("http://"):
        return Http(fetch, choice)
    return CLOUDS[choice](fetch, base_url) if choice in CLOUDS else None


def detect_source(fetch: Fetch, base_urls: Mapping[str, str] | None = None) -> Source | None:
    """Return the cloud whose metadata service answers as documented; None if there is none.

    base_urls: URL of the service by cloud. All are asked at the same time, because outside a cloud each one
    costs a full timeout.
    """
    sources = [cloud(fetch, (base_urls or {}).get(name, "")) for name, cloud in CLOUDS.items()]
    with ThreadPoolExecutor(len(sources)) as pool:
        here = list(pool.map(lambda source: source.is_here(), sources))
    return next((source for source, is_here in zip(sources, here, strict=True) if is_here), None)
