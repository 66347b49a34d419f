"""Parameter servers of a job: join, return, drain, loss.

A stream that breaks may be the network's fault, and a process that comes back has its slots: it has
`ps_return_seconds` for that. Where every slot that it owns has a backup, nothing would be lost, and the
backups take over at once. After a restart of the master all have the return grace.
"""

from __future__ import annotations

import math

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.events import Rejection
from elastane_master.decisions.slot_book import PsRecord, SlotBook
from elastane_master.decisions.slot_effects import (
    ClosePs,
    PsAddress,
    PsDone,
    PsDrain,
    PsWelcome,
    SendMap,
    SendPs,
    ToldMap,
)
from elastane_master.decisions.slot_events import (
    PsDrainRequested,
    PsJoined,
    PsLeaving,
    PsLeft,
    PsStreamLost,
)
from elastane_master.decisions.slots import returning
from elastane_master.decisions.state import HALTED, OVER
from elastane_proto.history import events as history
from elastane_slots.slot_map import SlotMap

PROCESSES_KEPT = 4
"""Processes remembered of each id; an older one counts as new."""
IDS_KEPT = 1000
"""Ids without a session whose processes are remembered."""


def attending(ctx: DecisionContext, ps: str, session: str) -> PsRecord | None:
    """Return the record if `session` is its current one; None for a message of an old stream."""
    record = ctx.state.slots.processes.get(ps)
    return record if record is not None and record.attends and record.session == session else None


def require_map(ctx: DecisionContext) -> SlotMap:
    """Return the map; without one, begin with that of slots that wait for their owners."""
    book = ctx.state.slots
    if book.map is None:
        places = SlotMap.empty(ctx.state.settings.ps_slots, book.lives_from).places
        book.map = SlotMap(book.stored + book.lives_apart, places)
    return book.map


def told_map(book: SlotBook) -> ToldMap:
    """Return the map as everybody is told."""
    assert book.map is not None, "a map is told before there is one"
    addresses = tuple(
        PsAddress(one.ps, one.address, one.key, one.draining) for one in book.processes.values()
    )
    return ToldMap(book.map, addresses, dict(book.sources))


def joined(ctx: DecisionContext, event: PsJoined) -> None:
    """Handle a Hello: a newcomer, or a process that returns with its slots."""
    state, book = ctx.state, ctx.state.slots
    if not event.ps or not event.session or not event.address:
        raise Rejection("invalid_argument", "Hello without ps_id or address", hint="set both")
    if state.phase in OVER or state.phase in HALTED:
        ctx.emit(SendPs(event.ps, PsDone(f"the job is {state.phase}: {state.reason}")))
        return
    record = book.processes.get(event.ps)
    if record is not None and record.session == event.session:
        return
    _require_newest(book, event)
    ctx.touch()
    require_map(ctx)
    returning.forget_copies(ctx, event)
    _came(book, event)
    if record is not None and record.process != event.process:
        if record.attends:
            ctx.emit(ClosePs(event.ps, "replaced", f"another process joined later as {event.ps}", _HINT))
        give_up(ctx, record, "another process has come in its place")
        record = None
    if record is not None and (lacking := _lacking(book, event)):
        give_up(ctx, record, f"it came back without slot {lacking[0]}")
        record = None
    returns = record is not None
    if record is None:
        record = book.processes[event.ps] = PsRecord(event.ps, event.session, ctx.now)
    record.session, record.awaited, record.lost_at, record.reason = event.session, False, None, ""
    record.address, record.host, record.pid, record.key = event.address, event.host, event.pid, event.key
    record.process, record.capacity, record.memory_bytes = event.process, event.capacity, event.memory_bytes
    record.process_clock, record.process_started = event.process_clock, event.process_started_seconds
    ctx.note(history.PsJoined(event.ps, event.host, returns))
    returning.lift(ctx, event)
    ctx.emit(SendPs(event.ps, PsWelcome(told_map(book), book.model)))
    if record.draining:
        ctx.emit(SendPs(event.ps, PsDrain(record.drain_reason)))


def stream_lost(ctx: DecisionContext, event: PsStreamLost) -> None:
    """Handle a stream's end without PsBye."""
    record = attending(ctx, event.ps, event.session)
    if record is None:
        return
    ctx.touch()
    record.lost_at, record.session, record.reason = ctx.now, "", event.reason
    if ctx.now >= _due(ctx, record):
        give_up(ctx, record, event.reason)


def left(ctx: DecisionContext, event: PsLeft) -> None:
    """Handle PsBye: with slots left, it is a loss."""
    book = ctx.state.slots
    record = attending(ctx, event.ps, event.session)
    if record is None:
        return
    ctx.touch()
    if require_map(ctx).held_by(event.ps):
        give_up(ctx, record, f"it has left with slots: {event.reason or 'no reason told'}")
    else:
        _without(ctx, record)
        ctx.note(history.PsLeft(event.ps, event.reason or record.drain_reason))
    book.known.pop(event.ps, None)


def leaving(ctx: DecisionContext, event: PsLeaving) -> None:
    """Handle a process's request to be drained."""
    record = attending(ctx, event.ps, event.session)
    if record is None:
        return
    if event.notice_seconds > 0:
        ctx.touch()
        record.leave_by = ctx.now + event.notice_seconds
    if not record.draining:
        _drain(ctx, record, event.reason or "it asked to leave", event.notice_seconds)


def drain_requested(ctx: DecisionContext, event: PsDrainRequested) -> None:
    """Drain a process for an operator. Raises Rejection("not_found")."""
    record = ctx.state.slots.processes.get(event.ps)
    if record is None:
        raise Rejection("not_found", f"the job has no parameter server {event.ps!r}", ps=event.ps)
    if not record.draining:
        _drain(ctx, record, event.reason or "an operator asked", 0.0)


def give_up(ctx: DecisionContext, record: PsRecord, why: str) -> None:
    """A process is gone: backups take its slots over, others are restored."""
    before = require_map(ctx)
    _without(ctx, record)
    after = require_map(ctx)
    owned = [slot for slot, place in enumerate(before.places) if place.owner == record.ps]
    restored = sum(after.places[slot].life > before.places[slot].life for slot in owned)
    promoted = sum(
        after.places[slot].life == before.places[slot].life and after.places[slot].served for slot in owned
    )
    ctx.note(history.PsLost(record.ps, why, restored, promoted))


def expire(ctx: DecisionContext) -> None:
    """Give processes up that did not return in time."""
    book = ctx.state.slots
    for record in list(book.processes.values()):
        if record.lost_at is not None and ctx.now >= _due(ctx, record):
            ctx.touch()
            give_up(ctx, record, record.reason)
    if book.grace_until is not None and ctx.now >= book.grace_until:
        ctx.touch()
        book.grace_until = None
        for record in [one for one in book.processes.values() if one.awaited]:
            give_up(ctx, record, "it did not return after the master's restart")


def next_deadline(ctx: DecisionContext) -> float | None:
    """Time at which `expire` has something to do; None: never."""
    book = ctx.state.slots
    dues = [_due(ctx, record) for record in book.processes.values() if record.lost_at is not None]
    return min([*dues, *([] if book.grace_until is None else [book.grace_until])], default=None)


def master_started(ctx: DecisionContext, master: str) -> None:
    """After a restart of the master every session is gone; processes may return with their slots."""
    book = ctx.state.slots
    returning.master_started(ctx, master)
    for record in book.processes.values():
        record.awaited, record.session, record.lost_at = True, "", None
    if book.processes:
        ctx.touch()
        book.grace_until = ctx.now + ctx.state.settings.return_grace_seconds


_HINT = "give each process its own ELASTANE_PS_ID"


def _drain(ctx: DecisionContext, record: PsRecord, reason: str, notice_seconds: float) -> None:
    ctx.touch()
    record.draining, record.drain_reason = True, reason
    ctx.note(history.PsDraining(record.ps, reason, len(require_map(ctx).held_by(record.ps))))
    ctx.emit(SendPs(record.ps, PsDrain(reason, notice_seconds)))
    # Others that drain, too, learn that nobody is left to take their slots.
    ctx.emit(SendMap(told_map(ctx.state.slots)))


def _without(ctx: DecisionContext, record: PsRecord) -> None:
    """Take a process out of the book and of the map."""
    book = ctx.state.slots
    book.processes.pop(record.ps, None)
    remaining = book.staying() or [one.ps for one in book.attending()]
    before = require_map(ctx)
    book.map = before.left(record.ps, remaining, book.leases, book.lives_from)
    if book.map is before:
        # It held nothing; but others that drain learn that it is not there to take their slots.
        ctx.emit(SendMap(told_map(book)))
    if len(book.known) > len(book.processes) + IDS_KEPT:
        del book.known[next(ps for ps in book.known if ps not in book.processes)]


def _due(ctx: DecisionContext, record: PsRecord) -> float:
    """Until when a process whose stream broke may return."""
    if record.lost_at is None:
        return math.inf
    book, places = ctx.state.slots, require_map(ctx).places
    backups = [places[slot].backup for slot in book.owned(record.ps)]
    there = {one.ps for one in book.attending()}
    if all(backup in there for backup in backups):
        return record.lost_at
    return record.lost_at + ctx.state.settings.ps_return_seconds


def _lacking(book: SlotBook, event: PsJoined) -> list[int]:
    """Slots that a returning process was told to serve, and does not have."""
    assert book.map is not None
    has = {held.slot for held in event.held if not held.backup}
    places = book.map.places
    return [
        slot
        for slot in book.owned(event.ps)
        if slot not in has and places[slot].served and places[slot].since < event.generation
    ]


def _require_newest(book: SlotBook, event: PsJoined) -> None:
    """Raise Rejection for a process that a newer one with its id has replaced."""
    known = book.known.get(event.ps, ())
    newest = book.processes.get(event.ps)
    older = (
        newest is not None
        and bool(event.process_clock)
        and newest.process != event.process
        and newest.process_clock == event.process_clock
        and event.process_started_seconds < newest.process_started
    )
    if older or event.process in known[:-1]:
        raise Rejection(
            "replaced", f"another process joined later as {event.ps}: that one stays", hint=_HINT, ps=event.ps
        )


def _came(book: SlotBook, event: PsJoined) -> None:
    known = book.known.get(event.ps, ())
    if event.process and event.process not in known:
        book.known[event.ps] = (*known, event.process)[-PROCESSES_KEPT:]
