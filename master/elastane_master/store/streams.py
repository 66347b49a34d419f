"""Entries of a Redis stream as plain values: id and payload. All entries here have a single field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `id` is "NUMBER-PART" in Redis' format."""

    id: str
    payload: bytes

    @property
    def number(self) -> int:
        """First part of the id: a time in milliseconds, or a number given by the writer."""
        return int(self.id.partition("-")[0])


async def read_stream(redis: Redis, key: str, start: str, count: int) -> list[Entry]:
    """Return up to `count` entries from the id `start` on ("-": the first; "(ID": after that one)."""
    return _entries(await redis.xrange(key, min=start, count=count))


class Ends(NamedTuple):
    """Summary of a stream: number of entries, id of the newest one, and last id ever assigned."""

    length: int = 0
    newest: str = "0-0"
    last: str = "0-0"


async def read_ends(redis: Redis, key: str) -> Ends:
    """Return a stream's summary; it may not exist. Raises ResponseError for a key of another type."""
    try:
        found: dict[str, Any] = await redis.xinfo_stream(key)
    except ResponseError as error:
        if "no such key" in str(error):
            return Ends()
        raise
    entry = found["last-entry"]
    newest = entry[0].decode() if entry else "0-0"
    return Ends(int(found["length"]), newest, found["last-generated-id"].decode())


def _entries(reply: Any) -> list[Entry]:
    # The client's types allow decoded and missing replies; neither occurs with our settings.
    pairs = cast("list[tuple[bytes, dict[bytes, bytes]]]", reply)
    return [Entry(name.decode(), next(iter(fields.values()))) for name, fields in pairs]
