"""Which connections of strangers are heard and which are ended, by times, bytes and calls."""

from __future__ import annotations

import random
from dataclasses import replace

from elastane_master.security.strangers import StrangerLimits, Strangers

LIMITS = StrangerLimits(
    seconds=10.0,
    refusals_max=3,
    bytes_max=100,
    unheard_seconds=1.0,
    silent_seconds=2.0,
    per_address_max=3,
    strangers_max=5,
    refused_max=2,
    refused_per_second=1.0,
)
HERE = "10.0.0.1"


def strangers(*connections: int, address: str = HERE) -> Strangers:
    """With these connections, which nobody has to leave for."""
    door = Strangers(LIMITS, random.Random(0))
    assert [door.arrived(connection, address, 0.0) for connection in connections] == [None] * len(connections)
    return door


def test_who_shows_a_token_stays() -> None:
    door = strangers(1)
    door.let_in(1, 0.0)
    assert not any(door.asked(1, 0.0) for _ in range(10))
    assert door.sent(1, 10**9, 0.0)
    assert door.overdue(1000.0) == []


def test_standing_too_long_and_being_refused_too_often_end_it() -> None:
    door = strangers(1)
    assert door.overdue(10.0) == [] and door.overdue(10.1) == [1]
    assert [door.asked(1, 0.0) for _ in range(3)] == [False, False, True]


def test_what_is_more_than_a_call_needs_is_not_heard() -> None:
    door = strangers(1, 2)
    assert door.sent(1, 99, 0.0) and not door.sent(1, 1, 0.0) and not door.sent(1, 1, 0.0)
    assert door.sent(2, 10, 0.0) and not door.sent(2, 10, 0.0, too_many_calls=True)
    door.heard_again(2)
    assert door.sent(2, 1, 0.0) and door.unheard(100.0) == {1: False}


def test_no_more_of_one_address_and_of_all() -> None:
    door = strangers(1, 2, 3)
    assert door.arrived(4, HERE, 1.0) in (1, 2, 3, 4)
    door = strangers(1, 2, 3)
    door.gone(2)
    assert door.arrived(4, HERE, 1.0) is None
    assert [door.arrived(number, f"10.0.1.{number}", 1.0) for number in (5, 6)] == [None, None]
    assert door.arrived(7, "10.0.2.1", 1.0) in (1, 3, 4, 5, 6, 7)


def test_those_who_were_refused_or_are_not_heard_any_more_go_first() -> None:
    door = strangers(1, 2, 3)
    door.asked(2, 0.0)
    assert door.arrived(4, HERE, 1.0) == 2
    door = strangers(1, 2, 3)
    door.sent(3, 100, 0.0)
    assert door.arrived(4, HERE, 1.0) == 3


def test_while_many_are_refused_new_ones_of_their_addresses_take_turns() -> None:
    door = strangers(1, 2, 3)
    for connection in (1, 1, 2):  # each counts once
        door.asked(connection, 0.0)
    assert not door.take_turns(HERE, 0.0)
    door.sent(3, 100, 0.0)
    assert door.take_turns(HERE, 0.0) and not door.take_turns("10.0.0.2", 0.0)
    assert not door.take_turns(HERE, 1.0)
    door.let_in(3, 0.0)  # it was in haste
    assert not door.take_turns(HERE, 0.0)


def test_a_handshake_that_is_wasted_counts_as_a_refusal_unless_a_token_was_shown() -> None:
    door = strangers(1, 2, 3)
    for connection in (1, 2, 3):
        door.broke_off(connection, 0.0)
    assert door.take_turns(HERE, 0.0)
    door = strangers(1, 2, 3)
    for connection in (1, 2, 3):
        door.let_in(connection, 0.0)
        door.broke_off(connection, 0.0)
    assert not door.take_turns(HERE, 0.0)


def test_an_address_is_forgotten_some_time_after_its_last_refusal() -> None:
    door = Strangers(replace(LIMITS, refused_per_second=0.0, refused_address_seconds=5.0), random.Random(0))
    for number in range(4):
        door.arrived(number, f"10.0.0.{number}", 0.0)
        door.asked(number, float(number))
    door.asked(0, 4.0)  # it counts once, and is remembered the longer
    assert [door.take_turns(f"10.0.0.{number}", 8.0) for number in range(4)] == [True, False, False, True]


def test_where_the_addresses_are_too_many_to_remember_all_take_turns() -> None:
    limits = replace(LIMITS, refused_per_second=0.0, refused_address_seconds=5.0, refused_addresses_max=3)
    door = Strangers(limits, random.Random(0))
    for number in range(5):
        assert not door.take_turns("10.1.0.1", 0.0) or number > 2
        door.arrived(number, f"10.0.0.{number}", 0.0)
        door.asked(number, 0.0)
    assert door.take_turns("10.1.0.1", 5.0) and not door.take_turns("10.1.0.1", 5.1)
