"""Where masters are: lists, names with several addresses, who is asked next."""

from __future__ import annotations

import pytest

from elastane_common.addresses import AddressBook, look_up, parse_addresses


@pytest.mark.parametrize("text", ["m:1", "m:1,n:2", " m:1 , [::1]:2 ,", "10.0.0.1:65535"])
def test_good_addresses(text: str) -> None:
    assert parse_addresses(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no address"), (" , ", "no address"), ("m", "HOST:PORT"), (":1", "HOST:PORT"),
     ("m:x", "1 to 65535"),
     ("m:0", "1 to 65535"), ("m:70000", "1 to 65535"), ("m:1,n", "HOST:PORT")],
)  # fmt: skip
def test_bad_addresses_say_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_addresses(text)


def test_each_failure_goes_on_to_the_next_and_round() -> None:
    book = AddressBook("10.0.0.1:1,10.0.0.2:1")
    seen = []
    for _ in range(4):
        seen.append(book.current())
        book.failed(seen[-1])
    assert seen == ["10.0.0.1:1", "10.0.0.2:1"] * 2


def test_two_threads_that_fail_at_one_address_move_on_once() -> None:
    book = AddressBook("10.0.0.1:1,10.0.0.2:1,10.0.0.3:1")
    book.failed("10.0.0.1:1")
    book.failed("10.0.0.1:1")
    assert book.current() == "10.0.0.2:1"


def test_the_leader_is_asked_next_if_it_is_one_of_ours() -> None:
    book = AddressBook("10.0.0.1:1,10.0.0.2:1,10.0.0.3:1")
    book.failed("10.0.0.1:1", "10.0.0.3:1")
    assert book.current() == "10.0.0.3:1"
    book.failed("10.0.0.3:1", "6.6.6.6:1")
    assert book.current() == "10.0.0.1:1"


def test_a_name_with_several_addresses_stands_for_each_and_is_looked_up_again() -> None:
    answers = [["10.0.0.1:5", "10.0.0.2:5"], ["10.0.0.2:5", "10.0.0.3:5"]]
    asked = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return answers[min(len(asked), 2) - 1]

    book = AddressBook("masters.svc:5", resolve)
    assert book.all() == ["10.0.0.1:5", "10.0.0.2:5"]
    assert book.name_of("10.0.0.2:5") == "masters.svc"
    book.failed("10.0.0.1:5")
    book.failed("10.0.0.2:5")  # a whole round: the first one may be another by now
    assert book.all() == ["10.0.0.2:5", "10.0.0.3:5"]
    assert asked == [("masters.svc", 5)] * 2


def test_a_name_with_one_address_or_none_stays_a_name() -> None:
    assert AddressBook("m:5", lambda host, port: ["10.0.0.1:5"]).current() == "m:5"
    assert AddressBook("m:5", lambda host, port: []).current() == "m:5"
    assert AddressBook("m:5", lambda host, port: []).name_of("m:5") == "m"


def test_real_names_are_looked_up() -> None:
    assert "127.0.0.1:7" in look_up("localhost", 7)
    assert look_up("no-such-host.invalid", 7) == []
