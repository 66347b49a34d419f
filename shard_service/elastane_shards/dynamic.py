"""Task queue of a dynamic dataset: workers lease tasks, each at its own pace, and report them.

A task goes TODO -> DOING -> DONE. A lease that ends otherwise (it expires, its worker is lost, an error is
reported) returns the task to the front of TODO, or marks it as FAILED after max_attempts failed attempts. An
epoch starts when all tasks of the previous one are DONE or FAILED, so only one epoch has any state, plus
earlier ones with reopened tasks, whose results were lost.

Pure: the caller passes the time as `now` (seconds; any origin, the same for all calls). If the clock goes
back, leases that would now last too long are shortened. The caller keeps requests idempotent, calls `expire`
when `next_deadline` passes, and stores `snapshot`. All errors are raised before any state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from itertools import groupby

from elastane_shards.epoch import EpochTasks, Held
from elastane_shards.errors import InvalidRequest, InvalidSnapshot, InvariantViolated, ShardsError
from elastane_shards.intervals import IntervalSet
from elastane_shards.permutation import feistel_key, permuted
from elastane_shards.progress import Progress, RateWindow
from elastane_shards.reopened import ReopenedTasks
from elastane_shards.settings import QueueSettings
from elastane_shards.snapshot import (
    PUSHES_VERSION,
    VERSION,
    QueueSnapshot,
    decode_queue,
    encode_queue,
    tasks_of,
)
from elastane_shards.splitters import ListSource, Splitter, extended
from elastane_shards.tasks import (
    AttemptError,
    Outcome,
    Parts,
    QueueStatus,
    ReturnedTask,
    TaskInfo,
    TaskLease,
    TaskState,
)

ERROR_CHARS_MAX = 4000
"""Maximum length of a stored error text: it is kept in memory and in each snapshot."""


class DynamicQueue:
    """State machine of one dynamic dataset. The constructor raises InvalidSettings and InvalidSource."""

    def __init__(self, settings: QueueSettings) -> None:
        settings.check()
        self._settings = settings.without_lists()
        self._splitter = Splitter(settings.source(), settings.task_size)
        self._tasks = EpochTasks()
        self._epoch = 0
        self._failed_before: list[tuple[int, int, tuple[AttemptError, ...]]] = []
        self._now = float("-inf")
        self._requeued = self._timed_out = 0
        self._samples_done = 0  # since the beginning
        self._epoch_samples = 0  # of DONE and FAILED tasks of this epoch
        self._rate = RateWindow()
        self._reopened = ReopenedTasks()
        self._finish_epochs()

    @property
    def settings(self) -> QueueSettings:
        """Settings given at creation. For a stream's later growth see `watermark`."""
        return self._settings.with_lists(self._splitter.all_entries())

    @property
    def pushes(self) -> bool:
        """True if gradients of its tasks go to parameter servers."""
        return self._settings.pushes

    @property
    def lease_seconds(self) -> float:
        """How long a worker may hold a task."""
        return self._settings.lease_seconds

    @property
    def reopened(self) -> int:
        """Number of tasks reopened since the beginning."""
        return self._reopened.count

    @property
    def epoch(self) -> int:
        """Current epoch, from 0; the last one once all is complete."""
        return self._epoch

    @property
    def num_tasks(self) -> int:
        """Number of tasks per epoch; for an open stream, of those that can be leased so far."""
        return self._splitter.num_tasks

    @property
    def watermark(self) -> int:
        """Number of positions that exist: the size, or a stream's watermark."""
        return self._splitter.size

    @property
    def failed(self) -> int:
        """Number of FAILED tasks in all epochs so far."""
        return sum(len(tasks.failed) for _, tasks in self._epochs()) + len(self._failed_before)

    @property
    def complete(self) -> bool:
        """True if every task of every epoch is DONE or FAILED and no more can come."""
        return (
            self._epoch == self._settings.epochs - 1
            and self._splitter.closed
            and self._tasks.finished == self._splitter.num_tasks
            and not self._reopened.epochs
        )

    # ------------------------------------------------------------------ transitions

    def lease(
        self,
        worker: str,
        max_tasks: int,
        now: float,
        rng: Parts | None = None,
        *,
        runs: bool = False,
        fresh_max: int | None = None,
        returned: Callable[[int, int], bool] | None = None,
    ) -> list[TaskLease]:
        """Lease up to `max_tasks` tasks to `worker` until now + lease_seconds; [] if no task is TODO.

        Tasks whose lease has ended come first, then reopened tasks, then those at the cursor. Fresh tasks
        are the last two kinds, and tasks of the first kind for which `returned(epoch, index)` is False. rng:
        the worker's RNG states, stored with tasks that were never leased. runs: return the tasks at the
        cursor as one lease, which costs as much as one task. fresh_max: maximum number of fresh tasks. Raises
        InvalidRequest.
        """
        if not worker or max_tasks < 0:
            raise InvalidRequest(
                "a lease needs a worker and a number of tasks", worker=worker, max_tasks=max_tasks
            )
        self._advance(now)
        deadline = now + self._settings.lease_seconds
        first_rng = dict(rng) if rng else {}
        if self._reopened.epochs or fresh_max is not None:
            leases = self._lease_any(worker, max_tasks, deadline, first_rng, fresh_max, returned)
        else:
            leases = self._lease_current(worker, max_tasks, deadline, first_rng, runs)
        if leases:
            self._rate.begin(now)
        return leases

    def _lease_current(
        self, worker: str, max_tasks: int, deadline: float, rng: Parts, runs: bool
    ) -> list[TaskLease]:
        """Lease tasks while only the current epoch has any."""
        tasks, num_tasks, leases = self._tasks, self._splitter.num_tasks, []
        for left in range(max_tasks, 0, -1):
            # Only tasks at the cursor form a run: re-queued ones have attempts and errors of their own.
            if runs and not tasks.has_todo:
                run = tasks.take_run(worker, deadline, rng, left, num_tasks)
                if run:
                    leases.append(self._as_lease(self._epoch, run.start, tasks.doing[run.start], len(run)))
                break
            taken = tasks.take(worker, deadline, rng, num_tasks)
            if taken is None:
                break
            leases.append(self._as_lease(self._epoch, *taken))
        return leases

    def _lease_any(
        self,
        worker: str,
        max_tasks: int,
        deadline: float,
        rng: Parts,
        fresh_max: int | None,
        returned: Callable[[int, int], bool] | None,
    ) -> list[TaskLease]:
        """Lease tasks of all epochs, the earliest first, and of these the fresh ones last."""
        leases: list[TaskLease] = []
        for epoch, tasks in self._epochs():
            among = None if returned is None else partial(returned, epoch)
            while len(leases) < max_tasks and (taken := tasks.take_returned(worker, deadline, among)):
                leases.append(self._as_lease(epoch, *taken))
        most = max_tasks if fresh_max is None else min(max_tasks, len(leases) + fresh_max)
        for epoch, tasks in self._epochs():
            while len(leases) < most and (
                taken := tasks.take(worker, deadline, rng, self._splitter.num_tasks)
            ):
                leases.append(self._as_lease(epoch, *taken))
        return leases

    def check_report(self, epoch: int, index: int, attempt: int) -> None:
        """Raise InvalidRequest if the dataset has no such task, so that no worker can have held it.

        A task that exists but was not leased yet is accepted here: the store may have lost the lease.
        `report` does the same check; a caller with several reports in one request checks all of them first.
        """
        # An open stream may have been longer than the store knows.
        beyond = self._splitter.closed and index >= self._splitter.num_tasks
        if not 0 <= epoch < self._settings.epochs or index < 0 or attempt < 1 or beyond:
            raise InvalidRequest(
                f"there is no task {index} of epoch {epoch} with an attempt {attempt}",
                hint="report epoch, index and attempt as they were leased",
                epoch=epoch,
                index=index,
                attempt=attempt,
            )

    def report(self, worker: str, epoch: int, index: int, attempt: int, error: str, now: float) -> Outcome:
        """Record a worker's report of a task; an empty `error` means done.

        From the holder of the lease: the task is DONE, or with an error back at the front of TODO or FAILED.
        A stale report counts only if it says done and the task went back to TODO, so that the work is not
        repeated. A report of a lease that the store has lost is stale, too. Raises the errors of
        `check_report`.
        """
        self.check_report(epoch, index, attempt)
        self._advance(now)
        tasks = self._tasks if epoch == self._epoch else self._reopened.epochs.get(epoch)
        if tasks is None or index >= tasks.counter:
            return Outcome.STALE
        held = tasks.doing.get(index)
        if held is not None:
            if held.attempt != attempt or held.worker != worker:
                return Outcome.STALE
            if error:
                self._end_leases([(epoch, index)], error, counts=True)
                return Outcome.ACCEPTED
        else:
            # The work of an ended lease is still valid, so a late "done" saves its repetition.
            waiting = tasks.requeued.get(index)
            if waiting is None or error or attempt > waiting.attempt:
                return Outcome.STALE
        tasks.finish(index)
        self._count_done(epoch, *self._splitter.bounds(index), now)
        return Outcome.ACCEPTED

    def give_back(self, worker: str, epoch: int, index: int, attempt: int, error: str, now: float) -> Outcome:
        """End a lease that its holder cannot finish through no fault of its own; no attempt is counted.

        STALE if `worker` does not hold it. Raises the errors of `check_report`.
        """
        self.check_report(epoch, index, attempt)
        self._advance(now)
        tasks = self._tasks if epoch == self._epoch else self._reopened.epochs.get(epoch)
        held = tasks.doing.get(index) if tasks is not None else None
        if held is None or (held.worker, held.attempt) != (worker, attempt):
            return Outcome.STALE
        self._end_leases([(epoch, index)], error, counts=False)
        return Outcome.ACCEPTED

    def reopen(self, runs: Iterable[tuple[int, int, int]]) -> int:
        """Make DONE tasks TODO again, given as (epoch, start, end); return their number.

        They are leased before tasks that were never leased. Raises InvalidRequest if one is not DONE.
        """
        runs = list(runs)
        for epoch, start, end in runs:
            tasks = self._tasks if epoch == self._epoch else self._reopened.epochs.get(epoch)
            inside = 0 <= epoch <= self._epoch and 0 <= start < end <= self._splitter.num_tasks
            if not inside or not (
                tasks.done.covers(start, end) if tasks is not None else self._is_done(epoch, start, end)
            ):
                raise InvalidRequest(
                    f"tasks [{start}, {end}) of epoch {epoch} are not all DONE",
                    epoch=epoch,
                    start=start,
                    end=end,
                )
        for epoch, start, end in runs:
            tasks = self._tasks
            if epoch != self._epoch:
                tasks = self._reopened.bring_back(epoch, self._splitter.num_tasks, self._failed_before)
            tasks.reopen(start, end)
            self._reopened.counted(epoch, start, end)
            samples = self._splitter.bounds(end - 1)[1] - self._splitter.bounds(start)[0]
            self._samples_done -= samples
            self._epoch_samples -= samples if epoch == self._epoch else 0
        return sum(end - start for _, start, end in runs)

    def report_run(
        self, worker: str, epoch: int, index: int, count: int, attempt: int, now: float
    ) -> list[tuple[int, int, Outcome]]:
        """Record that `count` tasks from `index` on are done: equivalent to `report` for each of them.

        Returns runs of equal outcomes as (first index, number of tasks, outcome). Raises the errors of
        `check_report`.
        """
        if count == 1:
            return [(index, 1, self.report(worker, epoch, index, attempt, "", now))]
        self.check_report(epoch, index, attempt)
        self.check_report(epoch, index + count - 1, attempt)
        run = range(index, index + count)
        if epoch == self._epoch and self._tasks.held_alike(run, worker, attempt):
            self._advance(now)
            self._tasks.finish_run(run)
            positions = self._splitter.bounds(index)[0], self._splitter.bounds(run[-1])[1]
            self._count_done(epoch, *positions, now)
            return [(index, count, Outcome.ACCEPTED)]
        outcomes = [(task, self.report(worker, epoch, task, attempt, "", now)) for task in run]
        return [
            (tasks[0][0], len(tasks), outcome)
            for outcome, group in groupby(outcomes, key=lambda pair: pair[1])
            for tasks in [list(group)]
        ]

    def _count_done(self, epoch: int, start: int, end: int, now: float) -> None:
        """Count positions [start, end) of an epoch as DONE, and leave the epoch if it is finished."""
        self._samples_done += end - start
        self._rate.add(now, end - start)
        if epoch != self._epoch:
            self._reopened.put_away(self._splitter.num_tasks, self._failed_before)
            return
        self._epoch_samples += end - start
        if not self._tasks.doing:
            self._finish_epochs()

    def abandon(
        self, worker: str, now: float, error: str = "the worker was lost", *, counts: bool = True
    ) -> list[ReturnedTask]:
        """End all leases of a worker that left; its tasks return to TODO in the order they were leased.

        counts: whether this counts as a failed attempt of each task; False for a drained worker.
        """
        self._advance(now)
        mine = [
            (epoch, index)
            for epoch, tasks in self._epochs()
            for index, held in tasks.doing.items()
            if held.worker == worker
        ]
        return self._end_leases(mine, error, counts=counts)

    def expire(self, now: float) -> list[ReturnedTask]:
        """End the leases whose deadline has passed; the earliest is leased again first."""
        self._advance(now)
        overdue = self._overdue(now)
        self._timed_out += len(overdue)
        return self._end_leases(overdue, f"timed out after {self._settings.lease_seconds:g} s", counts=True)

    def extend(self, watermark: int, closed: bool = False) -> None:
        """Grow or close a stream. Raises the errors of `splitters.extended`."""
        source = extended(self._splitter.source, watermark, closed)
        self._splitter = Splitter(source, self._settings.task_size)
        self._finish_epochs()

    # ------------------------------------------------------------------ queries

    def bounds(self, index: int) -> tuple[int, int]:
        """Positions [start, end) of a task. Raises InvalidRequest when there is no such task."""
        return self._splitter.bounds(index)

    def next_deadline(self) -> float | None:
        """Time at which to call `expire`; None while nothing is leased."""
        if not self._reopened.epochs:
            return next((held.deadline for held in self._tasks.doing.values()), None)
        firsts = (next(iter(tasks.doing.values()), None) for _, tasks in self._epochs())
        return min((held.deadline for held in firsts if held is not None), default=None)

    def done_tasks(self) -> tuple[int, IntervalSet, int, dict[int, IntervalSet]]:
        """Return the DONE tasks as (epoch, done, tasks, not_done); read only.

        epoch, done: the current epoch and its DONE tasks. tasks: number of tasks of each earlier epoch.
        not_done: tasks of earlier epochs that are not DONE, by epoch.
        """
        not_done: dict[int, IntervalSet] = {}
        for epoch, index, _ in self._failed_before:
            not_done.setdefault(epoch, IntervalSet()).add(index, index + 1)
        for epoch, tasks in self._reopened.epochs.items():
            not_done[epoch] = IntervalSet(tasks.done.missing(0, self._splitter.num_tasks))
        return self._epoch, self._tasks.done, self._splitter.num_tasks, not_done

    def failed_tasks(self) -> Iterator[tuple[int, int]]:
        """Yield epoch and index of every FAILED task."""
        yield from ((epoch, index) for epoch, index, _ in self._failed_before)
        for epoch, tasks in self._epochs():
            yield from ((epoch, index) for index in tasks.failed)

    def times_reopened(self, epoch: int, index: int) -> int:
        """Number of times that a task was reopened."""
        return self._reopened.times(epoch, index)

    def status(self, now: float) -> QueueStatus:
        """Answer for a worker that asks for tasks at `now`.

        An overdue lease that will be retried counts as TODO.
        """
        tasks = self._tasks
        if tasks.counter < self._splitter.num_tasks or any(one.has_todo for _, one in self._epochs()):
            return QueueStatus.HAS_TODO
        if self.complete:
            return QueueStatus.COMPLETE
        # A lease on its last attempt would end as FAILED and leave no task for this worker.
        last = self._settings.max_attempts - 1
        comes_back = any(
            len(self._tasks_of(epoch).doing[index].errors) < last for epoch, index in self._overdue(now)
        )
        return QueueStatus.HAS_TODO if comes_back else QueueStatus.WAIT

    def progress(self, now: float) -> Progress:
        """Return the progress figures; changes nothing."""
        tasks, splitter, complete = self._tasks, self._splitter, self.complete
        rate = self._rate.rate(now)
        later = (self._settings.epochs - 1 - self._epoch) * splitter.size
        again = [one for epoch, one in self._epochs() if epoch != self._epoch]
        opened = [*again, tasks]
        remaining = later + splitter.size - self._epoch_samples
        remaining += sum(splitter.num_tasks - one.finished for one in again) * self._settings.task_size
        eta = None
        if complete:
            eta = 0.0
        elif rate > 0 and splitter.closed:
            eta = remaining / rate
        return Progress(
            epoch=self._epoch,
            epochs=self._settings.epochs,
            todo=splitter.num_tasks
            - tasks.counter
            + sum(len(one.requeued) + one.reopened.count for one in opened),
            doing=sum(len(one.doing) for one in opened),
            done=tasks.done.count,
            failed=len(tasks.failed),
            failed_before=self.failed - len(tasks.failed),
            total=splitter.num_tasks if splitter.closed else 0,
            requeued=self._requeued,
            timed_out=self._timed_out,
            samples_done=self._samples_done,
            samples_per_second=rate,
            eta_seconds=eta,
            complete=complete,
            reopened=self._reopened.count,
        )

    def list_tasks(
        self, state: TaskState | None = None, after: tuple[int, int] | None = None, limit: int = 100
    ) -> list[TaskInfo]:
        """List the current epoch's tasks in `state` (None: any) after `after`, ordered by (epoch, index).

        FAILED and reopened tasks of earlier epochs come first. At most `limit`; the last one's
        (epoch, index) is the next page's `after`. Raises InvalidRequest when limit < 1.
        """
        if limit < 1:
            raise InvalidRequest(f"a page of {limit} tasks", limit=limit)
        found = self._earlier_infos(state, after or (-1, -1), limit)
        epoch, last = after or (self._epoch, -1)
        if limit > len(found) and epoch <= self._epoch:
            start = last + 1 if epoch == self._epoch else 0
            indices = self._tasks.indices(state, start, limit - len(found), self._splitter.num_tasks)
            found += [self._known_info(self._epoch, index) for index in indices]
        return found

    def _earlier_infos(self, state: TaskState | None, after: tuple[int, int], limit: int) -> list[TaskInfo]:
        """Tasks of earlier epochs that are not DONE."""
        found: list[TaskInfo] = []
        if state in (None, TaskState.FAILED):
            found = [
                self._info(epoch, index, TaskState.FAILED, errors)
                for epoch, index, errors in self._failed_before
                if (epoch, index) > after
            ][:limit]
        for epoch, tasks in self._reopened.epochs.items():
            if epoch < after[0] or state is TaskState.DONE:
                continue
            start = after[1] + 1 if epoch == after[0] else 0
            found += [
                info
                for index in tasks.unfinished(start, self._splitter.num_tasks if state else limit)
                if (info := self._known_info(epoch, index)).state is state or state is None
            ][:limit]
        return sorted(found, key=lambda info: (info.epoch, info.index))[:limit]

    def validate(self) -> None:
        """Raise InvariantViolated if the state contradicts itself; for tests and after a restore."""
        self._tasks.validate(self._splitter.num_tasks, self._settings.max_attempts)
        if not 0 <= self._epoch < self._settings.epochs:
            raise InvariantViolated("the epoch is outside the epochs", epoch=self._epoch)
        size, task_size = self._splitter.size, self._settings.task_size
        runs = [*self._tasks.done.intervals(), *((index, index + 1) for index in self._tasks.failed)]
        samples = sum(min(end * task_size, size) - start * task_size for start, end in runs)
        if samples != self._epoch_samples:
            raise InvariantViolated("samples are counted wrong", counted=self._epoch_samples, found=samples)
        all_finished = self._splitter.closed and self._tasks.finished == self._splitter.num_tasks
        if all_finished and self._epoch < self._settings.epochs - 1:
            raise InvariantViolated("a finished epoch was not left", epoch=self._epoch)
        self._reopened.validate(self._epoch, self._splitter.num_tasks, self._settings.max_attempts)
        failed = [(epoch, index) for epoch, index, _ in self._failed_before]
        if any(epoch in self._reopened.epochs for epoch, _ in failed):
            raise InvariantViolated("an epoch that came back has FAILED tasks elsewhere", failed=failed)
        if failed != sorted(set(failed)) or (failed and failed[-1][0] >= self._epoch):
            raise InvariantViolated("FAILED tasks of earlier epochs are out of order", failed=failed)

    # ------------------------------------------------------------------ durability

    def snapshot(self, *, with_settings: bool = True) -> bytes:
        """Serialise the state, compactly. Callers that store settings and listed entries can omit them."""
        return encode_queue(
            QueueSnapshot(
                version=PUSHES_VERSION if self._settings.pushes else VERSION,
                settings=self._settings if with_settings else None,
                source=None if self._listed and not with_settings else self._splitter.source,
                epoch=self._epoch,
                tasks=tasks_of(self._tasks),
                failed_before=self._failed_before,
                now=self._now if self._now != float("-inf") else None,
                requeued=self._requeued,
                timed_out=self._timed_out,
                samples_done=self._samples_done,
                epoch_samples=self._epoch_samples,
                rate=self._rate,
                reopened=self._reopened.snapshot(),
            )
        )

    @classmethod
    def restore(cls, snapshot: bytes, settings: QueueSettings | None = None) -> DynamicQueue:
        """Rebuild the queue from `snapshot`. Raises InvalidSnapshot.

        settings: those given at creation; required if the snapshot was made without them.
        """
        state = decode_queue(snapshot)
        kept = state.settings or settings
        if kept is None:
            raise InvalidSnapshot("the snapshot was made without settings", hint="hand the settings in")
        queue = cls.__new__(cls)
        try:
            queue._settings = kept.without_lists()
            queue._splitter = Splitter(state.source or kept.source(), kept.task_size)
            queue._tasks = state.tasks.restored()
            queue._epoch = state.epoch
            queue._failed_before = state.failed_before
            queue._now = float("-inf") if state.now is None else state.now
            queue._requeued, queue._timed_out = state.requeued, state.timed_out
            queue._samples_done, queue._epoch_samples = state.samples_done, state.epoch_samples
            queue._rate = state.rate
            queue._reopened = ReopenedTasks.restore(state.reopened)
            queue.validate()
        except ShardsError as error:
            raise InvalidSnapshot(f"the snapshot contradicts itself: {error}", **error.facts) from error
        return queue

    # ------------------------------------------------------------------ inside

    @property
    def _listed(self) -> bool:
        return self._settings.entries is not None

    def _advance(self, now: float) -> None:
        """Set the current time.

        If the clock went back, limit every lease to the length of one granted now.
        """
        if now < self._now:
            longest = now + self._settings.lease_seconds
            for _, tasks in self._epochs():
                for held in reversed(tasks.doing.values()):
                    if held.deadline < longest:
                        break  # not at equality: tasks leased together share their deadline
                    held.deadline = longest
        self._now = now

    def _epochs(self) -> Iterator[tuple[int, EpochTasks]]:
        """Yield the epochs that have a state: those with reopened tasks, ascending, and the current one."""
        yield from self._reopened.epochs.items()
        yield self._epoch, self._tasks

    def _tasks_of(self, epoch: int) -> EpochTasks:
        return self._tasks if epoch == self._epoch else self._reopened.epochs[epoch]

    def _is_done(self, epoch: int, start: int, end: int) -> bool:
        """True if all tasks of an epoch that is over, and has no reopened tasks, are DONE."""
        failed = (index for number, index, _ in self._failed_before if number == epoch)
        return not any(start <= index < end for index in failed)

    def _overdue(self, now: float) -> list[tuple[int, int]]:
        """Return epoch and index of the overdue leases, in the order of their deadlines."""
        overdue = []
        for epoch, tasks in self._epochs():
            for index, held in tasks.doing.items():  # in the order of deadlines
                if held.deadline > now:
                    break
                overdue.append((held.deadline, epoch, index))
        if self._reopened.epochs:
            overdue.sort(key=lambda one: one[0])
        return [(epoch, index) for _, epoch, index in overdue]

    def _end_leases(self, leases: list[tuple[int, int]], error: str, *, counts: bool) -> list[ReturnedTask]:
        """End leases, given as epoch and index, without DONE: return the tasks to TODO or mark them FAILED.

        The only place that does so.
        """
        back: dict[int, list[int]] = {}
        ended, text = [], error[:ERROR_CHARS_MAX]
        for epoch, index in leases:
            tasks = self._tasks_of(epoch)
            held = tasks.doing[index]
            if counts:
                # Copy first: tasks leased in one call share one Held, and only this task has failed.
                held = tasks.doing[index] = copy(held)
                held.errors = (*held.errors, AttemptError(held.attempt, held.worker, text))
            state = TaskState.TODO
            if len(held.errors) >= self._settings.max_attempts:
                state = TaskState.FAILED
                tasks.park(index)
                start, end = self._splitter.bounds(index)
                self._epoch_samples += end - start if epoch == self._epoch else 0
            else:
                back.setdefault(epoch, []).append(index)
            ended.append(ReturnedTask(epoch, index, held.worker, held.attempt, state, text))
        for epoch, indices in back.items():
            self._tasks_of(epoch).put_back(indices)
            self._requeued += len(indices)
        if any(task.state is TaskState.FAILED for task in ended):
            self._reopened.put_away(self._splitter.num_tasks, self._failed_before)
            self._finish_epochs()
        return ended

    def _finish_epochs(self) -> None:
        """Leave an epoch whose tasks are all DONE or FAILED, unless it is the last."""
        splitter, tasks = self._splitter, self._tasks
        is_last = self._epoch == self._settings.epochs - 1
        if not splitter.closed or tasks.finished < splitter.num_tasks or is_last:
            return
        self._failed_before += [(self._epoch, index, tasks.failed[index]) for index in sorted(tasks.failed)]
        # A stream that was closed while empty has no tasks in any epoch: go to the last one at once.
        self._epoch = self._epoch + 1 if splitter.num_tasks else self._settings.epochs - 1
        self._tasks = EpochTasks()
        self._epoch_samples = 0

    def _as_lease(self, epoch: int, index: int, held: Held, count: int = 1) -> TaskLease:
        start, end = self._splitter.bounds(index)
        if count > 1:
            end = self._splitter.bounds(index + count - 1)[1]
        entries = self._entries(epoch, start, end) if self._listed else ()
        return TaskLease(
            epoch, index, start, end, held.attempt, held.worker, held.deadline, entries, held.rng, count
        )

    def _entries(self, epoch: int, start: int, end: int) -> tuple[int, ...]:
        if not self._settings.shuffle or not isinstance(self._splitter.source, ListSource):
            return self._splitter.entries(range(start, end))
        key = feistel_key(self._splitter.size, self._settings.seed, epoch)
        return self._splitter.entries([permuted(position, key) for position in range(start, end)])

    def _info(
        self, epoch: int, index: int, state: TaskState, errors: tuple[AttemptError, ...] = ()
    ) -> TaskInfo:
        last = errors[-1] if errors else None
        start, end = self._splitter.bounds(index)
        if last is None:
            return TaskInfo(epoch, index, start, end, state)
        return TaskInfo(epoch, index, start, end, state, last.attempt, last.worker, None, errors)

    def _known_info(self, epoch: int, index: int) -> TaskInfo:
        tasks = self._tasks_of(epoch)
        state = tasks.state_of(index)
        held = tasks.doing.get(index) or tasks.requeued.get(index)
        if held is None:
            return self._info(epoch, index, state, tasks.failed.get(index, ()))
        start, end = self._splitter.bounds(index)
        deadline = held.deadline if state is TaskState.DOING else None
        return TaskInfo(epoch, index, start, end, state, held.attempt, held.worker, deadline, held.errors)
