"""Seeded runs of whole jobs under faults. A failure prints its seed: `simulate(seed)` replays it exactly."""

from __future__ import annotations

import pytest

from sim.simulation import simulate

SEEDS = 600
BATCH = 50
ONCE_FAILED = (
    202524,  # a leader whose Load was given up claimed what it had loaded all the same
    141746,  # a script that ended in an older history counted as the end of the job
    433,  # history was given up although a draining receiver had the state
    10911,  # a Go to a member that was lost while its ring was loading, during the return grace
    10445,  # the first step's lease multiplied one long step's duration
    50,  # Load was sent again to a leader that had loaded before the master was restarted
)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_jobs_finish_with_the_bits_of_the_fixed_run(first: int) -> None:
    for seed in range(first, first + BATCH):
        simulate(seed)


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_what_failed_once(seed: int) -> None:
    simulate(seed)


def test_a_seed_replays_exactly() -> None:
    assert simulate(7).world.trace == simulate(7).world.trace


def test_the_faults_really_happen() -> None:
    notes: dict[str, int] = {}
    for seed in range(60):
        for kind, count in simulate(seed).checkers.notes.items():
            notes[kind] = notes.get(kind, 0) + count
    wanted = "worker_lost worker_left worker_draining worker_standby worker_evicted master_recovered"
    wanted += " history_rewound checkpoint_saved checkpoint_failed job_suspended job_resumed job_waiting"
    missing = set(wanted.split()) - set(notes)
    assert not missing
