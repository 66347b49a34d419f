"""What the bytes in the store look like, and the number that says so.

A store outlives the program that wrote it. Every snapshot and every batch names its format, and
a master that does not know the format refuses to start instead of guessing.

Since format 2 each of them also is a link of a chain: it names the one before it, by number and checksum,
so that what is missing, spoiled or another job's is found when it is read back (see `wholeness`).
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import NamedTuple

import msgspec

from elastane_master.store.errors import JobTooNew, StoreFormatUnknown
from elastane_master.store.keys import JobKeys

FORMAT = 2
"""2: snapshots and batches are chained by checksums. 1 is read still."""

CHECKSUM_BYTES = 16


class Link(msgspec.Struct, array_like=True, frozen=True):
    """Where a snapshot or batch stands in its job's chain.

    sequence: of its write; previous: of the link before it. token: of the master that wrote it. commits:
    numbered ones in the history after it. before, after: checksum of the chain without it, and with it.
    """

    sequence: int
    previous: int
    token: int
    commits: int
    before: bytes
    after: bytes

    @classmethod
    def make(cls, job: str, place: Place, before: Chain, body: bytes) -> Link:
        """The link of `body` behind what is chained so far."""
        after = _checksum(job, place, before, body)
        return cls(place.sequence, before.sequence, place.token, place.commits, before.checksum, after)

    def fits(self, job: str, body: bytes) -> bool:
        """Whether this is the link of this body, and both are the job's and as they were written."""
        place = Place(self.sequence, self.token, self.commits)
        return self.after == _checksum(job, place, Chain(self.previous, self.before), body)

    @property
    def chain(self) -> Chain:
        """The chain that ends with it."""
        return Chain(self.sequence, self.after)


class Place(NamedTuple):
    """Of a link that is made: see `Link`."""

    sequence: int
    token: int
    commits: int


class Chain(NamedTuple):
    """The end of a chain: number of the last write in it, and its checksum; of an empty one 0 and none."""

    sequence: int = 0
    checksum: bytes = b""


EMPTY = Chain()


class StoredSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The machine's state after every write up to and including `sequence`. link: None in format 1."""

    format: int
    sequence: int
    state: bytes
    link: Link | None = None


class StoredBatch(msgspec.Struct, array_like=True, frozen=True):
    """The records of one write, in order: themselves in format 1, else in one piece with its link."""

    format: int
    body: tuple[bytes, ...] | bytes
    link: Link | None = None

    @property
    def records(self) -> tuple[bytes, ...]:
        """Raises StoreFormatUnknown."""
        if isinstance(self.body, tuple):
            return self.body
        try:
            return _records.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreFormatUnknown(f"a stored batch cannot be read: {error}") from error


# Of an array of MessagePack the first element, as an integer of one byte or two: all forms begin with it.
_HEAD = re.compile(rb"[\x91-\x9f](?:([\x01-\x7f])|\xcc([\x80-\xff]))")

_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(tuple[bytes, ...])
_snapshots = msgspec.msgpack.Decoder(StoredSnapshot)
_batches = msgspec.msgpack.Decoder(StoredBatch)


def encode_snapshot(job: str, place: Place, before: Chain, state: bytes) -> tuple[bytes, Chain]:
    """What is stored, and the chain that ends with it."""
    link = Link.make(job, place, before, state)
    return _encoder.encode(StoredSnapshot(FORMAT, place.sequence, state, link)), link.chain


def encode_batch(job: str, place: Place, before: Chain, records: tuple[bytes, ...]) -> tuple[bytes, Chain]:
    """What is stored, and the chain that ends with it."""
    body = _encoder.encode(records)
    link = Link.make(job, place, before, body)
    return _encoder.encode(StoredBatch(FORMAT, body, link)), link.chain


def _checksum(job: str, place: Place, before: Chain, body: bytes) -> bytes:
    head = struct.pack(">4Q", before.sequence, *place)
    digest = hashlib.sha256(b"\0".join((job.encode(), head, before.checksum)))
    digest.update(body)
    return digest.digest()[:CHECKSUM_BYTES]


def decode_snapshot(payload: bytes) -> StoredSnapshot:
    """Raises StoreFormatUnknown."""
    try:
        snapshot = _snapshots.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreFormatUnknown(f"the stored snapshot cannot be read: {error}") from error
    _check("snapshot", snapshot.format)
    return snapshot


def decode_batch(payload: bytes) -> StoredBatch:
    """Raises StoreFormatUnknown."""
    try:
        batch = _batches.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreFormatUnknown(f"a stored batch cannot be read: {error}") from error
    _check("batch", batch.format)
    return batch


def format_of(payload: bytes) -> int:
    """The format that a snapshot or batch names, whether it can be read or not; 0: it names none."""
    match = _HEAD.match(payload)
    if match is None:
        return 0
    return match[1][0] if match[1] else int.from_bytes(match[2])


def check_written(
    job: str, found_format: int, found_state: int, known_state: int, *, key: str | None = None
) -> None:
    """Raises JobTooNew when a newer master wrote the job than this one can read.

    known_state: the newest form of the job's own state that this master reads. key: which says so; None: the
    fence.
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
