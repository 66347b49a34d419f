"""Checks whether a store given by URL is suitable for jobs, once, before anything is stored.

A master that starts on a replica could only wait; on a store that may evict keys it would serve until one of
them is gone. Both cases are distinguished from an unreachable store and from a standby master.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from elastane_master.store.errors import (
    StoreError,
    StoreIsCluster,
    StoreIsSentinel,
    StoreMayEvict,
    StoreReadOnly,
)

logger = structlog.get_logger(__name__)

_PRIMARY = frozenset({"master", "primary"})


async def require_fit(redis: Redis, shown: str) -> None:
    """Check the store. Raises StoreIsSentinel, StoreIsCluster, StoreReadOnly or StoreMayEvict.

    shown: the URL for messages. Questions that the user may not ask or an old server does not know are
    skipped with a warning.
    """
    said: dict[str, str] = {}
    try:
        said |= _as_texts(await cast("Any", redis).execute_command("HELLO"))
    except ResponseError as error:
        logger.warning("the store does not say what it is", store=shown, error=str(error))
    try:
        said |= _as_texts(await redis.info("memory"))
    except ResponseError as error:
        logger.warning(
            "the store does not say whether it evicts keys; give the user the right to ask: +info",
            store=shown,
            error=str(error),
        )
    if (fault := judge(said, shown)) is not None:
        raise fault


def judge(said: Mapping[str, str], shown: str) -> StoreError | None:
    """Return the error that these fields of HELLO and of INFO memory imply, or None."""
    mode, role = said.get("mode", "standalone"), said.get("role", "master")
    if mode == "sentinel":
        return StoreIsSentinel(
            f"{shown} is a Sentinel, which knows where the store is but stores nothing", url=shown
        )
    if mode == "cluster":
        return StoreIsCluster(f"{shown} is a cluster; a master keeps its jobs on a single server", url=shown)
    if role not in _PRIMARY:
        return StoreReadOnly(f"{shown} is a {role}: nothing can be written to it", url=shown, role=role)
    limit, policy = said.get("maxmemory", "0"), said.get("maxmemory_policy", "noeviction")
    if limit != "0" and policy != "noeviction":
        return StoreMayEvict(
            f"{shown} evicts keys when its {limit} bytes are full (maxmemory-policy {policy})",
            url=shown,
            policy=policy,
        )
    return None


def _as_texts(reply: Any) -> dict[str, str]:
    """Convert a reply of either protocol version to texts."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=False)
    return {_text(name): _text(value) for name, value in cast("Any", pairs)}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
