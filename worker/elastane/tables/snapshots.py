"""Snapshots of slots in a folder: bases, and deltas that follow them.

    SLOT/LIFE-SINCE-PS/base-VERSION       start of a chain, written by the owner with this life and generation
    SLOT/LIFE-SINCE-PS/delta-VERSION      follows the file of the version that its header names

Files are written atomically (`elastane_common.storage`) and end with their digest, so no manifest is needed.
No two owners write to the same folder: a process that the master believes dead continues to write to its own,
and whether its snapshot or a later one is read only affects how many tasks are done again. The newest
snapshot has the highest (life, version, since).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from elastane.tables.row_arena import RowArenas
from elastane.tables.sections import Section
from elastane.tables.slot_weights import SlotWeights
from elastane.tables.snapshot_file import FileHeader, Reading, SlotSnapshotError, file_chunks
from elastane.tables.spec import ModelSpec
from elastane_common.errors import EXIT_REFUSED
from elastane_common.storage import Folder
from elastane_shards.errors import ShardsError
from elastane_slots.held_slots import SlotRecord

#: Maximum number of chains of one slot that are tried, newest first.
CHAINS_MAX: Final = 64
_FILE: Final = re.compile(r"(\d{1,10})/(\d{1,19})-(\d{1,19})-([^/]+)/(base|delta)-(\d{1,19})")


class OtherModelError(SlotSnapshotError):
    """The folder has snapshots of another model or number of slots, which must not be overwritten."""

    code = "ELA497"
    exit_code = EXIT_REFUSED


class SnapshotName(msgspec.Struct, frozen=True, order=True):
    """Name of a snapshot file; sorts by age within a slot. ps: process that wrote it."""

    slot: int
    life: int
    version: int
    since: int
    ps: str
    kind: str

    @property
    def folder(self) -> str:
        return f"{self.slot}/{self.life}-{self.since}-{self.ps}"

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.kind}-{self.version}"


class SavedFile(msgspec.Struct, frozen=True):
    """A written file of `size` bytes. digest: the SHA-256 at its end, of all bytes before it."""

    name: SnapshotName
    size: int
    digest: bytes


@dataclass(frozen=True)
class SlotSnapshot:
    """A slot's snapshot as read. name: path of its newest file."""

    record: SlotRecord
    weights: SlotWeights
    name: str


class SnapshotWriter:
    """Writes the snapshots of one slot for one owner in one life.

    ps: the owner's id. since: generation in which it got the slot.
    """

    def __init__(self, folder: Folder, spec: ModelSpec, slot: int, *, since: int, ps: str) -> None:
        self._folder, self._spec, self._slot = folder, spec, slot
        self._since, self._ps = since, ps
        self._before: SavedFile | None = None
        self._base_bytes = self._delta_bytes = 0

    @property
    def saved(self) -> tuple[int, int] | None:
        """Life and version of the newest file; None before the first."""
        return (self._before.name.life, self._before.name.version) if self._before is not None else None

    def wants_base(self, delta_bytes: int) -> bool:
        """True if the next file should be a base: the first, and when deltas exceed half of one."""
        return self._before is None or self._delta_bytes + delta_bytes > self._base_bytes // 2

    def write(
        self, life: int, version: int, record: bytes, groups: Iterable[Sequence[Section]], *, base: bool
    ) -> SavedFile:
        """Write a file and describe it; return None if it exists already.

        life, version, record: of the time at which the last group was read. groups: the whole slot in a base.
        Raises SlotSnapshotError, after which `restart` must be called.
        """
        before = None if base else self._before
        if not base and before is None:
            raise SlotSnapshotError("a delta needs a base", slot=self._slot)
        if before is not None and before.name.version >= version:
            return before  # nothing has been applied since
        kind = "base" if base else "delta"
        name = SnapshotName(self._slot, life, version, self._since, self._ps, kind)
        header = FileHeader(
            slot=self._slot,
            slots=self._spec.slots,
            model=self._spec.digest,
            life=life,
            base=-1 if before is None else before.name.version,
            record_bytes=len(record),
            version=version,
        )
        size, last = 0, b""

        def counted() -> Iterator[bytes | memoryview]:
            nonlocal size, last
            for chunk in file_chunks(header, record, groups):
                size += len(chunk)
                last = bytes(chunk) if len(chunk) == 32 else b""
                yield chunk

        self._folder.write(name.path, counted())
        if base:
            self._base_bytes, self._delta_bytes = size, 0
        else:
            self._delta_bytes += size
        self._before = SavedFile(name, size, last)
        return self._before

    def restart(self) -> None:
        """Start a new chain with a base next time; called after a failed write."""
        self._before = None


def names(folder: Folder, slot: int | None = None) -> list[SnapshotName]:
    """Return the snapshot files of one slot or of all, the oldest first."""
    found = []
    prefix = "" if slot is None else f"{slot}/"
    listed = folder if slot is None else folder.within(str(slot))
    for path, _ in listed.files():
        if match := _FILE.fullmatch(prefix + path):
            number, life, since, ps, kind, version = match.groups()
            found.append(SnapshotName(int(number), int(life), int(version), int(since), ps, kind))
    return sorted(found)


def newest(
    folder: Folder, spec: ModelSpec, slot: int, arenas: RowArenas | None = None
) -> tuple[SlotSnapshot | None, tuple[str, ...]]:
    """Return the newest usable snapshot of a slot, or None, and the reasons why newer ones are unusable.

    Raises OtherModelError if all are unusable and some are of another model, and SlotSnapshotError if the
    folder cannot be listed.
    """
    rejected: list[str] = []
    other: OtherModelError | None = None
    there = names(folder, slot)
    for name in list(reversed(there))[:CHAINS_MAX]:
        try:
            record, weights = read(folder, spec, name, there, arenas)
        except (SlotSnapshotError, ShardsError, MemoryError) as error:
            rejected.append(f"{name.path}: {error}")
            if isinstance(error, OtherModelError):
                other = error
            continue
        return SlotSnapshot(record, weights, name.path), tuple(rejected)
    if other is not None:
        raise other
    return None, tuple(rejected)


def read(
    folder: Folder,
    spec: ModelSpec,
    name: SnapshotName,
    there: Sequence[SnapshotName],
    arenas: RowArenas | None = None,
) -> tuple[SlotRecord, SlotWeights]:
    """Read a file and those on which it is based. there: files of the slot. arenas: as of SlotWeights.

    Raises SlotSnapshotError or ShardsError if one is missing, damaged or of another model.
    """
    chain = [name]
    while chain[-1].kind == "delta":
        before = _header(folder, chain[-1]).base
        follows = [n for n in there if n.folder == name.folder and n.version == before]
        # A base of the same version is complete by itself.
        follows.sort(key=lambda n: n.kind == "base")
        if not follows or before >= chain[-1].version:
            raise SlotSnapshotError(f"the snapshot {chain[-1].path} follows one that is missing")
        chain.append(follows[-1])
    weights = SlotWeights(spec, name.slot, arenas)
    record = SlotRecord()
    for part in reversed(chain):
        record = _load(folder, spec, part, weights)
    return record, weights


def collect(folder: Folder, slot: int, keep: int = 2) -> list[str]:
    """Remove all but the `keep` newest chains of a slot; return the removed files.

    A chain is a base with its deltas. Chains of a lower life or an earlier owner are counted, too.
    """
    there = names(folder, slot)
    bases = [name for name in there if name.kind == "base"]
    if len(bases) <= keep:
        return []
    first = bases[-keep]
    removed = []
    for name in there:
        if (name.life, name.version) < (first.life, first.version) and name != first:
            folder.remove_file(name.path)
            removed.append(name.path)
    return removed


def _header(folder: Folder, name: SnapshotName) -> FileHeader:
    with folder.reading(name.path) as file:
        return Reading(file, name.path).header


def _load(folder: Folder, spec: ModelSpec, name: SnapshotName, weights: SlotWeights) -> SlotRecord:
    with folder.reading(name.path) as file:
        reading = Reading(file, name.path)
        header = reading.header
        if (header.slot, header.slots, header.model) != (name.slot, spec.slots, spec.digest):
            size = "" if header.slots == spec.slots else f", in {header.slots} slots and not {spec.slots}"
            raise OtherModelError(
                f"the snapshot {name.path} in {folder.url} is of another model{size}",
                hint="give another folder (--checkpoint), or the model and number of slots that it is of",
                snapshot=name.path,
            )
        for section in reading.sections(weights.section_sizes):
            weights.load(section)
        reading.end()
    record = SlotRecord.decode(bytes(reading.record), since=0)
    if (record.life, record.version) != (name.life, name.version):
        raise SlotSnapshotError(f"the snapshot {name.path} is not of its name", snapshot=name.path)
    return record
