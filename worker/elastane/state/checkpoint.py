"""Checkpoints: the state and all EST contexts of one step boundary, in files that are complete or ignored.

    URL/step-000000001234-g000007/shard-00000-of-00003.bin      one per worker, written in parallel
                                  shard-00001-of-00003.bin
                                  shard-00002-of-00003.bin
                                  manifest.json                 last: the checkpoint exists if this does

1. Each worker takes a snapshot of its stripe at the boundary and continues training.
2. Each writes its shard in the background and reports its sha256.
3. When all have, the leader writes the manifest, then removes old checkpoints.
4. After a loss of all workers, `load_newest` takes the newest of which every byte is correct; a
   damaged one is skipped and reported with the reason.

Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import structlog
import torch

from elastane.state.codec import Exported, StateFormatError
from elastane.state.shard_file import (
    CheckpointDamagedError,
    ShardContents,
    ShardHeader,
    Snapshot,
    read_header,
    read_shard,
    shard_chunks,
    take_snapshot,
)
from elastane.state.stream import exported_from_stream
from elastane_common.errors import EXIT_REFUSED, EXIT_SCRIPT_RAISED
from elastane_common.storage import CheckpointError, Chunk, Folder
from elastane_proto.contexts import Parts

__all__ = [
    "Checkpoint",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointTooNewError",
    "LoadedCheckpoint",
    "NoUsableCheckpointError",
    "ShardInfo",
    "Snapshot",
    "checkpoint_name",
    "list_checkpoints",
    "load_newest",
    "take_snapshot",
    "write_manifest",
    "write_shard",
]

MANIFEST: Final = "manifest.json"
#: Name of the manifest of a checkpoint that must not be loaded any more.
DOUBTFUL: Final = "manifest.doubtful.json"
VERSION: Final = 1
_NAME: Final = re.compile(r"step-(\d{1,18})-g(?:eneration-)?(\d{1,18})(-[A-Za-z0-9._-]+)?")
_SHARD: Final = re.compile(r"shard-\d{5,9}-of-\d{5,9}\.bin")
_MANIFEST_BYTES_MAX: Final = 64 << 20
_READERS_MAX: Final = 4
_log = structlog.get_logger(__name__)


class NoUsableCheckpointError(CheckpointError):
    """There are checkpoints, and none is usable; `facts["rejected"]` has the reason for each.

    Training from the initial state would in time remove them, so that decision is left to the user. The exit
    code says "do not retry" if all are damaged, and allows a retry if some could not be read.
    """

    code = "ELA313"


class CheckpointTooNewError(CheckpointError):
    """The newest checkpoint was written by a newer release.

    Using an older one instead would discard the training since then, so nothing is loaded and nothing
    removed.
    """

    code = "ELA314"
    exit_code = EXIT_REFUSED


class ShardInfo(msgspec.Struct, frozen=True):
    """A shard as listed in the manifest. file: name in the checkpoint's folder. sha256: of the file, hex."""

    shard: int
    file: str
    sha256: str
    bytes: int


class Manifest(msgspec.Struct, frozen=True):
    """Contents of manifest.json. step: first step not included.

    sha256: of the same JSON with this field empty.
    """

    version: int
    checkpoint: str
    step: int
    num_ests: int
    shards: tuple[ShardInfo, ...]
    sha256: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    """Fields of every manifest, whatever its version."""

    version: int


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint found in its folder; not verified. Without a manifest it is incomplete."""

    name: str
    step: int
    generation: int
    complete: bool


class LoadedCheckpoint(msgspec.Struct, frozen=True):
    """A verified checkpoint in memory.

    exported: for `TrainState.load`, on the CPU. contexts: of all ESTs at the start of `step`, by virtual
    rank. rejected: newer checkpoints that could not be used, each with its reason.
    """

    name: str
    step: int
    num_ests: int
    exported: Exported
    contexts: dict[int, Parts]
    ready_order: tuple[int, ...]
    rejected: tuple[str, ...]


def checkpoint_name(step: int, generation: int) -> str:
    """Return the name of the checkpoint at the boundary before `step`.

    Names sort by step, then generation.
    """
    return f"step-{step:012d}-g{generation:06d}"


def write_shard(url: str, name: str, shard: int, shards: int, snapshot: Snapshot) -> ShardInfo:
    """Write a snapshot as shard `shard` of checkpoint `name`; called by each worker, in the background.

    The write is atomic. Raises CheckpointError, with a hint if the disk is full.
    """
    _order(name)
    if (snapshot.shard, snapshot.shards) != (shard, shards):
        raise ValueError(f"snapshot of shard {snapshot.shard}/{snapshot.shards}, not {shard}/{shards}")
    file = f"shard-{shard:05d}-of-{shards:05d}.bin"
    digest, size = hashlib.sha256(), 0

    def hashed() -> Any:
        nonlocal size
        for chunk in shard_chunks(name, snapshot):
            digest.update(chunk)
            size += len(chunk)
            yield chunk

    Folder(url).write(f"{name}/{file}", hashed())
    return ShardInfo(shard, file, digest.hexdigest(), size)


def write_manifest(
    url: str, name: str, step: int, num_ests: int, entries: Sequence[ShardInfo], keep: int
) -> None:
    """Complete the checkpoint; called by the leader when every shard is written.

    Then removes complete checkpoints beyond the newest `keep` (at least 1) and incomplete ones, all older
    than this one. Failing to remove is logged, not raised. Raises CheckpointError (also for missing shards,
    as on a storage that is not shared); then the checkpoint does not exist.
    """
    if _order(name)[0] != step:
        raise CheckpointError(f"checkpoint {name} cannot be of step {step}")
    folder = Folder(url)
    shards = tuple(sorted(entries, key=lambda entry: entry.shard))
    if not shards or [entry.shard for entry in shards] != list(range(len(shards))):
        raise CheckpointError(f"checkpoint {name} has shards {[entry.shard for entry in shards]}, not 0..P-1")
    manifest = Manifest(VERSION, name, step, num_ests, shards)
    # Older checkpoints are removed in favour of this one, so it must be one that `load_newest` accepts.
    _check_headers(manifest, [_read_header(folder, manifest, entry) for entry in shards])
    manifest = msgspec.structs.replace(manifest, sha256=_manifest_sha256(manifest))
    chunks: list[Chunk] = [msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"]
    folder.write(f"{name}/{MANIFEST}", chunks)
    try:
        _remove_old(folder, name, keep)
    except CheckpointError as error:
        _log.warning("old checkpoints could not be removed", url=url, error=str(error))


def list_checkpoints(url: str) -> list[Checkpoint]:
    """Return the checkpoints under the URL, oldest first, incomplete ones included.

    Raises CheckpointError.
    """
    return _list(Folder(url))


def load_newest(
    url: str,
    *,
    num_ests: int | None = None,
    step_max: int | None = None,
    doubts: Sequence[tuple[int, int]] = (),
) -> LoadedCheckpoint | None:
    """Load the newest usable checkpoint, verified to the last byte; None if there are no checkpoints.

    num_ests: the job's N; a checkpoint of another N is unusable. step_max: a checkpoint of a later step is
    unusable, because the job's history does not lead up to it. doubts: pairs (step, generation): checkpoints
    of later steps and of generations up to that one are set aside permanently. Raises CheckpointTooNewError
    if one was written by a newer release, NoUsableCheckpointError if complete checkpoints exist and all are
    unusable, CheckpointError if the URL cannot be listed.
    """
    folder = Folder(url)
    rejected: list[str] = []
    unreadable = False
    for checkpoint in reversed(_list(folder)):
        if not checkpoint.complete:
            continue
        if any(checkpoint.step > step and checkpoint.generation <= generation for step, generation in doubts):
            _set_aside(folder, checkpoint.name)
            continue
        if step_max is not None and checkpoint.step > step_max:
            rejected.append(f"{checkpoint.name}: the job's history goes only up to step {step_max}")
            continue
        try:
            return _load(folder, checkpoint, num_ests, tuple(rejected))
        except CheckpointTooNewError:
            raise
        except (CheckpointError, StateFormatError) as error:
            rejected.append(f"{checkpoint.name}: {error}")
            unreadable |= not isinstance(error, CheckpointDamagedError | StateFormatError)
            _log.warning("checkpoint is unusable", checkpoint=checkpoint.name, reason=str(error))
    if rejected:
        unusable = NoUsableCheckpointError(
            f"none of the {len(rejected)} checkpoints at {url} can be used: {'; '.join(rejected)}",
            hint="repair or remove them, or give another checkpoint URL",
            rejected=tuple(rejected),
        )
        unusable.exit_code = EXIT_SCRIPT_RAISED if unreadable else EXIT_REFUSED
        raise unusable
    return None


def _set_aside(folder: Folder, name: str) -> None:
    """Exclude a doubtful checkpoint permanently, for all readers, by renaming its manifest."""
    _log.warning("checkpoint is doubtful and was set aside", checkpoint=name)
    try:
        with folder.reading(f"{name}/{MANIFEST}") as file:
            manifest = file.read()
        # Copied before it is removed: a kill in between leaves both names, and the next load sets it aside
        # again.
        folder.write(f"{name}/{DOUBTFUL}", [manifest])
        folder.remove_file(f"{name}/{MANIFEST}")
    except (OSError, CheckpointError) as error:
        _log.warning("checkpoint could not be set aside", checkpoint=name, error=str(error))


def _order(name: str) -> tuple[int, int, str]:
    """Return the sort key of a name. Raises CheckpointError for an invalid name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(
            f"{name!r} is not a checkpoint name", hint="use checkpoint_name(step, generation)"
        )
    return int(match[1]), int(match[2]), match[3] or ""


def _list(folder: Folder) -> list[Checkpoint]:
    found = []
    for name in sorted((name for name in folder.subfolders() if _NAME.fullmatch(name)), key=_order):
        step, generation, _ = _order(name)
        found.append(Checkpoint(name, step, generation, folder.size(f"{name}/{MANIFEST}") is not None))
    return found


def _remove_old(folder: Folder, name: str, keep: int) -> None:
    """Remove old checkpoints. Newer ones stay: their history was given up because they are damaged."""
    older = [checkpoint for checkpoint in _list(folder) if _order(checkpoint.name) < _order(name)]
    complete = [checkpoint.name for checkpoint in older if checkpoint.complete]
    kept = set(complete[len(complete) - (keep - 1) :]) if keep > 1 else set()
    for checkpoint in older:
        if checkpoint.name not in kept:
            # The manifest first: a kill during the removal leaves an incomplete checkpoint, which is ignored.
            folder.remove_file(f"{checkpoint.name}/{MANIFEST}")
            folder.remove_subfolder(checkpoint.name)


def _load(
    folder: Folder, checkpoint: Checkpoint, num_ests: int | None, rejected: tuple[str, ...]
) -> LoadedCheckpoint:
    manifest = _read_manifest(folder, checkpoint)
    if num_ests is not None and manifest.num_ests != num_ests:
        raise CheckpointDamagedError(
            f"it belongs to a job with {manifest.num_ests} ESTs, this one has {num_ests}"
        )
    headers = [_read_header(folder, manifest, entry) for entry in manifest.shards]
    _check_headers(manifest, headers)
    # Sizes were checked against the files, so a damaged header cannot make this allocation huge.
    stream = torch.empty(headers[0].total_bytes, dtype=torch.uint8)

    def read(entry: ShardInfo) -> ShardContents:
        header = headers[entry.shard]
        return _read_contents(folder, manifest, entry, header, stream[header.start : header.end])

    with ThreadPoolExecutor(min(_READERS_MAX, len(manifest.shards))) as readers:
        shards = list(readers.map(read, manifest.shards))
    exported = exported_from_stream(shards[0].structure, stream)
    return LoadedCheckpoint(
        name=checkpoint.name,
        step=manifest.step,
        num_ests=manifest.num_ests,
        exported=exported,
        contexts=dict(sorted((rank, parts) for shard in shards for rank, parts in shard.contexts.items())),
        ready_order=headers[0].ready_order,
        rejected=rejected,
    )


def _read_manifest(folder: Folder, checkpoint: Checkpoint) -> Manifest:
    with folder.reading(f"{checkpoint.name}/{MANIFEST}") as file:
        text = file.read(_MANIFEST_BYTES_MAX)
    try:
        version = msgspec.json.decode(text, type=_Versioned).version
        if version > VERSION:
            raise CheckpointTooNewError(
                f"checkpoint {checkpoint.name} was written by a newer release: its manifest has version"
                f" {version}, this one reads up to {VERSION}",
                hint="upgrade elastane on the workers, or remove this checkpoint to use the previous one",
                checkpoint=checkpoint.name,
                version=version,
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointDamagedError(f"its manifest is unreadable: {error}") from error
    if manifest.version != VERSION:
        raise CheckpointDamagedError(
            f"its manifest has version {manifest.version}, this code reads {VERSION}"
        )
    if manifest.sha256 != _manifest_sha256(manifest):
        raise CheckpointDamagedError("its manifest is damaged: the sha256 differs")
    if (manifest.checkpoint, manifest.step) != (checkpoint.name, checkpoint.step):
        raise CheckpointDamagedError(f"its manifest belongs to {manifest.checkpoint} at step {manifest.step}")
    if not manifest.shards:
        raise CheckpointDamagedError("its manifest lists no shards")
    return manifest


def _read_header(folder: Folder, manifest: Manifest, entry: ShardInfo) -> ShardHeader:
    if not _SHARD.fullmatch(entry.file):
        raise CheckpointDamagedError(f"{entry.file[:80]!r} is not a shard name")
    path = f"{manifest.checkpoint}/{entry.file}"
    size = folder.size(path)
    if size != entry.bytes:
        raise CheckpointDamagedError(
            f"{entry.file} is {_bytes_or_missing(size)}, should be {entry.bytes} bytes"
        )
    with folder.reading(path) as file:
        try:
            return read_header(file, entry.bytes)
        except CheckpointDamagedError as error:
            raise CheckpointDamagedError(f"{entry.file} {error}") from error


def _check_headers(manifest: Manifest, headers: Sequence[ShardHeader]) -> None:
    """Check that the shards make one whole: stripes are contiguous, and each EST occurs once."""
    position = 0
    for entry, header in zip(manifest.shards, headers, strict=True):
        mine = (header.checkpoint, header.step, header.shard, header.shards, header.total_bytes, header.start)
        expected = (
            manifest.checkpoint,
            manifest.step,
            entry.shard,
            len(headers),
            headers[0].total_bytes,
            position,
        )
        if mine != expected:
            raise CheckpointDamagedError(
                f"{entry.file} belongs to another checkpoint: {mine}, expected {expected}"
            )
        position = header.end
    if position != headers[0].total_bytes:
        raise CheckpointDamagedError(f"its shards hold {position} of {headers[0].total_bytes} bytes")
    ranks = sorted(rank for header in headers for rank, _ in header.contexts)
    if ranks != list(range(manifest.num_ests)):
        raise CheckpointDamagedError(
            f"it has the contexts of ESTs {ranks}, not of 0..{manifest.num_ests - 1}"
        )


def _read_contents(
    folder: Folder, manifest: Manifest, entry: ShardInfo, header: ShardHeader, stripe: torch.Tensor
) -> ShardContents:
    with folder.reading(f"{manifest.checkpoint}/{entry.file}") as file:
        try:
            contents = read_shard(file, header, stripe)
        except CheckpointDamagedError as error:
            raise CheckpointDamagedError(f"{entry.file} {error}") from error
    if contents.sha256 != entry.sha256:
        raise CheckpointDamagedError(f"{entry.file} is damaged: the sha256 differs")
    return contents


def _manifest_sha256(manifest: Manifest) -> str:
    plain = msgspec.structs.replace(manifest, sha256="")
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def _bytes_or_missing(size: int | None) -> str:
    return "missing" if size is None else f"{size} bytes long"
