"""What the bytes in the store look like, and the number that says so.

A store outlives the program that wrote it. Every snapshot and every batch names its format, and
a master that does not know the format refuses to start instead of guessing.
"""

from __future__ import annotations

import msgspec

from elastane_master.store.errors import StoreFormatUnknown

FORMAT = 1


class StoredSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The machine's state after every write up to and including `sequence`."""

    format: int
    sequence: int
    state: bytes


class StoredBatch(msgspec.Struct, array_like=True, frozen=True):
    """The records of one write, in order."""

    format: int
    records: tuple[bytes, ...]


_encoder = msgspec.msgpack.Encoder()
_snapshots = msgspec.msgpack.Decoder(StoredSnapshot)
_batches = msgspec.msgpack.Decoder(StoredBatch)


def encode_snapshot(sequence: int, state: bytes) -> bytes:
    return _encoder.encode(StoredSnapshot(FORMAT, sequence, state))


def encode_batch(records: tuple[bytes, ...]) -> bytes:
    return _encoder.encode(StoredBatch(FORMAT, records))


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


def check_written(job: str, found_format: int, found_state: int, known_state: int) -> None:
    """Raises StoreFormatUnknown when a newer master wrote the job than this one can read.

    known_state: the newest form of the job's own state that this master reads.
    """
    if found_format > FORMAT or found_state > known_state:
        raise StoreFormatUnknown(
            f"job {job} was written by a newer master: format {found_format}, state {found_state};"
            f" this one reads up to format {FORMAT}, state {known_state}. Nothing of it was touched",
            job=job,
            found=f"{found_format}.{found_state}",
            known=f"{FORMAT}.{known_state}",
        )


def _check(what: str, found: int) -> None:
    if found != FORMAT:
        raise StoreFormatUnknown(
            f"the stored {what} has format {found}, this master reads {FORMAT}", found=found, known=FORMAT
        )
