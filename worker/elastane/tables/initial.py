"""Initial rows as arrays: the values of `elastane_slots.initial_rows`, which has the formulas."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from elastane.tables.layout import Ids, drawn
from elastane_slots.initial_rows import WORDS, InitialRows

#: Elements computed at a time: their arrays stay in a processor's cache.
_ELEMENTS: Final = 2**13
#: The first and the third of a word's 16-bit parts.
_ALTERNATE_PARTS: Final = np.uint64(0x0000FFFF0000FFFF)


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
    if initial.distribution == "uniform":
        integers = 2 * (words >> np.uint64(40)).astype(np.int64) + 1 - 2**24
    else:
        # Four 16-bit parts of each word, three words an element; added two at a time, 32 bits apart.
        pairs = words >> np.uint64(16)
        pairs &= _ALTERNATE_PARTS
        words &= _ALTERNATE_PARTS
        pairs += words
        pairs = pairs.reshape(*rows.shape, 3)
        sums = pairs[..., 0] + pairs[..., 1]
        sums += pairs[..., 2]
        sums += sums >> np.uint64(32)
        sums &= np.uint64(0xFFFFFFFF)
        integers = 2 * sums.astype(np.int64) - 12 * 65535
    np.multiply(integers.astype(np.float32), np.float32(initial.unit), out=rows)
