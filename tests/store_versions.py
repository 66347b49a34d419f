"""Which release a store server is of: some tests need what older ones lack."""

from __future__ import annotations

import redis


def version_of(client: redis.Redis) -> tuple[int, int]:
    """Return major and minor number of Redis' release; Valkey has the one that it is compatible with."""
    major, minor, *_ = str(client.info("server")["redis_version"]).split(".")
    return int(major), int(minor)
