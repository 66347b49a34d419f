"""The map of slots to processes, with a generation: what changes when processes join, leave and die.

    owner dies     a copy that is complete becomes the owner, in the same life; without one the slot is
                   *restored*: the process ranked next takes the newest snapshot and begins another life,
                   into which leases granted before are fenced out
    owner changes  the slot is copied to its target, frozen for the last part, and switched
    copy           with `copies` of 2, the process ranked second applies every push, too

Every change makes a new map of the next generation; the master stores it before it is sent. Pure: the
caller reports which processes exist, and when a copy is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import msgspec

from elastane_shards.errors import IllegalTransition, InvalidRequest, InvariantViolated
from elastane_slots.assignment import holders, ranking
from elastane_slots.placement import check_slots

LIFE_MAX: Final = 2**50
"""Highest life that a master believes it has begun: the sum of all slots' lives fits into 63 bits."""


class SlotPlace(msgspec.Struct, frozen=True):
    """Place of one slot.

    owner: process that receives pulls and pushes; "" if there is none. backup: process with a complete copy,
    which applies every push before it is answered. target: process to which the slot is being moved. joining:
    process that is becoming the backup. begun: generation in which that copy began, which distinguishes it
    from a later copy to the same process. life: grows whenever the slot is restored. fence: pushes under
    leases up to this number are refused. restoring: its owner has not yet read the snapshot or, if nothing
    was ever applied, the initial values. since: generation in which the owner got it.
    """

    owner: str = ""
    backup: str = ""
    target: str = ""
    joining: str = ""
    begun: int = 0
    life: int = 0
    fence: int = 0
    since: int = 0
    restoring: bool = False

    @property
    def served(self) -> bool:
        """True if its owner answers pulls and pushes."""
        return bool(self.owner) and not self.restoring


class Wish(msgspec.Struct, frozen=True):
    """A change towards the ranked processes. kind: "move" to own the slot, "copy" to back it up."""

    slot: int
    process: str
    kind: str


class SlotMap(msgspec.Struct, frozen=True):
    """Places of all slots. generation: grows with every change."""

    generation: int
    places: tuple[SlotPlace, ...]

    @classmethod
    def empty(cls, slots: int, life: int = 0) -> SlotMap:
        """Return the map of a job before its first process: all slots wait for an owner, as lost ones do.

        So every owner gets a slot from a snapshot, from a copy, or with the order to initialise it; a missing
        slot is never mistaken for an empty one. life: of all slots. Raises InvalidSettings.
        """
        check_slots(slots)
        return cls(0, (SlotPlace(life=life, restoring=True),) * slots)

    @property
    def lives_sum(self) -> int:
        """Sum of the slots' lives.

        Lives only grow, so answers with this sum come from the current life of every slot.
        """
        return sum(place.life for place in self.places)

    def left(self, process: str, remaining: Collection[str], lease: int, life: int = 0) -> SlotMap:
        """Remove a process that has died, or has left although it held slots.

        lease: number of the last lease granted so far. remaining: processes that can take its slots. life:
        lowest number for a new life.
        """
        if process in remaining:
            raise InvalidRequest(f"{process!r} has left, and remains", process=process)

        def without(slot: int, place: SlotPlace) -> SlotPlace:
            place = _forgetting(place, process)
            if place.owner != process:
                return place
            if place.backup:
                return SlotPlace(place.backup, life=place.life, fence=place.fence, since=self.generation + 1)
            return self._restored(slot, place, remaining, lease, life)

        return self._changed(without)

    def adopted(self, processes: Collection[str]) -> SlotMap:
        """Assign slots that wait for an owner to processes that have joined."""

        def adopting(slot: int, place: SlotPlace) -> SlotPlace:
            if place.owner or not place.restoring or not processes:
                return place
            owner = ranking(slot, processes)[0]
            return msgspec.structs.replace(place, owner=owner, since=self.generation + 1)

        return self._changed(adopting)

    def rewound(self, lease: int, life: int = 0) -> SlotMap:
        """Order every slot with an owner to be read from a snapshot again. lease, life: as for `left`."""

        def restoring(slot: int, place: SlotPlace) -> SlotPlace:
            if not place.owner:
                return place
            return self._restored(slot, place, [place.owner], lease, life)

        return self._changed(restoring)

    def fenced(self, lease: int) -> SlotMap:
        """Order all slots to refuse pushes under leases up to this number."""
        return self._changed(lambda _, place: msgspec.structs.replace(place, fence=max(place.fence, lease)))

    def restored(self, slot: int, process: str, life: int) -> SlotMap:
        """Serve a slot: its owner has read the snapshot, and missing tasks are reopened.

        Raises IllegalTransition if the slot's place has changed meanwhile.
        """
        place = self.places[slot]
        if not place.restoring or (place.owner, place.life) != (process, life):
            raise IllegalTransition(f"slot {slot} is not being restored at {process!r}", slot=slot)
        return self._with(slot, msgspec.structs.replace(place, restoring=False))

    def wishes(self, processes: Collection[str], copies: int, most: int) -> list[Wish]:
        """Return the changes to begin now so that slots get to their highest-ranked processes.

        processes: those that stay. most: maximum number of concurrent copies, including current ones.
        """
        wishes: list[Wish] = []
        if not processes:
            return wishes
        room = most - sum(bool(place.target) + bool(place.joining) for place in self.places)
        for slot, held in enumerate(holders(len(self.places), processes, copies)):
            place = self.places[slot]
            if len(wishes) >= room:
                break
            if not place.served or place.target or place.joining:
                continue
            if held[0] != place.owner:
                wishes.append(Wish(slot, held[0], "move"))
            elif len(held) > 1 and held[1] != place.backup:
                wishes.append(Wish(slot, held[1], "copy"))
        return wishes

    def copying(self, wish: Wish) -> SlotMap:
        """Begin a copy. Raises IllegalTransition if the slot is not served or is copied already."""
        place = self.places[wish.slot]
        if not place.served or place.target or place.joining or wish.process == place.owner:
            raise IllegalTransition(f"slot {wish.slot} cannot be copied now", slot=wish.slot)
        field = "target" if wish.kind == "move" else "joining"
        copied = {field: wish.process, "begun": self.generation + 1}
        return self._with(wish.slot, msgspec.structs.replace(place, **copied))

    def copied(self, slot: int, process: str, begun: int, staying: Collection[str]) -> SlotMap:
        """A copy is complete: its process owns the slot from now on, or backs it up.

        After a move the old owner stays frozen until it receives this map; after a backup copy the owner
        answers pushes only once the backup has applied them. begun: as in the map that began the copy.
        staying: processes that may back the slot up. Raises IllegalTransition if the copy is obsolete.
        """
        place = self.places[slot]
        if process not in (place.target, place.joining) or not process or begun != place.begun:
            raise IllegalTransition(f"no copy of slot {slot} at {process!r} is wanted", slot=slot)
        if process == place.joining:
            return self._with(slot, msgspec.structs.replace(place, backup=process, joining="", begun=0))
        # The old owner's copy and the backup's are the same as the new owner's at this moment.
        complete = {place.owner, place.backup} & set(staying) - {process} if place.backup else ()
        backup = ranking(slot, complete)[0] if complete else ""
        since = self.generation + 1
        return self._with(
            slot,
            msgspec.structs.replace(place, owner=process, backup=backup, target="", begun=0, since=since),
        )

    def cancelled(self, slot: int) -> SlotMap:
        """Cancel a copy in progress: the owner continues to serve."""
        return self._with(slot, msgspec.structs.replace(self.places[slot], target="", joining="", begun=0))

    def backup_lost(self, slot: int, process: str) -> SlotMap:
        """Drop a backup that does not answer its owner, which continues alone."""
        place = self.places[slot]
        if place.backup != process or not process:
            raise IllegalTransition(f"{process!r} does not back slot {slot} up", slot=slot)
        return self._with(slot, msgspec.structs.replace(place, backup=""))

    def held_by(self, process: str) -> list[int]:
        """Slots that a process owns or backs up; it must not leave while it has any."""
        return [slot for slot, place in enumerate(self.places) if process in (place.owner, place.backup)]

    def validate(self) -> None:
        """Raise InvariantViolated if a place contradicts itself."""
        for slot, place in enumerate(self.places):
            copies = [name for name in (place.backup, place.joining) if name]
            if (place.owner and place.owner in (*copies, place.target)) or len(set(copies)) < len(copies):
                raise InvariantViolated("a process holds a slot twice", slot=slot)
            if not place.served and (copies or place.target):
                raise InvariantViolated("a slot that is not served is copied", slot=slot)
            if bool(place.begun) != bool(place.target or place.joining) or (place.target and place.joining):
                raise InvariantViolated("a copy has no beginning, or two ends", slot=slot)
            if max(place.since, place.begun) > self.generation or min(place.life, place.fence) < 0:
                raise InvariantViolated("a slot is ahead of its map", slot=slot)

    def _restored(
        self, slot: int, place: SlotPlace, processes: Collection[str], lease: int, least: int
    ) -> SlotPlace:
        owner = ranking(slot, processes)[0] if processes else ""
        life = max(place.life + 1, least)
        return SlotPlace(owner, life=life, fence=lease, since=self.generation + 1, restoring=True)

    def _with(self, slot: int, place: SlotPlace) -> SlotMap:
        return self._changed(lambda number, old: place if number == slot else old)

    def _changed(self, change: Callable[[int, SlotPlace], SlotPlace]) -> SlotMap:
        """Return this map if nothing changes, else one of the next generation."""
        places = tuple(change(slot, place) for slot, place in enumerate(self.places))
        return self if places == self.places else SlotMap(self.generation + 1, places)


def _forgetting(place: SlotPlace, process: str) -> SlotPlace:
    """Remove the copies that a process had or was about to get."""
    if process in (place.target, place.joining):
        place = msgspec.structs.replace(place, target="", joining="", begun=0)
    return msgspec.structs.replace(place, backup="") if process == place.backup else place
