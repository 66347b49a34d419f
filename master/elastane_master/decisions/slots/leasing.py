"""Leases and reports of tasks that push their gradients to parameter servers.

A task is leased only while every slot is served and the gate has room; it is DONE only if the present life
of every slot has applied it, which the sum of the lives in its report says: lives only grow, and no answer is
of a life that has not begun. Nor may an answer be of an owner that only a forgotten map names (returning.py).

Where the gate is full, in part of tasks whose lease has ended and that nobody here can lease, as they are of
another data set, these leases are fenced out of all slots: see `StalenessGate`.
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions import life
from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.effects import TaskCommit
from elastane_master.decisions.events import Rejection, TaskReport
from elastane_master.decisions.slot_book import SlotBook
from elastane_master.decisions.slots import closing, finishing, returning
from elastane_proto.history import events as history
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.tasks import Outcome, QueueStatus, ReturnedTask, TaskLease, TaskState
from elastane_slots.tasks import TaskName

RETURNS_MAX = 2
"""A task that is given back more often than that is to blame itself: each time counts as a failed attempt."""


def blocked(book: SlotBook) -> str:
    """Return why no task is leased now, in words; "" if tasks are."""
    if book.model is None:
        return "no worker has registered the model"
    places = book.map.places if book.map is not None else ()
    waiting = [slot for slot, place in enumerate(places) if not place.served]
    if not waiting:
        return ""
    ownerless = sum(not places[slot].owner for slot in waiting)
    if ownerless:
        return f"{ownerless} of {len(places)} slots wait for a parameter server"
    return f"{len(waiting)} of {len(places)} slots are being restored"


def waits(book: SlotBook) -> str:
    """Return why no fresh task is leased now, in words; "" if tasks are."""
    if why := blocked(book):
        return why
    if book.checkpoint is not None and _drains(book):
        return f"{book.checkpoint.checkpoint} waits for the tasks in flight"
    if book.gate.room() == 0:
        return f"one more task could exceed the staleness limit of {book.gate.limit}"
    return ""


def _has_returned(book: SlotBook, dataset: str) -> bool:
    return any(name.dataset == dataset for name in book.gate.returned)


def _can_fence(book: SlotBook) -> bool:
    """True if the gate is full, and of tasks that it can forget, too."""
    gate = book.gate
    return gate.room() == 0 and not _drains(book) and bool(gate.forgettable(gate.fence(book.leases)))


def fence(ctx: DecisionContext) -> None:
    """Have slots refuse all leases from before those that are outstanding: tasks of which they were the last
    take no room any more."""
    book = ctx.state.slots
    assert book.map is not None
    last = book.gate.fence(book.leases)
    book.map = book.map.fenced(last)
    book.gate.fenced(last)


def fresh_max(book: SlotBook) -> int | None:
    """Return how many fresh tasks may be leased: none while a checkpoint waits for those in flight."""
    return 0 if _drains(book) else book.gate.room()


def _drains(book: SlotBook) -> bool:
    return book.checkpoint is not None and not book.checkpoint.in_flight


def status(book: SlotBook, queue: DynamicQueue, dataset: str, now: float) -> QueueStatus:
    """As `DynamicQueue.status`, for a worker that asks for tasks."""
    found = queue.status(now)
    if not queue.pushes:
        return found
    if found is QueueStatus.COMPLETE:
        return found if dataset in book.finished else QueueStatus.WAIT
    if found is QueueStatus.HAS_TODO:
        deadline = queue.next_deadline()
        returned = _has_returned(book, dataset) or (deadline is not None and deadline <= now)
        if blocked(book) or (fresh_max(book) == 0 and not returned and not _can_fence(book)):
            return QueueStatus.WAIT
    return found


def lease(
    ctx: DecisionContext,
    queue: DynamicQueue,
    dataset: str,
    worker: str,
    max_tasks: int,
    rng: dict[str, bytes],
) -> tuple[TaskLease, ...]:
    """Lease tasks with their numbers; () if none may be leased."""
    book = ctx.state.slots
    if blocked(book) or book.map is None:
        return ()
    if _can_fence(book) and not _has_returned(book, dataset):
        fence(ctx)

    def returned(epoch: int, index: int) -> bool:
        return TaskName(dataset, epoch, index) in book.gate.returned

    numbered = []
    for task in queue.lease(worker, max_tasks, ctx.now, rng, fresh_max=fresh_max(book), returned=returned):
        book.leases += 1
        book.gate.leased(TaskName(dataset, task.epoch, task.index), book.leases)
        numbered.append(msgspec.structs.replace(task, number=book.leases, map_generation=book.map.generation))
    return tuple(numbered)


def check_report(book: SlotBook, report: TaskReport) -> None:
    """Raise Rejection for a report that no worker that pushes makes."""
    if report.count != 1:
        raise Rejection("invalid_argument", "tasks that push are reported one by one", field="completed")
    done = not report.error and not report.returned
    if done and report.lives_sum is None:
        raise Rejection(
            "invalid_argument",
            f"task {report.index} is said to be done without having been pushed",
            hint="push its gradients to every slot, and report the sum of the slots' lives",
            field="lives_sum",
        )
    if done and book.map is None:
        raise Rejection(
            "invalid_argument", "nothing can have been pushed: there are no slots", field="lives_sum"
        )


def report(
    ctx: DecisionContext, queue: DynamicQueue, dataset: str, worker: str, report: TaskReport
) -> Outcome:
    """Take a worker's report of one task; `check_report` has passed."""
    book = ctx.state.slots
    name = TaskName(dataset, report.epoch, report.index)
    if report.returned:
        return _give_back(ctx, queue, name, worker, report, counts=True)
    if report.error:
        return _failed(ctx, queue, name, worker, report, report.error)
    assert book.map is not None
    if report.lives_sum != book.map.lives_sum or returning.is_forgotten(book, report.map_generations):
        return _give_back(ctx, queue, name, worker, report, counts=False)
    times = queue.times_reopened(name.epoch, name.task)
    outcome = queue.report(worker, name.epoch, name.task, report.attempt, "", ctx.now)
    if outcome is Outcome.ACCEPTED:
        book.gate.done(name)
        book.returns.pop(name, None)
        start, end = queue.bounds(name.task)
        ctx.emit(
            TaskCommit(
                dataset, name.epoch, name.task, start, end, worker, report.attempt, 1, end - start, times
            )
        )
    return outcome


def ended(ctx: DecisionContext, dataset: str, returned: list[ReturnedTask]) -> None:
    """Leases have ended without DONE."""
    for task in returned:
        name = TaskName(dataset, task.epoch, task.index)
        if task.state is TaskState.FAILED:
            closing.begin(ctx, name)
        else:
            ctx.state.slots.gate.gave_back(name)
    if returned:
        finishing.look(ctx, dataset)


def _give_back(
    ctx: DecisionContext,
    queue: DynamicQueue,
    name: TaskName,
    worker: str,
    report: TaskReport,
    *,
    counts: bool,
) -> Outcome:
    """End a lease uncounted. counts: as a return of the task, of which there are at most `RETURNS_MAX`."""
    book = ctx.state.slots
    times = book.returns.get(name, 0)
    if counts and times >= RETURNS_MAX:
        why = f"given back {times + 1} times: {report.error or 'no reason told'}"
        outcome = _failed(ctx, queue, name, worker, report, why)
        return Outcome.RETURNED if outcome is Outcome.ACCEPTED else outcome
    why = report.error or "a slot was restored"
    outcome = queue.give_back(worker, name.epoch, name.task, report.attempt, why, ctx.now)
    if outcome is not Outcome.ACCEPTED:
        return outcome
    book.gate.gave_back(name)
    if counts:
        book.returns[name] = times + 1
    return Outcome.RETURNED


def _failed(
    ctx: DecisionContext, queue: DynamicQueue, name: TaskName, worker: str, report: TaskReport, error: str
) -> Outcome:
    """End a lease as a failed attempt."""
    failed_before = queue.failed
    outcome = queue.report(worker, name.epoch, name.task, report.attempt, error, ctx.now)
    if outcome is not Outcome.ACCEPTED:
        return outcome
    parked = queue.failed > failed_before
    ctx.note(
        history.TaskFailed(worker, name.dataset, name.epoch, name.task, report.attempt, parked, error[:500])
    )
    if parked:
        closing.begin(ctx, name)
    else:
        ctx.state.slots.gate.gave_back(name)
    if report.non_finite and ctx.state.settings.ps_nonfinite == "fail":
        ctx.note(history.NonFiniteGradient(worker, name.dataset, name.epoch, name.task, error[:500]))
        life.end(ctx, "failed", f"task {name.task} of {name.dataset}: {error[:500]}")
    return outcome
