"""Findings of `elastane doctor` about a model for parameter servers: sizes of model and task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from elastane.diagnose.findings import Severity
from elastane.diagnose.pipeline_findings import Said
from elastane.tables.row_rules import STATES
from elastane.tables.spec import DTYPES, ModelSpec
from elastane_planner.amounts import bytes_text

KIND: Final = "parameter servers"
DENSE_BYTES_NOTED: Final = 64 << 20
"""Dense weights of which every task pulls, and pushes, as much are named."""
_DENSE_STATES: Final = {"sgd": 1, "adagrad": 1, "adam": 2, "adamw": 2}


def dense_bytes(spec: ModelSpec) -> int:
    """Return the size of the dense weights, which each task pulls as a whole."""
    return sum(tensor.elements * DTYPES[tensor.dtype].itemsize for tensor in spec.tensors)


def full_bytes(spec: ModelSpec) -> int:
    """Return the memory of the model at all parameter servers together, once every row has been used.

    With the optimizer's states, without copies of slots and without the index of rows.
    """
    size = 0
    for tensor in spec.tensors:
        states = _DENSE_STATES[spec.rules[tensor.group]]
        size += (1 + states) * tensor.elements * DTYPES[tensor.dtype].itemsize
    for table in spec.tables:
        item = DTYPES[table.dtype].itemsize
        row = table.width * item
        for _, elements, kind in STATES[spec.rules[table.group]]:
            row += (table.width if elements < 0 else 1) * (np.dtype(kind).itemsize if kind else item)
        size += table.rows * row
    return size


def findings(spec: ModelSpec, memory_bytes: int) -> Iterator[Said]:
    """Yield what there is to say. memory_bytes: of this machine; 0: unknown."""
    size = full_bytes(spec)
    if 0 < memory_bytes < size:
        yield Said(
            Severity.NOTE,
            f"with all rows used the model takes {bytes_text(size)} at parameter servers, optimizer states "
            f"included, and this machine has {bytes_text(memory_bytes)}",
            f"parameter servers on at least {-(-size // memory_bytes)} machines like this one, twice as many "
            "with --ps-replicas 1; rows that no task uses take nothing",
        )
    if (dense := dense_bytes(spec)) > DENSE_BYTES_NOTED:
        yield Said(
            Severity.COSTS,
            f"each task pulls and pushes {bytes_text(dense)} of dense weights",
            "large tasks; sparse=True for embeddings, of which a task then moves the rows it uses",
        )
