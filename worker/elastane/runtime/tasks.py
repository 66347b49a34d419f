"""Dynamic mode in a worker: lease tasks, run them, report them with the next lease.

Each worker goes at its own pace. Requests go over one stream (`task_stream`); with `prefetch` tasks are
leased in advance. A session of role TASKS runs alongside the calls, so that the tasks of a dead worker are
leased to others at once and not only when their lease ends.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from elastane.rng import Generators, seed_all
from elastane.runtime.environment import WorkerEnvironment
from elastane.runtime.leased_ahead import LeasedAhead
from elastane.runtime.loop_exit import when_left
from elastane.runtime.process_exit import WorkerExits
from elastane.runtime.process_identity import ProcessIdentity
from elastane.runtime.seeds import task_seed
from elastane.runtime.session import MasterSession
from elastane.runtime.slots.reports import PushingTasks, held_task, task_of
from elastane.runtime.slots.task import PushTask
from elastane.task_stream import TaskStream
from elastane_common.client import MasterClient
from elastane_common.errors import ElastaneError, JobFailedError, StepError, WorkerReplacedError
from elastane_proto import versions
from elastane_proto.contexts import rng_from_proto, rng_to_proto
from elastane_proto.v1 import ring_pb2, shard_pb2
from elastane_shards.settings import DEFAULTS

_log = structlog.get_logger(__name__)

ENDED_PHASES = ("suspended", "max_wait_exceeded", "cancelled")
"""Phases of a job in which its workers are sent away, and have not failed."""
PREFETCH_MAX = 60
"""Limit of pending requests; the master remembers its answers to this many."""


@dataclass(frozen=True)
class LeasedTask:
    """Positions `indices` of epoch `epoch`. attempt: 1, or more if the task failed before."""

    epoch: int
    index: int
    indices: range
    attempt: int


def lease_tasks(
    environment: WorkerEnvironment,
    worker_session: TaskSession,
    dataset: str,
    *,
    size: int,
    task_size: int,
    epochs: int = DEFAULTS.epochs,
    lease_seconds: float = DEFAULTS.lease_seconds,
    max_attempts: int = DEFAULTS.max_attempts,
    prefetch: int = 0,
    seed: int = 0,
    pushes: PushingTasks | None = None,
) -> Iterator[LeasedTask | PushTask]:
    """Yield the tasks this worker gets of `dataset`, until every one is done (see `Job.tasks`).

    The first worker creates the dataset; a worker with other settings is refused. A repeated task draws the
    random numbers of its first attempt. seed: base of the tasks' seeds when they are leased in advance.
    pushes: of tasks whose gradients are pushed. Raises StepError if tasks were parked as FAILED.
    """
    if not 0 <= prefetch <= PREFETCH_MAX:
        raise StepError(
            f"prefetch={prefetch}", hint=f"between 0 and {PREFETCH_MAX} tasks can be leased ahead"
        )
    settings = shard_pb2.DatasetSettings(
        range=shard_pb2.RangeSource(size=size), task_size=task_size, epochs=epochs, max_attempts=max_attempts
    )
    settings.lease.FromNanoseconds(int(lease_seconds * 1e9))
    settings.pushes = pushes is not None
    worker_session.exits.finished = False
    _give_back(environment, worker_session)
    if dataset in worker_session.gone_through:
        _log.warning(
            f"all tasks of {dataset!r} are done, and a job does them once: for several passes use epochs=, or"
            " a name for each"
        )
    client = MasterClient(environment.master, timeout_seconds=environment.master_timeout_seconds)
    stream = TaskStream(client, reads_ahead=pushes is not None and prefetch > 0)
    try:
        client.create_dataset(environment.job, dataset, settings)
        source = _Source(environment, dataset, client, stream, worker_session)
        if pushes is not None and not prefetch:
            yield from _pushed_one_by_one(source, pushes, seed)
        elif pushes is not None:
            yield from _pushed(source, pushes, LeasedAhead(prefetch, task_size, lease_seconds), seed)
        elif prefetch:
            yield from _leased_ahead(source, LeasedAhead(prefetch, task_size, lease_seconds), seed)
        else:
            yield from _leased_one_by_one(source)
        failed = list(client.list_tasks(environment.job, dataset, shard_pb2.TASK_STATE_FAILED))
        if failed:
            last = failed[0].errors[-1].error if failed[0].errors else ""
            raise StepError(
                f"{len(failed)} tasks of {dataset!r} failed in every attempt, "
                f"first task {failed[0].index}: {last}",
                hint=f"see them with `elastane progress {environment.job} --dataset {dataset} --json`",
            )
        worker_session.exits.finished = True
        worker_session.gone_through.add(dataset)
    except GeneratorExit:
        if pushes is not None:
            pushes.leave()
        if not sys.is_finalizing():
            # Only where the script goes on: an error that ends the process counts as a failed attempt.
            worker_session.left.add(dataset)
            when_left(lambda place: _give_back(environment, worker_session))
        raise
    except ElastaneError as error:
        if error.exit_code == 1:
            raise
        phase = str(error.facts.get("phase", ""))
        if phase == "failed":
            error = JobFailedError(error.args[0], hint="`elastane events` shows what happened before")
        elif phase in ENDED_PHASES:
            # The lease was refused before the session's Done has come, which sends the worker away.
            worker_session.exits.sent_away(ring_pb2.Done(phase=phase, reason=error.args[0]), None)
        raise worker_session.exits.failed(error) from error
    finally:
        stream.close()
        client.close()


@dataclass(frozen=True)
class _Source:
    """Connection that leases the tasks of one dataset."""

    environment: WorkerEnvironment
    dataset: str
    client: MasterClient
    stream: TaskStream
    worker_session: TaskSession

    def request(
        self, finished: Iterable[shard_pb2.TaskReport], most: int, **fields: Any
    ) -> shard_pb2.LeaseTasksRequest:
        return shard_pb2.LeaseTasksRequest(
            job=self.environment.job,
            dataset=self.dataset,
            worker_id=self.environment.worker_id,
            completed=finished,
            max_tasks=most,
            **fields,
        )


def _next_task(
    source: _Source, finished: Iterable[shard_pb2.TaskReport], generators: Generators
) -> shard_pb2.LeaseTasksResponse:
    """Report finished tasks and lease one, with the RNG states of this moment.

    Raises SystemExit, after the report, in a worker that leaves.
    """
    session = source.worker_session
    session.require_newest()
    most = 0 if session.leaving else 1
    source.stream.send(source.request(finished, most, rng=rng_to_proto(generators.capture())))
    response = source.stream.receive()
    if session.leaving:
        session.exits.sent_away(session.done, session.drain)
    return response


def _leased_one_by_one(source: _Source) -> Iterator[LeasedTask]:
    """Lease each task when the previous one is done, with the RNG states of that moment."""
    generators = Generators(torch.device("cuda") if torch.cuda.is_available() else None)
    finished: list[shard_pb2.TaskReport] = []
    while True:
        response = _next_task(source, finished, generators)
        finished = []
        if response.complete:
            return
        for task in response.tasks:
            states = rng_from_proto(task.rng)
            # The states of the first lease, so that a repeated task draws the same augmentation.
            if task.attempt > 1 and states:
                generators.restore(states)
            yield LeasedTask(task.epoch, task.index, range(task.range.start, task.range.end), task.attempt)
            finished.append(shard_pb2.TaskReport(epoch=task.epoch, index=task.index, attempt=task.attempt))


def _pushed_one_by_one(source: _Source, pushes: PushingTasks, seed: int) -> Iterator[PushTask]:
    """Lease each task when every slot has said what becomes of the previous one."""
    generators = Generators(torch.device("cuda") if torch.cuda.is_available() else None)
    finished: list[shard_pb2.TaskReport] = []
    while True:
        response = _next_task(source, finished, generators)
        finished = []
        if response.complete:
            return
        for leased in response.tasks:
            task = task_of(source.dataset, leased)
            if pushes.own_seeds:
                seed_all(task_seed(seed, source.dataset, task.epoch, task.index))
            elif states := rng_from_proto(leased.rng):
                # Of the first lease, so that a task that is leased again draws the same augmentation.
                generators.restore(states)
            pushes.begin(task)
            try:
                yield task
            except GeneratorExit:
                _tell_last(source, pushes, task)
                raise
            finished += pushes.end(task)


def _leased_ahead(source: _Source, tasks: LeasedAhead, seed: int) -> Iterator[LeasedTask]:
    """Lease tasks while others are running.

    The states in which the script will begin a task are not known when it is leased, so each task has its own
    seed: the same numbers whoever runs it, however often.
    """
    stream, worker_session = source.stream, source.worker_session
    while not worker_session.leaving:
        worker_session.require_newest()
        now = time.monotonic()
        task = tasks.take(now)
        if (asked := tasks.ask(now, task is not None)) is not None:
            most, finished = asked
            stream.send(source.request(finished, most, runs=most > 1))
        if task is None:
            response = stream.receive()
            tasks.answered(list(response.tasks))
            if response.complete:
                return
            continue
        seed_all(task_seed(seed, source.dataset, task.epoch, task.index))
        try:
            yield LeasedTask(task.epoch, task.index, task.indices, task.attempt)
        except GeneratorExit:
            _tell_rest(source, tasks)
            raise
        tasks.finish(task, time.monotonic())
    _tell_rest(source, tasks)
    worker_session.exits.sent_away(worker_session.done, worker_session.drain)


def _pushed(source: _Source, pushes: PushingTasks, tasks: LeasedAhead, seed: int) -> Iterator[PushTask]:
    """Lease tasks, pull for them and push them while others are running.

    Answers are taken as soon as they are there: what the next task needs is pulled while this one runs.
    """
    stream, worker_session = source.stream, source.worker_session
    complete = False
    while not worker_session.leaving:
        worker_session.require_newest()
        held = tasks.take(time.monotonic())
        # With nothing to do, all answers are waited for: others may wait for these reports.
        for report in pushes.reports(0 if held is not None else -1):
            tasks.add(report)
        if (asked := tasks.ask(time.monotonic(), held is not None)) is not None:
            most, finished = asked
            stream.send(source.request(finished, most))
        while stream.unanswered and (held is None or stream.ready):
            response = stream.receive()
            tasks.answered(list(response.tasks))
            complete = complete or response.complete
            if held is None:
                break
        if held is None:
            if complete:
                return
            continue
        task = held_task(source.dataset, held)
        pushes.begin(task)
        if (following := tasks.next) is not None:
            pushes.pull_ahead(held_task(source.dataset, following))
        seed_all(task_seed(seed, source.dataset, task.epoch, task.index))
        try:
            yield task
        except GeneratorExit:
            _tell_last(source, pushes, task)
            _tell_rest(source, tasks, pushes)
            raise
        tasks.ended(time.monotonic())
        for report in pushes.end_later(task):
            tasks.add(report)
    _tell_rest(source, tasks, pushes)
    worker_session.exits.sent_away(worker_session.done, worker_session.drain)


def _tell_rest(source: _Source, tasks: LeasedAhead, pushes: PushingTasks | None = None) -> None:
    """Report finished tasks when the loop ends before the dataset does; no request is on its way after it."""
    reports, stream = tasks.take_finished(), source.stream
    if pushes is not None:
        with contextlib.suppress(ElastaneError):
            reports += pushes.reports(-1)
    with contextlib.suppress(ElastaneError):  # on failure the tasks are leased again, and repeated
        stream.send(source.request(reports, 0))
        while stream.unanswered:
            stream.receive()


def _tell_last(source: _Source, pushes: PushingTasks, task: PushTask) -> None:
    """Report the task in which the loop ends, if it is pushed or skipped: its gradients count."""
    with contextlib.suppress(
        ElastaneError
    ):  # on failure the task is leased again, and no slot counts it twice
        if reports := pushes.end(task):
            source.client.lease_tasks(source.request(reports, 0))


def _give_back(environment: WorkerEnvironment, worker_session: TaskSession) -> None:
    """Give back what is leased of data sets that the script has left, begun or not, uncounted."""
    if not worker_session.left:
        return
    client = MasterClient(environment.master, timeout_seconds=environment.master_timeout_seconds)
    with contextlib.closing(client), contextlib.suppress(ElastaneError):  # on failure the leases run out
        while worker_session.left:
            name = worker_session.left.pop()
            job, worker = environment.job, environment.worker_id
            client.lease_tasks(
                shard_pb2.LeaseTasksRequest(job=job, dataset=name, worker_id=worker, leaves=True)
            )


class TaskSession:
    """The session alongside the calls: shows that this worker is alive, and receives Drain and Done.

    One per process, for all its datasets: a second session would take away the first one's tasks.
    """

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._environment = environment
        self._process = ProcessIdentity()
        #: Data sets of which the script has had all tasks, or has seen that others did.
        self.gone_through: set[str] = set()
        #: Data sets that the script has left, and whose tasks are not given back yet.
        self.left: set[str] = set()
        self.drain: ring_pb2.Drain | None = None
        self.done: ring_pb2.Done | None = None
        self._replaced: WorkerReplacedError | None = None
        self._session = MasterSession(
            environment.master,
            hello=self._hello,
            heartbeat=lambda: ring_pb2.AttendRequest(heartbeat=ring_pb2.Heartbeat()),
            handler=self._receive,
            failed=self._failed,
            timeout_seconds=environment.master_timeout_seconds,
        )
        self.exits = WorkerExits(environment, self._leave)
        self.exits.install(self._session.close, lambda: self.done)
        self._session.start()

    @property
    def leaving(self) -> bool:
        """True if the current task is the last one."""
        return self.drain is not None or self.done is not None

    def require_newest(self) -> None:
        """Raise WorkerReplacedError if another process has joined with this worker's id."""
        if self._replaced is not None:
            raise self._replaced

    def require_open(self) -> None:
        """End the script if the job is over: nobody will answer what it waits for."""
        if self.done is not None:
            self.exits.sent_away(self.done, None)

    def _leave(self, reason: str, notice_seconds: float) -> None:
        self.drain = ring_pb2.Drain(reason=reason)

    def _failed(self, error: ElastaneError) -> None:
        """Keep the error of a replaced process; the next lease raises any other in the script's thread.

        Leases are by worker id: those of a replaced process would be taken for the later process's.
        """
        if isinstance(error, WorkerReplacedError):
            self._replaced = error

    def _receive(self, message: ring_pb2.AttendResponse) -> None:
        if message.HasField("drain"):
            self.drain = message.drain
        elif message.HasField("done"):
            self.done = message.done

    def _hello(self) -> ring_pb2.Hello:
        hello = ring_pb2.Hello(
            job=self._environment.job,
            worker_id=self._environment.worker_id,
            role=ring_pb2.WORKER_ROLE_TASKS,
            host=self._environment.rendezvous_host(),
            pid=self.exits.pid,
            version=str(versions.PROTOCOL),
            capacity=self._environment.capacity_type(),
        )
        return self._process.fill(hello)
