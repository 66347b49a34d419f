"""A process that leases tasks, and whose worker id another process has taken over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elastane.runtime import tasks
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.process_exit import WorkerExits
from elastane.runtime.tasks import TaskSession, lease_tasks
from elastane_common.client_errors import RequestRefusedError
from elastane_common.errors import ElastaneError, RefusedError, WorkerReplacedError
from elastane_proto.v1 import shard_pb2


class Session:
    """Instead of a session with a master; `failed` is what it calls when it ends for good."""

    failed: Callable[[ElastaneError], None]

    def __init__(self, addresses: str, *, failed: Callable[[ElastaneError], None], **rest: Any) -> None:
        Session.failed = failed

    def start(self) -> None:
        pass

    def close(self, bye: object = None) -> None:
        pass


class Client:
    """Instead of a client; there is nothing to ask it for."""

    def __init__(self, address: str, *, timeout_seconds: float) -> None:
        pass

    def create_dataset(self, job: str, dataset: str, settings: shard_pb2.DatasetSettings) -> None:
        pass

    def close(self) -> None:
        pass


class Stream:
    """A master that leases the next task to whoever asks, by the worker's id."""

    def __init__(self, client: Client, **_: Any) -> None:
        self.unanswered: tuple[shard_pb2.LeaseTasksRequest, ...] = ()
        self.index = 0

    def send(self, request: shard_pb2.LeaseTasksRequest) -> None:
        self.most = request.max_tasks

    def receive(self) -> shard_pb2.LeaseTasksResponse:
        response = shard_pb2.LeaseTasksResponse()
        for _ in range(self.most):
            task = response.tasks.add(index=self.index, attempt=1)
            task.range.start, task.range.end = self.index, self.index + 1
            self.index += 1
        return response

    def close(self) -> None:
        pass


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_process_that_was_replaced_takes_no_further_task(
    prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MasterSession", Session)
    monkeypatch.setattr(tasks, "MasterClient", Client)
    monkeypatch.setattr(tasks, "TaskStream", Stream)
    monkeypatch.setattr(WorkerExits, "install", lambda self, close, done: None)
    environment = WorkerEnvironment(master="host:1", job="j", worker_id="w")
    worker_session = TaskSession(environment)
    leased = lease_tasks(environment, worker_session, "data", size=100, task_size=1, prefetch=prefetch)
    assert [next(leased).index for _ in range(3)] == [0, 1, 2]

    Session.failed(RefusedError("the next lease is refused too"))
    assert next(leased).index == 3

    Session.failed(WorkerReplacedError("another process joined later as worker w"))
    with pytest.raises(SystemExit) as ended:
        next(leased)
    assert ended.value.code == 82
    assert isinstance(ended.value.__cause__, WorkerReplacedError)


@pytest.mark.parametrize("phase", ["suspended", "max_wait_exceeded", "cancelled"])
def test_a_lease_that_is_refused_before_done_has_come_sends_the_worker_away_too(
    phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Stream):
        def receive(self) -> shard_pb2.LeaseTasksResponse:
            raise RequestRefusedError(f"the job is {phase}: why", reason="wrong_phase", phase=phase)

    monkeypatch.setattr(tasks, "MasterSession", Session)
    monkeypatch.setattr(tasks, "MasterClient", Client)
    monkeypatch.setattr(tasks, "TaskStream", Refusing)
    monkeypatch.setattr(WorkerExits, "install", lambda self, close, done: None)
    environment = WorkerEnvironment(master="host:1", job="j", worker_id="w")
    worker_session = TaskSession(environment)
    with pytest.raises(SystemExit) as ended:
        next(lease_tasks(environment, worker_session, "data", size=100, task_size=1))
    assert ended.value.code == environment.drain_exit_code
