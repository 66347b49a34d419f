"""Foresight: simulate the proposals of several rules, with every cost charged, and keep the best. Pure.

Candidates are what the rules below give out now, and the two lists with their second to fifth job put first;
each without changes that do not pay (`settle`). Every candidate is played forward under each of three rules,
without arrivals. Its score is the sum of finishing times, plus a charge for jobs that end later than a
virtual fair share would let them. Ties go to the fewest changes, then to the order of the rules. No clock is
in it: the same view gives the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastane_scheduler.playing import Limits, play
from elastane_scheduler.policies.elastic import (
    by_key,
    in_order,
    keep,
    keep_and_grow,
    least_area,
    settle,
    settled,
    shortest,
)
from elastane_scheduler.policies.fair_share import FairShare
from elastane_scheduler.policies.giving import less, plus, total, uncontended, widest_in_order
from elastane_scheduler.view import Allocation, Decision, Rule, View

#: What a second costs by which a job ends after its virtual fair share.
LATE_WEIGHT = 1.0
#: A virtual fair share shorter than this counts as so long: little jobs may wait for a moment.
FAIR_SECONDS_MIN = 60.0
#: How many of the first jobs of a list are put first in turn.
HEADS = 5
#: Jobs that are played in detail.
PLAYED_MAX = 64
#: Plays of one decision.
PLAYS_MAX = 60
_SAME_SCORE = 1e-9


@dataclass(frozen=True)
class _Candidate:
    name: str
    allocation: Allocation
    changes: int


class FairSojourn:
    """Gives devices in the order in which jobs would end under a virtual fair share."""

    name = "fair-sojourn"

    def __init__(self) -> None:
        self._fair = FairShare()

    def decide(self, view: View) -> Decision:
        """Give each job in that order the devices with which it is fastest."""
        self._fair.update(view)
        allocation = uncontended(view) or by_fair_end(self._fair)(view)
        return Decision(allocation, math.inf, "first who would end first under a fair share")


def by_fair_end(fair: FairShare) -> Rule:
    """Return the rule that orders jobs by their virtual ends."""

    def rule(view: View) -> Allocation:
        ends = [fair.end(state, view.now) for state in view.jobs]
        return widest_in_order(view, sorted(range(len(ends)), key=lambda i: (ends[i], i)))

    return rule


class Foresight:
    """The policy `foresight`."""

    name = "foresight"

    def __init__(self, late_weight: float = LATE_WEIGHT) -> None:
        self._fair = FairShare()
        self._late_weight = late_weight

    def decide(self, view: View) -> Decision:
        """Return the candidate with the least score."""
        self._fair.update(view)
        everything = uncontended(view)
        if everything is not None:
            return Decision(settle(view, everything), math.inf, "all jobs are as fast as alone")
        candidates = self._candidates(view)
        detail, limits = self._detail(view, candidates)
        tails = [settled(rule) for rule in (by_key(shortest), by_key(least_area), keep_and_grow)]
        scores = _scores(view, candidates, detail, limits, tails)
        best = min(range(len(candidates)), key=lambda i: (scores[i], candidates[i].changes, i))
        rejected = tuple(
            f"{candidate.name}: {_later(score, scores[best])}"
            for i, (candidate, score) in enumerate(zip(candidates, scores, strict=True))
            if i != best
        )
        return Decision(candidates[best].allocation, math.inf, candidates[best].name, rejected)

    def _candidates(self, view: View) -> list[_Candidate]:
        rules: list[tuple[str, Rule]] = [
            ("shortest first", by_key(shortest)),
            ("least area first", by_key(least_area)),
            ("shortest first, running jobs before", by_key(shortest, 0.5)),
            ("least area first, running jobs before", by_key(least_area, 0.5)),
            ("first who would end first under a fair share", by_fair_end(self._fair)),
            ("running jobs keep", keep),
            ("running jobs keep and grow", keep_and_grow),
        ]
        proposals = [(name, rule(view)) for name, rule in rules]
        for name, key in (("shortest first", shortest), ("least area first", least_area)):
            order = in_order(key, view)
            for head in range(1, min(HEADS, len(order))):
                put_first = [order[head], *order[:head], *order[head + 1 :]]
                job = view.jobs[order[head]].name
                proposals.append((f"{name}, but {job} before", widest_in_order(view, put_first)))
        found: dict[tuple[tuple[int, ...], ...], _Candidate] = {}
        for name, proposal in proposals:
            allocation = settle(view, proposal)
            changes = sum(
                state.devices != devices for state, devices in zip(view.jobs, allocation, strict=True)
            )
            found.setdefault(tuple(allocation), _Candidate(name, allocation, changes))
        return list(found.values())

    def _detail(self, view: View, candidates: Sequence[_Candidate]) -> tuple[list[int], Limits]:
        """The jobs that are played, those about which candidates differ first, and when they should end."""
        indices = list(range(len(view.jobs)))
        if len(indices) > PLAYED_MAX:
            first = candidates[0].allocation
            differ = {i for i in indices if any(c.allocation[i] != first[i] for c in candidates)}
            places = {index: place for place, index in enumerate(in_order(shortest, view))}
            last = len(indices)
            indices.sort(key=lambda i: (i not in differ, places.get(i, last)))
            indices = sorted(indices[:PLAYED_MAX])
        seconds = []
        for index in indices:
            state = view.jobs[index]
            share = max(self._fair.end(state, view.now) - state.job.arrival_seconds, FAIR_SECONDS_MIN)
            seconds.append(state.job.arrival_seconds + share)
        return indices, Limits(seconds, self._late_weight)


def _later(score: float, best: float) -> str:
    """Return how much later the jobs of a candidate end, in total."""
    return "worse, cut off" if score == math.inf else f"{score - best:+.0f} s"


def _scores(
    view: View, candidates: Sequence[_Candidate], detail: Sequence[int], limits: Limits, tails: Sequence[Rule]
) -> list[float]:
    """Return each candidate's least score under the rules that follow; infinite for those cut off."""
    scores = [math.inf] * len(candidates)
    best, plays = math.inf, 0
    played = [view.jobs[index] for index in detail]
    for place, candidate in enumerate(candidates):
        for tail in tails:
            if plays >= PLAYS_MAX:
                return scores
            plays += 1
            offered = _left_to(detail, view, candidate.allocation)
            allocation = [candidate.allocation[index] for index in detail]
            part = replace(view, jobs=played, offered=offered)
            score, _ = play(part, allocation, tail, limits, best + _SAME_SCORE)
            scores[place] = min(scores[place], score)
            best = min(best, score)
    return scores


def _left_to(detail: Sequence[int], view: View, allocation: Allocation) -> tuple[int, ...]:
    """The devices of the jobs that are played, and what is free."""
    if len(detail) == len(view.jobs):
        return view.offered
    types = len(view.offered)
    free = less(view.offered, total(allocation, types))
    return plus(free, total([allocation[index] for index in detail], types))
