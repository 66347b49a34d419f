"""In which steps the nodes of a drill are taken away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane_cli.drill.plan import STEPS_MIN, DrillPlanError, make_plan


@given(st.text(max_size=5), st.integers(1, 16), st.integers(STEPS_MIN, 10_000))
def test_a_plan_fits(seed: str, ests: int, steps: int) -> None:
    plan = make_plan(seed, ests=ests, steps=steps)
    assert 1 <= plan.one_step < plan.all_step - 1, "the first has left before the second notice comes"
    assert plan.all_step < steps - 2, "something is left to do elsewhere"
    first, second, third = plan.workers
    assert min(plan.workers) >= 1 and third <= ests and first + second <= max(2, ests)
    assert make_plan(seed, ests=ests, steps=steps) == plan


def test_a_script_that_is_too_short() -> None:
    with pytest.raises(DrillPlanError, match=f"makes 5 steps, a drill needs {STEPS_MIN}"):
        make_plan("1", ests=2, steps=5)
