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
    step: steps applied to the weights it holds, -1 if it holds none that are usable. held: in quarantine.
    """

    worker: str
    store_address: str
    place: int | None
    joined_order: int
    step: int = -1
    draining: bool = False
    held: bool = False


class Choice(msgspec.Struct, frozen=True):
    """The ring as it should be, and why.

    members: leader first; empty if no ring can be formed. reason: who is there, or what is missing. change:
    how it differs from the ring before, if it is planned for a step boundary.
    """

    members: tuple[Member, ...]
    reason: str
    change: str = ""


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
) -> Choice:
    """Choose the next ring; empty if fewer than `workers_min` can be in it.

    Workers in quarantine are left out, unless there is no ring without them or they alone hold the state. At
    most min(workers_max or ests, ests) members, plus one if the only holder of the state drains. With one
    EST there can be no extra member: the draining holder then trains on alone or, if planned, is left out,
    because the caller saves a checkpoint first.
    """
    limit = min(workers_max or ests, ests)
    free = [candidate for candidate in candidates if not candidate.held]
    chosen = _chosen(free, ests, workers_min, limit, planned)
    loses_state = _hold_state(candidates) and not _hold_state(chosen)
    if len(free) < len(candidates) and (not chosen or loses_state):
        chosen = _chosen(candidates, ests, workers_min, limit, planned)
    if not chosen:
        staying = sum(not candidate.draining for candidate in candidates)
        return Choice((), too_few(staying, workers_min))
    members = tuple(
        Member(candidate.worker, start, end, candidate.store_address)
        for candidate, (start, end) in zip(chosen, even_ranges(ests, len(chosen)), strict=True)
    )
    return Choice(members, "1 worker is there" if len(members) == 1 else f"{len(members)} workers are there")


def too_few(staying: int, needed: int, which: str = "at least") -> str:
    """Say that no ring can be formed because only `staying` workers are there."""
    return f"{staying} of {which} {needed} workers are there"


def _chosen(
    candidates: Sequence[Candidate], ests: int, workers_min: int, limit: int, planned: bool
) -> list[Candidate]:
    ordered = sorted(candidates, key=_seniority)
    staying = [candidate for candidate in ordered if not candidate.draining]
    if len(staying) < workers_min:
        return []
    chosen = staying[:limit]
    if not _hold_state(chosen):
        chosen = _with_holder(chosen, ordered, ests, planned)
    return sorted(chosen, key=_seniority)


def _hold_state(chosen: Sequence[Candidate]) -> bool:
    return any(candidate.step >= 0 for candidate in chosen)


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
