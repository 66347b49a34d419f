"""Data sets whose tasks are all over: workers are told so once nothing of them can be opened again.

Workers leave then, and would be missed if a slot went back to an older snapshot. So every slot is saved
first; with backups and no folder to save in, nothing can be done, and they are told at once.
"""

from __future__ import annotations

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.slot_book import Finishing
from elastane_master.decisions.slot_effects import SaveSlots, SendPs
from elastane_master.decisions.slot_events import SavedPart


def look(ctx: DecisionContext, dataset: str) -> None:
    """Begin to finish a data set if its tasks are all over; stop, if they are not any more."""
    book, queue = ctx.state.slots, ctx.queues.dynamic.get(dataset)
    if queue is None or not queue.pushes or book.map is None:
        return
    over = queue.complete and not any(name.dataset == dataset for name in book.closings)
    if not over:
        book.finished.pop(dataset, None)
        book.finishing.pop(dataset, None)
    elif dataset not in book.finished and dataset not in book.finishing:
        ctx.touch()
        if not ctx.state.settings.checkpoint_url or not queue.num_tasks:
            book.finished[dataset] = None
            return
        book.saves += 1
        book.finishing[dataset] = Finishing(f"save-{book.saves}{book.start_mark}")
        ask(ctx)


def ask(ctx: DecisionContext) -> None:
    """Ask owners to save the slots that are not saved yet; again after every change of the map."""
    book = ctx.state.slots
    assert book.map is not None
    for finishing in book.finishing.values():
        owners = {
            place.owner
            for slot, place in enumerate(book.map.places)
            if place.served and finishing.saved.get(slot) != place.life
        }
        for ps in sorted(owners):
            ctx.emit(SendPs(ps, SaveSlots(finishing.request)))


def saved(ctx: DecisionContext, ps: str, request: str, parts: tuple[SavedPart, ...]) -> None:
    """Slots were saved for the request that a data set waits for."""
    book = ctx.state.slots
    assert book.map is not None
    for dataset, finishing in list(book.finishing.items()):
        if finishing.request != request:
            continue
        for part in parts:
            place = book.map.places[part.slot]
            if place.served and (place.owner, place.life) == (ps, part.life):
                ctx.touch()
                finishing.saved[part.slot] = part.life
        _conclude(ctx, dataset)


def restored(ctx: DecisionContext, slot: int, life: int) -> None:
    """A slot was read from a snapshot, and nothing was missing in it: it is saved as it is."""
    for dataset, finishing in list(ctx.state.slots.finishing.items()):
        finishing.saved[slot] = life
        _conclude(ctx, dataset)


def _conclude(ctx: DecisionContext, dataset: str) -> None:
    book = ctx.state.slots
    assert book.map is not None
    saved = book.finishing[dataset].saved
    if all(saved.get(slot) == place.life for slot, place in enumerate(book.map.places)):
        ctx.touch()
        del book.finishing[dataset]
        book.finished[dataset] = None
