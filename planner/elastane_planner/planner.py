"""The best plan for a model on devices: every stage of the search, within its budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from elastane_planner.cluster import Cluster
from elastane_planner.plan import Plan
from elastane_planner.profile import Profile


class Gain(NamedTuple):
    """What one stage of the search came to: its name, the best step so far, simulations it took."""

    search: str
    step_seconds: float
    simulations: int


class Answer(msgspec.Struct, frozen=True):
    """A plan, its predicted step, and how it was found. `notes` are sentences for people."""

    plan: Plan
    step_seconds: float
    gains: tuple[Gain, ...] = ()
    notes: tuple[str, ...] = ()


def make_plan(
    profile: Profile,
    cluster: Cluster,
    micro_batches: int,
    *,
    stages: tuple[int, int | None] = (1, None),
    shadows: int = 0,
    keep: Plan | None = None,
    held: Mapping[int, set[int]] | None = None,
    horizon_steps: int = 1000,
    seconds: Callable[[], float] | None = None,
    budget_seconds: float = 1.0,
    simulations_max: int | None = None,
) -> Answer:
    """Return the plan with the shortest predicted step. Raises subclasses of PlanError."""
    raise NotImplementedError
