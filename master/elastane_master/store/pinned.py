"""Frequently called scripts, over a few connections shared by all jobs.

`redis.asyncio` borrows a connection for each call, packs it word by word and starts a task to bound each
send: more work than the script itself. A job's log makes one call at a time, thousands per second, so calls
use ready connections, with one timeout around the whole call. Connecting, TLS, authentication and parsing are
those of `redis.asyncio`.

A job holds a connection only during a call: a thousand jobs need no more connections than there are
simultaneous calls, and never more than the limit.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

from hiredis import pack_command
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import NoScriptError, RedisError, ResponseError

T = TypeVar("T")
Word = bytes | int | str

CONNECTIONS_MAX = 32
"""Default limit of connections to one store."""

_APART_BYTES = 64 * 1024
"""Longer words are passed to the socket as they are, not copied."""


REPLICAS_SECONDS = 1.0
"""Time for replicas to receive a write before it is repeated."""


class TooFewReplicas(RedisError):  # noqa: N818 - says what happened
    """The write is stored, but on too few replicas."""


class _Call:
    """A call in progress.

    ends_at: the loop's time at which it is given up. is_late: that has happened. cancelling: how often its
    task had been cancelled before.
    """

    __slots__ = ("cancelling", "ends_at", "is_late", "task")

    def __init__(self, task: asyncio.Task[Any], ends_at: float) -> None:
        self.task = task
        self.ends_at = ends_at
        self.is_late = False
        self.cancelling = task.cancelling()


class CallTimeouts:
    """Bounds the duration of calls, all with one timer: a timeout for each is a fifth of a call's CPU.

    seconds: of each call; None: no bound. Used from one event loop.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._calls: dict[_Call, None] = {}  # by their ends, as all have the same duration
        self._timer: asyncio.TimerHandle | None = None

    async def bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Raises TimeoutError when its time is over."""
        task = asyncio.current_task()
        if self.seconds is None or task is None:
            return await work
        loop = asyncio.get_running_loop()
        call = _Call(task, loop.time() + self.seconds)
        self._calls[call] = None
        if self._timer is None:
            self._timer = loop.call_at(call.ends_at, self._look)
        try:
            return await work
        except asyncio.CancelledError:
            # Cancelled by its caller, too: then that counts.
            if not call.is_late or task.uncancel() > call.cancelling:
                raise
            raise TimeoutError from None
        finally:
            del self._calls[call]

    def _look(self) -> None:
        """End the calls whose time is over, and look again when the next one's is."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for call in self._calls:
            if call.is_late:  # it takes a turn of the loop to end
                continue
            if call.ends_at > now:
                self._timer = loop.call_at(call.ends_at, self._look)
                break
            call.is_late = True
            call.task.cancel()


class ScriptConnections:
    """Connections of all pinned scripts of one store: `connections_max` at most.

    A call waits if all of them are in use. opened: number of open connections. failed: called with every
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
        # No socket timeout: it would start a task for each send. The timeout around the call bounds
        # everything.
        self.timeouts = CallTimeouts(self._pool.connection_kwargs.get("socket_timeout"))

    async def take(self) -> tuple[AbstractConnection, bool]:
        """Return a connection and whether it was used before; pass it to `give_back` or `discard`."""
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
        """Return a connection on which no answer is outstanding."""
        self._free.append(connection)
        self._room.release()

    async def discard(self, connection: AbstractConnection) -> None:
        """Close a connection that failed or whose late answer could be taken for another call's."""
        self.opened -= 1
        self._room.release()
        await connection.disconnect(nowait=True)

    async def aclose(self) -> None:
        """Close idle connections: new ones resolve the address again and read renewed certificates."""
        while self._free:
            connection = self._free.pop()
            self.opened -= 1
            await connection.disconnect(nowait=True)


class PinnedScript:
    """One Lua script.

    replicas: number of replicas that must have a call's write. To repeat a call that failed with
    TooFewReplicas, the script must write again: WAIT covers only writes of its own connection.
    """

    def __init__(self, connections: ScriptConnections, text: str, replicas: int = 0) -> None:
        self._replicas = replicas
        self._connections = connections
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(self, *, keys: Sequence[str], args: Iterable[Word] = ()) -> bytes:
        """Run the script; return its result. Raises redis errors (TooFewReplicas), and TimeoutError.

        A call may reach the store twice: if the connection broke while idle, that only shows when no answer
        arrives.
        """
        return (await self.many([(keys, (*args,))]))[0]

    async def many(self, calls: Sequence[tuple[Sequence[str], Sequence[Word]]]) -> list[bytes]:
        """Run the script for each (keys, arguments), all sent at once; return the results.

        Raises as a call.
        """
        words = [(len(keys), *keys, *args) for keys, args in calls]
        return await self._connections.timeouts.bounded(self._tried(words))

    async def _tried(self, calls: Sequence[tuple[Word, ...]]) -> list[bytes]:
        connection, was_open = await self._connections.take()
        try:
            return await self._call(connection, calls)
        except ConnectionLost:
            # The server may have closed a connection while it was idle: try once more on a new one.
            if not was_open:
                raise
        connection, _ = await self._connections.take()
        return await self._call(connection, calls)

    async def _call(self, connection: AbstractConnection, calls: Sequence[tuple[Word, ...]]) -> list[bytes]:
        try:
            try:
                answers = await self._ask(connection, calls)
            except NoScriptError:  # the store is new, or was started again
                await _ask(connection, [("SCRIPT", "LOAD", self._text)])
                answers = await self._ask(connection, calls)
            # WAIT covers only writes of its own connection, so it must follow on the same one.
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
    """Return the answer to each command. Raises the first error among them, after all are read."""
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
    """Encode a command in the Redis protocol, in pieces to be sent one after the other."""
    if not [word for word in words if isinstance(word, bytes) and len(word) > _APART_BYTES]:
        return [pack_command(cast("Any", tuple(words)))]  # its stub knows tuples of one word only
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
