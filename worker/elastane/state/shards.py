"""Reads the shards of a checkpoint, of either version, and verifies headers and digests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from elastane.state import unit_shard
from elastane.state.manifest import Manifest, ShardInfo
from elastane.state.shard_file import CheckpointDamagedError, ShardContents, ShardHeader, read_header
from elastane.state.unit_shard import COMMON_SECTION, UnitShardContents, UnitShardHeader, read_unit_header
from elastane_common.storage import Folder
from elastane_proto.contexts import Parts

_SHARD: Final = re.compile(r"shard-\d{5,9}-of-\d{5,9}\.bin")
_READERS_MAX: Final = 4
_Header = TypeVar("_Header", ShardHeader, UnitShardHeader)
_Contents = TypeVar("_Contents", ShardContents, UnitShardContents)


def has_units(folder: Folder, manifest: Manifest) -> bool:
    """True if the first shard holds units rather than a stripe."""
    entry = manifest.shards[0]
    magic: bytes = reading(folder, manifest, entry, lambda file: file.read(len(unit_shard.MAGIC)))
    return magic == unit_shard.MAGIC


def striped_headers(folder: Folder, manifest: Manifest) -> list[ShardHeader]:
    """Read the headers of striped shards; check that stripes are contiguous and each EST occurs once.

    Raises CheckpointDamagedError.
    """
    headers = _headers(folder, manifest, read_header)
    position = 0
    for entry, header in zip(manifest.shards, headers, strict=True):
        mine, whole = (header.total_bytes, header.start), (headers[0].total_bytes, position)
        if mine != whole:
            raise CheckpointDamagedError(
                f"{entry.file} belongs to another checkpoint: {mine}, expected {whole}"
            )
        position = header.end
    if position != headers[0].total_bytes:
        raise CheckpointDamagedError(f"its shards hold {position} of {headers[0].total_bytes} bytes")
    return headers


def unit_headers(folder: Folder, manifest: Manifest) -> list[UnitShardHeader]:
    """Read the headers of unit shards; check that each unit, the common part and each EST occur once.

    Raises CheckpointDamagedError.
    """
    headers = _headers(folder, manifest, read_unit_header)
    units = sorted(section.unit for header in headers for section in header.sections)
    expected = [COMMON_SECTION, *range(headers[0].units)]
    if units != expected or any(header.units != headers[0].units for header in headers):
        raise CheckpointDamagedError(
            f"it has the units {units} of {headers[0].units} and the common part, {COMMON_SECTION}"
        )
    return headers


def read_contents(
    folder: Folder,
    manifest: Manifest,
    read: Callable[[Any, int], _Contents],
    shards: Sequence[int] | None = None,
) -> list[_Contents]:
    """Read shards (all by default) in parallel. read: called with an open file and the shard's number.

    Raises CheckpointDamagedError, also if the sha256 of a file differs.
    """

    def one(shard: int) -> _Contents:
        entry = manifest.shards[shard]
        contents = reading(folder, manifest, entry, lambda file: read(file, shard))
        if contents.sha256 != entry.sha256:
            raise CheckpointDamagedError(f"{entry.file} is damaged: the sha256 differs")
        return contents

    wanted = range(len(manifest.shards)) if shards is None else shards
    with ThreadPoolExecutor(max(min(_READERS_MAX, len(wanted)), 1)) as readers:
        return list(readers.map(one, wanted))


def contexts_in(contents: Sequence[ShardContents | UnitShardContents]) -> dict[int, Parts]:
    """Return the contexts of all ESTs, by virtual rank."""
    return dict(sorted((rank, parts) for shard in contents for rank, parts in shard.contexts.items()))


def reading(folder: Folder, manifest: Manifest, entry: ShardInfo, read: Callable[[Any], Any]) -> Any:
    """Call `read` with the open shard; errors name the shard."""
    with folder.reading(f"{manifest.checkpoint}/{entry.file}") as file:
        try:
            return read(file)
        except CheckpointDamagedError as error:
            raise CheckpointDamagedError(f"{entry.file} {error}") from error


def _headers(folder: Folder, manifest: Manifest, read: Callable[[Any, int], _Header]) -> list[_Header]:
    headers = []
    for entry in manifest.shards:
        _check_size(folder, manifest, entry)
        header: _Header = reading(folder, manifest, entry, partial(_with_size, read, entry.bytes))
        mine = (header.checkpoint, header.step, header.shard, header.shards)
        expected = (manifest.checkpoint, manifest.step, entry.shard, len(manifest.shards))
        if mine != expected:
            raise CheckpointDamagedError(
                f"{entry.file} belongs to another checkpoint: {mine}, expected {expected}"
            )
        headers.append(header)
    ranks = sorted(rank for header in headers for rank, _ in header.contexts)
    if ranks != list(range(manifest.num_ests)):
        raise CheckpointDamagedError(
            f"it has the contexts of ESTs {ranks}, not of 0..{manifest.num_ests - 1}"
        )
    return headers


def _with_size(read: Callable[[Any, int], _Header], size_bytes: int, file: Any) -> _Header:
    return read(file, size_bytes)


def _check_size(folder: Folder, manifest: Manifest, entry: ShardInfo) -> None:
    if not _SHARD.fullmatch(entry.file):
        raise CheckpointDamagedError(f"{entry.file[:80]!r} is not a shard name")
    size = folder.size(f"{manifest.checkpoint}/{entry.file}")
    if size != entry.bytes:
        found = "missing" if size is None else f"{size} bytes long"
        raise CheckpointDamagedError(f"{entry.file} is {found}, should be {entry.bytes} bytes")
