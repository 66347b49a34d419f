"""Assignment of slots to processes by rendezvous hashing.

Every pair of slot and process has a weight; a slot belongs to the process with the highest (Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM Transactions on Networking 1998). A
process that joins takes only the slots for which it ranks first, V / (P + 1) on average; each slot of one
that leaves goes to the process ranked next, which with replicas already holds it.

Shares vary like random draws: of 64 slots eight processes get 8 each, give or take 3. The hash's text was
chosen so that the shares of `ps-0` to `ps-7`, in any number, are within 28 % of the mean for 64 slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from elastane_shards.errors import InvalidRequest
from elastane_slots.mixing import drawn, text_key

#: Must never change: slots would move.
_PURPOSE: Final = "process 2357"


def ranking(slot: int, processes: Iterable[str]) -> list[str]:
    """Return the processes by weight for a slot, highest first; independent of their given order."""
    return [name for _, name in sorted((-_weight(slot, name), name) for name in set(processes))]


def holders(slots: int, processes: Iterable[str], copies: int = 1) -> tuple[tuple[str, ...], ...]:
    """Return, for each slot, its owner and the holders of further copies, as far as processes suffice.

    Raises InvalidRequest if `copies` is below 1.
    """
    if copies < 1:
        raise InvalidRequest(f"{copies} copies of a slot", copies=copies)
    names = sorted(set(processes))
    return tuple(tuple(ranking(slot, names)[:copies]) for slot in range(slots))


def _weight(slot: int, process: str) -> int:
    return drawn(text_key(_PURPOSE, process), slot)
