"""Redis in virtual time: the master's own Lua scripts run on this model's data, in a real Lua 5.1.

The server can crash before or after a write, come back unchanged or as of its last fsync (having lost
acknowledged writes), refuse, or be slow. A client's request can be lost, delayed, or outlast the client's
timeout: then it may still arrive after its repetition.
"""

from __future__ import annotations

import copy
import fnmatch
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from lupa.lua51 import LuaError, LuaRuntime
from redis.exceptions import BusyLoadingError, ConnectionError, ReadOnlyError, ResponseError, TimeoutError

from elastane_master.store.closed import CHECK, DELETE, TAKE
from elastane_master.store.fenced_scripts import ACQUIRE, WRITE
from sim.network import Network
from sim.process import Process
from sim.world import World

PLACE = "store"
PATIENCE_SECONDS = 1.0
FSYNC_SHARE = 0.2
FSYNC_SECONDS = 1.0
LOST_SECONDS_MAX = 2 * FSYNC_SECONDS
"""Most seconds of writes that a power cut can erase, as with `appendfsync everysec`."""

REMEMBERED_WRITES = 64
"""Most newest writes that a truncation of the file can erase."""

EXPIRIES = b"when keys expire"
"""Key in the data under which expiry times are kept, since a real server's file holds them too."""

EntryId = tuple[int, int]


@dataclass
class StreamData:
    """A Redis stream. last: the highest id that was ever used."""

    last: EntryId = (0, 0)
    entries: list[tuple[EntryId, bytes]] = field(default_factory=list)


class StoreServer:
    """The server process and its disk.

    appended: called with (key, payload) of each new stream entry. lost: called with (key, payloads) of lost
    ones. is_begun: returns True once its file may be truncated. clock_offset_seconds: error of its clock, by
    which keys expire. renamed: called with (key, value) when the field `id` of a hash changes.
    fenced: called with the holder's token and the writer's when a master's write is refused; where a closed
    job is refused to the process that acquired it last, the writer's token is the holder's.
    scripted: called with (text, process, done) before a script of a process runs, and after; the server may
    die of it.
    """

    place = PLACE

    def __init__(self, world: World, network: Network) -> None:
        self.world, self.network = world, network
        self.data: dict[bytes, Any] = {}
        self.is_up = True
        self.refuses_until = self.slow_until = 0.0
        self.crash_next: str = ""
        self.down_seconds = 0.0
        self.appended: Callable[[bytes, bytes], None] = lambda key, payload: None
        self._synced: dict[bytes, Any] = {}
        self.lost: Callable[[bytes, list[bytes]], None] = lambda key, payloads: None
        self._since_sync = 0
        self._synced_at = self._wrote_at = 0.0
        self.is_begun: Callable[[], bool] = lambda: False
        self._before: deque[dict[bytes, Any]] = deque(maxlen=REMEMBERED_WRITES)
        self.clock_offset_seconds = 0.0
        self.forgot_at = float("-inf")
        self.renamed: Callable[[bytes, bytes], None] = lambda key, value: None
        self.scripted: Callable[[str, str, bool], None] = lambda text, process, done: None
        self.acquired_by: dict[str, str] = {}
        self.fenced: Callable[[int, int], None] = lambda holder, token: None
        self._poppers: list[tuple[bytes, Callable[[bytes | None, Exception | None], bool]]] = []

    # ------------------------------------------------------------------ faults

    def crash(self, down_seconds: float, *, lose: bool = False) -> None:
        """SIGKILL and restart it. lose: its host lost power, so writes since the last fsync are gone."""
        if not self.is_up:
            return
        self.world.log(
            f"STORE crashes for {down_seconds:.2f} s, loses {self._since_sync if lose else 0} writes"
        )
        self._go_down()
        if lose and self.world.now - self._wrote_at < FSYNC_SECONDS:
            self.forgot_at = self.world.now
            before, self.data = self.data, _all_copied(self._synced)
            for key, value in before.items():
                if isinstance(value, StreamData):
                    last = self.data[key].last if key in self.data else (0, 0)
                    self.lost(key, [payload for entry, payload in value.entries if entry > last])
            self._since_sync = 0
        self.world.after(down_seconds, self._restart)

    def cut(self, writes: int, down_seconds: float) -> None:
        """SIGKILL it and drop the newest `writes` of its file, except the first commit and earlier ones."""
        self.world.log(f"STORE crashes for {down_seconds:.2f} s, its file loses {writes} writes")
        self._go_down()
        self.forgot_at = self.world.now
        for _ in range(min(writes, len(self._before))):
            self.data = self._before.pop()
        self.sync()
        self.world.after(down_seconds, self._restart)

    def _go_down(self) -> None:
        self.is_up = False
        poppers, self._poppers = self._poppers, []
        for _, answer in poppers:
            answer(None, ConnectionError("connection reset"))

    def _restart(self) -> None:
        self.is_up = True
        self.world.log("STORE is back")

    # ------------------------------------------------------------------ requests

    def perform(self, operation: Callable[[StoreServer], Any], *, writes: bool) -> Any:
        """Execute a request that has arrived; return its result, or raise what the client will raise."""
        if not self.is_up:
            raise ConnectionError("connection refused")
        if self.world.now < self.refuses_until:
            raise self.world.rng.choice((BusyLoadingError("loading"), ReadOnlyError("read only")))
        if self.data.get(EXPIRIES):
            self._expire()
        if writes and self.crash_next == "before":
            self._crash_now()
            raise ConnectionError("connection reset")
        if writes and self.world.now - self._synced_at >= FSYNC_SECONDS:
            self.sync()
        if writes and self.is_begun():
            self._before.append(_all_copied(self.data))
        result = operation(self)
        if writes:
            self._since_sync += 1
            self._wrote_at = self.world.now
            if self.world.rng.random() < FSYNC_SHARE:
                self.sync()
            if self.crash_next == "after":
                self._crash_now()
                raise ConnectionError("connection reset")
        return result

    def _crash_now(self) -> None:
        self.world.log(f"STORE dies {self.crash_next} a write")
        self.crash_next = ""
        self.crash(self.down_seconds)

    def met(self, text: str, process: str, *, done: bool) -> None:
        """A script of a process is about to run, or has run. Raises ConnectionError if the server dies."""
        self.scripted(text, process, done)
        if not self.is_up:
            raise ConnectionError("connection reset")

    def sync(self) -> None:
        """Fsync: mark all data as written to the disk."""
        self._synced, self._since_sync, self._synced_at = _all_copied(self.data), 0, self.world.now

    def entries(self, key: bytes) -> list[tuple[EntryId, bytes]]:
        """Return all entries of a stream."""
        stream = self.data.get(key)
        return stream.entries if stream is not None else []

    # ------------------------------------------------------------------ commands

    def call(self, name: bytes, *arguments: Any) -> Any:
        """Execute one command of a Lua script; return the value as Lua sees it."""
        words = [_bytes(argument) for argument in arguments]
        return getattr(self, f"_{name.decode().lower()}")(*words)

    def _hincrby(self, key: bytes, field_name: bytes, by: bytes) -> int:
        table = self.data.setdefault(key, {})
        value = int(table.get(field_name, b"0")) + int(by)
        table[field_name] = b"%d" % value
        return value

    def _hget(self, key: bytes, field_name: bytes) -> bytes | bool:
        return self.data.get(key, {}).get(field_name, False)

    def _hmget(self, key: bytes, *names: bytes) -> Any:
        table = self.data.get(key, {})
        return _lua().table_from([table.get(name, False) for name in names])

    def _hgetall(self, key: bytes) -> Any:
        return _lua().table_from([word for pair in self.data.get(key, {}).items() for word in pair])

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        table = self.data.setdefault(key, {})
        before = table.get(b"id")
        table.update(zip(pairs[::2], pairs[1::2], strict=True))
        if table.get(b"id") != before:
            self.renamed(key, table[b"id"])
        return len(pairs) // 2

    def _hdel(self, key: bytes, *names: bytes) -> int:
        table = self.data.get(key, {})
        return sum(table.pop(name, None) is not None for name in names)

    def _unlink(self, *keys: bytes) -> int:
        return sum(self._del(key) for key in keys)

    def _persist(self, key: bytes) -> int:
        return int(self.data.get(EXPIRIES, {}).pop(key, None) is not None)

    # Expiring keys and blocking list reads, which the leader's lease needs.

    @property
    def _wall(self) -> float:
        return self.world.now + self.clock_offset_seconds

    def _expire(self) -> None:
        expiries = self.data[EXPIRIES]
        for key in [key for key, at in expiries.items() if at <= self._wall]:
            self._del(key)

    def _pexpire(self, key: bytes, milliseconds: bytes) -> int:
        if key not in self.data:
            return 0
        self.data.setdefault(EXPIRIES, {})[key] = self._wall + int(milliseconds) / 1000
        return 1

    def _pttl(self, key: bytes) -> int:
        if key not in self.data:
            return -2
        at = self.data.get(EXPIRIES, {}).get(key)
        return -1 if at is None else max(0, round((at - self._wall) * 1000))

    def _rpush(self, key: bytes, value: bytes) -> int:
        waiting, self._poppers = self._poppers, []
        taken = False
        for wanted, answer in waiting:
            if taken or wanted != key:
                self._poppers.append((wanted, answer))
            else:
                taken = answer(value, None)
        if not taken:
            self.data[key] = (*self.data.get(key, ()), value)
        return 1

    def pop(self, key: bytes, answer: Callable[[bytes | None, Exception | None], bool]) -> None:
        """Answer with the first element of a list, now or once there is one.

        answer: called with (value, error); returns whether the client still wanted it.
        """
        values = self.data.get(key, ())
        if values:
            self.data[key] = values[1:]
            answer(values[0], None)
        else:
            self._poppers.append((key, answer))

    def _set(self, key: bytes, value: bytes) -> bytes:
        self.data[key] = value
        return b"OK"

    def _strlen(self, key: bytes) -> int:
        return len(self.data.get(key, b""))

    def _del(self, *keys: bytes) -> int:
        for key in keys:
            self.data.get(EXPIRIES, {}).pop(key, None)
        return sum(self.data.pop(key, None) is not None for key in keys)

    def _xlen(self, key: bytes) -> int:
        return len(self.entries(key))

    def _xrange(self, key: bytes, start: bytes, end: bytes, word: bytes, count: bytes) -> Any:
        assert (end, word) == (b"+", b"COUNT")
        first = _entry_id(start)
        return _entry_table([entry for entry in self.entries(key) if entry[0] >= first][: int(count)])

    def _xrevrange(self, key: bytes, end: bytes, start: bytes, word: bytes, count: bytes) -> Any:
        assert (end, start, word) == (b"+", b"-", b"COUNT")
        return _entry_table(self.entries(key)[-int(count) :][::-1])

    def _xdel(self, key: bytes, name: bytes) -> int:
        stream: StreamData = self.data[key]
        stream.entries = [entry for entry in stream.entries if entry[0] != _entry_id(name)]
        return 1

    def _xadd(self, key: bytes, *words: bytes) -> bytes:
        stream: StreamData = self.data.setdefault(key, StreamData())
        kept = None
        if words[0] == b"MAXLEN":
            kept, words = int(words[2]), words[3:]
        name, (_, payload) = words[0], words[1:]
        if name == b"*":
            now = int(self._wall * 1000)
            entry = (now, 0) if now > stream.last[0] else (stream.last[0], stream.last[1] + 1)
        else:
            entry = _entry_id(name)
        if entry <= stream.last:
            raise ResponseError(
                "the ID specified in XADD is equal or smaller than the target stream top item"
            )
        stream.last = entry
        stream.entries.append((entry, payload))
        if kept is not None and len(stream.entries) > kept + 100:  # "~": trimmed only in larger batches
            del stream.entries[: len(stream.entries) - kept]
        self.appended(key, payload)
        return _name(entry)


def _all_copied(data: dict[bytes, Any]) -> dict[bytes, Any]:
    return {key: _copied(value) for key, value in data.items()}


def _copied(value: Any) -> Any:
    """Copy a value of the store so that it can be changed; stream entries are immutable and shared."""
    if isinstance(value, StreamData):
        return StreamData(value.last, value.entries.copy())
    return copy.copy(value)


class PinnedScriptModel:
    """Model of a script that runs over pinned connections."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    async def __call__(self, **words: Any) -> Any:
        return await self._run(**words)

    async def many(self, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        return [await self._run(keys=keys, args=args) for keys, args in calls]


class StoreClient:
    """The part of `redis.asyncio.Redis` that the master uses, for one process.

    asked: called with (number of the call, from 1; whether it was executed), before a call is sent and after
    the server has executed it.
    """

    def __init__(self, server: StoreServer, network: Network, process: Process) -> None:
        self._server, self._network, self._process = server, network, process
        self.calls = 0
        self.holder = process.name
        self.asked: Callable[[int, bool], None] = lambda number, acted: None

    def pinned_script(self, text: str, replicas: int = 0) -> PinnedScriptModel:
        return PinnedScriptModel(self.register_script(text))

    def register_script(self, text: str) -> Callable[..., Any]:
        async def run(*, keys: Sequence[str], args: Sequence[bytes | int | str] = ()) -> Any:
            def operation(server: StoreServer) -> Any:
                server.met(text, self._process.name, done=False)
                result = _script(text, server, [_bytes(key) for key in keys], [_bytes(word) for word in args])
                if text in (ACQUIRE, TAKE):
                    server.acquired_by[keys[0]] = self._process.name
                if text in (WRITE, CHECK, DELETE) and result.startswith(b"FENCED:"):
                    own = text != WRITE and server.acquired_by.get(keys[0]) == self._process.name
                    server.fenced(int(args[0]) if own else int(result.partition(b":")[2]), int(args[0]))
                server.met(text, self._process.name, done=True)
                return result

            return await self._ask(operation, writes=True)

        return run

    async def get(self, key: str) -> bytes | None:
        return await self._ask(lambda server: server.data.get(key.encode()))

    async def hget(self, key: str, field_name: str) -> bytes | None:
        return await self._ask(lambda server: server.data.get(key.encode(), {}).get(field_name.encode()))

    async def hmget(self, key: str, names: Sequence[str]) -> list[bytes | None]:
        def operation(server: StoreServer) -> list[bytes | None]:
            table = server.data.get(key.encode(), {})
            return [table.get(name.encode()) for name in names]

        return await self._ask(operation)

    async def smembers(self, key: str) -> set[bytes]:
        return await self._ask(lambda server: set(server.data.get(key.encode(), ())))

    async def sadd(self, key: str, *members: str) -> int:
        def operation(server: StoreServer) -> int:
            server.data.setdefault(key.encode(), set()).update(member.encode() for member in members)
            return 1

        return await self._ask(operation, writes=True)

    async def srem(self, key: str, member: str) -> int:
        def operation(server: StoreServer) -> int:
            server.data.get(key.encode(), set()).discard(member.encode())
            return 1

        return await self._ask(operation, writes=True)

    async def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]:
        pattern = match.replace("{", "[{]").encode()
        for key in await self._ask(lambda server: sorted(server.data)):
            if fnmatch.fnmatchcase(key, pattern):
                yield key

    async def xrange(self, key: str, min: str = "-", count: int = 1000) -> Any:
        low = (-1, 0) if min == "-" else _entry_id(min.removeprefix("(").encode())

        def operation(server: StoreServer) -> Any:
            beyond = min.startswith("(")
            found = [e for e in server.entries(key.encode()) if e[0] > low or (e[0] == low and not beyond)]
            return [(_name(entry), {b"field": payload}) for entry, payload in found[:count]]

        return await self._ask(operation)

    async def xinfo_stream(self, key: str) -> dict[str, Any]:
        def operation(server: StoreServer) -> dict[str, Any]:
            stream: StreamData | None = server.data.get(key.encode())
            if stream is None:
                raise ResponseError("no such key")
            last = [(_name(entry), {b"field": payload}) for entry, payload in stream.entries[-1:]]
            return {
                "length": len(stream.entries),
                "last-generated-id": _name(stream.last),
                "last-entry": last[0] if last else None,
            }

        return await self._ask(operation)

    async def blpop(self, keys: Sequence[str], timeout: float) -> Any:
        process, server, network = self._process, self._server, self._network
        answer = process.create_future()

        def settle(value: bytes | None, failure: Exception | None) -> None:
            if not answer.done():
                answer.set_exception(failure) if failure is not None else answer.set_result(value)

        def popped(value: bytes | None, failure: Exception | None) -> bool:
            if not process.alive or answer.done():
                return False
            process.call_at(network.arrival(PLACE, process.name), settle, value, failure)
            return True

        def arrive() -> None:
            if server.is_up:
                server.pop(keys[0].encode(), popped)
            else:
                popped(None, ConnectionError("connection refused"))

        process.world.at(network.arrival(process.name, PLACE), arrive)
        patience = process.call_later(timeout, settle, None, None)
        try:
            return await answer
        finally:
            patience.cancel()

    async def aclose(self) -> None:
        pass

    async def _ask(self, operation: Callable[[StoreServer], Any], *, writes: bool = False) -> Any:
        process, server, network = self._process, self._server, self._network
        world, answer = process.world, process.create_future()
        self.calls += 1
        number = self.calls

        def settle(error: Exception | None, result: Any) -> None:
            if not answer.done():
                answer.set_exception(error) if error is not None else answer.set_result(result)

        def arrive() -> None:
            slow = world.rng.uniform(0.0, 1.5) if world.now < server.slow_until else 0.0
            result, failure = None, None
            try:
                result = server.perform(operation, writes=writes)
            except (ConnectionError, ResponseError, TimeoutError) as error:
                failure = error
            self.asked(number, True)
            back = network.arrival(PLACE, process.name) + slow
            process.call_at(back, settle, failure, result)

        self.asked(number, False)
        world.at(network.arrival(process.name, PLACE), arrive)
        patience = process.call_later(
            PATIENCE_SECONDS, settle, TimeoutError("timeout reading from the store"), None
        )
        try:
            return await answer
        finally:
            patience.cancel()


# ---------------------------------------------------------------- Lua

_serving: list[StoreServer] = []


@cache
def _lua() -> Any:
    runtime = LuaRuntime(encoding=None, unpack_returned_tuples=True)
    globals_ = runtime.globals()
    globals_[b"redis"] = runtime.table_from({b"call": lambda *words: _serving[-1].call(*words)})
    return runtime


@cache
def _compiled(text: str) -> Any:
    return _lua().execute(f"return function(KEYS, ARGV) {text}\nend".encode())


def _script(text: str, server: StoreServer, keys: list[bytes], words: list[bytes]) -> Any:
    runtime = _lua()
    _serving.append(server)
    try:
        result = _compiled(text)(runtime.table_from(keys), runtime.table_from(words))
    except LuaError as error:
        raise ResponseError(str(error)) from error
    finally:
        _serving.pop()
    if isinstance(result, bytes | int):
        return result
    return list(result.values())


def _entry_table(entries: list[tuple[EntryId, bytes]]) -> Any:
    """Return entries as Lua tables: pairs of the id and a table of field and value."""
    table = _lua().table_from
    return table([table([_name(entry), table([b"field", payload])]) for entry, payload in entries])


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, float):
        value = int(value)
    return str(value).encode()


def _entry_id(name: bytes) -> EntryId:
    number, _, part = name.partition(b"-")
    return int(number), int(part or b"0")


def _name(entry: EntryId) -> bytes:
    return b"%d-%d" % entry
