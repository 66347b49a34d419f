"""Slots that went back to a snapshot: what they have lost is done again, and only then are they served."""

from __future__ import annotations

from collections.abc import Iterator

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.slot_book import PsRecord
from elastane_master.decisions.slot_events import SlotRestored
from elastane_master.decisions.slots import closing, finishing, processes, returning
from elastane_proto.history import events as history
from elastane_shards.dynamic import DynamicQueue
from elastane_shards.errors import ShardsError
from elastane_slots.applied import AppliedSet
from elastane_slots.reopening import DoneTasks, missing
from elastane_slots.tasks import TaskRun

NOTES_MAX = 20


def done_tasks(dataset: str, queue: DynamicQueue) -> DoneTasks:
    """Return the DONE tasks of a data set."""
    return DoneTasks(dataset, *queue.done_tasks())


def decoded(applied: bytes) -> AppliedSet:
    """Return the names that a process says are applied. Raises Rejection."""
    try:
        return AppliedSet.decode(applied) if applied else AppliedSet()
    except ShardsError as error:
        raise Rejection(
            "invalid_argument", f"not a set of applied tasks: {error}", hint=error.hint, field="applied"
        ) from error


def restored(ctx: DecisionContext, event: SlotRestored) -> None:
    """The owner of a slot has read its snapshot: open again what is missing in it, then serve it.

    Without any snapshot it begins with the initial values. If nothing of the slot was ever saved, those are
    its newest snapshot, and all that is DONE is opened again. If something was, it is lost, and the slot
    waits: the model would be another without anybody having been told.
    """
    book = ctx.state.slots
    record = processes.attending(ctx, event.ps, event.session)
    applied = decoded(event.applied)
    if record is None or book.map is None or not 0 <= event.slot < len(book.map.places):
        return
    place = book.map.places[event.slot]
    told = (event.ps, event.life, event.since)
    if not place.restoring or (place.owner, place.life, place.since) != told:
        return
    if event.snapshot and event.snapshot_life >= event.life:
        # Answers of the snapshot's life, or of one that followed it, must not count for this one.
        ctx.touch()
        returning.begin_life(book, event.slot, event.ps, event.snapshot_life)
        return
    pushing = [(name, queue) for name, queue in ctx.queues.dynamic.items() if queue.pushes]
    was_saved = event.slot in book.snapshots or bool(book.finished)
    if not event.snapshot and was_saved and any(_has_done(queue) for _, queue in pushing):
        _refused(ctx, record, event)
        return
    ctx.touch()
    for name, queue in pushing:
        runs = list(missing(done_tasks(name, queue), applied))
        if runs:
            queue.reopen((run.epoch, run.start, run.end) for run in runs)
            _tell_reopened(ctx, runs, event.slot)
            finishing.look(ctx, name)
    closing.restored(ctx, event.slot, applied)
    book.map = book.map.restored(event.slot, event.ps, event.life)
    finishing.restored(ctx, event.slot, event.life)
    book.sources.pop(event.slot, None)
    book.unrestored.pop(event.slot, None)
    if event.snapshot:
        book.snapshots[event.slot] = (event.life, event.version)
    record.read, record.fresh = (*record.read, event.slot), not event.snapshot
    _tell_read(ctx, record, "; ".join(event.rejected))


def _has_done(queue: DynamicQueue) -> bool:
    epoch, done, tasks, not_done = queue.done_tasks()
    return bool(len(done)) or any(
        tasks > (len(not_done[number]) if number in not_done else 0) for number in range(epoch)
    )


def _refused(ctx: DecisionContext, record: PsRecord, event: SlotRestored) -> None:
    book = ctx.state.slots
    if book.unrestored.get(event.slot) == event.life:
        return
    ctx.touch()
    book.unrestored[event.slot] = event.life
    why = "; ".join(event.rejected) or "there is none"
    ctx.note(history.SlotsUnrestored(record.ps, event.slot, f"no snapshot of it can be used: {why}"))


def _tell_reopened(ctx: DecisionContext, runs: list[TaskRun], slot: int) -> None:
    """Note the reopened tasks of each epoch, for at most NOTES_MAX epochs."""
    by_epoch: dict[int, list[TaskRun]] = {}
    for run in runs:
        by_epoch.setdefault(run.epoch, []).append(run)
    for epoch, found in list(by_epoch.items())[:NOTES_MAX]:
        count = sum(run.end - run.start for run in found)
        ctx.note(history.TasksReopened(found[0].dataset, epoch, found[0].start, count, slot))


def _tell_read(ctx: DecisionContext, record: PsRecord, rejected: str) -> None:
    """Tell of all slots that a process has read at once, when it has read the last."""
    book = ctx.state.slots
    assert book.map is not None
    left = any(place.owner == record.ps and place.restoring for place in book.map.places)
    if rejected or not left:
        ctx.note(history.SlotsRestored(record.ps, in_words(record.read), record.fresh, rejected))
        record.read = ()


def in_words(slots: tuple[int, ...]) -> str:
    """ "0-3, 7" of slots 0, 1, 2, 3 and 7."""
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in _runs(sorted(slots)))


def _runs(slots: list[int]) -> Iterator[tuple[int, int]]:
    for place, slot in enumerate(slots):
        if place == 0 or slots[place - 1] != slot - 1:
            first = slot
        if place + 1 == len(slots) or slots[place + 1] != slot + 1:
            yield first, slot
