"""Parser for hosts, their slots, classes and prices as printed by a discovery script: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from elastane_common.errors import RefusedError
from elastane_common.prices import price_micros

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\]")
SLOTS_MAX: Final = 1024

Capacity = Literal["", "spot", "on-demand"]
_CLASSES: Final[Mapping[str, Capacity]] = {"spot": "spot", "on-demand": "on-demand"}


class HostsFormatError(RefusedError):
    """The discovery script's output is no list of hosts."""

    code = "ELA408"


@dataclass(frozen=True)
class Slot:
    """A place for one process. index: from 0 on its host."""

    host: str
    index: int


@dataclass(frozen=True)
class HostOffer:
    """Offer of a host. capacity: "": not known. price_micros: of a worker per hour; 0: unknown."""

    slots: int = 1
    capacity: Capacity = ""
    price_micros: int = 0


def parse_hosts(text: str) -> dict[str, HostOffer]:
    """Parse lines "HOST[:SLOTS] [CLASS] [PRICE]" into offers by host, in their order; "#" begins a comment.

    A host named twice has the slots of both lines, which must not differ otherwise; one with 0 slots is
    omitted. Raises HostsFormatError.
    """
    hosts: dict[str, HostOffer] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, slots = _host_and_slots(words[0], number, line)
        capacity, price_micros = _class_and_price(words[1:], number, line)
        before = hosts.get(host, HostOffer(0, capacity, price_micros))
        if (before.capacity, before.price_micros) != (capacity, price_micros):
            raise HostsFormatError(
                f"line {number} gives {host} another class or price than a line before", line=number
            )
        if slots:
            hosts[host] = replace(before, slots=before.slots + slots)
    return hosts


def _host_and_slots(word: str, number: int, line: str) -> tuple[str, int]:
    host, colon, count = word.rpartition(":") if not word.endswith("]") else (word, "", "")
    if not colon:
        host, count = word, "1"
    # No leading "-": a host's name becomes an argument of ssh.
    if not _HOST.fullmatch(host) or not count.isdecimal() or int(count) > SLOTS_MAX:
        raise HostsFormatError(
            f"line {number} has no host: {line[:80]!r}",
            hint=f"each line must be HOST or HOST:SLOTS, with at most {SLOTS_MAX} slots, and may have a "
            "class and a price behind it",
            line=number,
        )
    return host, int(count)


def _class_and_price(words: Sequence[str], number: int, line: str) -> tuple[Capacity, int]:
    """Parse the fields after a host: a class, a price, both in this order, or nothing."""
    capacity: Capacity = ""
    rest = list(words)
    if rest and rest[0] in _CLASSES:
        capacity = _CLASSES[rest.pop(0)]
    if not rest:
        return capacity, 0
    try:
        [text] = rest
        price = price_micros(text)
    except ValueError:
        price = 0
    if not price:
        raise HostsFormatError(
            f"line {number} has neither a class nor a price behind the host: {line[:80]!r}",
            hint="the class is spot or on-demand, the price more than 0 per worker and hour, as 0.31; leave "
            "out what is not known",
            line=number,
        )
    return capacity, price
