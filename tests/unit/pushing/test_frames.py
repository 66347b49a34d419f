"""Frames: what is written is read, and what nobody writes is refused before memory is taken for it."""

from __future__ import annotations

import random
import struct
import zlib

import msgspec
import pytest

from elastane.slots import frames
from elastane.slots.frames import (
    CODES,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    PREFIX_BYTES,
    Header,
    Kind,
    Pull,
    Push,
    SlotFrameError,
    decode_header,
    decode_prefix,
    encode,
)
from elastane_slots.pushes import Verdict

PUSH = Push(7, 3, 1, "clicks", 0, 9, [[0.1, 0.0]], [1], [(0, 4)], [(1, b"\x03")], [(0, [2])], [5], [(0, 4)])


def read(data: bytes) -> Header:
    prefix = decode_prefix(data[:PREFIX_BYTES])
    if len(data) < PREFIX_BYTES + prefix.header_bytes:
        raise SlotFrameError("it ends early")
    return decode_header(prefix, data[PREFIX_BYTES : PREFIX_BYTES + prefix.header_bytes])


@pytest.mark.parametrize("header", [PUSH, Pull(1, 0, [3], [3]), frames.CopyDone(1, 2, 3)])
def test_what_is_written_is_read(header: Header) -> None:
    data = encode(header, 12, 640)
    assert read(data) == header
    prefix = decode_prefix(data[:PREFIX_BYTES])
    assert (prefix.number, prefix.body_bytes, PREFIX_BYTES) == (12, 640, 32)


def test_every_kind_has_a_struct_and_every_verdict_a_number() -> None:
    assert set(frames._DECODERS) == set(Kind)
    assert CODES[Verdict.APPLIED] == 1 and CODES[Verdict.NOT_YET] == 9 and len(CODES) == len(Verdict)


def prefix_with(**changes: int) -> bytes:
    told = {
        "magic": frames.MAGIC,
        "version": frames.VERSION,
        "kind": 3,
        "flags": 0,
        "number": 1,
        "header": 1,
        "crc": 0,
    }
    told = {**told, "body": 0, **changes}
    return struct.pack("<IBBHQIIQ", *told.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": 1},
        {"version": frames.VERSION - 1},
        {"version": frames.VERSION + 1},
        {"kind": 0},
        {"kind": 5 + 60},
        {"flags": 1},
        {"header": HEADER_BYTES_MAX + 1},
        {"body": FRAME_BYTES_MAX + 1},
        {"body": 4 * 2**30},
        {"body": 2**64 - 1},
    ],
)
def test_impossible_prefixes_are_refused(changes: dict[str, int]) -> None:
    decode_prefix(prefix_with())
    with pytest.raises(SlotFrameError):
        decode_prefix(prefix_with(**changes))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"generation": 1}),
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_headers_that_nobody_writes_are_refused(content: bytes) -> None:
    prefix = decode_prefix(prefix_with(header=len(content), crc=zlib.crc32(content)))
    with pytest.raises(SlotFrameError):
        decode_header(prefix, content)


def test_a_header_with_more_than_is_known_is_refused() -> None:
    content = msgspec.msgpack.encode([*msgspec.to_builtins(PUSH), 1])
    prefix = decode_prefix(prefix_with(header=len(content), crc=zlib.crc32(content)))
    with pytest.raises(SlotFrameError):
        decode_header(prefix, content)


def test_a_changed_byte_is_found_wherever_it_is() -> None:
    data = encode(PUSH, 1)
    rng = random.Random(1)
    for position in range(len(data)):
        spoiled = bytearray(data)
        spoiled[position] ^= 1 << rng.randrange(8)
        try:
            header = read(bytes(spoiled))
        except SlotFrameError:
            continue
        # Only its number, or the length of the body, can be another.
        assert header == PUSH and (8 <= position < 16 or 24 <= position < 32)


def test_a_frame_that_no_receiver_takes_is_not_sent() -> None:
    with pytest.raises(SlotFrameError):
        encode(PUSH, 1, FRAME_BYTES_MAX + 1)
