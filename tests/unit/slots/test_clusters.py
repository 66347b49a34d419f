"""Each task once, staleness within its limit, with processes that come, die and are cut off (`clusters`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slow import further, slow
from unit.slots.clusters import ClusterPlan, run_cluster
from unit.slots.schedules import Broken

FAULTS: dict[str, dict[str, Any]] = {
    "joins": {"kills": 0},
    "deaths": {},
    "cut off": {"cuts": 2},
    "backups": {"copies": 2},
    "backups, cut off": {"copies": 2, "cuts": 2},
    "failed tasks": {"attempts": 2, "cuts": 1},
}


@pytest.mark.parametrize("limit", [0, 3, None])
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize(
    "seeds",
    [range(3), pytest.param(range(3, 40), marks=further)],  # test_machine_clusters, with the product's master
    ids=str,
)
def test_every_task_counts_once_in_every_slot_whoever_dies(
    limit: int | None, faults: str, seeds: range
) -> None:
    for seed in seeds:
        run_cluster(ClusterPlan(seed, limit, **FAULTS[faults]))


def test_the_faults_really_happen() -> None:
    runs = [run_cluster(ClusterPlan(seed, 3, cuts=2)) for seed in range(10)]
    assert any(sum(one.lives) for one in runs)
    assert any("restored" in one.refused for one in runs)
    moved = [run_cluster(ClusterPlan(seed, 3, kills=0)) for seed in range(5)]
    assert not any(sum(one.lives) for one in moved)
    assert any(len({place.owner for place in one.map.places}) > 1 for one in moved)


CONTROLS = {
    "answers before the backup has the push": ClusterPlan(0, 1, waits_for_backups=False, copies=2, kills=6),
    "the owner answers before the slot has moved": ClusterPlan(0, 1, stays_frozen=False),
    "a slot moves without its set": ClusterPlan(0, None, sets_move=False),
    "a restored slot is served before its tasks are open again": ClusterPlan(0, None, reopens_first=False),
    "a copy that was given up is taken": ClusterPlan(0, 1, late_copies_end=False),
    "answers of an earlier life make a task DONE": ClusterPlan(0, None, lives=False),
    "FAILED tasks are never closed": ClusterPlan(0, 1, closes=False, attempts=2),
}
SLOW_CONTROLS = {
    "the master hears of a copy before answers wait for it": ClusterPlan(
        0, None, waits_before_telling=False, copies=2, kills=6
    ),
    "a restored slot takes leases from before": ClusterPlan(0, 1, fences=False, deaths=16, kills=6, joins=6),
}


@pytest.mark.parametrize("control", [*CONTROLS, *(pytest.param(name, marks=slow) for name in SLOW_CONTROLS)])
def test_a_broken_rule_is_found(control: str) -> None:
    plan = (CONTROLS | SLOW_CONTROLS)[control]
    for seed in range(600):
        try:
            run_cluster(replace(plan, seed=seed))
        except Broken:
            return
    pytest.fail(f"{control}: not found in 600 seeds")
