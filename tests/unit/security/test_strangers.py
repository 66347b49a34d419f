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
    seen = Strangers(LIMITS, random.Random(0))
    assert [seen.arrived(connection, address, 0.0) for connection in connections] == [None] * len(connections)
    return seen


def test_who_shows_a_token_stays() -> None:
    seen = strangers(1)
    seen.let_in(1, 0.0)
    assert not any(seen.asked(1, 0.0) for _ in range(10))
    assert seen.sent(1, 10**9, 0.0)
    assert seen.overdue(1000.0) == []


def test_standing_too_long_and_being_refused_too_often_end_it() -> None:
    seen = strangers(1)
    assert seen.overdue(10.0) == [] and seen.overdue(10.1) == [1]
    assert [seen.asked(1, 0.0) for _ in range(3)] == [False, False, True]


def test_what_is_more_than_a_call_needs_is_not_heard() -> None:
    seen = strangers(1, 2)
    assert seen.sent(1, 99, 0.0) and not seen.sent(1, 1, 0.0) and not seen.sent(1, 1, 0.0)
    assert seen.sent(2, 10, 0.0) and not seen.sent(2, 10, 0.0, too_many_calls=True)
    seen.heard_again(2)
    assert seen.sent(2, 1, 0.0) and seen.unheard(100.0) == {1: False}


def test_no_more_of_one_address_and_of_all() -> None:
    seen = strangers(1, 2, 3)
    assert seen.arrived(4, HERE, 1.0) in (1, 2, 3, 4)
    seen = strangers(1, 2, 3)
    seen.gone(2)
    assert seen.arrived(4, HERE, 1.0) is None
    assert [seen.arrived(number, f"10.0.1.{number}", 1.0) for number in (5, 6)] == [None, None]
    assert seen.arrived(7, "10.0.2.1", 1.0) in (1, 3, 4, 5, 6, 7)


def test_those_who_were_refused_or_are_not_heard_any_more_go_first() -> None:
    seen = strangers(1, 2, 3)
    seen.asked(2, 0.0)
    assert seen.arrived(4, HERE, 1.0) == 2
    seen = strangers(1, 2, 3)
    seen.sent(3, 100, 0.0)
    assert seen.arrived(4, HERE, 1.0) == 3


def test_while_many_are_refused_new_ones_of_their_addresses_take_turns() -> None:
    seen = strangers(1, 2, 3)
    for connection in (1, 1, 2):  # each counts once
        seen.asked(connection, 0.0)
    assert not seen.take_turns(HERE, 0.0)
    seen.sent(3, 100, 0.0)
    assert seen.take_turns(HERE, 0.0) and not seen.take_turns("10.0.0.2", 0.0)
    assert not seen.take_turns(HERE, 1.0)
    seen.let_in(3, 0.0)  # it was in haste
    assert not seen.take_turns(HERE, 0.0)


def test_a_handshake_that_is_wasted_counts_as_a_refusal_unless_a_token_was_shown() -> None:
    seen = strangers(1, 2, 3)
    for connection in (1, 2, 3):
        seen.broke_off(connection, 0.0)
    assert seen.take_turns(HERE, 0.0)
    seen = strangers(1, 2, 3)
    for connection in (1, 2, 3):
        seen.let_in(connection, 0.0)
        seen.broke_off(connection, 0.0)
    assert not seen.take_turns(HERE, 0.0)


def test_an_address_is_forgotten_some_time_after_its_last_refusal() -> None:
    seen = Strangers(replace(LIMITS, refused_per_second=0.0, refused_address_seconds=5.0), random.Random(0))
    for number in range(4):
        seen.arrived(number, f"10.0.0.{number}", 0.0)
        seen.asked(number, float(number))
    seen.asked(0, 4.0)  # it counts once, and is remembered the longer
    assert [seen.take_turns(f"10.0.0.{number}", 8.0) for number in range(4)] == [True, False, False, True]


def test_where_the_addresses_are_too_many_to_remember_all_take_turns() -> None:
    limits = replace(LIMITS, refused_per_second=0.0, refused_address_seconds=5.0, refused_addresses_max=3)
    seen = Strangers(limits, random.Random(0))
    for number in range(5):
        assert not seen.take_turns("10.1.0.1", 0.0) or number > 2
        seen.arrived(number, f"10.0.0.{number}", 0.0)
        seen.asked(number, 0.0)
    assert seen.take_turns("10.1.0.1", 5.0) and not seen.take_turns("10.1.0.1", 5.1)
