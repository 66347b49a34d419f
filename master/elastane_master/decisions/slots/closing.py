"""FAILED tasks: no slot applies any more of them, and it is known what each keeps.

A task that fails keeps its place in the gate until every slot has said that it takes no more of it: its last
worker may still push. What slots had applied before stays, and is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.slot_book import Closing
from elastane_master.decisions.slot_effects import CloseTasks, SendPs
from elastane_master.decisions.slot_events import TasksClosed
from elastane_master.decisions.slots import processes
from elastane_proto.history import events as history
from elastane_slots.applied import AppliedSet
from elastane_slots.tasks import TaskName, TaskRun


def begin(ctx: DecisionContext, name: TaskName) -> None:
    """A task is FAILED: ask every slot to close it."""
    book = ctx.state.slots
    book.gate.failed(name)
    book.returns.pop(name, None)
    book.closings[name] = Closing()
    _ask(ctx, [name])


def ask_again(ctx: DecisionContext) -> None:
    """After a change of the map: ask the owners of all slots that have not answered."""
    _ask(ctx, list(ctx.state.slots.closings))


def answered(ctx: DecisionContext, event: TasksClosed) -> None:
    """An owner has closed tasks in its slots."""
    book = ctx.state.slots
    if processes.attending(ctx, event.ps, event.session) is None or book.map is None:
        return
    names = [TaskName(run.dataset, run.epoch, index) for run in event.tasks for index in _indices(run)]
    for part in event.slots:
        place = book.map.places[part.slot] if 0 <= part.slot < len(book.map.places) else None
        if place is None or not place.served or (place.owner, place.life) != (event.ps, part.life):
            continue
        for name, is_applied in zip(names, part.applied, strict=False):
            closing = book.closings.get(name)
            if closing is not None and part.slot not in closing.applied:
                ctx.touch()
                closing.applied[part.slot] = is_applied
    _conclude(ctx, names)


def restored(ctx: DecisionContext, slot: int, applied: AppliedSet) -> None:
    """A slot went back: its fence refuses all leases of FAILED tasks, and it keeps what its snapshot has."""
    book = ctx.state.slots
    for name, closing in book.closings.items():
        closing.applied[slot] = name in applied
    # Also of tasks of which no slot had anything: the snapshot may be of a process that was cut off.
    for name in _failed(ctx):
        slots = book.left_parts.get(name, ())
        has = name in applied
        if name in book.closings or has == (slot in slots):
            continue
        kept = tuple(sorted({*slots, slot} if has else set(slots) - {slot}))
        book.left_parts.pop(name, None)
        if kept:
            book.left_parts[name] = kept
    _conclude(ctx, list(book.closings))


def _failed(ctx: DecisionContext) -> Iterator[TaskName]:
    for dataset, queue in ctx.queues.dynamic.items():
        if queue.pushes:
            yield from (TaskName(dataset, epoch, index) for epoch, index in queue.failed_tasks())


def _conclude(ctx: DecisionContext, names: Iterable[TaskName]) -> None:
    book = ctx.state.slots
    assert book.map is not None
    for name in names:
        closing = book.closings.get(name)
        if closing is None or len(closing.applied) < len(book.map.places):
            continue
        ctx.touch()
        del book.closings[name]
        book.gate.closed(name)
        slots = tuple(sorted(slot for slot, is_applied in closing.applied.items() if is_applied))
        if slots:
            book.left_parts[name] = slots
        ctx.note(history.TaskLeftParts(name.dataset, name.epoch, name.task, len(slots)))


def _ask(ctx: DecisionContext, names: list[TaskName]) -> None:
    """Ask owners for the slots that have not answered; a slot that is not served is asked once it is."""
    book = ctx.state.slots
    if book.map is None or not names:
        return
    wanted: dict[str, set[TaskName]] = {}
    for slot, place in enumerate(book.map.places):
        if place.served:
            open_names = [name for name in names if slot not in book.closings[name].applied]
            wanted.setdefault(place.owner, set()).update(open_names)
    for ps, open_tasks in wanted.items():
        if open_tasks:
            runs = tuple(
                TaskRun(one.dataset, one.epoch, one.task, one.task + 1) for one in sorted(open_tasks)
            )
            ctx.emit(SendPs(ps, CloseTasks(runs)))


def _indices(run: TaskRun) -> range:
    return range(run.start, min(run.end, run.start + 10_000))
