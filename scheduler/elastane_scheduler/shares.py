"""Ranges of ESTs: which worker hosts which, so that a step time is reached and few ESTs move. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from elastane_scheduler.errors import InvalidSettings

Range = tuple[int, int]
"""ESTs first..end - 1 of one worker."""


def shares(
    ests: int, capacities: Sequence[int], before: Sequence[Range | None] = (), *, least: int = 0
) -> list[int]:
    """Return how many ESTs each seat hosts: at most its capacity, with sum `ests`, moving the fewest ESTs.

    capacities: the most ESTs of each seat, in the order of the seats. before: the range that each seat has
    now, None for a newcomer. least: ESTs of each seat at least. An EST moves when its
    seat after the change is another. Raises InvalidSettings where capacities do not suffice.

    By dynamic programming over seats and the number of ESTs given out: `ests` x largest capacity steps for
    each seat.
    """
    if sum(capacities) < ests:
        raise InvalidSettings(
            f"seats for {sum(capacities)} of {ests} ESTs", hint="Give more devices or a longer step."
        )
    held = [*before, *[None] * (len(capacities) - len(before))]
    if not any(held):
        return _even(ests, capacities, least)
    kept: list[int] = [0] + [-1] * ests  # the most ESTs that stay where they are, by the number given out
    choices: list[list[int]] = []
    for seat, capacity in enumerate(capacities):
        kept, choice = _seat(kept, ests, range(least, capacity + 1), held[seat])
        choices.append(choice)
    found, end = [], ests
    for choice in reversed(choices):
        found.append(choice[end])
        end -= choice[end]
    return found[::-1]


def _seat(kept: list[int], ests: int, allowed: range, held: Range | None) -> tuple[list[int], list[int]]:
    best, choice = [-1] * (ests + 1), [0] * (ests + 1)
    for start, stay in enumerate(kept):
        if stay < 0:
            continue
        for share in allowed:
            end = start + share
            if end > ests:
                break
            same = max(0, min(end, held[1]) - max(start, held[0])) if held else 0
            if stay + same > best[end]:
                best[end], choice[end] = stay + same, share
    return best, choice


def _even(ests: int, capacities: Sequence[int], least: int) -> list[int]:
    """Return shares without history: as even as capacities allow, the first seats with one more."""
    found = [least] * len(capacities)
    left = ests - sum(found)
    while left > 0:
        open_seats = [i for i, capacity in enumerate(capacities) if found[i] < capacity]
        each, extra = divmod(left, len(open_seats))
        for place, i in enumerate(open_seats):
            more = min(each + (place < extra), capacities[i] - found[i])
            found[i] += more
            left -= more
    return found


def ranges(counts: Sequence[int]) -> list[Range]:
    """Return contiguous ranges of these sizes, from EST 0."""
    found, first = [], 0
    for count in counts:
        found.append((first, first + count))
        first += count
    return found
