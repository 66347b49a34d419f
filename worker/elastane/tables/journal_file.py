"""What was applied to slots, in its order, so that an asynchronous run can be repeated.

    journal/PROCESS/NUMBER    a segment: magic, entries, sha256 of both
                              an entry: length, 4 bytes; MessagePack of JournalEntry

A process writes down every push that it applies, as owner or as backup; of entries of a slot and version that
are there twice, all are equal. Segments are written as a whole, since object stores cannot append; what a
process had not written when it died is missing, unless a backup has it, and a run can be repeated up to
there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder

MAGIC: Final = b"elastane-journal-1\n"
#: A segment is written when it has so many bytes.
SEGMENT_BYTES: Final = 2**20
SEGMENT_BYTES_MAX: Final = 2**26
_DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 4


class JournalError(ElastaneError):
    """A journal could not be written or read, or contradicts itself."""

    code = "ELA487"


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """A push that made `version` out of the version before, in a slot.

    pulls: (life, version) that the task had pulled of every slot. rates: by group. scale: of learning rates.
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


class JournalWriter:
    """Collects entries of one process. process: a name that no other process ever has. Not thread-safe."""

    def __init__(self, folder: Folder, process: str) -> None:
        self._folder, self._process = folder, process
        self._encoder = msgspec.msgpack.Encoder()
        self._entries = bytearray()
        self._number = 0

    @property
    def full(self) -> bool:
        """True if it should be written soon."""
        return len(self._entries) >= SEGMENT_BYTES

    def add(self, entry: JournalEntry) -> None:
        """Collect an entry; it is not durable before `write`."""
        encoded = self._encoder.encode(entry)
        self._entries += len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded

    def take(self) -> tuple[str, bytes] | None:
        """Take what is collected as a segment, name and content; None if there is nothing."""
        if not self._entries:
            return None
        self._number += 1
        content = MAGIC + bytes(self._entries)
        self._entries.clear()
        return f"journal/{self._process}/{self._number:08}", content + hashlib.sha256(content).digest()

    def write(self) -> None:
        """Write what is collected. Raises JournalError."""
        if (segment := self.take()) is not None:
            self._folder.write(segment[0], [segment[1]])


def read_journal(folder: Folder) -> list[JournalEntry]:
    """Return the entries of all processes by (slot, life, version), each once.

    Raises JournalError if a segment is damaged, or two entries of one version differ.
    """
    found: dict[tuple[int, int, int], JournalEntry] = {}
    for name, size in folder.within("journal").files():
        if size > SEGMENT_BYTES_MAX:
            raise JournalError(f"the segment {name} has {size} bytes")
        content = folder.read(f"journal/{name}", bytes_max=SEGMENT_BYTES_MAX) or b""
        for entry in _entries(name, content):
            key = (entry.slot, entry.life, entry.version)
            if found.setdefault(key, entry) != entry:
                raise JournalError(
                    f"two pushes made version {entry.version} of slot {entry.slot}", segment=name
                )
    return [found[key] for key in sorted(found)]


def _entries(name: str, content: bytes) -> Iterator[JournalEntry]:
    stored = content[:-_DIGEST_BYTES]
    if not stored.startswith(MAGIC) or hashlib.sha256(stored).digest() != content[-_DIGEST_BYTES:]:
        raise JournalError(f"the segment {name} is damaged", segment=name)
    at, decoder = len(MAGIC), msgspec.msgpack.Decoder(JournalEntry)
    while at < len(stored):
        size = int.from_bytes(stored[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES + size
        try:
            yield decoder.decode(stored[at - size : at])
        except msgspec.MsgspecError as error:
            raise JournalError(f"the segment {name} is damaged: {error}", segment=name) from error
