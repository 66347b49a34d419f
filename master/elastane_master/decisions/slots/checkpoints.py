"""Checkpoints of all slots, and the way back to one.

At a checkpoint nothing is in flight: fresh tasks are not leased until those that are leased are over, or for
as long as a lease. Tasks that were given back are not waited for so long; their leases are fenced out, so
that nobody pushes them while slots are saved. Then every owner saves its slots, what is DONE is compared with
what they have applied, and the owner of slot 0 writes the manifest. `in_flight` does not wait: what is DONE
is taken before the slots are saved, so they have all of it, and what they have beside it is listed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.slot_book import (
    FailedSlotCheckpoint,
    SavedSlotCheckpoint,
    SlotBook,
    SlotCheckpointInFlight,
    StoredDone,
)
from elastane_master.decisions.slot_effects import SaveManifest, SaveSlots, SendMap, SendPs
from elastane_master.decisions.slot_events import (
    SavedPart,
    SlotsCheckpointRequested,
    SlotsRewindRequested,
    SlotsSaved,
)
from elastane_master.decisions.slots import finishing, leasing, processes, restoring
from elastane_master.decisions.state import OVER
from elastane_proto.history import events as history
from elastane_shards.intervals import IntervalSet
from elastane_slots.reopening import DoneTasks, missing, surplus
from elastane_slots.tasks import TaskRun

CHECKPOINTS_KEPT = 10
RETURNED_SECONDS = 2.0
"""How long a checkpoint waits for tasks that were given back when no other is in flight. Workers that still
iterate over their data set lease them at once; in a data set that its workers have left, nobody does."""
SURPLUS_RUNS_MAX = 1000
"""Runs of tasks that an answer lists; the manifest has all."""


def folder_of(checkpoint: str) -> str:
    """Folder of a checkpoint below the job's folder for checkpoints."""
    return f"slot-checkpoints/{checkpoint}"


def requested(ctx: DecisionContext, event: SlotsCheckpointRequested) -> None:
    """Begin a checkpoint, or take part in the one that is made; the result is its name. Raises Rejection."""
    state, book = ctx.state, ctx.state.slots
    if event.request_id and (known := name_of(book, event.request_id)):
        ctx.result = known
        return
    if state.phase in OVER:
        raise Rejection("wrong_phase", f"the job is {state.phase}", phase=state.phase)
    if book.model is None:
        hint = "they are there once a worker has called job.prepare_ps"
        raise Rejection("wrong_phase", "the job has no slots to save", hint=hint)
    if not state.settings.checkpoint_url:
        hint = "set checkpoint_url (--checkpoint URL)"
        raise Rejection("wrong_phase", "the job has no folder for checkpoints", hint=hint)
    ctx.touch()
    if book.checkpoint is not None:
        book.checkpoint.requests = (*book.checkpoint.requests, event.request_id)
        ctx.result = book.checkpoint.checkpoint
        return
    book.saves += 1
    lease_seconds = max((q.lease_seconds for q in ctx.queues.dynamic.values() if q.pushes), default=0.0)
    book.checkpoint = SlotCheckpointInFlight(
        f"checkpoint-{book.saves:06d}{book.start_mark}",
        ctx.now,
        "saving" if event.in_flight else "draining",
        (event.request_id,),
        event.in_flight,
        ctx.now + lease_seconds,
        -1,
    )
    ctx.result = book.checkpoint.checkpoint


def name_of(book: SlotBook, request_id: str) -> str:
    """Return the checkpoint that fulfils a request, or was to; "" if there is none."""
    if book.checkpoint is not None and request_id in book.checkpoint.requests:
        return book.checkpoint.checkpoint
    for saved in book.checkpoints:
        if request_id in saved.requests:
            return saved.checkpoint
    for failed in book.failed_checkpoints:
        if request_id in failed.requests:
            return failed.checkpoint
    return ""


def look(ctx: DecisionContext) -> None:
    """Go on with the checkpoint as far as it can be."""
    book, flight = ctx.state.slots, ctx.state.slots.checkpoint
    if flight is None or book.map is None or leasing.blocked(book):
        return
    if flight.stage == "draining":
        if ctx.now < _drain_until(ctx, flight):
            return
        ctx.touch()
        flight.stage = "saving"
        if book.gate.returned:
            # Before anything is saved: workers that lost these tasks may still push them.
            leasing.fence(ctx)
            ctx.emit(SendMap(processes.told_map(book)))
    if flight.lives_sum != book.map.lives_sum:
        # What is DONE now is what the slots of these lives have applied.
        ctx.touch()
        flight.stage, flight.lives_sum, flight.parts = "saving", book.map.lives_sum, {}
        flight.done = {
            name: StoredDone.of(*queue.done_tasks())
            for name, queue in ctx.queues.dynamic.items()
            if queue.pushes
        }
        _ask(ctx, flight)


def ask_again(ctx: DecisionContext) -> None:
    """After a change of the map: ask the owners of what is missing."""
    flight = ctx.state.slots.checkpoint
    if flight is not None and flight.stage != "draining":
        _ask(ctx, flight)


def saved(ctx: DecisionContext, event: SlotsSaved) -> None:
    """Slots were saved, for a checkpoint, for the end of a data set, or by the cadence."""
    book, flight = ctx.state.slots, ctx.state.slots.checkpoint
    record = processes.attending(ctx, event.ps, event.session)
    parts = {part.slot: part for part in event.slots}
    decoded = {slot: restoring.decoded(part.applied) for slot, part in parts.items()}
    if record is None or book.map is None or any(not 0 <= s < len(book.map.places) for s in parts):
        return
    if record.unsaved != event.error:
        ctx.touch()
        if event.error and not record.unsaved:
            ctx.note(history.SlotsUnsaved(record.ps, event.error))
        record.unsaved = event.error
    for slot, part in parts.items():
        place = book.map.places[slot]
        if (place.owner, place.life) == (event.ps, part.life) and book.snapshots.get(slot, (-1, -1)) < (
            part.life,
            part.version,
        ):
            ctx.touch()
            book.snapshots[slot] = (part.life, part.version)
    finishing.saved(ctx, event.ps, event.request, event.slots)
    if flight is None or event.request != flight.checkpoint:
        return
    if event.error:
        give_up(ctx, f"{event.ps}: {event.error}")
    elif flight.stage == "manifest" and not parts:
        _complete(ctx, flight)
    elif flight.stage == "saving":
        for slot, part in parts.items():
            place = book.map.places[slot]
            if not place.served or (place.owner, place.life) != (event.ps, part.life):
                continue
            lacks = next((run for done in _done(flight) for run in missing(done, decoded[slot])), None)
            if lacks is not None:
                give_up(ctx, f"slot {slot} lacks task {lacks.start} of epoch {lacks.epoch}, which is DONE")
                return
            ctx.touch()
            flight.parts[slot] = part
        if len(flight.parts) == len(book.map.places):
            _write_manifest(ctx, flight)


def rewind(ctx: DecisionContext, event: SlotsRewindRequested) -> None:
    """Take all slots back to a checkpoint; the result is the map's generation. Raises Rejection."""
    state, book = ctx.state, ctx.state.slots
    if event.request_id and event.request_id in state.requests:
        assert book.map is not None
        ctx.result = book.map.generation
        return
    if book.map is None or all(one.checkpoint != event.checkpoint for one in book.checkpoints):
        names = ", ".join(one.checkpoint for one in book.checkpoints)
        raise Rejection(
            "not_found",
            f"the job has no checkpoint {event.checkpoint!r} of its slots",
            hint=f"it has {names or 'none'}",
            checkpoint=event.checkpoint,
        )
    if state.phase in OVER:
        raise Rejection("wrong_phase", f"the job is {state.phase}", phase=state.phase)
    ctx.touch()
    give_up(ctx, f"all slots go back to {event.checkpoint}")
    book.map = book.map.rewound(book.leases, book.lives_from)
    book.sources = dict.fromkeys(range(len(book.map.places)), folder_of(event.checkpoint))
    if event.request_id:
        state.requests[event.request_id] = ""
    ctx.note(history.SlotsRewound(event.checkpoint))
    ctx.result = book.map.generation


def give_up(ctx: DecisionContext, why: str) -> None:
    """The checkpoint that is made, if there is one, will not be complete."""
    book = ctx.state.slots
    if (flight := book.checkpoint) is None:
        return
    ctx.touch()
    book.checkpoint = None
    failed = FailedSlotCheckpoint(flight.checkpoint, why, flight.requests)
    book.failed_checkpoints = (*book.failed_checkpoints, failed)[-CHECKPOINTS_KEPT:]


def next_deadline(ctx: DecisionContext) -> float | None:
    """Time at which tasks in flight are waited for no longer; None: none are."""
    book, flight = ctx.state.slots, ctx.state.slots.checkpoint
    if flight is None or flight.stage != "draining" or leasing.blocked(book):
        return None
    return flight.returned_until or flight.drain_until


def _drain_until(ctx: DecisionContext, flight: SlotCheckpointInFlight) -> float:
    """Return until when tasks in flight are waited for; 0: there are none."""
    gate, until = ctx.state.slots.gate, 0.0
    if gate.returned and not gate.outstanding and not gate.closing:
        until = flight.returned_until or min(flight.drain_until, ctx.now + RETURNED_SECONDS)
    if until != flight.returned_until:
        ctx.touch()
        flight.returned_until = until
    return until or (flight.drain_until if gate.outstanding or gate.closing else 0.0)


def _done(flight: SlotCheckpointInFlight) -> Iterator[DoneTasks]:
    for name, done in flight.done.items():
        not_done = {epoch: IntervalSet.from_gaps(gaps) for epoch, gaps in done.not_done.items()}
        yield DoneTasks(name, done.epoch, IntervalSet.from_gaps(done.done), done.tasks, not_done)


def _ask(ctx: DecisionContext, flight: SlotCheckpointInFlight) -> None:
    book = ctx.state.slots
    assert book.map is not None
    name, folder, places = flight.checkpoint, folder_of(flight.checkpoint), book.map.places
    if flight.stage == "manifest":
        if places[0].served:
            ctx.emit(SendPs(places[0].owner, SaveManifest(name, folder, flight.manifest)))
        return
    owners = {place.owner for slot, place in enumerate(places) if place.served and slot not in flight.parts}
    for ps in sorted(owners):
        ctx.emit(SendPs(ps, SaveSlots(name, folder)))


def _write_manifest(ctx: DecisionContext, flight: SlotCheckpointInFlight) -> None:
    state, book = ctx.state, ctx.state.slots
    assert book.map is not None
    beside = {slot: _beside(flight, part) for slot, part in sorted(flight.parts.items())}
    flight.tasks = sum(
        run[1] - run[0]
        for done in _done(flight)
        for epoch in range(done.epoch + 1)
        for run in done.runs(epoch)
    )
    flight.surplus = {slot: runs for slot, runs in beside.items() if runs}
    manifest = {
        "version": 1,
        "checkpoint": flight.checkpoint,
        "job": state.name,
        "generation": book.map.generation,
        "model": book.model,
        "done": flight.done,
        "slots": [
            {
                "slot": slot,
                "life": part.life,
                "version": part.version,
                "folder": part.folder,
                "bytes": part.size_bytes,
                "sha256": part.sha256.hex(),
                "applied": part.applied,
                "surplus": beside[slot],
            }
            for slot, part in sorted(flight.parts.items())
        ],
    }
    flight.stage, flight.manifest = "manifest", msgspec.json.encode(manifest)
    _ask(ctx, flight)


def _beside(flight: SlotCheckpointInFlight, part: SavedPart) -> list[TaskRun]:
    """Return the tasks that a slot has applied and that are not DONE."""
    applied = restoring.decoded(part.applied)
    return [run for done in _done(flight) for run in surplus(done, applied)]


def _complete(ctx: DecisionContext, flight: SlotCheckpointInFlight) -> None:
    book = ctx.state.slots
    ctx.touch()
    book.checkpoint = None
    listed: dict[int, tuple[TaskRun, ...]] = {}
    room = SURPLUS_RUNS_MAX
    for slot, runs in flight.surplus.items():
        listed[slot] = tuple(runs[:room])
        room -= len(listed[slot])
    others = {
        (run.dataset, run.epoch, index)
        for runs in listed.values()
        for run in runs
        for index in range(run.start, run.end)
    }
    done = SavedSlotCheckpoint(flight.checkpoint, ctx.now, flight.tasks, listed, flight.requests)
    book.checkpoints = (*book.checkpoints, done)[-CHECKPOINTS_KEPT:]
    size = sum(part.size_bytes for part in flight.parts.values())
    ctx.note(history.SlotsCheckpointed(flight.checkpoint, flight.tasks, len(others), size))
