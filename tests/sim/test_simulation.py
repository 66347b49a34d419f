"""Seeded runs of whole jobs under faults. A failure prints its seed: `make sim SEED=n` replays it exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from itertools import count, takewhile

import pytest

from sim.closings import CLOSING, CLOSING_FAULT
from sim.faults import FAULTS
from sim.forgetting import FORGETTING, Power
from sim.mutants import MUTANTS, hunt_in_process
from sim.pipelines import STAGES
from sim.planting import TESTS
from sim.profiles import EVEN, PROFILES, choose
from sim.scaling import TARGETS
from sim.simulation import AHEAD, UNDONE, Outcome, simulate, simulate_cuts, simulate_takeover
from sim.takeovers import CLOCK, CUT, Cut
from slow import further, slow

SEEDS = 50
HUNTED_SEEDS_MAX = 40
CUTS = 24
TAKEN_OVER = (14, 9, 15)
"""Seeds whose jobs run long enough."""
QUICK_TAKEOVERS = ((False, True, 1), (True, False, 2))
"""Whether the leader crashes as well, whether the call was executed, and the first call: in `make test`."""
SLOW_TAKEOVERS = ((True, False, 1), (False, True, 2), (False, False, 3), (True, True, 3))
"""With the quick ones, each pair of these. `make sim` draws the rest."""
REPLAYED_SEEDS = 4
VARIED = (38, 88, 3, 41, 355, 7, 50, 56, 1015)
"""Seeds that have every fault between them."""
COUNTED = {AHEAD, UNDONE, STAGES, TARGETS}
"""Counted together with the faults, but not faults."""
STRAGGLING = (45, 65, 125)
WANTED = """
    worker_lost worker_left worker_draining worker_standby worker_evicted master_recovered
    history_rewound checkpoint_saved checkpoint_failed job_suspended job_resumed job_waiting
    interval_lost task_timed_out job_max_wait_exceeded prices_changed job_cost
"""
"""Events that faults must have led to."""
REFUSED = {"ABORTED", "UNAVAILABLE"}
"""Codes of answers that faults must have led to."""
ONCE_FAILED = {
    "work between two rings was charged by share after a ring of the same step": 6889,
    "a step was committed that a lost member had never applied": 7948,
    "a step that a lost member had applied was not committed": 4700,
    "a lease that the store forgot was taken for one given twice by a checker": 2050,
    "a stopping master decided on requests": 55,
    "commits that the store lost were not written again": 3,
    "a run of a step that a load made void was taken for the job's by a checker": 675,
    "a job's time, ahead by an hour, made the deadlines of those taken over before it pass": 3848,
    "a deleted job was opened after the answer to its deletion was lost, and called damaged": 157,
    "a job that went back after its last step succeeded at the earlier one": 2402,
    "a leader whose closed job a late takeover had fenced led on, and could not delete it": 2907,
    "a scaling that was not answered took effect before the job ended": 3231,
    "what a fenced master had decided was taken for settled": 9701,
    "a dead process's Hello, behind its successor's, had the successor refused for good": 392172,
    "the number of a ring that the store had lost was taken for a decision on its members": 3438,
    "a message of a stream that had ended was received": 1978,
    "a job whose opening and deletion were both cut off could not be deleted any more": 18,
}
"""Seeds that once found a fault of the product or of a checker, with even weights. They only reproduce it
while the simulation's draws stay the same; after that the planted bug (`mutants`) takes their place."""


@further  # test_the_faults_really_happen runs some, with the same checkers; `make sim` thousands
def test_jobs_finish_with_the_bits_of_the_fixed_run() -> None:
    for seed in range(SEEDS):
        simulate(seed)


@pytest.mark.parametrize("name", ONCE_FAILED)
def test_what_failed_once(name: str) -> None:
    simulate(ONCE_FAILED[name], profile=EVEN)


def test_an_end_of_any_length_that_the_store_loses_with_its_master() -> None:
    """If all members are still there, no step is repeated; if one dies with the store, lost steps are."""
    notes: Counter[str] = Counter()
    complete = 0
    for writes in range(CUTS):
        at_seconds = 1.0 + writes % 7 / 2
        for dies in (0, 1):
            outcome = simulate_cuts(writes, (Power(at_seconds, writes, 0.3, dies),))
            notes.update(outcome.checkers.notes.keys())
            if not dies and not _ended_before_the_cut(outcome):
                complete += 1
                assert not {"history_rewound", "history_forgotten"} & set(outcome.checkers.notes), writes
    assert complete > CUTS / 2
    assert notes["history_restored"] > CUTS / 3 and notes["history_forgotten"] > 2


def _ended_before_the_cut(outcome: Outcome) -> bool:
    """True if a worker had come to the script's end by then: it no longer tells what it has done."""
    before = takewhile(lambda line: "STORE crashes" not in line, outcome.world.trace)
    return any("NOTE worker_left" in line for line in before)


@pytest.mark.parametrize(
    ("crashes", "acted", "first"),
    [*QUICK_TAKEOVERS, *(pytest.param(*case, marks=slow) for case in SLOW_TAKEOVERS)],
)
def test_a_takeover_comes_to_its_end_wherever_the_store_goes_away(
    crashes: bool, acted: bool, first: int
) -> None:
    """The store fails at each call from `first` on that meets the same seed, before or after executing it.

    It is away for longer than the lease lasts.
    """
    for call in count(first, len(TAKEN_OVER)):
        _, takeovers = simulate_takeover(TAKEN_OVER[call % len(TAKEN_OVER)], Cut(call, acted, 2.5, crashes))
        if not takeovers.hit:
            break  # it has no more calls
    assert call > 20


def test_a_seed_replays_exactly_in_another_process() -> None:
    """A run must not depend on addresses or on hashes of strings, which differ between processes."""
    code = "from sim.simulation import simulate\n"
    code += f"for seed in range({REPLAYED_SEEDS}): print(*simulate(seed).world.trace, sep=chr(10))"
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
    assert traces[0].count("\n") > 500
    assert traces[0] == traces[1]


def test_every_second_seed_has_a_profile_and_each_profile_its_share() -> None:
    chosen = Counter(choose(seed).name for seed in range(20 * len(PROFILES)))
    assert chosen == {EVEN.name: 10 * len(PROFILES), **{profile.name: 10 for profile in PROFILES}}


def test_the_faults_that_profiles_name_exist() -> None:
    for profile in PROFILES:
        assert {*profile.weights, *(one.fault for one in profile.follow_ups)} <= set(FAULTS), profile.name


def test_stragglers_are_replaced() -> None:
    notes: Counter[str] = Counter()
    for seed in STRAGGLING:
        notes.update(simulate(seed).checkers.notes)
    assert notes["straggler_replaced"] >= len(STRAGGLING)


@slow
def test_the_faults_really_happen() -> None:
    """In as many seeds as it takes: those of `VARIED`, as long as the simulation's draws stay the same."""
    notes: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    wanted = set(WANTED.split())
    faults = {*FAULTS, FORGETTING, CLOCK, CUT, CLOSING, CLOSING_FAULT}
    for seed in dict.fromkeys((*VARIED, *range(2 * SEEDS))):
        outcome = simulate(seed)
        notes.update(outcome.checkers.notes)
        refusals.update(outcome.checkers.refusals)
        injected.update(outcome.injected)
        if set(notes) >= wanted and set(refusals) >= REFUSED and set(injected) >= faults:
            break
    assert not wanted - set(notes)
    assert not REFUSED - set(refusals)
    assert set(injected) - COUNTED == faults


def test_every_planted_bug_still_applies() -> None:
    for mutant in MUTANTS:
        compile(mutant.applied(mutant.path().read_text()), mutant.module, "exec")


@pytest.mark.parametrize(
    "name",
    [
        "an answer leaves before it is durable",
        "a step is prepared when one member is missing",
        pytest.param("history is given up before everybody was asked", marks=further),
    ],
)
def test_planted_bugs_are_found(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert hunt_in_process(mutant, HUNTED_SEEDS_MAX)["checker"]
