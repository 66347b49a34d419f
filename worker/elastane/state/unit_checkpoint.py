"""Checkpoints by unit: written by a pipeline's workers, readable under any plan or without a pipeline.

    take_unit_snapshot           at the boundary: copies this member's units; shard 0 has the common part
    checkpoint.write_shard       in the background, as for other jobs; then the leader: write_manifest
    checkpoint.verify_newest     after a loss: the leader finds and verifies one, holding no tensors
    load_units                   every member reads its own units

A pipeline reads an ordinary checkpoint in the same way: it reads and verifies all relevant bytes, and keeps
only the tensors of its units. An ordinary job reads checkpoints by unit completely, with
`checkpoint.load_newest`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from elastane.state.codec import Exported
from elastane.state.manifest import Manifest, UnitManifest, read_named
from elastane.state.shard_file import CheckpointDamagedError, ShardHeader, Taker, read_shard
from elastane.state.shards import read_contents, reading, striped_headers
from elastane.state.stream import StreamLayout
from elastane.state.unit_selection import Selection
from elastane.state.unit_shard import COMMON_SECTION, Section, UnitSnapshot, copy_section, read_section
from elastane.state.unit_state import Staged, UnitState
from elastane_common.storage import Folder
from elastane_proto.contexts import Parts


def take_unit_snapshot(
    state: UnitState,
    units: Iterable[int],
    shard: int,
    shards: int,
    *,
    step: int,
    contexts: Mapping[int, Parts],
    ready_order: Sequence[int] = (),
) -> UnitSnapshot:
    """Copy this member's part out of the live state; training may continue when it returns.

    units: from `unit_transfers.saved_by`; every unit of the model must be in one shard. step: first step not
    included. contexts: of the ESTs that this worker hosts, at the start of `step`.
    """
    sections = {unit: copy_section(state.export_unit(unit)) for unit in sorted(units)}
    if shard == 0:
        sections[COMMON_SECTION] = copy_section(state.export_common())
    return UnitSnapshot(
        step=step,
        shard=shard,
        shards=shards,
        units=state.units.count,
        sections=sections,
        contexts={rank: dict(parts) for rank, parts in contexts.items()},
        ready_order=tuple(ready_order) if shard == 0 else (),
    )


def load_units(url: str, name: str, units: Iterable[int], state: UnitState) -> Staged:
    """Read units and the common part from the checkpoint verified by the leader; for `UnitState.adopt`.

    Called by each member; the live state is not changed. All bytes used are verified by sha256. Raises
    CheckpointDamagedError, or StateError with the first difference if it belongs to another model.
    """
    folder = Folder(url)
    manifest = read_named(folder, name)
    if isinstance(manifest, UnitManifest):
        return _from_units(folder, manifest, frozenset(units), state)
    return _from_stripes(folder, manifest, frozenset(units), state)


def _from_units(folder: Folder, manifest: UnitManifest, units: frozenset[int], state: UnitState) -> Staged:
    wanted = [s for s in manifest.sections if s.unit == COMMON_SECTION or s.unit in units]
    staged = Staged()
    # The common part first: it gives the difference if this is another model.
    for section in sorted(wanted, key=lambda section: section.unit):
        entry = manifest.shards[section.shard]
        part = Staged.of(reading(folder, manifest, entry, partial(_section, section)))
        state.check(part)
        staged = staged | part
    if lacking := units - set(staged.units):
        raise CheckpointDamagedError(f"it has no units {sorted(lacking)}")
    return staged


def _section(section: Section, file: Any) -> Exported:
    return read_section(file, section)


def _from_stripes(folder: Folder, manifest: Manifest, units: frozenset[int], state: UnitState) -> Staged:
    headers = striped_headers(folder, manifest)
    selection: Selection | None = None

    def select(structure: bytes) -> Taker:
        nonlocal selection
        selection = Selection(structure, units, state)
        if StreamLayout(selection.specs).total_bytes != headers[0].total_bytes:
            raise CheckpointDamagedError("has a structure of other tensors than its header says")
        return selection.take

    # The first shard's structure determines which others are needed.
    read_contents(folder, manifest, lambda file, shard: read_shard(file, headers[shard], select), [0])
    assert selection is not None
    chosen = selection
    needed = [shard for shard in range(1, len(headers)) if _overlaps(chosen, headers[shard])]
    read_contents(
        folder, manifest, lambda file, shard: read_shard(file, headers[shard], lambda _: chosen.take), needed
    )
    staged = chosen.staged()
    state.check(staged)
    return staged


def _overlaps(selection: Selection, header: ShardHeader) -> bool:
    return any(start < header.end and end > header.start for start, end in selection.ranges)
