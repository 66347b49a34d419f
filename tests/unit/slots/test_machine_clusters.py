"""Each task once, staleness within its limit, with the product's master (`machine_clusters`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elastane_master.decisions.slots import closing, finishing, leasing, restoring
from elastane_shards.errors import ShardsError
from elastane_slots.held_slots import HeldSlots
from elastane_slots.slot_map import SlotMap
from slow import further
from unit.slots.clusters import ClusterRun
from unit.slots.machine_clusters import MachinePlan, MachineRun, run_machine
from unit.slots.schedules import Broken

#: A data set that nobody goes through, and processes that learn late that its leases are fenced out.
LATE: dict[str, Any] = {"others": True, "deaths": 20, "kills": 0, "joins": 0, "slots": 2, "learns": 0.03}
FAULTS: dict[str, dict[str, Any]] = {
    "joins": {"kills": 0},
    "deaths": {},
    "cut off": {"cuts": 2},
    "backups": {"copies": 2},
    "backups, cut off": {"copies": 2, "cuts": 2},
    "failed tasks": {"attempts": 2, "cuts": 1},
    "restarts": {"restarts": 3},
    "restarts, backups": {"restarts": 3, "copies": 2},
    "epochs": {"epochs": 5, "kills": 5},
    "a store that loses writes": {"losses": 3, "restarts": 1},
    "a store that loses writes, backups": {"losses": 3, "copies": 2},
    "another data set, late maps": LATE,
    "another data set": {"others": True, "deaths": 12},
    "another data set, all": {"others": True, "restarts": 2, "cuts": 2, "kills": 4, "attempts": 3},
    "another data set, losses, backups": {"others": True, "losses": 2, "restarts": 1, "copies": 2},
    "all": {"restarts": 2, "losses": 1, "cuts": 2, "kills": 4, "attempts": 3, "epochs": 2},
    "all, backups": {"restarts": 2, "losses": 1, "cuts": 2, "kills": 4, "attempts": 3, "copies": 2},
}


@pytest.mark.parametrize("limit", [0, 3, None])
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize(
    "seeds",
    [
        range(1),
        pytest.param(range(1, 30), marks=further),  # slot_sim has as many, with more faults
    ],
    ids=str,
)
def test_every_task_counts_once_in_every_slot_whoever_dies(
    limit: int | None, faults: str, seeds: range
) -> None:
    for seed in seeds:
        run_machine(MachinePlan(seed, limit, **FAULTS[faults]))


@pytest.mark.parametrize(
    ("faults", "limit", "seed"),
    [
        # A life that only the lost writes and a late report knew of was begun a second time.
        ("a store that loses writes", 3, 26),
        ("a store that loses writes", None, 26),
        # A backup of the stored map took over from an owner that had replaced it.
        ("a store that loses writes, backups", None, 20),
        # A lease that the store had lost pushed between the pull and the push of the next.
        ("a store that loses writes", 0, 121),
        # A move that the store had lost ended with an owner that served on.
        ("a store that loses writes, backups", 0, 0),
    ],
)
def test_schedules_that_were_once_broken(faults: str, limit: int | None, seed: int) -> None:
    run_machine(MachinePlan(seed, limit, **FAULTS[faults]))


def test_a_push_is_too_old_only_for_leases_that_the_store_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MachinePlan(894, 0, **FAULTS["a store that loses writes"])
    run_machine(plan)
    monkeypatch.setattr(MachineRun, "_check_late", ClusterRun._check_late)
    with pytest.raises(Broken, match="a push of a live lease was refused"):
        run_machine(plan)


def test_the_faults_really_happen() -> None:
    runs = [run_machine(MachinePlan(seed, 3, cuts=2, epochs=2)) for seed in range(5)]
    assert any(sum(one.lives) for one in runs)
    queues = [one.machine.queues.dynamic["clicks"] for one in runs]
    assert any(queue.reopened for queue in queues)
    failed = [run_machine(MachinePlan(seed, 3, attempts=2, cuts=1)) for seed in range(5)]
    assert any(one.machine.state.slots.left_parts for one in failed)
    others = [run_machine(MachinePlan(seed, 1, others=True, deaths=12)) for seed in range(20)]
    assert any(one.forgotten for one in others)


def _nothing(*arguments: object) -> None:
    """In the place of a decision that is left out."""


def _finishes_at_once(ctx: Any, dataset: str) -> None:
    if ctx.queues.dynamic[dataset].complete:
        ctx.state.slots.finished[dataset] = None


def _counts_any_life(ctx: Any, queue: Any, dataset: str, worker: str, report: Any) -> Any:
    if report.lives_sum is not None:
        report = msgspec.structs.replace(report, lives_sum=ctx.state.slots.map.lives_sum)
    return _REPORT(ctx, queue, dataset, worker, report)


_REPORT = leasing.report

#: What is left out, and of which schedules it is found in one.
CONTROLS: dict[str, tuple[Any, str, Callable[..., Any], MachinePlan]] = {
    "a restored slot is served before its tasks are open again": (
        restoring,
        "missing",
        lambda done, applied: iter(()),
        MachinePlan(0, None),
    ),
    "answers of an earlier life make a task DONE": (
        leasing,
        "report",
        _counts_any_life,
        MachinePlan(0, None),
    ),
    "FAILED tasks are over at once": (closing, "begin", _nothing, MachinePlan(0, 1, attempts=2)),
    "workers are told of the end before the slots are saved": (
        finishing,
        "look",
        _finishes_at_once,
        MachinePlan(0, None, kills=6, joins=6),
    ),
    "tasks are leased while a slot is restored": (leasing, "blocked", lambda book: "", MachinePlan(0, None)),
    "pulls do not wait for the map with a fence": (
        HeldSlots,
        "judge_pull",
        lambda held, slot, lease, generation: None,
        MachinePlan(0, 0, **LATE),
    ),
    "tasks of a data set that nobody asks for are never forgotten": (
        leasing,
        "_can_fence",
        lambda book: False,
        MachinePlan(0, 0, others=True, deaths=12),
    ),
    "ended leases are forgotten and not fenced out": (
        SlotMap,
        "fenced",
        lambda slot_map, lease: slot_map,
        MachinePlan(0, 1, others=True, deaths=12),
    ),
    "fresh tasks are leased without room": (leasing, "fresh_max", lambda book: None, MachinePlan(0, 1)),
    "a restored slot keeps what a FAILED task had left": (
        closing,
        "restored",
        _nothing,
        MachinePlan(0, None, attempts=2, kills=6),
    ),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_a_decision_that_is_left_out_is_found(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, instead, plan = CONTROLS[control]
    monkeypatch.setattr(module, name, instead)
    for seed in range(300):
        try:
            run_machine(replace(plan, seed=seed))
        except (Broken, ShardsError):
            return
    pytest.fail(f"{control}: not found in 300 seeds")


def test_returned_tasks_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they wait for room that only they can make."""
    monkeypatch.setattr(leasing, "_has_returned", lambda book, dataset: False)
    monkeypatch.setattr(leasing, "_can_fence", lambda book: False)
    with pytest.raises(Broken, match=r"it stands still|it does not end"):
        for seed in range(100):
            run_machine(MachinePlan(seed, 0))
