"""Scripts that are called again and again, over few connections that all jobs share.

`redis.asyncio` borrows a connection for each call, packs it word by word and starts a task to bound each
send: more work than the script itself. A job's log makes one call at a time, thousands a second, so calls
take a connection that lies ready, and one timeout is around the whole call. Connecting, TLS, the password
and parsing are those of `redis.asyncio`.

A job holds a connection only while a call of its is under way: a thousand jobs need no more of them than
calls are made at the same time, and never more than the bound.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError, ResponseError

Word = bytes | int | str

CONNECTIONS_MAX = 32
"""Of one store, where nobody says otherwise."""

_APART_BYTES = 64 * 1024
"""Longer words are handed to the socket as they are, not copied."""


REPLICAS_SECONDS = 1.0
"""So long replicas have for a write before it is said again."""


class TooFewReplicas(RedisError):  # noqa: N818 - says what happened
    """The write is stored, but not where it has to be, too."""


class ScriptConnections:
    """The connections of all pinned scripts of one store: `connections_max` at most.

    A call that finds all of them in use waits for its turn. opened: how many there are. failed: told of every
    error of a call. Used from one event loop.
    """

    def __init__(
        self,
        redis: Redis,
        connections_max: int = CONNECTIONS_MAX,
        failed: Callable[[RedisError], None] = lambda _: None,
    ) -> None:
        self.failed = failed
        self.opened = 0
        self._pool = redis.connection_pool
        self._room = asyncio.Semaphore(connections_max)
        self._free: list[AbstractConnection] = []
        # Its own timeout would start a task for each send; that around the call bounds it all.
        self.timeout_seconds: float | None = self._pool.connection_kwargs.get("socket_timeout")

    async def take(self) -> tuple[AbstractConnection, bool]:
        """A connection, and whether it was used before; `give_back` or `discard` it."""
        await self._room.acquire()
        if self._free:
            return self._free.pop(), True
        try:
            settings = {**self._pool.connection_kwargs, "socket_timeout": None}
            connection = self._pool.connection_class(**settings)
        except BaseException:
            self._room.release()
            raise
        self.opened += 1
        return connection, False

    def give_back(self, connection: AbstractConnection) -> None:
        """Nothing is outstanding on it."""
        self._free.append(connection)
        self._room.release()

    async def discard(self, connection: AbstractConnection) -> None:
        """It failed, or an answer may still come: nobody takes that for the answer of another call."""
        self.opened -= 1
        self._room.release()
        await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Gives up those that nobody uses: made afresh they look the address up, and read certificates."""
        while self._free:
            connection = self._free.pop()
            self.opened -= 1
            await connection.disconnect(nowait=True)


class PinnedScript:
    """One Lua script.

    replicas: so many must have what a call wrote. Whoever repeats one that they did not have in time has to
    write again: a connection waits for its own writes only.
    """

    def __init__(self, connections: ScriptConnections, text: str, replicas: int = 0) -> None:
        self._replicas = replicas
        self._connections = connections
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, *, keys: Sequence[str], args: Iterable[Word] = ()) -> bytes:
        """What the script returns. Raises redis errors (TooFewReplicas), and TimeoutError without an answer.

        A call may reach the store twice: where the connection ended while nobody used it, nothing tells
        before an answer fails to come.
        """
        return (await self.many([(keys, (*args,))]))[0]

    async def many(self, calls: Sequence[tuple[Sequence[str], Sequence[Word]]]) -> list[bytes]:
        """What the script returns for each of (keys, arguments), all sent in one go. Raises as a call."""
        words = [(len(keys), *keys, *args) for keys, args in calls]
        async with asyncio.timeout(self._connections.timeout_seconds):
            connection, was_open = await self._connections.take()
            try:
                return await self._call(connection, words)
            except ConnectionLost:
                if not was_open:
                    raise
            connection, _ = await self._connections.take()
            return await self._call(connection, words)

    async def _call(self, connection: AbstractConnection, calls: Sequence[tuple[Word, ...]]) -> list[bytes]:
        try:
            try:
                answers = await self._ask(connection, calls)
            except NoScriptError:  # the store is new, or was started again
                await _ask(connection, [("SCRIPT", "LOAD", self._text)])
                answers = await self._ask(connection, calls)
            if self._replicas:
                (had,) = await _ask(connection, [("WAIT", self._replicas, round(REPLICAS_SECONDS * 1000))])
                if int(had) < self._replicas:
                    raise TooFewReplicas(f"{int(had)} of {self._replicas} replicas have the newest write")
        except BaseException as error:
            await self._connections.discard(connection)
            if isinstance(error, RedisError):  # the store was away, or another one took its place
                self._connections.failed(error)
                await self._connections.aclose()
            raise
        self._connections.give_back(connection)
        return answers

    async def _ask(self, connection: AbstractConnection, calls: Sequence[tuple[Word, ...]]) -> list[bytes]:
        return await _ask(connection, [("EVALSHA", self._sha, *words) for words in calls])


async def _ask(connection: AbstractConnection, commands: Sequence[Sequence[Word]]) -> list[bytes]:
    """The answer to each command. Raises the first error among them, once all are read."""
    pieces = [piece for words in commands for piece in packed(words)]
    await connection.send_packed_command(pieces, check_health=False)
    answers: list[bytes] = []
    failed: ResponseError | None = None
    for _ in commands:
        try:
            answers.append(await connection.read_response(timeout=math.inf))
        except ResponseError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return answers


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
