"""What processes know that the store has forgotten.

A store that loses acknowledged writes has an older map, lower lives and lower numbers of leases than the
processes were told. None of these may go back: answers of an earlier life would count, and leases would have
numbers behind a fence. So a Hello lifts them above what its process knows.

An owner of a slot in the life that is stored is believed by the highest `since`: the set of applied tasks has
moved along. One of a later life is not: which tasks were opened again when that life began is forgotten, too.
The slot begins another life, in which they are opened again. Backups that are stored may have been replaced,
and miss what was pushed since: they are copied anew.
"""

from __future__ import annotations

import msgspec

from elastane_master.decisions.decision_context import DecisionContext
from elastane_master.decisions.slot_book import SlotBook
from elastane_master.decisions.slot_events import PsJoined
from elastane_slots.slot_map import SlotMap, SlotPlace


def lift(ctx: DecisionContext, event: PsJoined) -> None:
    """Lift the map and the number of leases above what a process knows."""
    book = ctx.state.slots
    assert book.map is not None
    book.leases = max(book.leases, event.lease_seen)
    places = list(book.map.places)
    # A process that was told a newer map takes an older one for late news.
    known = max([event.generation, *(held.since for held in event.held)])
    generation = max(book.map.generation, known) + 1
    if event.generation > book.map.generation:
        alone = {"backup": "", "target": "", "joining": "", "begun": 0}
        places = [msgspec.structs.replace(place, **alone) for place in places]
    for held in event.held:
        if not 0 <= held.slot < len(places) or held.life < 0:
            continue
        place = places[held.slot]
        unknown_life = held.life > place.life or (held.life == place.life and place.restoring)
        if held.backup:
            if (held.life, held.since) > (place.life, place.since):
                book.claims[held.slot] = max(book.claims.get(held.slot, (0, 0)), (held.life, held.since))
        elif unknown_life:
            places[held.slot] = SlotPlace(
                event.ps, life=held.life + 1, fence=book.leases, since=generation, restoring=True
            )
        elif held.life == place.life and held.since > place.since:
            places[held.slot] = SlotPlace(event.ps, life=place.life, fence=place.fence, since=held.since)
    if tuple(places) != book.map.places or event.generation > book.map.generation:
        book.map = SlotMap(generation, tuple(places))


def begin_life(book: SlotBook, slot: int, owner: str, life: int) -> None:
    """Have a slot be restored in a life that is later than all that are known."""
    assert book.map is not None
    generation, places = book.map.generation + 1, list(book.map.places)
    places[slot] = SlotPlace(owner, life=life, fence=book.leases, since=generation, restoring=True)
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
            places[slot] = SlotPlace(
                life=life + 1, fence=book.leases, since=book.map.generation + 1, restoring=True
            )
    book.claims = {}
    if tuple(places) != book.map.places:
        book.map = SlotMap(book.map.generation + 1, tuple(places))
