"""Seeded runs of the training service under faults. A failure prints its seed: `make service-sim SEED=n`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from service_sim.checkers import BESIDE
from service_sim.mutants import MUTANTS, hunt_in_process
from service_sim.profiles import LYING_POLICY, TWO_PLACES, profile_of
from service_sim.simulation import BUSY_EVERY, INJECTED, simulate
from sim.planting import TESTS
from slow import slow_except

SEEDS = 400
BATCH = 100


@pytest.mark.parametrize("first", slow_except(range(0, SEEDS, BATCH), BATCH))
def test_every_run_ends_and_nothing_runs_twice(first: int) -> None:
    for seed in range(first, first + BATCH):
        simulate(seed)


def test_a_policy_that_lies_costs_time_only() -> None:
    counts: Counter[str] = Counter()
    for seed in range(6, 6 + 8 * 40, 8):
        assert profile_of(seed) is LYING_POLICY
        counts.update(simulate(seed).checkers.counts)
    assert counts["taken back for others"] and counts["succeeded"], counts


def test_a_busy_service_serves_everybody() -> None:
    for seed in range(BUSY_EVERY - 1, 12 * BUSY_EVERY, BUSY_EVERY):
        simulate(seed)


def test_a_seed_replays_exactly_in_another_process() -> None:
    """A run must not depend on addresses or on hashes of strings, which differ between processes."""
    code = "from service_sim.simulation import simulate\n"
    code += "for seed in range(8): print(simulate(seed).simulation.trace_text(None))"
    traces = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0].count("\n") > 200
    assert traces[0] == traces[1]


def test_the_faults_really_happen() -> None:
    injected: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    two_places = [seed for seed in range(BATCH, SEEDS) if profile_of(seed) is TWO_PLACES]
    for seed in [*range(BATCH), *two_places]:
        outcome = simulate(seed)
        injected.update(outcome.injected)
        counts.update(outcome.checkers.counts)
    assert set(injected) == set(INJECTED)
    wanted = ("succeeded", "failed", "cancelled", "suspended", "master killed", *BESIDE)
    assert all(counts[name] for name in wanted), counts


def test_every_planted_bug_still_applies() -> None:
    for mutant in MUTANTS:
        compile(mutant.applied(mutant.path().read_text()), mutant.module, "exec")


@pytest.mark.parametrize(
    "name",
    [
        "a new launch does not wait until the old one has stopped",
        "a gang starts when the first is prepared",
        "a run that waits starts although there are no free slots",
        "old instances go before new ones run",
    ],
)
def test_planted_bugs_are_found(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert hunt_in_process(mutant, 1000)["checker"]
