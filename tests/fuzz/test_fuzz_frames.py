"""The data port of a real parameter server, and its client, with frames nobody sends.

Never a crash, a hang, a changed slot or memory for what was only announced.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from elastane.slots import frames
from elastane.slots.access import Wanted
from elastane.slots.connection import PsConnection, Reply, connect
from elastane.slots.conversations import Pulling, bounded
from elastane.slots.frames import Inspect, Pull, Pulled, PulledSlots, SlotFrameError, encode
from elastane.slots.handshake import admit
from elastane.slots.wire import read_header, read_into, read_prefix
from elastane_common.errors import ElastaneError
from elastane_proto.rendezvous import group_secret
from fuzz.test_fuzz_rpcs import FUZZED
from unit.ps.test_process import SPEC, Master, Start, initialise, master, serving, start

__all__ = ["master", "start"]

SECRET = b"s" * 32
GENERATION = 2
WAIT_SECONDS = 20.0
SCALARS: dict[object, SearchStrategy[Any]] = {
    # No generation of the future: such a frame waits for its map.
    int: st.sampled_from((-(2**63), -1, 0, 0, 1, 1, 2, 3, 64, 2**31)),
    bool: st.booleans(),
    float: st.sampled_from((0.0, -1.0, 1e300, float("inf"), float("nan"))),
    str: st.sampled_from(("clicks", "ps-0", "ps-1", "", "\x00", "x" * 300)),
    bytes: st.binary(max_size=40),
}


def values(kind: Any) -> SearchStrategy[Any]:
    """Values of a type that a header has; with the fields of structs, each now and then."""
    if kind in SCALARS:
        return SCALARS[kind]
    if get_origin(kind) is list:
        return st.lists(values(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is tuple:
        return st.tuples(*(values(part) for part in get_args(kind)))
    fields = {}
    for field in msgspec.structs.fields(kind):
        generation = field.name == "generation"
        fields[field.name] = st.integers(-1, GENERATION) if generation else values(field.type)
    return st.builds(kind, **fields)


HEADERS = st.one_of([values(header) for header in get_args(frames.Header)])
GOOD_PULL = Pull(GENERATION, 1, [0, 1], [0, 1])


def mutated(frame: bytes) -> SearchStrategy[bytes]:
    """A frame with some bytes changed, and its end cut off."""
    places = st.lists(st.tuples(st.integers(0, len(frame) - 1), st.integers(0, 255)), max_size=4)

    def change(drawn: tuple[list[tuple[int, int]], int]) -> bytes:
        changed = bytearray(frame)
        for place, byte in drawn[0]:
            changed[place] = byte
        return bytes(changed[: drawn[1]])

    return st.tuples(places, st.integers(0, len(frame))).map(change)


def framed(header: frames.Header, size: int, rest: int) -> bytes:
    return encode(header, 1, size) + bytes(min(size, rest))


FRAMES = st.one_of(
    st.binary(max_size=200),
    st.builds(framed, HEADERS, st.sampled_from((0, 64, 128, 2**20, 2**30)), st.sampled_from((0, 64, 2**20))),
    mutated(encode(GOOD_PULL, 1)),
    mutated(encode(Inspect(0), 1)),
    # A header of 16 MiB, and bodies of 4 GiB and 2**63 bytes, of which nothing comes.
    st.sampled_from((10, 2**24, 2**32 - 1)).flatmap(
        lambda header: st.sampled_from((0, 2**32, 2**63)).map(
            lambda body: struct.pack("<IBBHQIIQ", frames.MAGIC, frames.VERSION, 3, 0, 1, header, 0, body)
        )
    ),
)


def memory_bytes(pid: int) -> int:
    """The most that a process has had."""
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


def test_frames_to_a_parameter_server(master: tuple[Master, str], start: Start, tmp_path: Path) -> None:
    process = start()
    hello = serving(master[0], str(tmp_path))
    initialise(hello)
    place = hello.address, group_secret(hello.key, "job")

    def contents() -> list[tuple[bytes, str]]:
        asked = PsConnection(*place, encrypted=False)
        found = [asked.send(Inspect(slot)).result(WAIT_SECONDS).header for slot in range(SPEC.slots)]
        asked.close()
        return [(one.record, one.digest) for one in found]  # type: ignore[union-attr]

    before, memory = contents(), memory_bytes(process.pid)
    # Half of a frame, and then nothing: others are served meanwhile.
    silent = [connect(*place, encrypted=False) for _ in range(8)]
    for one in silent:
        one.sendall(encode(GOOD_PULL, 1)[:-3])

    @FUZZED
    @given(FRAMES)
    def fuzz(data: bytes) -> None:
        sent = connect(*place, encrypted=False)
        sent.settimeout(WAIT_SECONDS)
        with suppress(ConnectionError):  # it may have been closed in the middle
            sent.sendall(data)
            with suppress(OSError):  # ENOTCONN, where it is closed already, is no ConnectionError
                sent.shutdown(socket.SHUT_WR)
            while sent.recv(1 << 16):  # an answer, or what was wrong, and then the end
                pass
        sent.close()

    fuzz()
    assert process.status is None and contents() == before
    assert memory_bytes(process.pid) - memory < 64 * 2**20
    for one in silent:
        one.close()


@pytest.fixture(scope="module")
def lying() -> Iterator[tuple[str, list[bytes]]]:
    """A parameter server that answers every request with the bytes in the list."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError, ElastaneError):
            admit(connection, SECRET)
            prefix = read_prefix(connection)
            assert prefix is not None
            read_header(connection, prefix)
            read_into(connection, memoryview(bytearray(prefix.body_bytes)))
            connection.sendall(answers[-1])

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", answers
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_answers_of_a_parameter_server_that_lies(lying: tuple[str, list[bytes]]) -> None:
    address, answers = lying
    memory = memory_bytes(os.getpid())

    @FUZZED
    @example(encode(Pulled(1, [PulledSlots([0, 1], 0, 1, 1)]), 1, 2**30))
    @example(encode(Pulled(1, [PulledSlots([0], 0, 1, 1)]), 7))
    @given(st.one_of(FRAMES, mutated(framed(Pulled(GENERATION, [PulledSlots([0, 1], 0, 0, 0)]), 64, 64))))
    def fuzz(data: bytes) -> None:
        answers[:] = [data]
        asked = PsConnection(address, SECRET, encrypted=False)
        pulling = Pulling(SPEC, 1, Wanted(range(SPEC.slots), range(SPEC.slots)))
        slots = sorted(pulling.open)
        header, body = pulling.request(GENERATION, slots)
        with suppress(SlotFrameError):
            reply: Reply = asked.send(header, body, bounded(pulling.size(slots))).result(WAIT_SECONDS)
            pulling.answered(slots, reply)
        asked.close()

    fuzz()
    assert memory_bytes(os.getpid()) - memory < 64 * 2**20
