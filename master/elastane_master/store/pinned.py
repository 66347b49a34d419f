"""A script that is called again and again, over a connection of its own.

`redis.asyncio` borrows a connection for each call, packs it word by word and starts a task to bound each
send: more work than the script itself. A job's log makes one call at a time, thousands a second, so it
keeps a connection, and one timeout is around the whole call. Connecting, TLS, the password and parsing
are those of `redis.asyncio`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterable, Sequence

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError

Word = bytes | int | str

_APART_BYTES = 64 * 1024
"""Longer words are handed to the socket as they are, not copied."""


REPLICAS_SECONDS = 1.0
"""So long replicas have for a write before it is said again."""


class TooFewReplicas(RedisError):  # noqa: N818 - says what happened
    """The write is stored, but not where it has to be, too."""


class PinnedScript:
    """One Lua script. At most one call at a time; a call that fails leaves nothing on the connection.

    replicas: so many must have what a call wrote. Whoever repeats one that they did not have in time has to
    write again: a connection waits for its own writes only.
    """

    def __init__(self, redis: Redis, text: str, replicas: int = 0) -> None:
        self._replicas = replicas
        self._pool = redis.connection_pool
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._timeout_seconds: float | None = self._pool.connection_kwargs.get("socket_timeout")
        self._connection: AbstractConnection | None = None

    async def __call__(self, *, keys: Sequence[str], args: Iterable[Word] = ()) -> bytes:
        """What the script returns. Raises redis errors (TooFewReplicas), and TimeoutError without an answer.

        A call may reach the store twice: where the connection ended while nobody used it, nothing tells
        before an answer fails to come.
        """
        words = (len(keys), *keys, *args)
        async with asyncio.timeout(self._timeout_seconds):
            was_open = self._connection is not None
            try:
                return await self._call(words)
            except ConnectionLost:
                if not was_open:
                    raise
            return await self._call(words)

    async def aclose(self) -> None:
        """Gives the connection up. The next call opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def _call(self, words: tuple[Word, ...]) -> bytes:
        try:
            try:
                answer = await self._ask("EVALSHA", self._sha, *words)
            except NoScriptError:  # the store is new, or was started again
                await self._ask("SCRIPT", "LOAD", self._text)
                answer = await self._ask("EVALSHA", self._sha, *words)
            if self._replicas:
                had = int(await self._ask("WAIT", self._replicas, round(REPLICAS_SECONDS * 1000)))
                if had < self._replicas:
                    raise TooFewReplicas(f"{had} of {self._replicas} replicas have the newest write")
            return answer
        except BaseException:
            # Made afresh, it looks the address up again and reads certificates anew; and no answer that comes
            # late is taken for that of the next call.
            await self.aclose()
            raise

    async def _ask(self, *words: Word) -> bytes:
        if self._connection is None:
            # Its own timeout would start a task for each send; that around the call bounds it all.
            settings = {**self._pool.connection_kwargs, "socket_timeout": None}
            self._connection = self._pool.connection_class(**settings)
        await self._connection.send_packed_command(packed(words), check_health=False)
        answer: bytes = await self._connection.read_response(timeout=math.inf)
        return answer


def packed(words: Sequence[Word]) -> list[bytes]:
    """A command as the Redis protocol has it, in pieces to be sent one after the other."""
    pieces: list[bytes] = []
    small = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        small.append(b"$%d\r\n" % len(data))
        if len(data) > _APART_BYTES:
            pieces += [b"".join(small), data]
            small.clear()
        else:
            small.append(data)
        small.append(b"\r\n")
    pieces.append(b"".join(small))
    return pieces
