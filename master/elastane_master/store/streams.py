"""Entries of a Redis stream as plain values: id and payload, since all our entries have one field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `id` is "NUMBER-PART" as Redis writes it."""

    id: str
    payload: bytes

    @property
    def number(self) -> int:
        """The id's first part: a time in milliseconds, or the number the writer gave."""
        return int(self.id.partition("-")[0])


async def read_stream(redis: Redis, key: str, start: str, count: int) -> list[Entry]:
    """Up to `count` entries from the id `start` on ("-": the first; "(ID": after that one)."""
    return _entries(await redis.xrange(key, min=start, count=count))


async def newest_entry(redis: Redis, key: str) -> Entry | None:
    """The last entry, or None."""
    entries = _entries(await redis.xrevrange(key, count=1))
    return entries[0] if entries else None


def _entries(reply: Any) -> list[Entry]:
    # The client's types allow for decoded and for missing replies; ours is set to neither.
    pairs = cast("list[tuple[bytes, dict[bytes, bytes]]]", reply)
    return [Entry(name.decode(), next(iter(fields.values()))) for name, fields in pairs]
