"""Every plan of a model on devices in a given order, for searches of small cases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from elastane_planner.costs import Costs
from elastane_planner.plan import Plan, Stage


def plans(costs: Costs, order: Sequence[int], *, prefixes: bool = True) -> Iterator[Plan]:
    """Yield all plans whose stages take devices in this order.

    prefixes: also those that leave the last devices of the order without a stage.
    """
    units, cuts, count = len(costs.profile.units), costs.profile.cuts, len(order)
    for used in range(1 if prefixes else count, count + 1):
        for stages in range(1, min(len(cuts) + 1, used) + 1):
            for splits in combinations(range(1, used), stages - 1):
                seats = (0, *splits, used)
                groups = [tuple(order[seats[i] : seats[i + 1]]) for i in range(stages)]
                if max(map(len, groups)) > costs.micro_batches:
                    continue
                for chosen in combinations(cuts, stages - 1):
                    begins = (0, *chosen)
                    yield Plan(tuple(map(Stage, begins, (*chosen, units), groups)))
