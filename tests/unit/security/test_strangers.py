"""Which connections of strangers are ended, by times, bytes and calls."""

from __future__ import annotations

import random

import pytest

from elastane_master.security.doorkeeper import place_of
from elastane_master.security.strangers import Place, StrangerLimits, Strangers

LIMITS = StrangerLimits(
    seconds=10.0, calls_max=2, bytes_max=100, bytes_in_all_max=300, per_address_max=3, strangers_max=5
)


def places(count: int, address: str = "10.0.0.1") -> dict[Place, int]:
    return {(address, port): port for port in range(1, count + 1)}


def strangers() -> Strangers:
    return Strangers(LIMITS, random.Random(0))


def nothing(_: Place) -> int:
    return 0


def test_who_shows_a_token_stays() -> None:
    door, one = strangers(), places(1)
    (place,) = one
    door.let_in(place, 0.0)  # before it was looked at
    assert door.standing(one, nothing, 1.0) == []
    assert not door.asked(place, 2.0) and not door.asked(place, 2.0) and not door.asked(place, 2.0)
    assert door.standing(one, lambda _: 10**9, 1000.0) == []
    assert not door.any


def test_a_later_connection_of_the_same_place_is_a_stranger_again() -> None:
    door, one = strangers(), places(1)
    (place,) = one
    door.let_in(place, 0.0)
    door.standing(one, nothing, 1.0)
    assert door.standing({place: 77}, nothing, 2.0) == [] and door.any
    assert door.standing({place: 77}, nothing, 13.0) == [place]


def test_standing_too_long_sending_too_much_and_asking_too_often_end_it() -> None:
    door, one = strangers(), places(1)
    (place,) = one
    assert door.standing(one, nothing, 0.0) == []
    assert door.standing(one, nothing, 10.0) == []
    assert door.standing(one, nothing, 10.1) == [place]
    assert strangers().standing(one, lambda _: 101, 0.0) == [place]
    door = strangers()
    assert [door.asked(place, 0.0) for _ in range(3)] == [False, False, True]
    assert door.standing(one, nothing, 0.0) == [place]


def test_no_more_of_one_address_and_of_all_and_those_refused_before_go_first() -> None:
    door = strangers()
    four = places(4)
    refused = list(four)[2]
    door.asked(refused, 0.0)
    assert door.standing(four, nothing, 0.0) == [refused]
    many = {place: 1 for address in "abcd" for place in places(2, address)}
    assert len(strangers().standing(many, nothing, 0.0)) == len(many) - LIMITS.strangers_max


def test_of_those_who_send_too_much_together_the_largest_go() -> None:
    sizes = dict(zip([("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)], (90, 80, 70, 60, 20), strict=True))
    assert strangers().standing(dict.fromkeys(sizes, 1), sizes.__getitem__, 0.0) == [("a", 1)]


@pytest.mark.parametrize(
    ("peer", "place"),
    [
        ("ipv4:10.0.0.1:50312", ("10.0.0.1", 50312)),
        ("ipv6:%5B::1%5D:50312", ("::1", 50312)),
        ("ipv6:[::ffff:10.0.0.1]:7", ("10.0.0.1", 7)),
        ("unix:/tmp/socket", None),
    ],
)
def test_grpcs_names_of_peers_are_understood(peer: str, place: Place | None) -> None:
    assert place_of(peer) == place
