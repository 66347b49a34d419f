"""Entries of a Redis stream as plain values: id and payload, since all our entries have one field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError


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


class Ends(NamedTuple):
    """What a stream holds: how many entries, the newest one's id, and the last id that was ever given."""

    length: int = 0
    newest: str = "0-0"
    last: str = "0-0"


async def read_ends(redis: Redis, key: str) -> Ends:
    """Of a stream, which may not be there. Raises ResponseError when something else is."""
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
    # The client's types allow for decoded and for missing replies; ours is set to neither.
    pairs = cast("list[tuple[bytes, dict[bytes, bytes]]]", reply)
    return [Entry(name.decode(), next(iter(fields.values()))) for name, fields in pairs]
