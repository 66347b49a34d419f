"""All of a slot, read piece by piece while it is trained: for copies and for snapshots.

Pieces are read under one hold of the lock each. What was touched meanwhile follows in further rounds, until
so little is left that it can be read, with the record, under one hold: the moment that the result is of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from elastane.tables.sections import Section
from elastane_ps.held import HeldSlot

#: The last part, read under one hold, is no larger than this where it can be helped.
LAST_BYTES: Final = 8 * 2**20
ROUNDS_MAX: Final = 8


def read_slot(
    held: HeldSlot,
    take: Callable[[Section], bool],
    last: Callable[[list[Section], int], None],
    since: int = 0,
) -> bool:
    """Read what was touched since a mark (0: everything).

    take: called with each section without the lock; returns False to stop. last: called under the lock, with
    the rest and a mark for the next time; the record is of this moment. Returns False if it was stopped, or
    the slot is not this process's any more.
    """
    before_bytes = math.inf
    for turn in range(ROUNDS_MAX):
        with held.lock:
            if held.gone:
                return False
            changes = held.weights.changed_since(since)
            mark = held.weights.mark()
            # Where pushes touch nearly all of a slot, further rounds make the rest no smaller.
            least = changes.bytes > before_bytes / 2 or turn == ROUNDS_MAX - 1
            if changes.bytes <= LAST_BYTES or least:
                last(list(held.weights.sections(changes)), mark)
                return True
            before_bytes = changes.bytes
            pieces = list(held.weights.pieces(changes))
        for piece in pieces:
            with held.lock:
                if held.gone:
                    return False
                section = held.weights.read(piece)
            if not take(section):
                return False
        since = mark
    raise AssertionError("the last round returns")
