"""Initial rows as arrays: the values of `elastane_slots.initial_rows`, which has the formulas."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables.layout import Ids, drawn
from elastane_slots.initial_rows import WORDS, InitialRows

#: Elements computed at a time: their arrays stay in a processor's cache.
_ELEMENTS: Final = 2**13


def initial_rows(initial: InitialRows, ids: Ids, width: int) -> NDArray[np.float32]:
    """Return the rows of these ids, of shape (ids, width)."""
    rows = np.zeros((len(ids), width), np.float32)
    if initial.distribution == "zeros" or not width:
        return rows
    step = max(1, _ELEMENTS // (width * WORDS[initial.distribution]))
    for start in range(0, len(ids), step):
        _fill(initial, ids[start : start + step], rows[start : start + step])
    return rows


def _fill(initial: InitialRows, ids: Ids, rows: NDArray[np.float32]) -> None:
    keys = drawn(initial.key, ids)[:, None]
    numbers = np.arange(rows.shape[1] * WORDS[initial.distribution], dtype=np.uint64)[None, :]
    words = drawn(keys, numbers)
    integers: NDArray[Any]
    if initial.distribution == "uniform":
        integers = 2 * (words >> np.uint64(40)).astype(np.int64) + 1 - 2**24
    else:
        # Four 16-bit parts of each word, three words an element.
        parts = words.view(np.uint16).reshape(len(ids), rows.shape[1], 12)
        integers = 2 * parts.sum(axis=2, dtype=np.int64) - 12 * 65535
    np.multiply(integers.astype(np.float32), np.float32(initial.unit), out=rows)
