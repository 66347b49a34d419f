"""Choice of the ring's members, their order, and the virtual ranks that each hosts.

A ring change should move as few ESTs and as little state as possible: surviving members keep their order, new
ones follow, ranges are contiguous and as even as possible. The last worker that holds the job's weights is
never left out of the next ring, even if it drains: it stays for one more ring and hands them over.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from elastane_master.decisions.effects import Member


class Candidate(msgspec.Struct, frozen=True):
    """A candidate for the ring: a worker with a session.

    place: its index in the previous ring, None for a joining worker. joined_order: increases with each join.
    step: steps applied to the weights it holds, -1 if it holds none that are usable.
    """

    worker: str
    store_address: str
    place: int | None
    joined_order: int
    step: int = -1
    draining: bool = False


def even_ranges(ests: int, places: int) -> list[tuple[int, int]]:
    """Split virtual ranks 0..ests-1 into `places` contiguous ranges whose sizes differ by at most one."""
    size, larger = divmod(ests, places)
    ranges, start = [], 0
    for place in range(places):
        end = start + size + (place < larger)
        ranges.append((start, end))
        start = end
    return ranges


def choose_members(
    candidates: Sequence[Candidate], *, ests: int, workers_min: int, workers_max: int, planned: bool = False
) -> tuple[Member, ...]:
    """Return the next ring, leader first; empty if fewer than `workers_min` can be in it.

    At most min(workers_max or ests, ests) members, plus one if the only holder of the state drains. With one
    EST there can be no extra member: the draining holder then trains on alone or, if planned, is left out,
    because the caller saves a checkpoint first.
    """
    limit = min(workers_max or ests, ests)
    ordered = sorted(candidates, key=_seniority)
    staying = [candidate for candidate in ordered if not candidate.draining]
    if len(staying) < workers_min:
        return ()
    chosen = staying[:limit]
    if not any(candidate.step >= 0 for candidate in chosen):
        chosen = _with_holder(chosen, ordered, ests, planned)
    chosen.sort(key=_seniority)
    ranges = even_ranges(ests, len(chosen))
    return tuple(
        Member(candidate.worker, start, end, candidate.store_address)
        for candidate, (start, end) in zip(chosen, ranges, strict=True)
    )


def _with_holder(
    chosen: list[Candidate], ordered: list[Candidate], ests: int, planned: bool
) -> list[Candidate]:
    holders = [candidate for candidate in ordered if candidate.step >= 0]
    if not holders:
        return chosen
    # Prefer a holder that stays: a draining one needs one more ring change to leave.
    donor = min(holders, key=lambda holder: (holder.draining, -holder.step))
    if not donor.draining:
        return [*chosen[:-1], donor]
    if len(chosen) < ests:
        return [*chosen, donor]
    return chosen if ests == 1 and planned else [*chosen[:-1], donor]


def _seniority(candidate: Candidate) -> tuple[bool, int, int]:
    return (candidate.place is None, candidate.place or 0, candidate.joined_order)
