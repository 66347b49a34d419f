"""Records of the journal of an asynchronous run. Pure."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from elastane_common.errors import ElastaneError


class JournalError(ElastaneError):
    """A journal could not be written or read, or contradicts itself."""

    code = "ELA487"


class JournalEntry(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A push that took a slot from the previous version to `version`.

    pulls: (life, version) of every slot at the task's first pull of it; (-1, -1) without one. later: (slot,
    life, version) for each request for weights after the first. rates: by group. scale: factor of learning
    rates. generation: of the owner's map. digest: of the gradients (`push_digest`).
    """

    slot: int
    life: int
    version: int
    dataset: str
    epoch: int
    task: int
    attempt: int
    lease: int
    pulls: list[tuple[int, int]]
    rates: list[list[float]]
    scale: float = 1.0
    generation: int = 0
    later: list[list[tuple[int, int, int]]] = []
    digest: bytes = b""


class LifeBegun(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Start of a slot's life, from its state at `version` of the life `before`; -1: from initial values."""

    slot: int
    life: int
    version: int
    before: int


Record = JournalEntry | LifeBegun
HEAD_BYTES: Final = 8
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def push_digest(blocks: bytes, rows: Sequence[tuple[int, int]], sections: Sequence[memoryview]) -> bytes:
    """Return a digest of the gradients for a slot, in the form in which they are sent."""
    digest = hashlib.blake2b(blocks, digest_size=16)
    digest.update(msgspec.msgpack.encode(rows))
    for section in sections:
        digest.update(section)
    return digest.digest()


def encode_record(record: Record) -> bytes:
    """Return a record as stored in a segment."""
    encoded = _encoder.encode(record)
    return len(encoded).to_bytes(4, "little") + zlib.crc32(encoded).to_bytes(4, "little") + encoded


def decode_record(head: bytes, encoded: bytes) -> Record:
    """Inverse of `encode_record`. Raises JournalError."""
    size, checked = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:HEAD_BYTES], "little")
    if len(encoded) != size or zlib.crc32(encoded) != checked:
        raise JournalError("a record is damaged")
    try:
        return _decoder.decode(encoded)
    except msgspec.MsgspecError as error:
        raise JournalError(f"a record is damaged: {error}") from error
