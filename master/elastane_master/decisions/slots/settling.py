"""After every event about slots: what the map asks for now, and whom to tell."""

from __future__ import annotations

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.slot_effects import SendMap
from elastane_master.decisions.slots import checkpoints, closing, copies, finishing, processes, returning
from elastane_slots.slot_map import SlotMap


def settle(ctx: DecisionContext, before: SlotMap | None, *, joined: bool) -> None:
    """Give slots without owners to processes, begin copies, and tell everybody of another map.

    before: the map before the event. joined: a process has come, which may not have heard what it was asked.
    What was asked of owners is asked again after both.
    """
    book = ctx.state.slots
    if book.map is None:
        return
    returning.settle_claims(ctx)
    if book.model is not None:
        there = book.staying() or [record.ps for record in book.attending()]
        adopted = book.map.adopted(there)
        if adopted is not book.map:
            ctx.touch()
            book.map = adopted
        copies.begin(ctx)
    if book.map is not before:
        ctx.emit(SendMap(processes.told_map(book)))
    if joined or book.map is not before:
        closing.ask_again(ctx)
        finishing.ask(ctx)
        checkpoints.ask_again(ctx)
    checkpoints.look(ctx)


def expire(ctx: DecisionContext) -> None:
    """Decide on everything that is due."""
    processes.expire(ctx)


def next_deadline(ctx: DecisionContext) -> float | None:
    """Time at which `expire` or `settle` has something to do; None: never."""
    if ctx.state.slots.map is None:
        return None
    dues = (processes.next_deadline(ctx), copies.next_deadline(ctx), checkpoints.next_deadline(ctx))
    return min((due for due in dues if due is not None), default=None)
