"""A parameter server on real sockets: training, moves, backups, deaths."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from unit.ps.cluster import Worker, cluster
from unit.tables.models import small

SPEC = small(slots=8)
TASKS = 12


@functools.cache
def serial(tasks: int = TASKS) -> list[str]:
    """Digests of the slots after these tasks at one server that nothing happens to."""
    with cluster(SPEC) as (_, worker):
        worker.run(range(tasks))
        return worker.digests()


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("copies", [1, 2])
def test_the_number_of_processes_does_not_show(processes: int, copies: int) -> None:
    with cluster(SPEC, processes, copies=copies) as (master, worker):
        assert len({place.owner for place in master.map.places}) == processes
        worker.run(range(TASKS))
        assert worker.digests() == serial()
        assert worker.applied() == [set(range(TASKS))] * SPEC.slots


@pytest.mark.parametrize(("copies", "encrypted"), [(1, False), (2, False), (2, True)])
def test_processes_that_join_and_drain_while_it_trains_do_not_show(copies: int, encrypted: bool) -> None:
    with cluster(SPEC, 1, copies=copies, encrypted=encrypted) as (master, worker):
        with master.holding(TASKS - 1):
            trained = worker.start(range(TASKS))
            for number in (1, 2):
                master.trained(2 * number)
                master.add(f"ps-{number}")
            master.settled()
            master.draining.add("ps-0")
            master.settled()
        assert not master.map.held_by("ps-0")
        trained.result()
        assert worker.digests() == serial()
        assert not any(place.life for place in master.map.places)


@pytest.mark.parametrize("victim", ["ps-0", "ps-1", "ps-2"])
def test_a_death_with_backups_does_not_show(victim: str) -> None:
    with cluster(SPEC, 3, copies=2) as (master, worker):
        with master.holding(TASKS - 1):
            trained = worker.start(range(TASKS))
            master.trained(TASKS // 3)
            master.kill(victim)
        trained.result()
        assert worker.digests() == serial()
        assert not any(place.life for place in master.map.places)


def test_deaths_without_backups_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    with cluster(SPEC, 3, url=str(tmp_path), seconds=0.2) as (master, worker):
        with master.holding(59):
            trained = worker.start(range(60))
            for victim, tasks in (("ps-1", 20), ("ps-2", 40)):
                master.trained(tasks)
                master.kill(victim)
        master.add("ps-3")
        trained.result()
        assert worker.applied() == [set(range(60))] * SPEC.slots
        assert master.done == set(range(60))
        assert sum(place.life for place in master.map.places) > 0


def test_several_workers_push_each_task_once() -> None:
    with cluster(SPEC, 2, copies=2) as (master, first):
        workers = [first, Worker(master), Worker(master)]
        trained = [worker.start(range(number, 30, 3)) for number, worker in enumerate(workers)]
        master.add("ps-2")
        for future in trained:
            future.result()
        assert first.applied() == [set(range(30))] * SPEC.slots
        for worker in workers[1:]:
            worker.close()
