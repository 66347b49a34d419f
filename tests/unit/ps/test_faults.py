"""Processes that die, join and leave at random while several workers push: every task is applied once."""

from __future__ import annotations

import random
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from slow import slow_except
from unit.ps.cluster import FakeMaster, Worker, cluster
from unit.tables.models import small

SPEC = small(slots=6, rows=300)
TASKS = 60


def strike(master: FakeMaster, rng: random.Random, number: int, copies: int) -> None:
    """One fault. With backups, only when all slots have theirs: two copies do not survive two deaths."""
    staying = sorted(set(master.servers) - master.draining)
    fault = rng.choice(["kill", "join", "drain"])
    if len(staying) <= copies:
        fault = "join"
    if fault == "join":
        master.add(f"ps-{number}")
    elif fault == "drain":
        master.draining.add(rng.choice(staying))
        master.balance()
    else:
        if copies == 2:
            master.settled()
        master.kill(rng.choice(sorted(master.servers)))


def run(seed: int, copies: int, folder: Path) -> None:
    rng = random.Random(seed)
    options = {"copies": copies, "url": str(folder), "seconds": 0.1}
    with cluster(SPEC, 3, **options) as (master, first):
        workers = [first, Worker(master), Worker(master)]
        trained: list[Future[None]] = [
            worker.start(range(number, TASKS, 3)) for number, worker in enumerate(workers)
        ]
        number = 3
        while not all(future.done() for future in trained):
            time.sleep(rng.random() * 0.3)
            strike(master, rng, number, copies)
            number += 1
        for future in trained:
            future.result()
        master.settled()
        first.refresh()
        # What was opened again after the last worker had looked.
        while master.reopened:
            master.reopened.clear()
            first.run(sorted(set(range(TASKS)) - master.done))
        assert first.applied() == [set(range(TASKS))] * SPEC.slots
        assert master.done == set(range(TASKS))
        if copies == 2:
            assert not any(place.life for place in master.map.places)
        for worker in workers[1:]:
            worker.close()


@pytest.mark.parametrize("copies", slow_except([1, 2], 2))
@pytest.mark.parametrize("seed", slow_except(range(8), 0, further=range(1, 8)))
def test_every_task_is_applied_once(seed: int, copies: int, tmp_path: Path) -> None:
    run(seed, copies, tmp_path)
