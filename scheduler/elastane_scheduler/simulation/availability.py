"""Traces of spot availability: the number of available machines of a type, at regular intervals. Pure.

The form is that of the public spot traces: JSON with `metadata.gap_seconds` and `data`.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings, InvalidTrace

#: Ticks and nodes above these are mistakes: a year has 105,120 ticks of five minutes.
TICKS_MAX = 10_000_000
NODES_MAX = 1_000_000
_STAYS = {"there": 0.97, "away": 0.9, "some": 0.6}
"""Probability that a state of the generator lasts for another tick."""


@dataclass(frozen=True)
class Availability:
    """nodes: that could be had from each tick on, gap_seconds apart; after the last there are none."""

    gap_seconds: float
    nodes: tuple[int, ...]

    def at_tick(self, tick: int) -> int:
        """Return the nodes that could be had from a tick on."""
        return self.nodes[tick] if 0 <= tick < len(self.nodes) else 0


def read_availability(text: str, gap_seconds: float | None = None) -> Availability:
    """Read a trace; gap_seconds replaces its own. Raises InvalidTrace."""
    try:
        document = json.loads(text)
        gap = float(document["metadata"]["gap_seconds"]) if gap_seconds is None else gap_seconds
        nodes = tuple(int(value) for value in document["data"])
    except json.JSONDecodeError as error:
        raise InvalidTrace(f"not JSON: {error.msg}", line=error.lineno) from None
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise InvalidTrace(
            "no trace of availability",
            line=1,
            hint='It has {"metadata": {"gap_seconds": 300}, "data": [16, 15]}.',
        ) from None
    if not nodes or min(nodes) < 0 or not (math.isfinite(gap) and gap > 0):
        raise InvalidTrace("no ticks, a negative count, or a gap that is not above 0", line=1)
    if len(nodes) > TICKS_MAX or max(nodes) > NODES_MAX:
        raise InvalidTrace(f"more than {TICKS_MAX} ticks or {NODES_MAX} nodes", line=1)
    return Availability(gap, nodes)


def generate_availability(nodes: int, ticks: int, seed: int, gap_seconds: float = 300.0) -> Availability:
    """Return a generated trace: all nodes are available for hours, none or some for minutes to hours.

    The same for the same seed. Raises InvalidSettings.
    """
    check_amount("the time between ticks", gap_seconds, positive=True)
    if not 0 <= nodes <= NODES_MAX or not 1 <= ticks <= TICKS_MAX:
        raise InvalidSettings(
            f"{nodes} nodes for {ticks} ticks", hint="Give 0 nodes or more, and 1 tick or more."
        )
    rng = random.Random(seed)
    state, here = "there", nodes
    found = []
    for _ in range(ticks):
        if rng.random() >= _STAYS[state]:
            state = rng.choice(("there", "away", "some"))
            here = {"there": nodes, "away": 0, "some": rng.randint(0, nodes)}[state]
        found.append(here)
    return Availability(gap_seconds, tuple(found))
