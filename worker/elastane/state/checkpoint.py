"""Checkpoints: the state and all EST contexts of one step boundary, in files that are complete or ignored.

    URL/step-000000001234-g000007/shard-00000-of-00003.bin      one per worker, written in parallel
                                  shard-00001-of-00003.bin
                                  shard-00002-of-00003.bin
                                  manifest.json                 last: the checkpoint exists if this does

A pipeline's shards hold whole units instead of stripes (`unit_checkpoint`); everything else is the same.

1. Each worker takes a snapshot of its stripe at the boundary and continues training.
2. Each writes its shard in the background and reports its sha256.
3. When all have, the leader writes the manifest, then removes old checkpoints.
4. After a loss of all workers, `load_newest` takes the newest whose bytes are all correct; a
     damaged one is skipped and reported with the reason.

Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import structlog
import torch

from elastane.state.codec import Exported, StateFormatError
from elastane.state.manifest import (
    DOUBTFUL,
    MANIFEST,
    UNIT_VERSION,
    VERSION,
    Checkpoint,
    CheckpointTooNewError,
    Manifest,
    ShardInfo,
    UnitManifest,
    checkpoint_name,
    list_folder,
    manifest_sha256,
    order_of,
    read_manifest,
)
from elastane.state.shard_file import (
    CheckpointDamagedError,
    ShardContents,
    Snapshot,
    read_shard,
    shard_chunks,
    take_snapshot,
)
from elastane.state.shards import contexts_in, has_units, read_contents, striped_headers, unit_headers
from elastane.state.stream import exported_from_stream
from elastane.state.unit_merge import merged
from elastane.state.unit_shard import UnitShardContents, UnitSnapshot, read_unit_shard, unit_shard_chunks
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
    "VerifiedCheckpoint",
    "checkpoint_name",
    "list_checkpoints",
    "load_newest",
    "take_snapshot",
    "verify_newest",
    "write_manifest",
    "write_shard",
]

_log = structlog.get_logger(__name__)


class NoUsableCheckpointError(CheckpointError):
    """There are checkpoints, and none is usable; `facts["rejected"]` has the reason for each.

    Training from the initial state would in time remove them, so that decision is left to the user. The exit
    code says "do not retry" if all are damaged, and allows a retry if some could not be read.
    """

    code = "ELA313"


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


class VerifiedCheckpoint(msgspec.Struct, frozen=True):
    """A fully verified checkpoint. Fields as in LoadedCheckpoint, without the state."""

    name: str
    step: int
    num_ests: int
    contexts: dict[int, Parts]
    ready_order: tuple[int, ...]
    rejected: tuple[str, ...]


_Used = TypeVar("_Used", LoadedCheckpoint, VerifiedCheckpoint)


def write_shard(url: str, name: str, shard: int, shards: int, snapshot: Snapshot | UnitSnapshot) -> ShardInfo:
    """Write a snapshot as shard `shard` of checkpoint `name`; called by each worker, in the background.

    The write is atomic. Raises CheckpointError, with a hint if the disk is full.
    """
    order_of(name)
    if (snapshot.shard, snapshot.shards) != (shard, shards):
        raise ValueError(f"snapshot of shard {snapshot.shard}/{snapshot.shards}, not {shard}/{shards}")
    file = f"shard-{shard:05d}-of-{shards:05d}.bin"
    digest, size = hashlib.sha256(), 0
    if isinstance(snapshot, UnitSnapshot):
        chunks = unit_shard_chunks(name, snapshot)
    else:
        chunks = shard_chunks(name, snapshot)

    def hashed() -> Any:
        nonlocal size
        for chunk in chunks:
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
    if order_of(name)[0] != step:
        raise CheckpointError(f"checkpoint {name} cannot be of step {step}")
    folder = Folder(url)
    shards = tuple(sorted(entries, key=lambda entry: entry.shard))
    if not shards or [entry.shard for entry in shards] != list(range(len(shards))):
        raise CheckpointError(f"checkpoint {name} has shards {[entry.shard for entry in shards]}, not 0..P-1")
    manifest = Manifest(VERSION, name, step, num_ests, shards)
    # Older checkpoints are removed in favour of this one, so it must be one that `load_newest` accepts.
    manifest = _checked(folder, manifest)
    manifest = msgspec.structs.replace(manifest, sha256=manifest_sha256(manifest))
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
    return list_folder(Folder(url))


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
    return _newest(url, _load, num_ests=num_ests, step_max=step_max, doubts=doubts)


def verify_newest(
    url: str,
    *,
    num_ests: int | None = None,
    step_max: int | None = None,
    doubts: Sequence[tuple[int, int]] = (),
) -> VerifiedCheckpoint | None:
    """Find the newest usable checkpoint and verify it to the last byte, holding no tensors.

    For the leader of a pipeline's ring, which reports it to the master; each member then reads its units with
    `unit_checkpoint.load_units`. Arguments and errors as for `load_newest`.
    """
    return _newest(url, _verify, num_ests=num_ests, step_max=step_max, doubts=doubts)


def _newest(
    url: str,
    use: Callable[[Folder, Manifest, tuple[str, ...]], _Used],
    *,
    num_ests: int | None,
    step_max: int | None,
    doubts: Sequence[tuple[int, int]],
) -> _Used | None:
    """Return what `use` returns for the newest checkpoint that it does not reject."""
    folder = Folder(url)
    rejected: list[str] = []
    unreadable = False
    for checkpoint in reversed(list_folder(folder)):
        if not checkpoint.complete:
            continue
        if any(checkpoint.step > step and checkpoint.generation <= generation for step, generation in doubts):
            _set_aside(folder, checkpoint.name)
            continue
        if step_max is not None and checkpoint.step > step_max:
            rejected.append(f"{checkpoint.name}: the job's history goes only up to step {step_max}")
            continue
        try:
            manifest = read_manifest(folder, checkpoint)
            if num_ests is not None and manifest.num_ests != num_ests:
                raise CheckpointDamagedError(
                    f"it belongs to a job with {manifest.num_ests} ESTs, this one has {num_ests}"
                )
            return use(folder, manifest, tuple(rejected))
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
        # Copied before it is removed: after a kill in between both exist, and the next load repeats this.
        folder.write(f"{name}/{DOUBTFUL}", [manifest])
        folder.remove_file(f"{name}/{MANIFEST}")
    except (OSError, CheckpointError) as error:
        _log.warning("checkpoint could not be set aside", checkpoint=name, error=str(error))


def _remove_old(folder: Folder, name: str, keep: int) -> None:
    """Remove old checkpoints. Newer ones stay: their history was given up because they are damaged."""
    older = [checkpoint for checkpoint in list_folder(folder) if order_of(checkpoint.name) < order_of(name)]
    complete = [checkpoint.name for checkpoint in older if checkpoint.complete]
    kept = set(complete[len(complete) - (keep - 1) :]) if keep > 1 else set()
    for checkpoint in older:
        if checkpoint.name not in kept:
            # The manifest first: a kill during the removal leaves an incomplete checkpoint, which is ignored.
            folder.remove_file(f"{checkpoint.name}/{MANIFEST}")
            folder.remove_subfolder(checkpoint.name)


def _checked(folder: Folder, manifest: Manifest) -> Manifest:
    """Return the manifest in the version of its shards, after checking their headers."""
    if not has_units(folder, manifest):
        striped_headers(folder, manifest)
        return manifest
    headers = unit_headers(folder, manifest)
    sections = sorted((section for header in headers for section in header.sections), key=lambda s: s.unit)
    return UnitManifest(
        version=UNIT_VERSION,
        checkpoint=manifest.checkpoint,
        step=manifest.step,
        num_ests=manifest.num_ests,
        shards=manifest.shards,
        units=headers[0].units,
        sections=tuple(sections),
    )


def _load(folder: Folder, manifest: Manifest, rejected: tuple[str, ...]) -> LoadedCheckpoint:
    if isinstance(manifest, UnitManifest):
        exported, contexts, ready_order = _load_units(folder, manifest)
    else:
        exported, contexts, ready_order = _load_stripes(folder, manifest)
    return LoadedCheckpoint(
        name=manifest.checkpoint,
        step=manifest.step,
        num_ests=manifest.num_ests,
        exported=exported,
        contexts=contexts,
        ready_order=ready_order,
        rejected=rejected,
    )


def _load_stripes(folder: Folder, manifest: Manifest) -> tuple[Exported, dict[int, Parts], tuple[int, ...]]:
    headers = striped_headers(folder, manifest)
    # Sizes were checked against the files, so a damaged header cannot make this allocation huge.
    stream = torch.empty(headers[0].total_bytes, dtype=torch.uint8)

    def read(file: Any, shard: int) -> ShardContents:
        return read_shard(file, headers[shard], stream[headers[shard].start : headers[shard].end])

    contents = read_contents(folder, manifest, read)
    exported = exported_from_stream(contents[0].structure, stream)
    return exported, contexts_in(contents), headers[0].ready_order


def _load_units(folder: Folder, manifest: UnitManifest) -> tuple[Exported, dict[int, Parts], tuple[int, ...]]:
    headers = unit_headers(folder, manifest)
    contents = read_contents(
        folder, manifest, lambda file, shard: read_unit_shard(file, headers[shard], lambda _: True)
    )
    sections = {unit: exported for shard in contents for unit, exported in shard.sections.items()}
    return merged(sections), contexts_in(contents), headers[0].ready_order


def _verify(folder: Folder, manifest: Manifest, rejected: tuple[str, ...]) -> VerifiedCheckpoint:
    contents: Sequence[ShardContents | UnitShardContents]
    if isinstance(manifest, UnitManifest):
        of_units = unit_headers(folder, manifest)
        contents = read_contents(folder, manifest, lambda file, shard: read_unit_shard(file, of_units[shard]))
        ready_order = of_units[0].ready_order
    else:
        striped = striped_headers(folder, manifest)
        contents = read_contents(folder, manifest, lambda file, shard: read_shard(file, striped[shard], None))
        ready_order = striped[0].ready_order
    return VerifiedCheckpoint(
        name=manifest.checkpoint,
        step=manifest.step,
        num_ests=manifest.num_ests,
        contexts=contexts_in(contents),
        ready_order=ready_order,
        rejected=rejected,
    )
