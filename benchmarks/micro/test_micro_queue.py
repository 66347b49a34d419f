"""Times the pure parts of dispatch for one request, without gRPC or a store.

    pytest benchmarks/micro [--benchmark-json FILE]

Needs the extra `bench`.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from elastane_master.decisions.events import DatasetCreated, TaskReport, TasksRequested
from elastane_master.decisions.machine import JobMachine
from elastane_proto.job_settings import JobSettings
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.settings import QueueSettings
from elastane_shards.tasks import Outcome

pytest.importorskip("pytest_benchmark", reason="the extra `bench` is not installed")

TASK_SIZE = 128
SIZE = 10**9
OUT_OF_ORDER = 1_000_000
ROUNDS = 200
CALLS = 200


def queue(size: int = SIZE) -> DynamicQueue:
    return DynamicQueue(QueueSettings(task_size=TASK_SIZE, size=size, lease_seconds=3600.0))


def test_lease_one_task(benchmark: Any) -> None:
    tasks = queue()
    leases = benchmark.pedantic(tasks.lease, ("w", 1, 0.0), rounds=ROUNDS, iterations=CALLS)
    assert leases[0].count == 1
    assert tasks.progress(0.0).doing >= ROUNDS * CALLS


def test_lease_a_run_of_64(benchmark: Any) -> None:
    tasks = queue()

    def lease() -> Any:
        return tasks.lease("w", 64, 0.0, runs=True)

    leases = benchmark.pedantic(lease, rounds=ROUNDS, iterations=CALLS // 4)
    assert [lease.count for lease in leases] == [64]


def test_lease_and_report_one_task(benchmark: Any) -> None:
    tasks = queue()

    def pair() -> Outcome:
        (lease,) = tasks.lease("w", 1, 0.0)
        return tasks.report("w", 0, lease.index, 1, "", 0.0)

    assert benchmark.pedantic(pair, rounds=ROUNDS, iterations=CALLS) is Outcome.ACCEPTED
    assert tasks.progress(0.0).doing == 0


def test_lease_and_report_a_run_of_64(benchmark: Any) -> None:
    tasks = queue()

    def pair() -> Any:
        (lease,) = tasks.lease("w", 64, 0.0, runs=True)
        return tasks.report_run("w", 0, lease.index, 64, 1, 0.0)

    ((_, tasks_done, outcome),) = benchmark.pedantic(pair, rounds=ROUNDS, iterations=CALLS // 4)
    assert (tasks_done, outcome) == (64, Outcome.ACCEPTED)


def test_decision_on_a_request(benchmark: Any) -> None:
    """Report one task and lease another through the job's state machine."""
    job = JobMachine.create("j", JobSettings(ests=1), 0.0)
    settings = QueueSettings(task_size=TASK_SIZE, size=SIZE, lease_seconds=3600.0)
    job.handle(DatasetCreated("c", "d", settings), 0.0)
    numbers = count()
    held: list[tuple[TaskReport, ...]] = [()]

    def decide() -> Any:
        request = TasksRequested(str(next(numbers)), "d", "w", held[0])
        result: Any = job.handle(request, 1.0).result
        held[0] = tuple(TaskReport(task.epoch, task.index, task.attempt) for task in result.tasks)
        return result

    result = benchmark.pedantic(decide, rounds=ROUNDS, iterations=CALLS)
    assert result.outcomes[0].outcome is Outcome.ACCEPTED


@pytest.fixture(scope="module")
def scattered() -> DynamicQueue:
    """A queue with a million leased tasks, half of them reported in random order: very many runs."""
    tasks = queue()
    tasks.lease("w", OUT_OF_ORDER, 0.0, runs=True)
    order = random.Random(1).sample(range(OUT_OF_ORDER), OUT_OF_ORDER // 2)
    for index in order:
        tasks.report("w", 0, index, 1, "", 0.0)
    return tasks


def test_snapshot_of_a_million_tasks_out_of_order(benchmark: Any, scattered: DynamicQueue) -> None:
    snapshot = benchmark.pedantic(scattered.snapshot, rounds=3)
    assert DynamicQueue.restore(snapshot).progress(0.0) == scattered.progress(0.0)


def test_restore_of_a_million_tasks_out_of_order(benchmark: Any, scattered: DynamicQueue) -> None:
    restored = benchmark.pedantic(DynamicQueue.restore, (scattered.snapshot(),), rounds=3)
    assert restored.progress(0.0).done == OUT_OF_ORDER // 2
