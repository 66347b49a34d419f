"""Writes a checkpoint of slots as a state_dict with complete tensors and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from elastane.tables.layout import Ids, slots_of
from elastane.tables.snapshot_file import SlotSnapshotError
from elastane.tables.snapshots import newest
from elastane.tables.spec import DTYPES, ModelSpec, weight_of
from elastane.tables.spec_proto import from_proto
from elastane_common.atomic_writes import atomic_file
from elastane_common.errors import ElastaneError
from elastane_common.storage import Folder
from elastane_proto.v1 import ps_pb2


class PartialStateError(ElastaneError):
    """The state_dict of the job's slots would lack keys of the model's."""

    code = "ELA499"


CHECKPOINTS_FOLDER: Final = "slot-checkpoints"
_MANIFEST: Final = "manifest"
#: Number of row ids processed at a time.
_IDS: Final = 2**20


def export_state(
    found: ps_pb2.GetSlotsResponse, checkpoint: str, target: Path, *, partial: bool = False
) -> dict[str, Any]:
    """Write a checkpoint as a state_dict to `target`, and return facts about it.

    partial: allow missing keys, which are in no slot and are named in the facts; otherwise they raise
    PartialStateError. Raises SlotSnapshotError if the checkpoint cannot be read, or does not fit the model.
    """
    if not found.HasField("model"):
        raise SlotSnapshotError("the job has no model yet", hint="its script registers one with prepare_ps")
    absent = list(found.model.absent)
    if absent and not partial:
        raise PartialStateError(
            f"{len(absent)} keys of the model's state_dict are in no slot, as {', '.join(absent[:3])}",
            hint="--partial leaves them out: frozen parameters, buffers and second names of tied weights are"
            " as the script builds them; load the file with strict=False",
            absent=absent,
        )
    spec = from_proto(found.model, "float32")
    folder = Folder(found.settings.snapshot_url, SlotSnapshotError).within(
        f"{CHECKPOINTS_FOLDER}/{checkpoint}"
    )
    state = state_of(folder, spec)
    with atomic_file(target) as file:
        torch.save(state, file)
    size = target.stat().st_size
    return {"file": str(target), "parameters": len(state), "bytes": size, "absent": absent}


def state_of(folder: Folder, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Read all slots of a checkpoint. Raises SlotSnapshotError."""
    versions = _versions(folder, spec)
    dense = [torch.zeros(tensor.elements, dtype=DTYPES[tensor.dtype]) for tensor in spec.tensors]
    tables = [torch.zeros((table.rows, table.width), dtype=DTYPES[table.dtype]) for table in spec.tables]
    for slot in range(spec.slots):
        snapshot, rejected = newest(folder, spec, slot)
        if snapshot is None or (snapshot.record.life, snapshot.record.version) != versions[slot]:
            why = "; ".join(rejected) or "its snapshot is missing"
            raise SlotSnapshotError(f"slot {slot} of the checkpoint cannot be read: {why}", slot=slot)
        layout, weights = spec.layout(slot), snapshot.weights
        if layout.blocks and not weights.initialised:
            raise SlotSnapshotError(
                f"slot {slot} had no initial values yet when it was saved", hint="train some tasks first"
            )
        parts = [np.empty(size, np.uint8) for size in layout.initial_sections]
        weights.pull_dense([part.data for part in parts])
        for number, block, dtype, part in zip(
            layout.tensors, layout.blocks, layout.dtypes, parts, strict=True
        ):
            dense[number][block.start : block.end] = torch.from_numpy(part).view(dtype)
        for number, table in enumerate(layout.tables):
            for ids in _ids_of(spec, number, slot):
                values = np.empty(len(ids) * table.row_bytes, np.uint8)
                weights.pull_rows(number, ids, values.data)
                rows = torch.from_numpy(values).view(table.dtype).view(len(ids), table.width)
                tables[number][torch.from_numpy(ids)] = rows
    state = {
        tensor.name: _shaped(values, tensor.shape, tensor.strides)
        for tensor, values in zip(spec.tensors, dense, strict=True)
    }
    state |= {weight_of(table.name): values for table, values in zip(spec.tables, tables, strict=True)}
    return state


def _versions(folder: Folder, spec: ModelSpec) -> list[tuple[int, int]]:
    """Read life and version of each slot from the manifest; without it, the checkpoint is not complete."""
    with folder.reading(_MANIFEST) as file:
        try:
            manifest = json.loads(file.read())
            found = {part["slot"]: (part["life"], part["version"]) for part in manifest["slots"]}
        except (ValueError, KeyError, TypeError) as error:
            raise SlotSnapshotError(f"the checkpoint's manifest cannot be read: {error!r}") from error
    if sorted(found) != list(range(spec.slots)):
        raise SlotSnapshotError(f"the checkpoint has {len(found)} slots, and the model {spec.slots}")
    return [found[slot] for slot in range(spec.slots)]


def _ids_of(spec: ModelSpec, table: int, slot: int) -> Iterator[Ids]:
    told = spec.layout(slot).tables[table]
    for start in range(0, told.rows, _IDS):
        ids = np.arange(start, min(start + _IDS, told.rows))
        own = ids[slots_of(told.placement, ids) == slot]
        if len(own):
            yield own


def _shaped(values: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor with its shape. With strides, elements are in memory order."""
    if not strides:
        return values.view(shape)
    return values.as_strided(shape, strides)
