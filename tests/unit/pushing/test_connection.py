"""A connection to a parameter server, in clear and with TLS; the server at the other end has a few lines."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from elastane.slots.connection import PsConnection
from elastane.slots.frames import CopyDone, Error, Header, Inspect, Inspected, SlotFrameError, encode
from elastane.slots.handshake import PsHandshakeError, admit
from elastane.slots.tls_stream import Stream
from elastane.slots.wire import Incoming, pad, read_header, read_into, read_prefix, write_frame
from elastane_common.errors import ElastaneError
from elastane_common.process_tls import own_tls

SECRET = b"s" * 32
Serve = Callable[[Stream], None]


@pytest.fixture(autouse=True, params=["clear", "tls"])
def encrypted(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tls")


@contextmanager
def server(serve: Serve, secret: bytes = SECRET) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with suppress(OSError, ElastaneError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError, ElastaneError):
                    serve(admit(connection, secret, own_tls))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def asked(connection: Stream) -> tuple[int, Header, bytes] | None:
    prefix = read_prefix(connection)
    if prefix is None:
        return None
    header = read_header(connection, prefix)
    body = bytearray(prefix.body_bytes)
    read_into(connection, memoryview(body))
    return prefix.number, header, bytes(body)


def test_answers_come_in_any_order_and_bodies_go_where_they_belong(encrypted: bool) -> None:
    def backwards(connection: Stream) -> None:
        said = [asked(connection) for _ in range(3)]
        for entry in reversed(said):
            assert entry is not None
            number, header, body = entry
            assert isinstance(header, Inspect)
            write_frame(connection, CopyDone(header.slot, 0, len(body)), number, pad([body]))
        asked(connection)

    with server(backwards) as address:
        connection = PsConnection(address, SECRET, encrypted=encrypted)
        places = [memoryview(bytearray(size)) for size in (64, 128, 2**20)]
        futures = [
            connection.send(
                Inspect(slot), [bytes([slot]) * len(places[slot])], lambda h, n, s=slot: [places[s]]
            )
            for slot in range(3)
        ]
        for slot, future in enumerate(futures):
            assert future.result(5).header == CopyDone(slot, 0, len(places[slot]))
            assert bytes(places[slot]) == bytes([slot]) * len(places[slot])
        connection.close()


def test_whoever_does_not_know_the_secret_gets_nowhere(encrypted: bool) -> None:
    heard = []
    with server(lambda connection: heard.append(1)) as address, pytest.raises(PsHandshakeError):
        PsConnection(address, b"x" * 32, encrypted=encrypted)
    assert not heard


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9])
def test_another_program_at_the_port_is_told_from_a_parameter_server(encrypted: bool, said: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def other() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(said)
            connection.recv(1000)

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises((PsHandshakeError, OSError)):
        PsConnection(f"127.0.0.1:{listener.getsockname()[1]}", SECRET, encrypted=encrypted)
    thread.join()
    listener.close()


@pytest.mark.parametrize("cut", [0, 10, 40, 60])
def test_what_is_in_flight_fails_when_the_connection_breaks(encrypted: bool, cut: int) -> None:
    def breaks(connection: Stream) -> None:
        said = asked(connection)
        assert said is not None
        here, there = socket.socketpair()
        write_frame(here, Inspected(1, 2, b"x" * 20, "", 0), said[0], [bytes(64)])
        connection.sendall(there.recv(1000)[:cut])

    ended: list[Exception] = []
    with server(breaks) as address:
        connection = PsConnection(address, SECRET, encrypted=encrypted, broken=ended.append)
        future = connection.send(Inspect(1))
        with pytest.raises(SlotFrameError):
            future.result(5)
        with pytest.raises(SlotFrameError):
            connection.send(Inspect(1)).result(5)
        for _ in range(100):
            if ended:
                break
            time.sleep(0.01)
        assert len(ended) == 1 and connection.error is ended[0]


def test_an_error_says_what_was_wrong(encrypted: bool) -> None:
    def refuses(connection: Stream) -> None:
        said = asked(connection)
        assert said is not None
        write_frame(connection, Error("ELA486", "a frame of three heads"), said[0])

    with server(refuses) as address:
        connection = PsConnection(address, SECRET, encrypted=encrypted)
        with pytest.raises(SlotFrameError, match="three heads"):
            connection.send(Inspect(1)).result(5)


def test_a_body_that_is_not_expected_breaks_the_connection(encrypted: bool) -> None:
    def answers(connection: Stream) -> None:
        said = asked(connection)
        assert said is not None
        write_frame(connection, CopyDone(1, 1, 1), said[0], [bytes(128)])
        asked(connection)

    def raises(header: Header, size: int) -> list[memoryview]:
        raise KeyError("a fault of the caller")

    for into in (lambda h, n: [memoryview(bytearray(64))], raises):
        with server(answers) as address:
            connection = PsConnection(address, SECRET, encrypted=encrypted)
            with pytest.raises(SlotFrameError):
                connection.send(Inspect(1), (), into).result(5)
            connection.close()


def test_closing_fails_what_is_in_flight_and_calls_nobody(encrypted: bool) -> None:
    ended: list[Exception] = []
    with server(lambda connection: (asked(connection), asked(connection), None)[2]) as address:
        connection = PsConnection(address, SECRET, encrypted=encrypted, broken=ended.append)
        future = connection.send(Inspect(1))
        connection.close()
        with pytest.raises(SlotFrameError):
            future.result(5)
        connection.close()
    assert not ended


@pytest.mark.parametrize("seed", range(3))
def test_frames_are_read_whole_however_they_come(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice([0, 1, 64, 5000, 16_384, 16_385, 300_000]) for _ in range(40)]
    bodies = [draw.randbytes(size) for size in sizes]
    ours, theirs = socket.socketpair()
    sent = bytearray()
    for number, body in enumerate(bodies):
        sent += encode(Inspect(number), number, len(body)) + body

    def send() -> None:
        rest = memoryview(sent)
        while rest:
            size = draw.choice([1, 31, 33, 4000, 200_000])
            theirs.sendall(rest[:size])
            rest = rest[size:]
        theirs.close()

    sending = threading.Thread(target=send)
    sending.start()
    with ours:
        incoming = Incoming(ours)
        for number, body in enumerate(bodies):
            prefix = read_prefix(incoming)
            assert prefix is not None and prefix.number == number
            assert read_header(incoming, prefix) == Inspect(number)
            memory = bytearray(prefix.body_bytes)
            read_into(incoming, memoryview(memory))
            assert memory == body
        assert read_prefix(incoming) is None
    sending.join()


def test_a_frame_that_ends_early_is_not_used() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(encode(Inspect(0), 1, 50_000) + bytes(40_000))
        theirs.close()
        incoming = Incoming(ours)
        prefix = read_prefix(incoming)
        assert prefix is not None
        read_header(incoming, prefix)
        with pytest.raises(SlotFrameError, match="10000 bytes early"):
            read_into(incoming, memoryview(bytearray(50_000)))
