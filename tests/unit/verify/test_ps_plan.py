"""Which parameter servers come, go and die in a run of `elastane verify --ps`."""

from __future__ import annotations

import pytest

from elastane_cli.verify.plan import PlanError
from elastane_cli.verify.ps_plan import make_ps_plan


@pytest.mark.parametrize("seed", range(20))
def test_one_joins_before_another_one_goes(seed: int) -> None:
    acts = make_ps_plan(str(seed), kills=2, tasks=9)
    assert acts[0].verb == "join" and sorted(act.verb for act in acts) == ["drain", "join", "kill", "kill"]
    places = [act.tasks for act in acts]
    assert places == sorted(set(places)) and places[0] > 0 and places[-1] < 9, "no two at once"
    assert acts == make_ps_plan(str(seed), kills=2, tasks=9)


def test_seeds_differ() -> None:
    assert len({tuple(make_ps_plan(str(seed), kills=2, tasks=40)) for seed in range(20)}) > 15


def test_a_run_that_is_too_short_is_refused() -> None:
    with pytest.raises(PlanError, match="3 tasks, and 3 changes"):
        make_ps_plan("1", kills=1, tasks=3)
