"""Encrypted connections to parameter servers: what is heard, who is found out, what both must agree on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from between import Between
from elastane.slots import handshake
from elastane.slots.connection import PsConnection, connect
from elastane.slots.frames import CopyDone, Inspect
from elastane.slots.handshake import GREETING, PsHandshakeError, admit
from elastane.slots.open_connections import OpenConnections
from elastane.slots.tls_stream import Stream, TlsStream
from elastane.slots.wire import pad, read_header, read_into, read_prefix, write_frame
from elastane_common import process_tls
from elastane_common.errors import RefusedError
from elastane_common.process_tls import OwnTls, own_tls

SECRET = b"s" * 32


class Server(threading.Thread):
    """Admits one caller; `stream` is what was agreed, or `error` why not."""

    def __init__(self, tls: Callable[[], OwnTls] | None) -> None:
        super().__init__(daemon=True)
        self._listener, self._tls = socket.create_server(("127.0.0.1", 0)), tls
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.stream: Stream | None = None
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        try:
            self.stream = admit(connection, SECRET, self._tls)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
            connection.close()

    def admitted(self) -> Stream:
        self.join(10)
        assert self.stream is not None, self.error
        return self.stream


def between(server: Server, own: OwnTls | None = None) -> tuple[Between, str]:
    """Somebody before the server, and the address at which to call. own: key with which TLS is ended."""
    host, _, port = server.address.rpartition(":")
    contexts = (own.host, own.caller) if own is not None else (None, None)
    found = Between((host, int(port)), *contexts)
    return found, f"{found.place[0]}:{found.place[1]}"


@pytest.fixture
def pair() -> Iterator[tuple[Stream, Stream]]:
    """Both ends of an encrypted connection."""
    server = Server(own_tls)
    caller = connect(server.address, SECRET, encrypted=True)
    called = server.admitted()
    with caller, called:
        yield caller, called


@pytest.mark.parametrize("encrypted", [False, True])
def test_who_listens_in_hears_frames_in_clear_and_nothing_of_encrypted_ones(encrypted: bool) -> None:
    server = Server(own_tls)
    listener, address = between(server)
    connection = PsConnection(address, SECRET, encrypted=encrypted)
    body = os.urandom(1 << 20)
    asked = connection.send(Inspect(3), pad([body]))
    stream = server.admitted()
    prefix = read_prefix(stream)
    assert prefix is not None
    read_header(stream, prefix)
    received = bytearray(prefix.body_bytes)
    read_into(stream, memoryview(received))
    assert received == body
    write_frame(stream, CopyDone(3, 0, 0), prefix.number)
    asked.result(10)
    heard = [body[at : at + 16] in listener.heard for at in range(0, len(body), 1 << 16)]
    assert any(heard) == all(heard) == (not encrypted)
    assert len(listener.heard) > len(body)
    assert (GREETING in listener.heard) == (not encrypted)
    connection.close()


def test_who_stands_between_is_found_out_although_it_passes_on_the_proofs() -> None:
    server = Server(own_tls)
    deceiver, address = between(server, process_tls._made.__wrapped__(0))
    with pytest.raises(PsHandshakeError):
        connect(address, SECRET, encrypted=True)
    assert GREETING in deceiver.heard  # it came as far as the challenge
    server.join(10)
    assert isinstance(server.error, PsHandshakeError) and "does not know the secret" in str(server.error)


def test_a_caller_that_encrypts_does_not_fall_back_and_says_what_to_set() -> None:
    server = Server(None)
    opened = OpenConnections(encrypted=True)
    with pytest.raises(RefusedError, match="ELASTANE_RING_TLS=0") as raised:
        opened.open("ps-0", (server.address, SECRET))
    assert "same setting" in raised.value.hint
    server.join(10)
    assert "does not" in str(server.error)


def test_another_program_that_closes_is_not_taken_for_a_server_in_clear() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert OpenConnections(encrypted=True).open("ps-0", (address, SECRET)) is None  # to be tried again
    listener.close()


def test_a_caller_that_falls_silent_in_the_handshake_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.2)
    server = Server(own_tls)
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as silent:
        silent.sendall(b"\x16\x03\x01")
        server.join(10)
        assert isinstance(server.error, TimeoutError)


def test_both_directions_at_once_of_any_size(pair: tuple[Stream, Stream]) -> None:
    caller, called = pair
    sent = {end: os.urandom((8 << 20) + 12_345) for end in (caller, called)}
    got = {end: bytearray(len(sent[end])) for end in (caller, called)}

    def read(end: Stream) -> None:
        read_into(end, memoryview(got[end]))

    def write(end: Stream) -> None:
        data, at = memoryview(sent[end]), 0
        for size in (1, 2, 100, 16_384, 16_385, 1 << 18, (1 << 18) + 1, 1 << 22):
            end.sendmsg([data[at : at + size // 2], data[at + size // 2 : at + size]])
            at += size
        end.sendall(data[at:])

    threads = [threading.Thread(target=act, args=(end,)) for act in (read, write) for end in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got[called] == sent[caller] and got[caller] == sent[called]


@pytest.mark.parametrize("announced", [False, True])
def test_the_end_is_an_end_however_it_comes(pair: tuple[Stream, Stream], announced: bool) -> None:
    caller, called = pair
    assert isinstance(called, TlsStream)
    called.sendall(b"last")
    if announced:
        with suppress(Exception):
            called.tls.unwrap()
        called._flush()
    called.shutdown(socket.SHUT_RDWR)
    assert caller.recv(100) == b"last"
    assert caller.recv(100) == b""


def test_changed_bytes_break_the_connection() -> None:
    server = Server(own_tls)
    _, address = between(server)
    caller = connect(address, SECRET, encrypted=True)
    called = server.admitted()
    assert isinstance(caller, TlsStream)
    with caller._lock:
        caller.tls.write(b"x" * 1000)
        record = bytearray(caller._outgoing.read())
    record[-20] ^= 1
    caller._plain.sendall(record)
    with pytest.raises(OSError):
        called.recv(1000)
    caller.close()
    called.close()
