"""Chooses the steps in which nodes are reclaimed: pure, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from elastane_common.errors import ElastaneError

STEPS_MIN: Final = 6


class DrillPlanError(ElastaneError):
    """The script is too short for a drill."""

    code = "ELA419"


@dataclass(frozen=True)
class DrillPlan:
    """Two nodes train. In `one_step` the first is reclaimed, in `all_step` the remaining one.

    workers: of both nodes, and of the one elsewhere that continues.
    """

    one_step: int
    all_step: int
    workers: tuple[int, int, int]


def make_plan(seed: str, *, ests: int, steps: int) -> DrillPlan:
    """Draw the steps and the number of workers of each node. Raises DrillPlanError."""
    if steps < STEPS_MIN:
        raise DrillPlanError(
            f"the script makes {steps} steps, a drill needs {STEPS_MIN}", hint="let it run more epochs"
        )
    draw = random.Random(seed)
    # A step is reported before its gate: the notice takes effect at the boundary after the next step.
    one_step = draw.randrange(1, min(steps // 2, steps - 4))
    all_step = draw.randrange(one_step + 2, steps - 2)
    first = draw.randint(1, max(1, ests // 2))
    second = draw.randint(1, max(1, ests - first))
    return DrillPlan(one_step, all_step, (first, second, draw.randint(1, ests)))
