"""Reads a whole slot in pieces while it is trained, for copies and snapshots.

The lock is held for each piece separately. Changes made meanwhile are read in further rounds, until the rest
is small enough to be read under one hold of the lock, together with the record. The result is the slot's
state at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from elastane.tables.sections import Section
from elastane_ps.held import HeldSlot

#: Intended maximum size of the last part, which is read under one hold of the lock.
LAST_BYTES: Final = 8 * 2**20
ROUNDS_MAX: Final = 8


def read_slot(
    held: HeldSlot,
    take: Callable[[Section], bool],
    last: Callable[[list[Section], int], None],
    since: int = 0,
) -> bool:
    """Read the changes since a mark (0: everything).

    take: called with each section, without the lock; returns False to stop. last: called under the lock with
    the rest and a mark for the next call; the record must be taken then. Returns False if it was stopped, or
    if this process no longer holds the slot.
    """
    before_bytes = math.inf
    for turn in range(ROUNDS_MAX):
        with held.lock:
            if held.gone:
                return False
            changes = held.weights.changed_since(since)
            mark = held.weights.mark()
            # If pushes change nearly all of a slot, further rounds do not reduce the rest.
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
