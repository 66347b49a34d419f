"""Authenticated key-value store in which the members of a generation meet.

Process groups exchange their members' addresses through a store. torch's TCPStore admits everybody: any
client that reaches it can list, read and overwrite all keys. Here a client first proves that it knows the
secret of the group it names, and so does the store; from then on each message carries a MAC that only the
two can compute. Messages can be eavesdropped on, like those of a ring without TLS, but not forged.

    RendezvousStore      one per worker; the group of a generation meets at its first member's store
    MemberStore          a member's connection to it, used by torch's process groups as a store

    member -> store   group, nonce               store -> member   nonce
    member -> store   proof of the secret        store -> member   proof of the secret
    member -> store   requests with MAC          store -> member   answers with MAC

A store's key is known only to its worker and the master, who gives each member of a generation the secret of
that generation alone (elastane_proto.rendezvous): an evicted worker cannot join the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import os
import selectors
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Final

import torch.distributed
from torch._C._distributed_c10d import Store

from elastane_common import own_port
from elastane_proto.rendezvous import group_secret

#: Backlog of connections that are not accepted yet.
_BACKLOG: Final = 1024
#: Time limit of a connection that has not proved the secret, and limit of their number.
STRANGER_SECONDS: Final = 10.0
STRANGERS_MAX: Final = 1024
#: Limit of groups at a time; beyond it the oldest is dropped.
GROUPS_MAX: Final = 16
_GREETING: Final = b"elastane rendezvous 1\n"
_NONCE_BYTES: Final = 32
_CODE_BYTES: Final = 32
_HANDSHAKE_BYTES_MAX: Final = 512
_MESSAGE_BYTES_MAX: Final = 16 * 2**20
#: Limit of all values of a group together.
GROUP_BYTES_MAX: Final = 256 * 2**20
_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">q")


class _Ask(IntEnum):
    SET = 1
    ADD = 2
    #: Read the values of keys as soon as all exist, or time out.
    WAIT = 3
    CHECK = 4
    SWAP = 5
    DELETE = 6


class _Answer(IntEnum):
    DONE = 1
    LATE = 2


class RendezvousError(RuntimeError):
    """The store is unreachable, does not know the secret, or has closed the connection."""


class RendezvousLate(torch.distributed.DistStoreError):
    """The awaited keys were not written in time."""


class RendezvousStore:
    """The store this worker hosts for groups whose first member it is.

    host: address or name under which the other workers reach this one. Listens on a free port of that address
    and of no other. key: the secrets of groups are derived from it; empty: groups have no secret. Raises
    RefusedError if the address does not belong to this machine.
    """

    def __init__(self, host: str, key: bytes = b"") -> None:
        self.key = key
        self._listener = listen(host)
        bracketed = f"[{host}]" if ":" in host else host
        self.address = f"{bracketed}:{self._listener.getsockname()[1]}"
        self._wake_read, self._wake_write = socket.socketpair()
        self._thread = threading.Thread(
            target=_Serving(self._listener, self._wake_read, key).run, name="elastane-rendezvous", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Stop listening; groups that are still forming here fail. Idempotent."""
        self._wake_write.close()
        self._thread.join()
        atexit.unregister(self.close)


def listen(host: str) -> socket.socket:
    """Return a socket that listens on a free port of `host` alone. Raises RefusedError."""
    hint = "set ELASTANE_STORE_HOST to the address of this machine at which other workers reach it"
    return own_port.listen(host, _BACKLOG, failure="this worker cannot listen at", hint=hint)


# ------------------------------------------------------------------ messages of both sides


def _proof(secret: bytes, who: bytes, group: bytes, nonces: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join((who, _LENGTH.pack(len(group)), group, nonces)), "sha256")


class _Codes:
    """MACs of one direction. Each covers the message's number, so that none can be replayed."""

    def __init__(self, secret: bytes, direction: bytes, group: bytes, nonces: bytes) -> None:
        self._key = _proof(secret, direction, group, nonces)
        self._count = 0

    def next(self, body: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, _NUMBER.pack(self._count) + body, "sha256")


def _framed(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _packed(kind: int, *parts: bytes) -> bytes:
    return bytes([kind]) + b"".join(_framed(part) for part in parts)


def _unpacked(body: bytes) -> tuple[int, list[bytes]]:
    """Split a message into its kind and parts. Raises ValueError if it is malformed."""
    if not body:
        raise ValueError("an empty message")
    parts, at = [], 1
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise ValueError("a message that breaks off")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if at + length > len(body):
            raise ValueError("a message that breaks off")
        parts.append(body[at : at + length])
        at += length
    return body[0], parts


# ------------------------------------------------------------------ the store's side


@dataclass
class _Group:
    values: dict[bytes, bytes] = field(default_factory=dict)
    bytes: int = 0
    waiting: list[_Wait] = field(default_factory=list)
    callers: int = 0


@dataclass
class _Wait:
    caller: _Caller
    keys: list[bytes]
    #: Deadline on the monotonic clock.
    until: float


class _Caller:
    """One connection. `group` is set once the client has proved the secret."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.since = time.monotonic()
        self.group: _Group | None = None
        self.named = b""
        self.nonces = b""
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.heard: _Codes | None = None
        self.said: _Codes | None = None

    @property
    def stranger(self) -> bool:
        return self.group is None


class _Serving:
    """The event loop of a store, run in its thread."""

    def __init__(self, listener: socket.socket, wake: socket.socket, key: bytes) -> None:
        self._listener, self._wake, self._key = listener, wake, key
        self._selector = selectors.DefaultSelector()
        self._callers: dict[socket.socket, _Caller] = {}
        self._strangers: OrderedDict[socket.socket, _Caller] = OrderedDict()
        self._groups: OrderedDict[bytes, _Group] = OrderedDict()

    def run(self) -> None:
        """Serve until the other end of `wake` is closed."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            while True:
                for selected, events in self._selector.select(self._until_next()):
                    connection = selected.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is self._wake:
                        return
                    if connection is self._listener:
                        self._accept()
                    elif caller := self._callers.get(connection):
                        self._serve(caller, events)
                self._end_late()
        finally:
            for connection in (*self._callers, self._listener, self._wake):
                connection.close()
            self._selector.close()

    def _until_next(self) -> float | None:
        """Return the seconds until the next deadline of a wait or an unauthenticated connection.

        Returns None if there is no deadline.
        """
        due = [wait.until for group in self._groups.values() for wait in group.waiting]
        if self._strangers:
            due.append(next(iter(self._strangers.values())).since + STRANGER_SECONDS)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _end_late(self) -> None:
        now = time.monotonic()
        while self._strangers:
            first = next(iter(self._strangers.values()))
            if len(self._strangers) <= STRANGERS_MAX and now < first.since + STRANGER_SECONDS:
                break
            self._drop(first)
        for group in self._groups.values():
            late = [wait for wait in group.waiting if wait.until <= now]
            for wait in late:
                group.waiting.remove(wait)
                self._answer(wait.caller, _Answer.LATE)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client disconnected, or descriptors have run out; it retries
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller = _Caller(connection)
        self._callers[connection] = self._strangers[connection] = caller
        self._selector.register(connection, selectors.EVENT_READ)

    def _serve(self, caller: _Caller, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(caller)
            if events & selectors.EVENT_READ:
                received = caller.connection.recv(1 << 16)
                if not received:
                    raise ConnectionError("it left")
                caller.incoming += received
                for message in self._messages(caller):
                    self._hear(caller, message)
        except BlockingIOError:
            pass
        except (OSError, ValueError, UnicodeDecodeError):
            self._drop(caller)

    def _messages(self, caller: _Caller) -> Iterator[bytes]:
        """Yield complete messages received. Raises ValueError for one that is too long."""
        while len(caller.incoming) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(caller.incoming)
            # An unauthenticated client must not make the store buffer more than a handshake.
            if length > (_HANDSHAKE_BYTES_MAX if caller.stranger else _MESSAGE_BYTES_MAX):
                raise ValueError("a message that is too long")
            if len(caller.incoming) < _LENGTH.size + length:
                return
            message = bytes(caller.incoming[_LENGTH.size : _LENGTH.size + length])
            del caller.incoming[: _LENGTH.size + length]
            yield message

    def _hear(self, caller: _Caller, message: bytes) -> None:
        if not caller.nonces:
            if not message.startswith(_GREETING) or len(message) < len(_GREETING) + _NONCE_BYTES:
                raise ValueError("another protocol")
            at = len(_GREETING)
            caller.named = message[at + _NONCE_BYTES :]
            # Both nonces enter the proofs and keys, so that neither side can replay an earlier connection.
            own = os.urandom(_NONCE_BYTES)
            caller.nonces = message[at : at + _NONCE_BYTES] + own
            self._send(caller, own)
        elif caller.group is None:
            secret = group_secret(self._key, caller.named.decode())
            wanted = _proof(secret, b"member", caller.named, caller.nonces)
            if not hmac.compare_digest(message, wanted):
                raise ValueError("it does not know the secret")
            caller.heard = _Codes(secret, b"asks", caller.named, caller.nonces)
            caller.said = _Codes(secret, b"answers", caller.named, caller.nonces)
            caller.group = self._group(caller.named)
            caller.group.callers += 1
            del self._strangers[caller.connection]
            self._send(caller, _proof(secret, b"host", caller.named, caller.nonces))
        else:
            assert caller.heard is not None
            body, code = message[:-_CODE_BYTES], message[-_CODE_BYTES:]
            if not hmac.compare_digest(code, caller.heard.next(body)):
                raise ValueError("somebody else speaks")
            self._ask(caller, caller.group, *_unpacked(body))

    def _group(self, name: bytes) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
            # The oldest group belongs to a superseded generation.
            while len(self._groups) > GROUPS_MAX:
                _, old = self._groups.popitem(last=False)
                for caller in [caller for caller in self._callers.values() if caller.group is old]:
                    self._drop(caller)
        return group

    def _ask(self, caller: _Caller, group: _Group, kind: int, parts: list[bytes]) -> None:
        match kind, parts:
            case _Ask.SET, [key, value]:
                self._put(caller, group, key, value)
            case _Ask.ADD, [key, number]:
                there = int(group.values.get(key, b"0"))
                self._put(caller, group, key, str(there + _NUMBER.unpack(number)[0]).encode())
            case _Ask.SWAP, [key, expected, wanted]:
                there_now = group.values.get(key)
                if there_now == expected or (there_now is None and not expected):
                    self._put(caller, group, key, wanted)
                else:
                    # As in torch's stores: for a missing key the answer is the expected value.
                    self._answer(caller, _Answer.DONE, expected if there_now is None else there_now)
            case _Ask.CHECK, keys:
                self._answer(caller, _Answer.DONE, b"1" if all(key in group.values for key in keys) else b"")
            case _Ask.DELETE, [key]:
                there_was = key in group.values
                group.bytes -= len(group.values.pop(key, b""))
                self._answer(caller, _Answer.DONE, b"1" if there_was else b"")
            case _Ask.WAIT, [wait, *keys]:
                until = time.monotonic() + _NUMBER.unpack(wait)[0] / 1e3
                group.waiting.append(_Wait(caller, keys, until))
                self._answer_waiting(group)
            case _:
                raise ValueError("no such request")

    def _put(self, caller: _Caller, group: _Group, key: bytes, value: bytes) -> None:
        group.bytes += len(value) - len(group.values.get(key, b""))
        if group.bytes > GROUP_BYTES_MAX:
            raise ValueError("more than a group has to say")
        group.values[key] = value
        self._answer(caller, _Answer.DONE, value)
        self._answer_waiting(group)

    def _answer_waiting(self, group: _Group) -> None:
        for wait in list(group.waiting):
            if all(key in group.values for key in wait.keys):
                group.waiting.remove(wait)
                self._answer(wait.caller, _Answer.DONE, *(group.values[key] for key in wait.keys))

    def _answer(self, caller: _Caller, kind: _Answer, *parts: bytes) -> None:
        assert caller.said is not None
        body = _packed(kind, *parts)
        self._send(caller, body + caller.said.next(body))

    def _send(self, caller: _Caller, message: bytes) -> None:
        caller.outgoing += _framed(message)
        with contextlib.suppress(OSError):  # the next read reports the end of the connection
            self._flush(caller)

    def _flush(self, caller: _Caller) -> None:
        with contextlib.suppress(BlockingIOError):
            while caller.outgoing:
                del caller.outgoing[: caller.connection.send(caller.outgoing)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if caller.outgoing else 0)
        self._selector.modify(caller.connection, events)

    def _drop(self, caller: _Caller) -> None:
        if self._callers.pop(caller.connection, None) is None:
            return
        self._strangers.pop(caller.connection, None)
        if caller.group is not None:
            caller.group.waiting = [wait for wait in caller.group.waiting if wait.caller is not caller]
            caller.group.callers -= 1
            if not caller.group.callers and self._groups.get(caller.named) is caller.group:
                del self._groups[caller.named]
        self._selector.unregister(caller.connection)
        caller.connection.close()


# ------------------------------------------------------------------ a member's side


class MemberStore(Store):
    """A member's connection to the store of its group, authenticated by the group's secret.

    timeout_seconds: of the connection, and of waits that specify none. Called from one thread. Raises
    RendezvousError, a RuntimeError like those of torch's stores; OSError if the store cannot be reached.
    """

    def __init__(self, host: str, port: int, group: str, secret: bytes, timeout_seconds: float) -> None:
        super().__init__()
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._connection = socket.create_connection((host, port), timeout_seconds)
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            name, own = group.encode(), os.urandom(_NONCE_BYTES)
            self._connection.sendall(_framed(_GREETING + own + name))
            nonces = own + self._read(_NONCE_BYTES)
            self._connection.sendall(_framed(_proof(secret, b"member", name, nonces)))
            if not hmac.compare_digest(self._read(_CODE_BYTES), _proof(secret, b"host", name, nonces)):
                raise RendezvousError("the rendezvous store does not know the secret of this generation")
        except BaseException:
            self._connection.close()
            raise
        self._said = _Codes(secret, b"asks", name, nonces)
        self._heard = _Codes(secret, b"answers", name, nonces)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask(_Ask.SET, key.encode(), _bytes(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._wait(keys, self._timeout_seconds)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def add(self, key: str, value: int) -> int:
        return int(self._ask(_Ask.ADD, key.encode(), _NUMBER.pack(value))[0])

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(_Ask.CHECK, *(key.encode() for key in keys))[0])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._wait(keys, self._timeout_seconds if timeout is None else timeout.total_seconds())

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        return self._ask(_Ask.SWAP, key.encode(), _bytes(expected_value), _bytes(desired_value))[0]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(_Ask.DELETE, key.encode())[0])

    def has_extended_api(self) -> bool:
        """True: `multi_get` and `multi_set` are supported."""
        return True

    def _wait(self, keys: Sequence[str], timeout_seconds: float) -> list[bytes]:
        wait = _NUMBER.pack(round(1e3 * timeout_seconds))
        return self._ask(_Ask.WAIT, wait, *(key.encode() for key in keys), seconds=timeout_seconds)

    def _ask(self, kind: _Ask, *parts: bytes, seconds: float = 0.0) -> list[bytes]:
        body = _packed(kind, *parts)
        with self._lock:
            try:
                # The store itself ends a wait after `seconds`; the rest is time for its answer to arrive.
                self._connection.settimeout(self._timeout_seconds + seconds)
                self._connection.sendall(_framed(body + self._said.next(body)))
                message = self._read()
            except OSError as error:
                self._connection.close()
                raise RendezvousError(f"the rendezvous store is gone: {error}") from error
            answer, code = message[:-_CODE_BYTES], message[-_CODE_BYTES:]
            if not hmac.compare_digest(code, self._heard.next(answer)):
                self._connection.close()
                raise RendezvousError("another process answers for the rendezvous store")
        result, values = _unpacked(answer)
        if result == _Answer.LATE:
            raise RendezvousLate(f"Timed out: no word of the others within {seconds:g} s")
        return values

    def _read(self, wanted: int | None = None) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > _MESSAGE_BYTES_MAX or (wanted is not None and length != wanted):
            raise RendezvousError("the server that answers is not a rendezvous store of this release")
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            part = self._connection.recv(count - len(received))
            if not part:
                raise RendezvousError(
                    "the rendezvous store has ended the connection: it has stopped, or has another secret"
                )
            received += part
        return bytes(received)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
