"""Recovers, from returning processes, facts that the store has lost.

A store that loses acknowledged writes has an older map, lower lives and lower numbers of leases than the
processes were told. None of these may go back, so a Hello lifts them above what its process knows.

An owner of a slot in the life that is stored is believed by the highest `since`: the set of applied tasks has
moved along. One of a later life is not: which tasks were opened again when that life began is forgotten, too.
The slot begins another life, in which they are opened again. Backups that are stored may have been replaced,
and miss what was pushed since: they are copied anew.

Whoever knew of a life may be gone as well, but for a worker whose report has its number. A second life of the
same number would make that report count, and a task DONE that the slot lacks. No process can tell the master
of such a life. So lives that begin after a restart of the master begin a random distance (of 2**32) after
those in the store: a forgotten life is met once in 2**32 times. Slots that were being restored at the restart
begin another life at once, as they may have been served since.

Generations of maps and numbers of leases go on after the same distance, and what is saved has it in its name.
So a map with a generation within it is one that the store has forgotten. It may have named another owner or
backup; who was told it knows of what the store does not, and an answer given by it makes no task DONE: its
owner and backup may both be gone. The task is leased again, and slots that have it say so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.slot_book import SlotBook
from elastane_master.decisions.slot_events import MapSeen, PsJoined
from elastane_slots.mixing import below, text_key
from elastane_slots.slot_map import SlotMap, SlotPlace

LIVES_APART_MAX: Final = 2**32
GENERATION_MAX: Final = 2**50
"""Highest generation of a map that a worker is believed to have."""


def master_started(ctx: DecisionContext, master: str) -> None:
    """Have lives that begin from now on be none that the store may have forgotten.

    The distance is drawn from the master's name and the time: the same for whoever repeats the event.
    """
    book = ctx.state.slots
    book.lives_apart = 1 + below(text_key("lives", master, repr(ctx.now)), LIVES_APART_MAX)
    book.leases += book.lives_apart
    book.stored = book.map.generation if book.map is not None else -1
    if book.map is None:
        book.lives_from = book.lives_apart
        return
    _begin_after(book, (place.life for place in book.map.places))
    generation = book.stored + book.lives_apart
    book.map = SlotMap(generation, tuple(_begun_again(book, place, generation) for place in book.map.places))


def is_forgotten(book: SlotBook, generations: Collection[int]) -> bool:
    """Return whether any of these is of a map that the store has forgotten, or of no map of this job."""
    if not generations or book.map is None:
        return False
    first = book.stored + book.lives_apart
    return max(generations) > book.map.generation or any(book.stored < one < first for one in generations)


def forget_copies(ctx: DecisionContext, event: PsJoined) -> None:
    """A process knows a newer map than the store's: backups in this one may lack what was pushed since.

    Before anything is decided of the process: none of them may be promoted in its place.
    """
    book = ctx.state.slots
    assert book.map is not None
    if is_forgotten(book, [event.generation]):
        # A move stays: its owner is frozen, and the target may own the slot by a map that the store has lost.
        alone = {"backup": "", "joining": ""}
        places = tuple(
            msgspec.structs.replace(place, **alone, begun=place.begun if place.target else 0)
            for place in book.map.places
        )
        book.map = SlotMap(max(book.map.generation, event.generation) + 1, places)


def map_seen(ctx: DecisionContext, event: MapSeen) -> None:
    """A worker takes no map that is not newer than its own, and is not served before a process has it."""
    book = ctx.state.slots
    if book.map is not None and book.map.generation < event.generation <= GENERATION_MAX:
        ctx.touch()
        book.map = SlotMap(event.generation + 1, book.map.places)


def lift(ctx: DecisionContext, event: PsJoined) -> None:
    """Lift the map and the number of leases above what a process knows; `forget_copies` has been called."""
    book = ctx.state.slots
    assert book.map is not None
    book.leases = max(book.leases, event.lease_seen)
    places = list(book.map.places)
    # A process that was told a newer map takes an older one for late news.
    generation = max([book.map.generation, *(held.since for held in event.held)]) + 1
    told = [*enumerate(event.lives), *((held.slot, held.life) for held in event.held if not held.backup)]
    _begin_after(book, (life for slot, life in told if slot < len(places) and life > places[slot].life))
    for held in event.held:
        if not 0 <= held.slot < len(places) or held.life < 0:
            continue
        place = places[held.slot]
        unknown_life = held.life > place.life or (held.life == place.life and place.restoring)
        if held.backup:
            if (held.life, held.since) > (place.life, place.since):
                book.claims[held.slot] = max(book.claims.get(held.slot, (0, 0)), (held.life, held.since))
        elif unknown_life:
            places[held.slot] = _unread(book, event.ps, held.life, generation)
        elif held.life == place.life and held.since > place.since:
            places[held.slot] = SlotPlace(event.ps, life=place.life, fence=place.fence, since=held.since)
    for slot, (place, life) in enumerate(zip(places, event.lives, strict=False)):
        if life > place.life:
            places[slot] = _unread(book, place.owner, life, generation)
    if tuple(places) != book.map.places:
        book.map = SlotMap(generation, tuple(places))


def begin_life(book: SlotBook, slot: int, owner: str, life: int) -> None:
    """Have a slot be restored in a life after `life`, which it had once."""
    assert book.map is not None
    generation, places = book.map.generation + 1, list(book.map.places)
    _begin_after(book, [life])
    places[slot] = _unread(book, owner, life, generation)
    book.map = SlotMap(generation, tuple(places))


def settle_claims(ctx: DecisionContext) -> None:
    """Once all have returned: a slot of which only a backup knows a later life begins another one."""
    book = ctx.state.slots
    if not book.claims or book.map is None or any(record.awaited for record in book.processes.values()):
        return
    ctx.touch()
    places = list(book.map.places)
    for slot, (life, since) in book.claims.items():
        place = places[slot]
        if (life, since) > (place.life, place.since):
            if life > place.life:
                _begin_after(book, [life])
            places[slot] = _unread(book, "", life, book.map.generation + 1)
    book.claims = {}
    if tuple(places) != book.map.places:
        book.map = SlotMap(book.map.generation + 1, tuple(places))


def _begin_after(book: SlotBook, forgotten: Iterable[int]) -> None:
    """Have lives begin after these, and after any that may have followed them."""
    book.lives_from = max([book.lives_from, *(life + book.lives_apart for life in forgotten)])


def _unread(book: SlotBook, owner: str, life: int, generation: int) -> SlotPlace:
    """Return the place of a slot that begins a life after `life`."""
    after = max(life + 1, book.lives_from)
    return SlotPlace(owner, life=after, fence=book.leases, since=generation, restoring=True)


def _begun_again(book: SlotBook, place: SlotPlace, generation: int) -> SlotPlace:
    return _unread(book, place.owner, place.life, generation) if place.restoring else place
