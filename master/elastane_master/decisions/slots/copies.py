"""Copies of slots under way: moves to the processes that rank highest, and copies to backups."""

from __future__ import annotations

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.slot_events import BackupLost, CopyBroken, SlotCopied
from elastane_master.decisions.slots import processes
from elastane_proto.history import events as history
from elastane_shards.errors import IllegalTransition

COPIES_LEAST, COPIES_SHARE = 4, 16
"""Copies in progress at a time: one per COPIES_SHARE slots, but at least COPIES_LEAST."""
RETRY_SECONDS = 1.0
"""After a broken copy of a slot, the time until the next."""


def copied(ctx: DecisionContext, event: SlotCopied) -> None:
    """A copy is complete. Late news of a copy that is not wanted any more changes nothing."""
    book = ctx.state.slots
    record = processes.attending(ctx, event.ps, event.session)
    if record is None or not _has(ctx, event.slot):
        return
    slot_map = processes.require_map(ctx)
    place = slot_map.places[event.slot]
    is_move = bool(place.target)
    # A move is told by its target, which has all of it; a copy by the owner, which waits for it from now on.
    if event.ps != (place.target if is_move else place.owner):
        return
    try:
        changed = slot_map.copied(event.slot, event.holder, event.begun, book.staying())
    except IllegalTransition:
        return
    ctx.touch()
    book.map = changed
    book.moved += is_move
    book.copied += not is_move


def broken(ctx: DecisionContext, event: CopyBroken) -> None:
    """A copy has failed: the owner serves on, and it is tried again after a while."""
    if processes.attending(ctx, event.ps, event.session) is None or not _has(ctx, event.slot):
        return
    slot_map = processes.require_map(ctx)
    place = slot_map.places[event.slot]
    if event.begun != place.begun or event.holder not in (place.target, place.joining) or not place.begun:
        return
    if event.ps not in (place.owner, event.holder):
        return
    _cancel(ctx, event.slot)


def backup_lost(ctx: DecisionContext, event: BackupLost) -> None:
    """A backup does not answer its owner: the owner goes on alone, once it is told the map."""
    book = ctx.state.slots
    if processes.attending(ctx, event.ps, event.session) is None or not _has(ctx, event.slot):
        return
    slot_map = processes.require_map(ctx)
    place = slot_map.places[event.slot]
    if event.ps != place.owner or not event.holder:
        return
    if event.holder == place.joining:
        _cancel(ctx, event.slot)
    elif event.holder == place.backup:
        ctx.touch()
        book.map = slot_map.backup_lost(event.slot, event.holder)
        book.copy_retries[event.slot] = ctx.now + RETRY_SECONDS


def begin(ctx: DecisionContext) -> None:
    """Begin the copies that are due: none while a process may still return with its slots."""
    book = ctx.state.slots
    assert book.map is not None
    if not all(record.attends for record in book.processes.values()):
        return
    _release_backups(ctx)
    staying, slots = book.staying(), len(book.map.places)
    for slot in [slot for slot, at in book.copy_retries.items() if ctx.now >= at]:
        ctx.touch()
        del book.copy_retries[slot]
    under_way = sum(bool(place.begun) for place in book.map.places)
    room = max(COPIES_LEAST, slots // COPIES_SHARE) - under_way
    wishes = book.map.wishes(staying, 1 + ctx.state.settings.ps_replicas, slots + under_way)
    wishes = [wish for wish in wishes if wish.slot not in book.copy_retries]
    for wish in wishes[: max(0, room)]:
        ctx.touch()
        book.map = book.map.copying(wish)
        if book.copy_since is None:
            book.copy_since = ctx.now
    if not wishes and not under_way and book.copy_since is not None and not book.copy_retries:
        ctx.touch()
        if book.moved or book.copied:
            ctx.note(history.SlotsMoved(book.moved, book.copied, ctx.now - book.copy_since))
        book.copy_since, book.moved, book.copied = None, 0, 0


def _release_backups(ctx: DecisionContext) -> None:
    """Let processes that drain go although nobody is left to back slots up in their place.

    With fewer processes than copies an owner is alone, and a process that drains would wait for another.
    """
    book = ctx.state.slots
    assert book.map is not None
    staying = set(book.staying())
    if not staying or len(staying) > ctx.state.settings.ps_replicas:
        return
    for slot, place in enumerate(book.map.places):
        if place.backup and place.backup not in staying and place.owner in staying and not place.begun:
            ctx.touch()
            book.map = book.map.backup_lost(slot, place.backup)


def next_deadline(ctx: DecisionContext) -> float | None:
    """Time at which a broken copy is tried again; None without any."""
    return min(ctx.state.slots.copy_retries.values(), default=None)


def _has(ctx: DecisionContext, slot: int) -> bool:
    return 0 <= slot < len(processes.require_map(ctx).places)


def _cancel(ctx: DecisionContext, slot: int) -> None:
    book = ctx.state.slots
    ctx.touch()
    book.map = processes.require_map(ctx).cancelled(slot)
    book.copy_retries[slot] = ctx.now + RETRY_SECONDS
