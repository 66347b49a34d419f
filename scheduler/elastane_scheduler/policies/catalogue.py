"""The policies by name. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.policies.easyscale import easyscale
from elastane_scheduler.policies.elastic import elastic_srtf
from elastane_scheduler.policies.foresight import FairSojourn, Foresight
from elastane_scheduler.policies.las import LeastAttainedService
from elastane_scheduler.policies.rungs import maxmin, power_mean
from elastane_scheduler.policies.whole import backfill, fifo, packing, srtf
from elastane_scheduler.view import Decision, Policy, Rule, View


@dataclass(frozen=True)
class ListPolicy:
    """A policy that is one rule, without memory. choice: the rule in words, for reasons."""

    name: str
    rule: Rule
    choice: str

    def decide(self, view: View) -> Decision:
        """Apply the rule."""
        return Decision(self.rule(view), math.inf, self.choice)


_LISTS: Final[dict[str, tuple[Rule, str]]] = {
    "fifo": (fifo, "one job at a time, the oldest first"),
    "packing": (packing, "the oldest first, none overtakes"),
    "backfill": (backfill, "the oldest first, others where they do not delay it"),
    "srtf": (srtf, "the least time left first, with all that is asked for"),
    "maxmin": (maxmin, "the job with the fewest devices grows first"),
    "easyscale-homo": (partial(easyscale, mixed=False), "the best growth for each device, on one type"),
    "easyscale-heter": (partial(easyscale, mixed=True), "the best growth for each device"),
    "fixed-goodput": (partial(power_mean, p=-0.5), "the largest power mean (p = -0.5) of speeds"),
    "fixed-goodput-1": (partial(power_mean, p=-1.0), "the largest power mean (p = -1) of speeds"),
    "elastic-srtf": (elastic_srtf, "the least time left first, as wide as pays"),
}
_STATEFUL: Final[dict[str, Callable[[], Policy]]] = {
    "las": LeastAttainedService,
    "fair-sojourn": FairSojourn,
    "foresight": Foresight,
}
POLICIES: Final = (*_LISTS, *_STATEFUL)
"""Names of all policies."""


def make_policy(name: str) -> Policy:
    """Return a new policy of that name, for one pool. Raises InvalidSettings."""
    if name in _STATEFUL:
        return _STATEFUL[name]()
    if name in _LISTS:
        rule, choice = _LISTS[name]
        return ListPolicy(name, rule, choice)
    raise InvalidSettings(f"there is no policy {name!r}", hint=f"There are {', '.join(POLICIES)}.")
