"""The map of slots under any joins, deaths, drains and copies, against what rendezvous hashing says."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastane_shards.errors import IllegalTransition, InvalidRequest, InvalidSettings, InvariantViolated
from elastane_slots.assignment import holders
from elastane_slots.slot_map import SlotMap, SlotPlace, Wish

V = 16
NAMES = [f"ps-{number}" for number in range(5)]


def first_map(processes: list[str], copies: int = 1) -> SlotMap:
    """The map once the first processes have begun."""
    return settled(SlotMap.empty(V).adopted(processes), processes, copies)


def settled(slot_map: SlotMap, staying: list[str], copies: int) -> SlotMap:
    """Carry out all wishes, and restores that are under way."""
    for slot, place in enumerate(slot_map.places):
        if place.restoring and place.owner:
            slot_map = slot_map.restored(slot, place.owner, place.life)
    while wishes := slot_map.wishes(staying, copies, 2):
        assert len(wishes) <= 2
        for wish in wishes:
            slot_map = slot_map.copying(wish)
            slot_map.validate()
        for wish in wishes:
            begun = slot_map.places[wish.slot].begun
            slot_map = slot_map.copied(wish.slot, wish.process, begun, staying)
            slot_map.validate()
    return slot_map


def held(slot_map: SlotMap) -> list[tuple[str, ...]]:
    return [tuple(name for name in (place.owner, place.backup) if name) for place in slot_map.places]


def test_the_first_processes_begin_with_their_slots_when_they_have_read_what_there_is() -> None:
    empty = SlotMap.empty(V)
    assert empty.adopted([]) == empty
    begun = empty.adopted(NAMES[:3])
    assert held(begun) == list(holders(V, NAMES[:3]))
    assert not any(place.served for place in begun.places)
    assert begun.wishes(NAMES[:3], 2, V) == []
    first = first_map(NAMES[:3], 2)
    assert held(first) == list(holders(V, NAMES[:3], 2))
    assert first.lives_sum == 0 and all(place.served and place.since == 1 for place in first.places)
    assert first.adopted(NAMES) == first


def test_a_newcomer_gets_only_what_it_ranks_first_for() -> None:
    before = first_map(NAMES[:2])
    after = settled(before, NAMES[:3], 1)
    moved = [slot for slot in range(V) if before.places[slot] != after.places[slot]]
    assert held(after) == list(holders(V, NAMES[:3]))
    assert {after.places[slot].owner for slot in moved} == {NAMES[2]}
    assert after.lives_sum == 0
    assert all(after.places[slot].since > before.generation for slot in moved)


def test_with_a_copy_a_death_changes_no_life_and_moves_nothing() -> None:
    slot_map = first_map(NAMES[:3], 2)
    after = slot_map.left(NAMES[0], NAMES[1:3], lease=77)
    assert after.generation == slot_map.generation + 1
    assert after.lives_sum == 0 and all(place.served for place in after.places)
    assert [place.owner for place in after.places] == [h[0] for h in holders(V, NAMES[1:3])]
    assert held(settled(after, NAMES[1:3], 2)) == list(holders(V, NAMES[1:3], 2))


def test_without_a_copy_the_slots_of_the_dead_begin_another_life() -> None:
    slot_map = first_map(NAMES[:3])
    mine = slot_map.held_by(NAMES[0])
    after = slot_map.left(NAMES[0], NAMES[1:3], lease=77)
    for slot, place in enumerate(after.places):
        if slot in mine:
            assert (place.life, place.fence, place.restoring) == (1, 77, True)
            assert place.owner == holders(V, NAMES[1:3])[slot][0]
        else:
            assert place == slot_map.places[slot]
    assert after.lives_sum == len(mine)
    slot = mine[0]
    with pytest.raises(IllegalTransition):
        after.restored(slot, "ps-9", 1)
    with pytest.raises(IllegalTransition):
        after.restored(slot, after.places[slot].owner, 0)
    served = after.restored(slot, after.places[slot].owner, 1)
    assert served.places[slot].served and served.lives_sum == after.lives_sum


def test_both_copies_at_once() -> None:
    slot_map = first_map(NAMES[:3], 2).left(NAMES[0], NAMES[1:3], 5).left(NAMES[1], NAMES[2:3], 6)
    assert all(place.owner == NAMES[2] for place in slot_map.places)
    restored = [place for place in slot_map.places if place.life]
    assert restored and all((place.fence, place.restoring) == (6, True) for place in restored)
    slot_map.validate()


def test_when_all_are_gone_slots_wait_for_the_next_process() -> None:
    gone = first_map(NAMES[:1]).left(NAMES[0], [], lease=9)
    assert all(place.owner == "" and place.restoring for place in gone.places)
    assert gone.adopted([]) == gone
    back = gone.adopted(NAMES[:1])
    assert all(place.owner == NAMES[0] and place.life == 1 and not place.served for place in back.places)
    again = back.left(NAMES[0], [], lease=12).adopted(NAMES[1:2])
    assert all((place.life, place.fence) == (2, 12) for place in again.places)


def test_a_move_is_given_up_with_either_end() -> None:
    slot_map = first_map(NAMES[:1])
    (wish,) = slot_map.wishes(NAMES[:2], 1, 1)
    moving = slot_map.copying(wish)
    assert moving.places[wish.slot].target == NAMES[1]
    without_target = moving.left(NAMES[1], NAMES[:1], 3)
    assert without_target.places == slot_map.places
    without_source = moving.left(NAMES[0], NAMES[1:2], 3)
    place = without_source.places[wish.slot]
    assert (place.owner, place.target, place.life, place.restoring) == (NAMES[1], "", 1, True)
    begun = moving.places[wish.slot].begun
    with pytest.raises(IllegalTransition):  # the copy of the life before comes too late
        without_source.copied(wish.slot, NAMES[1], begun, NAMES[1:2])
    cancelled = moving.cancelled(wish.slot)
    assert cancelled.places == slot_map.places
    again = cancelled.copying(wish)
    with pytest.raises(IllegalTransition):  # so does the one that was given up, to the same process
        again.copied(wish.slot, NAMES[1], begun, NAMES[:2])
    assert again.copied(wish.slot, NAMES[1], again.generation, NAMES[:2]).places[wish.slot].owner == NAMES[1]


def test_a_copy_that_nobody_wants_is_refused() -> None:
    slot_map = first_map(NAMES[:2])
    for slot, process in ((0, ""), (0, "ps-9")):
        with pytest.raises(IllegalTransition):
            slot_map.copied(slot, process, 0, NAMES[:2])
    owner = slot_map.places[0].owner
    with pytest.raises(IllegalTransition):
        slot_map.copying(Wish(0, owner, "move"))
    restoring = slot_map.left(owner, [name for name in NAMES[:2] if name != owner], 1)
    with pytest.raises(IllegalTransition):
        restoring.copying(Wish(0, "ps-3", "move"))


def test_a_slot_that_moves_keeps_a_complete_copy_behind_it() -> None:
    slot_map = first_map(NAMES[:2], 2)
    wish = next(w for w in slot_map.wishes(NAMES[:3], 2, V) if w.kind == "move")
    begun = slot_map.generation + 1
    after = slot_map.copying(wish).copied(wish.slot, wish.process, begun, NAMES[:3])
    assert after.places[wish.slot].backup == slot_map.places[wish.slot].owner
    # and one that stays, if the old owner is to leave
    owner = slot_map.places[wish.slot].owner
    staying = [name for name in NAMES[:3] if name != owner]
    drained = slot_map.copying(wish).copied(wish.slot, wish.process, begun, staying)
    assert drained.places[wish.slot].backup == slot_map.places[wish.slot].backup


def test_a_drained_process_ends_with_nothing() -> None:
    slot_map = settled(first_map(NAMES[:3], 2), NAMES[:2], 2)
    assert slot_map.held_by(NAMES[2]) == []
    assert slot_map.left(NAMES[2], NAMES[:2], 1) == slot_map
    with pytest.raises(InvalidRequest):
        slot_map.left(NAMES[1], NAMES[:2], 1)


def test_a_lost_backup_is_replaced() -> None:
    slot_map = first_map(NAMES[:3], 2)
    backup = slot_map.places[0].backup
    alone = slot_map.backup_lost(0, backup)
    assert alone.places[0].backup == "" and alone.places[0].owner == slot_map.places[0].owner
    with pytest.raises(IllegalTransition):
        alone.backup_lost(0, backup)
    assert held(settled(alone, NAMES[:3], 2)) == held(slot_map)


def test_going_back_to_a_checkpoint_is_another_life_of_every_slot() -> None:
    slot_map = first_map(NAMES[:2], 2).rewound(lease=40)
    assert slot_map.lives_sum == V
    assert all(place.restoring and place.fence == 40 and not place.backup for place in slot_map.places)
    assert held(settled(slot_map, NAMES[:2], 2)) == list(holders(V, NAMES[:2], 2))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 2))
def test_any_history_keeps_one_owner_and_comes_to_rest_where_rendezvous_hashing_says(
    seed: int, copies: int
) -> None:
    rng = random.Random(seed)
    present = set(rng.sample(NAMES, rng.randint(1, 4)))
    slot_map, lease = SlotMap.empty(V).adopted(present), 0
    for _ in range(40):
        before, lease = slot_map, lease + 1
        draining = set(rng.sample(sorted(present), 1)) if present and rng.random() < 0.3 else set()
        staying = present - draining
        match rng.randrange(5):
            case 0:
                joined = rng.choice(NAMES)
                present.add(joined)
                slot_map = slot_map.adopted(present)
            case 1 if present:
                dead = rng.choice(sorted(present))
                present.discard(dead)
                slot_map = slot_map.left(dead, present, lease)
                for slot, place in enumerate(slot_map.places):
                    lost = before.places[slot].owner == dead and not before.places[slot].backup
                    assert place.life == before.places[slot].life + lost
            case 2:
                for wish in slot_map.wishes(staying, copies, rng.randint(1, V)):
                    slot_map = slot_map.copying(wish)
            case 3:
                under_way = [
                    (slot, name)
                    for slot, place in enumerate(slot_map.places)
                    for name in (place.target, place.joining)
                    if name
                ]
                for slot, name in rng.sample(under_way, min(len(under_way), 3)):
                    slot_map = slot_map.copied(slot, name, slot_map.places[slot].begun, staying)
            case _:
                for slot, place in enumerate(slot_map.places):
                    if place.restoring and place.owner and rng.random() < 0.5:
                        slot_map = slot_map.restored(slot, place.owner, place.life)
        slot_map.validate()
        assert slot_map.generation >= before.generation
        assert (slot_map == before) == (slot_map.generation == before.generation)
        assert slot_map.lives_sum >= before.lives_sum
        for place in slot_map.places:
            assert {place.owner, place.backup, place.target, place.joining} <= present | {""}
    present.add(NAMES[0])
    staying = sorted(present)
    slot_map = slot_map.adopted(staying)
    for slot, place in enumerate(slot_map.places):
        for name in (place.target, place.joining):
            if name:
                slot_map = slot_map.cancelled(slot)
    slot_map = settled(slot_map, staying, copies)
    owners = list(holders(V, staying, copies))
    assert [h[0] for h in held(slot_map)] == [h[0] for h in owners]
    if copies == 2 and len(staying) > 1:
        assert held(slot_map) == owners


def test_it_is_stored_as_it_is() -> None:
    slot_map = first_map(NAMES[:3], 2).left(NAMES[0], NAMES[1:3], 5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(slot_map), type=SlotMap) == slot_map


def test_contradictions_are_found() -> None:
    for place in (
        SlotPlace("a", backup="a"),
        SlotPlace("a", backup="b", joining="b", begun=1),
        SlotPlace("a", target="a", begun=1),
        SlotPlace("a", target="b"),
        SlotPlace("a", begun=1),
        SlotPlace("a", target="b", joining="c", begun=1),
        SlotPlace("a", backup="b", restoring=True),
        SlotPlace("", target="b", begun=1),
        SlotPlace("a", since=2),
        SlotPlace("a", life=-1),
    ):
        with pytest.raises(InvariantViolated):
            SlotMap(1, (place,)).validate()
    with pytest.raises(InvalidSettings):
        SlotMap.empty(0)
