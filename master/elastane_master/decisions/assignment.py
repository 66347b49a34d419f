"""Choice of the ring's members, their order, and the virtual ranks that each hosts.

A ring change should move as few ESTs and as little state as possible: surviving members keep their order, and
new ones follow. Ranges are contiguous and, on workers of equal speed, as even as possible. The last worker
that holds the job's weights is never left out of the next ring, even if it drains: it stays for one more ring
and hands them over. So does the last one that holds a unit of a pipeline.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from elastane_master.decisions.effects import Member
from elastane_scheduler.plan import TOLERANCE
from elastane_scheduler.shares import ranges, shares

MOVES_SEARCHED_MAX = 10_000
"""Steps of the search for the split that moves the fewest ESTs; beyond them the first split is taken."""


class Candidate(msgspec.Struct, frozen=True):
    """A candidate for the ring: a worker with a session.

    place: its index in the previous ring, None for a joining worker. joined_order: increases with each join.
    step: steps applied to the weights it holds, -1 if it holds none that are usable. held: in quarantine.
    hosted: its ESTs in the previous ring. rank: candidates of lower rank are chosen first. units: units of a
    pipeline that it will hold when the ring resumes.
    """

    worker: str
    store_address: str
    place: int | None
    joined_order: int
    step: int = -1
    draining: bool = False
    held: bool = False
    hosted: tuple[int, int] | None = None
    rank: int = 0
    units: frozenset[int] = frozenset()


class Capacity(msgspec.Struct, frozen=True):
    """Capacity of a worker. est_seconds: added to a step by each EST. ests_max: that fit into its memory."""

    est_seconds: float
    ests_max: int


class Choice(msgspec.Struct, frozen=True):
    """The chosen ring, and why.

    members: leader first; empty if no ring can be formed. reason: the members, or what is missing. change:
    difference from the previous ring, if planned for a step boundary. replaces: the straggler that is
    replaced (stragglers.py). leaving: members of a pipeline that only hand over their units.
    """

    members: tuple[Member, ...]
    reason: str
    change: str = ""
    replaces: str = ""
    leaving: tuple[str, ...] = ()


def even_ranges(ests: int, places: int) -> list[tuple[int, int]]:
    """Split virtual ranks 0..ests-1 into `places` contiguous ranges whose sizes differ by at most one."""
    size, larger = divmod(ests, places)
    ranges, start = [], 0
    for place in range(places):
        end = start + size + (place < larger)
        ranges.append((start, end))
        start = end
    return ranges


def balanced_counts(ests: int, places: Sequence[Capacity]) -> list[int]:
    """Return the number of ESTs per place, at least one each, that minimizes the time of the slowest.

    Memory limits are ignored if together they allow fewer than `ests` ESTs: the job could not train
    otherwise.
    """
    most = _most(ests, places)
    counts = [1] * len(places)
    done = [(2 * one.est_seconds, place) for place, one in enumerate(places) if most[place] > 1]
    heapq.heapify(done)
    for _ in range(ests - len(counts)):
        _, place = done[0]
        counts[place] += 1
        if counts[place] < most[place]:
            heapq.heapreplace(done, ((counts[place] + 1) * places[place].est_seconds, place))
        else:
            heapq.heappop(done)
    return counts


def _most(ests: int, places: Sequence[Capacity]) -> list[int]:
    most = [max(1, min(ests, one.ests_max)) for one in places]
    return most if sum(most) >= ests else [ests] * len(places)


def balanced_ranges(
    ests: int, places: Sequence[Capacity], before: Sequence[tuple[int, int] | None] = ()
) -> list[tuple[int, int]]:
    """Split virtual ranks 0..ests-1 as `balanced_counts` does; among equal places, as `even_ranges` does.

    before: range of each place in the previous ring, None for a newcomer: of the splits that take equally
    long, one that moves few ESTs.
    """
    most = _most(ests, places)
    if len({one.est_seconds for one in places}) <= 1 and min(most) * len(places) >= ests:
        return even_ranges(ests, len(places))
    counts = balanced_counts(ests, places)
    longest = max(count * one.est_seconds for count, one in zip(counts, places, strict=True))
    in_time = (longest / one.est_seconds * (1 + TOLERANCE) for one in places)
    most = [max(1, int(min(limit, count))) for limit, count in zip(most, in_time, strict=True)]
    if any(before) and ests * sum(most) <= MOVES_SEARCHED_MAX:
        counts = shares(ests, most, before, least=1)
    return list(ranges(counts))


def choose_members(
    candidates: Sequence[Candidate],
    *,
    ests: int,
    workers_min: int,
    workers_max: int,
    planned: bool = False,
    saves: bool = False,
    capacities: Callable[[Sequence[str]], Mapping[str, Capacity]] | None = None,
) -> Choice:
    """Choose the next ring; empty if fewer than `workers_min` can be in it.

    Workers in quarantine are left out, unless there is no ring without them or they alone hold the state. At
    most min(workers_max or ests, ests) members, plus one if the only holder of the state drains. With one EST
    there can be no extra member: the draining holder then trains on alone or, if planned, is left out,
    because the caller saves a checkpoint first. saves: it also does so if units of a pipeline cannot be
    handed over. capacities: returns the capacity of each of these workers; None if ranges should be even.
    """
    limit = min(workers_max or ests, ests)
    free = [candidate for candidate in candidates if not candidate.held]
    chosen = _chosen(free, ests, workers_min, limit, planned)
    loses_state = _hold_state(candidates) and not _hold_state(chosen)
    if len(free) < len(candidates) and (not chosen or loses_state):
        chosen = _chosen(candidates, ests, workers_min, limit, planned)
    leaving: frozenset[str] = frozenset()
    if chosen and any(candidate.units for candidate in candidates):
        chosen, leaving = _with_units(chosen, sorted(candidates, key=_seniority), ests, saves)
    if not chosen:
        staying = sum(not candidate.draining for candidate in candidates)
        return Choice((), too_few(staying, workers_min))
    if capacities is not None:
        known = capacities([candidate.worker for candidate in chosen])
        carried = [known[candidate.worker] for candidate in chosen]
        places = balanced_ranges(ests, carried, [candidate.hosted for candidate in chosen])
    else:
        places = even_ranges(ests, len(chosen))
    members = tuple(
        Member(candidate.worker, start, end, candidate.store_address)
        for candidate, (start, end) in zip(chosen, places, strict=True)
    )
    leavers = tuple(one.worker for one in members if one.worker in leaving)
    return Choice(members, are_there(len(members)), leaving=leavers)


def are_there(count: int) -> str:
    """Return the reason for a ring of all workers that can be in it."""
    return "1 worker is there" if count == 1 else f"{count} workers are there"


def too_few(staying: int, needed: int, which: str = "at least") -> str:
    """Explain that no ring can be formed because only `staying` workers are present."""
    return f"{staying} of {which} {needed} workers are there"


def _chosen(
    candidates: Sequence[Candidate], ests: int, workers_min: int, limit: int, planned: bool
) -> list[Candidate]:
    ordered = sorted(candidates, key=_seniority)
    staying = [candidate for candidate in ordered if not candidate.draining]
    if len(staying) < workers_min:
        return []
    chosen = sorted(staying, key=lambda candidate: candidate.rank)[:limit]
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


def _with_units(
    chosen: list[Candidate], ordered: list[Candidate], ests: int, saves: bool
) -> tuple[list[Candidate], frozenset[str]]:
    """Add workers that alone hold units of a pipeline; return the ring, and members that only hand over.

    If there is no room, newcomers wait for the next ring. If only leaving workers would remain, the others
    load a checkpoint that is saved first; without a checkpoint the leaving ones continue to train.
    """
    extra: list[Candidate] = []
    missing = frozenset().union(*(one.units for one in ordered)) - _units(chosen)
    while missing:
        others = [one for one in ordered if one not in chosen and one not in extra]
        donor = min(others, key=lambda one: (-len(one.units & missing), one.draining))
        extra.append(donor)
        missing -= donor.units
    kept = list(chosen)
    while len(kept) + len(extra) > ests:
        spare = [one for one in kept if one.units <= _units(other for other in kept + extra if other != one)]
        if not spare or len(kept) == 1:
            break
        kept.remove(spare[-1])
    if len(kept) + len(extra) > ests:
        kept, extra = extra[:ests], []
    members = sorted(kept + extra, key=_seniority)
    leaving = frozenset(one.worker for one in members if one.draining or one in extra)
    if len(leaving) < len(members):
        return members, leaving
    staying = [one for one in chosen if not one.draining]
    return (staying if saves and staying else members), frozenset()


def _units(candidates: Iterable[Candidate]) -> frozenset[int]:
    return frozenset().union(*(candidate.units for candidate in candidates))


def _seniority(candidate: Candidate) -> tuple[bool, int, int]:
    return (candidate.place is None, candidate.place or 0, candidate.joined_order)
