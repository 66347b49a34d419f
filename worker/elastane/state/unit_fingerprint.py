"""Fingerprints of a pipeline's state, in pieces: each worker computes those of its units.

A piece is the sha256 of one item by the rule of `fingerprint`. The pieces of all workers together equal those
of a process that holds the whole model, which allows a comparison with stock DDP.
"""

from __future__ import annotations

import hashlib
from typing import Any

from elastane.state.fingerprint import add_value
from elastane.state.train_state import scripts_names
from elastane.state.unit_state import UnitState

Pieces = dict[str, dict[str, str]]
"""By part of the state ("weights", "optimizer", "buffers", "extras"), the digests of its items by name."""


def pieces(state: UnitState) -> Pieces:
    """Return the digests of active units, and of state that all workers have."""
    units = state.units
    weights, optimizer, buffers, extras = (
        dict[str, str](),
        dict[str, str](),
        dict[str, str](),
        dict[str, str](),
    )
    for unit in sorted(state.active):
        prefix = units.prefix(unit)
        for name, parameter in units.owned_parameters(unit).items():
            weights[prefix + name] = _digest(parameter)
        for name, module, key in units.owned_buffers(unit):
            buffers[prefix + name] = _digest(module._buffers[key])
        for name, entry in state.optimizer.export_unit(unit).items():
            optimizer[f"state {prefix}{name}"] = _digest(entry)
    for name, value in state.optimizer.export_groups().items():
        optimizer[name] = _digest(value)
    for index, scheduler in enumerate(state.schedulers):
        extras[f"scheduler {index}"] = _digest(scheduler.state_dict())
    for index, name in enumerate(scripts_names(state.extras)):
        extras[f"extra {index}"] = _digest(state.extras[name].state_dict())
    return {"extras": extras, "weights": weights, "optimizer": optimizer, "buffers": buffers}


def _digest(value: Any) -> str:
    digest = hashlib.sha256()
    add_value(digest, "", value)
    return digest.hexdigest()
