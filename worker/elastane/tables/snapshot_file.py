"""One file of a slot's snapshot: the whole slot (a base), or changes since the previous file (a delta).

    offset 0    magic, 16 bytes
           16   length of the header, 8 bytes little-endian
           24   header: JSON, see FileHeader
                record: life, fence, applied and closed tasks (SlotRecord.encode of elastane_slots)
                groups of sections, until the length of one is zero:
                    length of the headers, 8 bytes; length of the parts, 8 bytes
                    headers (`sections.encode_headers`)
                    zeros up to a multiple of 64
                    parts of the sections, each followed by zeros up to a multiple of 64
                sha256 of all before, 32 bytes

The same part may occur in several sections; the last one counts. The record is of the time of the last
section.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from elastane.tables.layout import padded
from elastane.tables.sections import Chunk, Section, SectionHeader, decode_headers, encode_headers
from elastane_common.errors import ElastaneError
from elastane_shards.errors import InvalidSnapshot

MAGIC: Final = b"elastane-slot-1\n"
HEADER_BYTES_MAX: Final = 2**16
RECORD_BYTES_MAX: Final = 2**28
#: Maximum size of a group of sections, in bytes.
GROUP_BYTES_MAX: Final = 2**30
HEADERS_BYTES_MAX: Final = 2**24
_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = 32


class SlotSnapshotError(ElastaneError):
    """A snapshot of a slot could not be written or read, or is damaged; another one may be usable."""

    code = "ELA488"


class FileHeader(msgspec.Struct, frozen=True):
    """Header of a file. slot, slots: index, and number of slots. model: digest of the model.

    base: version of the previous file, -1 in a base. version: number of tasks applied. record_bytes: size of
    the record.
    """

    slot: int
    slots: int
    model: str
    life: int
    base: int
    record_bytes: int
    version: int


_decoder: Final = msgspec.json.Decoder(FileHeader)


def file_chunks(header: FileHeader, record: bytes, groups: Iterable[Sequence[Section]]) -> Iterator[Chunk]:
    """Yield the bytes of a file. record: must be of the time at which the last group was read."""
    text = msgspec.json.encode(header)
    digest = hashlib.sha256()

    def told(chunk: Chunk) -> Chunk:
        digest.update(chunk)
        return chunk

    yield told(MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text + record)
    for sections in groups:
        if sections:
            yield from map(told, group_chunks(sections))
    yield told(bytes(2 * _LENGTH_BYTES))
    yield digest.digest()


def group_chunks(sections: Sequence[Section]) -> Iterator[Chunk]:
    """Yield the bytes of a group of sections in a file."""
    headers = encode_headers([section.header for section in sections])
    size = sum(section.bytes for section in sections)
    front = len(headers).to_bytes(_LENGTH_BYTES, "little") + size.to_bytes(_LENGTH_BYTES, "little") + headers
    yield front + bytes(padded(len(front)) - len(front))
    for section in sections:
        for part in section.parts:
            yield part
            if rest := padded(len(part)) - len(part):
                yield bytes(rest)


class Reading:
    """Reads a file from its start; no part of it may be used before `end` has returned."""

    def __init__(self, file: Any, where: str) -> None:
        self._file, self._where = file, where
        self._digest = hashlib.sha256()
        if self._read(len(MAGIC)) != MAGIC:
            raise self._damaged("does not begin as a snapshot of a slot")
        size = int.from_bytes(self._read(_LENGTH_BYTES), "little")
        if not 0 < size <= HEADER_BYTES_MAX:
            raise self._damaged("has no header")
        try:
            self.header = _decoder.decode(self._read(size))
        except msgspec.MsgspecError as error:
            raise self._damaged(f"has an unreadable header: {error}") from error
        if not 0 <= self.header.record_bytes <= RECORD_BYTES_MAX:
            raise self._damaged("has no record")
        self.record = self._read(self.header.record_bytes)

    def sections(self, sizes: Callable[[SectionHeader], list[int]]) -> Iterator[Section]:
        """Yield all sections. sizes: of a section's parts, by the model (`SlotWeights.section_sizes`)."""
        while True:
            counts = self._read(2 * _LENGTH_BYTES)
            headers_bytes = int.from_bytes(counts[:_LENGTH_BYTES], "little")
            size = int.from_bytes(counts[_LENGTH_BYTES:], "little")
            if not headers_bytes:
                return
            if headers_bytes > HEADERS_BYTES_MAX or size > GROUP_BYTES_MAX:
                raise self._damaged("has a group of sections that is too large")
            front = 2 * _LENGTH_BYTES + headers_bytes
            stored = self._read(padded(front) - 2 * _LENGTH_BYTES)[:headers_bytes]
            try:
                told = [(header, sizes(header)) for header in decode_headers(bytes(stored))]
            except InvalidSnapshot as error:
                raise self._damaged(str(error)) from error
            if sum(padded(part) for _, parts in told for part in parts) != size:
                raise self._damaged("has sections of other sizes than the model's")
            for header, parts in told:
                yield Section(header, [memoryview(self._read(padded(part)))[:part] for part in parts])

    def end(self) -> None:
        """Compare the digest. Raises SlotSnapshotError."""
        expected = self._digest.digest()
        if self._file.read(_DIGEST_BYTES + 1) != expected:
            raise self._damaged("differs from what was written")

    def _read(self, size: int) -> bytearray:
        # Writable, because tensors are views of it.
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            part = self._file.read(min(size - filled, 8 << 20))
            if not part:
                raise self._damaged(f"ends {size - filled} bytes early")
            view[filled : filled + len(part)] = part
            filled += len(part)
        self._digest.update(data)
        return data

    def _damaged(self, what: str) -> SlotSnapshotError:
        return SlotSnapshotError(f"the snapshot {self._where} {what}", snapshot=self._where)
