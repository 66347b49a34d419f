"""Decayed use of slots by owner: owners with less recent use go first.

Use halves in an hour. It decays in steps of a minute by multiplications only: `pow` may differ in the last
bit from one machine to another, and the order of the queue must be the same in a replay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

STEP_SECONDS = 60.0
_STEP_FACTOR = 0.9885140203528962
"""2 ** -(1 / 60), to the power of 60 a half."""
_STEPS_MAX = 60 * 64
"""After this many steps less than 2 ** -64 is left, which counts as nothing."""


class Use(msgspec.Struct):
    """Use of one owner.

    slot_seconds: decayed, as of minute `step`. slots: held now, charged until `charged_at`.
    """

    slot_seconds: float = 0.0
    step: int = 0
    slots: int = 0
    charged_at: float = 0.0


def step_of(now: float) -> int:
    """The minute of a time."""
    return int(now // STEP_SECONDS)


def decay(amount: float, steps: int) -> float:
    """Return an amount after this many minutes of decay."""
    if steps <= 0:
        return amount
    if steps > _STEPS_MAX:
        return 0.0
    factor, power = 1.0, _STEP_FACTOR
    while steps:
        if steps & 1:
            factor *= power
        power *= power
        steps >>= 1
    return amount * factor


def charge(use: Use, now: float) -> None:
    """Charge the slots held since the last charge, and let the rest decay."""
    current = step_of(now)
    use.slot_seconds = decay(use.slot_seconds, current - use.step)
    use.step = max(use.step, current)
    use.slot_seconds += use.slots * max(0.0, now - use.charged_at)
    use.charged_at = max(use.charged_at, now)


def room(uses: Mapping[str, Use], slots_max: Mapping[str, int], owner: str) -> float:
    """Slots that an owner may still take; infinite without a quota."""
    if not (most := slots_max.get(owner, 0)):
        return math.inf
    use = uses.get(owner)
    return max(0, most - (use.slots if use is not None else 0))


def over_quota(owner: str, needed: int, room: float, slots_max: int) -> str:
    """Return why an owner with this `room` may not take the needed slots; "" if it may."""
    if needed <= room:
        return ""
    return f"needs {needed} slots, and {owner} has {room:g} left of its quota of {slots_max}"


def used(use: Use | None, now: float) -> float:
    """Decayed slot-seconds at a time. Changes nothing."""
    if use is None:
        return 0.0
    return decay(use.slot_seconds, step_of(now) - use.step) + use.slots * max(0.0, now - use.charged_at)
