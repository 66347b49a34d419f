"""Manifests of checkpoints, and the checkpoints of a folder.

version 1    shards are stripes of one stream of tensors (`shard_file`)
version 2    shards hold complete units of a pipeline (`unit_shard`); older releases refuse it with a message
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from elastane.state.shard_file import CheckpointDamagedError
from elastane.state.unit_shard import Section
from elastane_common.errors import EXIT_REFUSED
from elastane_common.storage import CheckpointError, Folder

MANIFEST: Final = "manifest.json"
#: Name of the manifest of a checkpoint that must no longer be loaded.
DOUBTFUL: Final = "manifest.doubtful.json"
#: Versions of manifests whose shards are stripes, and whose shards are units.
VERSION: Final = 1
UNIT_VERSION: Final = 2
_NAME: Final = re.compile(r"step-(\d{1,18})-g(?:eneration-)?(\d{1,18})(-[A-Za-z0-9._-]+)?")
_MANIFEST_BYTES_MAX: Final = 64 << 20


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


class UnitManifest(Manifest, frozen=True):
    """Manifest of a pipeline's checkpoint. units: of the model. sections: all, with the common one."""

    units: int = 0
    sections: tuple[Section, ...] = ()


class _Versioned(msgspec.Struct, frozen=True):
    """Fields of every manifest, whatever its version."""

    version: int


_version: Final = msgspec.json.Decoder(_Versioned)
_decoder: Final = msgspec.json.Decoder(Manifest)
_unit_decoder: Final = msgspec.json.Decoder(UnitManifest)


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint found in its folder; not verified. Without a manifest it is incomplete."""

    name: str
    step: int
    generation: int
    complete: bool


def checkpoint_name(step: int, generation: int) -> str:
    """Return the name of the checkpoint at the boundary before `step`.

    Names sort by step, then generation.
    """
    return f"step-{step:012d}-g{generation:06d}"


def order_of(name: str) -> tuple[int, int, str]:
    """Return the sort key of a name. Raises CheckpointError for an invalid name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(
            f"{name!r} is not a checkpoint name", hint="use checkpoint_name(step, generation)"
        )
    return int(match[1]), int(match[2]), match[3] or ""


def list_folder(folder: Folder) -> list[Checkpoint]:
    """Return the checkpoints of a folder, oldest first."""
    found = []
    for name in sorted((name for name in folder.subfolders() if _NAME.fullmatch(name)), key=order_of):
        step, generation, _ = order_of(name)
        found.append(Checkpoint(name, step, generation, folder.size(f"{name}/{MANIFEST}") is not None))
    return found


def read_manifest(folder: Folder, checkpoint: Checkpoint) -> Manifest:
    """Read a checkpoint's manifest and compare its sha256.

    Raises CheckpointDamagedError, or CheckpointTooNewError if a newer release wrote it.
    """
    with folder.reading(f"{checkpoint.name}/{MANIFEST}") as file:
        text = file.read(_MANIFEST_BYTES_MAX)
    try:
        version = _version.decode(text).version
        if version > UNIT_VERSION:
            raise CheckpointTooNewError(
                f"checkpoint {checkpoint.name} was written by a newer release: its manifest has version"
                f" {version}, this one reads up to {UNIT_VERSION}",
                hint="upgrade elastane on the workers, or remove this checkpoint to use the previous one",
                checkpoint=checkpoint.name,
                version=version,
            )
        manifest = _unit_decoder.decode(text) if version == UNIT_VERSION else _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointDamagedError(f"its manifest is unreadable: {error}") from error
    if manifest.version not in (VERSION, UNIT_VERSION):
        raise CheckpointDamagedError(
            f"its manifest has version {manifest.version}, this code reads {VERSION} and {UNIT_VERSION}"
        )
    if manifest.sha256 != manifest_sha256(manifest):
        raise CheckpointDamagedError("its manifest is damaged: the sha256 differs")
    if (manifest.checkpoint, manifest.step) != (checkpoint.name, checkpoint.step):
        raise CheckpointDamagedError(f"its manifest belongs to {manifest.checkpoint} at step {manifest.step}")
    if not manifest.shards:
        raise CheckpointDamagedError("its manifest lists no shards")
    return manifest


def manifest_sha256(manifest: Manifest) -> str:
    """Return the sha256 that belongs into the manifest."""
    plain = msgspec.structs.replace(manifest, sha256="")
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def read_named(folder: Folder, name: str) -> Manifest:
    """Read the manifest of the checkpoint of this name. Errors as of `read_manifest`."""
    step, generation, _ = order_of(name)
    return read_manifest(folder, Checkpoint(name, step, generation, complete=True))
