"""Binary format of stored data, and its version number.

A store outlives the program that wrote it. Every snapshot and every batch carries its format, and a master
that does not know the format refuses to start instead of guessing.

Since format 2 each of them is also a link of a chain: it refers to the link before it by number and checksum,
so that missing, corrupt or foreign data is detected when it is read (see `wholeness`).
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import NamedTuple, TypeVar

import msgspec

from elastane_master.store.errors import JobTooNew, StoreFormatUnknown
from elastane_master.store.keys import JobKeys

FORMAT = 2
"""Current format. 2: snapshots and batches are chained by checksums. Format 1 is still read."""

CHECKSUM_BYTES = 16

T = TypeVar("T")


class Link(msgspec.Struct, array_like=True, frozen=True):
    """Position of a snapshot or batch in its job's chain.

    sequence: number of its write; previous: number of the link before it. token: fencing token of the writer.
    commits: number of numbered commits in the history after it. before, after: checksum of the chain without
    it, and with it.
    """

    sequence: int
    previous: int
    token: int
    commits: int
    before: bytes
    after: bytes

    @classmethod
    def make(cls, job: str, place: Place, before: Chain, body: bytes) -> Link:
        """Build the link that appends `body` to the chain `before`."""
        after = _checksum(job, place, before, body)
        return cls(place.sequence, before.sequence, place.token, place.commits, before.checksum, after)

    def fits(self, job: str, body: bytes) -> bool:
        """True if this link belongs to this job and body, and neither has changed."""
        place = Place(self.sequence, self.token, self.commits)
        return self.after == _checksum(job, place, Chain(self.previous, self.before), body)

    @property
    def chain(self) -> Chain:
        """The chain that ends with this link."""
        return Chain(self.sequence, self.after)


class Place(NamedTuple):
    """Position of a new link; for the fields see `Link`."""

    sequence: int
    token: int
    commits: int


class Chain(NamedTuple):
    """End of a chain: number of its last write and its checksum; 0 and empty for an empty chain."""

    sequence: int = 0
    checksum: bytes = b""


EMPTY = Chain()


class StoredSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The machine's state after all writes up to and including `sequence`. link: None in format 1."""

    format: int
    sequence: int
    state: bytes
    link: Link | None = None


class StoredBatch(msgspec.Struct, array_like=True, frozen=True):
    """The records of one write. body: in format 1 the records, else their encoding, which the link covers."""

    format: int
    body: tuple[bytes, ...] | bytes
    link: Link | None = None

    @property
    def records(self) -> tuple[bytes, ...]:
        """The records in order. Raises StoreFormatUnknown."""
        if isinstance(self.body, tuple):
            return self.body
        return decoded(_records, self.body, "a stored batch")


# The head of a MessagePack array and its first element, an integer of one or two bytes: every format has it.
_HEAD = re.compile(rb"[\x91-\x9f](?:([\x01-\x7f])|\xcc([\x80-\xff]))")

_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(tuple[bytes, ...])
_snapshots = msgspec.msgpack.Decoder(StoredSnapshot)
_batches = msgspec.msgpack.Decoder(StoredBatch)


def encode_snapshot(job: str, place: Place, before: Chain, state: bytes) -> tuple[bytes, Chain]:
    """Encode a snapshot; return the bytes and the chain that ends with it."""
    link = Link.make(job, place, before, state)
    return _encoder.encode(StoredSnapshot(FORMAT, place.sequence, state, link)), link.chain


def encode_batch(job: str, place: Place, before: Chain, records: tuple[bytes, ...]) -> tuple[bytes, Chain]:
    """Encode a batch; return the bytes and the chain that ends with it."""
    body = _encoder.encode(records)
    link = Link.make(job, place, before, body)
    return _encoder.encode(StoredBatch(FORMAT, body, link)), link.chain


def _checksum(job: str, place: Place, before: Chain, body: bytes) -> bytes:
    head = struct.pack(">4Q", before.sequence, *place)
    digest = hashlib.sha256(b"\0".join((job.encode(), head, before.checksum)))
    digest.update(body)
    return digest.digest()[:CHECKSUM_BYTES]


def decoded(decoder: msgspec.msgpack.Decoder[T], payload: bytes, what: str) -> T:
    """Decode `what` from MessagePack. Raises StoreFormatUnknown."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreFormatUnknown(f"{what} cannot be read: {error}") from error


def decode_snapshot(payload: bytes) -> StoredSnapshot:
    """Decode a snapshot. Raises StoreFormatUnknown."""
    snapshot = decoded(_snapshots, payload, "the stored snapshot")
    _check("snapshot", snapshot.format)
    return snapshot


def decode_batch(payload: bytes) -> StoredBatch:
    """Decode a batch. Raises StoreFormatUnknown."""
    batch = decoded(_batches, payload, "a stored batch")
    _check("batch", batch.format)
    return batch


def format_of(payload: bytes) -> int:
    """Return the format number of a snapshot or batch, even if this master cannot read it; 0 without one."""
    match = _HEAD.match(payload)
    if match is None:
        return 0
    return match[1][0] if match[1] else int.from_bytes(match[2])


def check_written(
    job: str, found_format: int, found_state: int, known_state: int, *, key: str | None = None
) -> None:
    """Raise JobTooNew if a newer master wrote the job in a form this one cannot read.

    known_state: newest version of the job's own state that this master reads. key: the key that shows it;
    None: the fence.
    """
    if found_format > FORMAT or found_state > known_state:
        found, known = (found_format, found_state), (FORMAT, known_state)
        raise JobTooNew(job, found, known, key=key or JobKeys.of(job).fence)


def _check(what: str, found: int) -> None:
    if not 1 <= found <= FORMAT:
        raise StoreFormatUnknown(
            f"the stored {what} has format {found}, this master reads up to {FORMAT}",
            found=found,
            known=FORMAT,
        )
