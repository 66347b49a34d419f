"""Pushes to slots under every fault, in virtual time, with the product's master; planted bugs are found."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.planting import hunt_in_process
from slot_sim.mutants import MUTANTS
from slot_sim.simulation import FAULTS, FAVOURED, draw, simulate
from slow import further, slow

QUICK, FURTHER = 25, 400


@pytest.mark.parametrize(
    "first",
    [
        0,
        *(pytest.param(first, marks=further) for first in range(QUICK, FURTHER, QUICK)),  # `make slot-sim`
    ],
)
def test_every_task_counts_once_in_every_slot(first: int) -> None:
    for seed in range(first, first + QUICK):
        simulate(seed)


def test_a_seed_replays_exactly() -> None:
    one, two = simulate(7), simulate(7)
    assert one.world.trace == two.world.trace and one.checkers.verdicts == two.checkers.verdicts


@slow
def test_the_faults_really_happen() -> None:
    outcomes = [simulate(seed) for seed in range(100, 140)]
    injected = Counter(name for outcome in outcomes for name in outcome.injected)
    rare = {"all servers killed", "store lost writes", "worker joins", *FAVOURED}
    assert set(FAULTS) - injected.keys() <= rare
    assert any(outcome.reopened for outcome in outcomes) and any(outcome.lives for outcome in outcomes)
    told: Counter[str] = Counter()
    for outcome in outcomes:
        told.update(outcome.checkers.verdicts)
    assert {"applied", "restored", "frozen", "told applied_before"} <= told.keys()


def test_plans_have_every_kind() -> None:
    plans = [draw(seed) for seed in range(QUICK)]
    assert {plan.copies for plan in plans} == {1, 2} and {plan.limit for plan in plans} == {0, 1, 3, None}
    assert any(plan.alone for plan in plans) and any(plan.gentle for plan in plans)
    assert any(plan.leaves and plan.limit is not None for plan in plans)
    assert {plan.favourite for plan in map(draw, range(600))} == {"", *FAVOURED}
    assert any(plan.lossy for plan in plans) and any(plan.attempts == 2 for plan in plans)


def test_every_mutant_applies() -> None:
    for mutant in [one for whole in MUTANTS for one in (whole, *whole.also)]:
        compile(mutant.applied(mutant.path().read_text()), mutant.module, "exec")


@pytest.mark.parametrize(
    "name",
    [
        "a restored slot is served before its tasks are open again",
        pytest.param("answers do not wait for backups", marks=slow),
        # The rest of the table is `python -m slot_sim.mutants`.
        pytest.param("a slot moves without its set", marks=further),
    ],
)
def test_planted_bugs_are_found(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert hunt_in_process(mutant, 300, "slot_sim.mutants")["checker"]
