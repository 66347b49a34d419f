"""What a parameter server tells a master, as its translation reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastane_master.decisions.events import Rejection
from elastane_master.servers.translate_slots import attend_event, hello
from elastane_proto.v1 import ps_pb2
from elastane_slots.slot_map import LIFE_MAX

NUMBER_MAX = 2**62


def told(life: int = 0, generation: int = 0, lease: int = 0, since: int = 0) -> None:
    held = [ps_pb2.HeldSlot(slot=1, life=life, since=since)]
    hello(ps_pb2.PsHello(job="j", ps_id="ps-0", held=held, generation=generation, lease_seen=lease), "s")


def told_lives(life: int) -> None:
    hello(ps_pb2.PsHello(job="j", ps_id="ps-0", lives=[0, life]), "s")


def restored(life: int = 0, snapshot_life: int = 0) -> None:
    message = ps_pb2.SlotRestored(slot=1, life=life, snapshot_life=snapshot_life)
    attend_event(ps_pb2.AttendSlotsRequest(restored=message), "ps-0", "s")


@pytest.mark.parametrize(
    ("tell", "most"),
    [
        (lambda number: told(life=number), LIFE_MAX),
        (told_lives, LIFE_MAX),
        (lambda number: restored(life=number), LIFE_MAX),
        (lambda number: restored(snapshot_life=number), LIFE_MAX),
        (lambda number: told(generation=number), NUMBER_MAX),
        (lambda number: told(since=number), NUMBER_MAX),
        (lambda number: told(lease=number), NUMBER_MAX),
    ],
    ids=["held", "lives", "restored", "snapshot", "generation", "since", "lease"],
)
def test_a_number_that_no_master_has_reached_is_refused(tell: Callable[[int], None], most: int) -> None:
    """The master would go on from there, to numbers that no message has room for."""
    tell(most)
    for number in (most + 1, 2**63 - 1):
        with pytest.raises(Rejection, match=r"ps-0 tells of (life|generation or lease) \d+"):
            tell(number)
