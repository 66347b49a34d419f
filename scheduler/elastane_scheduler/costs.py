"""Time that changes of devices cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings


@dataclass(frozen=True)
class Costs:
    """Seconds that changes take; InvalidSettings for amounts out of range.

    start_seconds: from a worker's start until it can join. stall_seconds: how long those who train wait at a
    change. restore_seconds: save and load when a job has lost all of its devices.
    """

    start_seconds: float = 2.0
    stall_seconds: float = 0.5
    restore_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name in ("start", "stall", "restore"):
            check_amount(f"the cost {name}", getattr(self, f"{name}_seconds"))


def parse_costs(text: str) -> Costs:
    """Read `2,0.5,1` or `start=2,stall=0.5,restore=1`. Raises InvalidSettings."""
    names = ("start", "stall", "restore")
    given: dict[str, float] = {}
    for place, part in enumerate(text.split(",")):
        name, equals, value = part.strip().rpartition("=")
        name = name if equals else (names[place] if place < len(names) else "")
        if name not in names or name in given:
            raise InvalidSettings(
                f"{part.strip()!r} is not a cost", hint="Write start=2,stall=0.5,restore=1."
            )
        try:
            given[name] = float(value)
        except ValueError:
            raise InvalidSettings(f"the cost {name} is {value!r}", hint="Give seconds.") from None
    if len(given) != len(names):
        raise InvalidSettings(f"{text!r} lacks a cost", hint="Write start=2,stall=0.5,restore=1.")
    return Costs(given["start"], given["stall"], given["restore"])
