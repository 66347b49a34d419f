"""Devices that come and go: how many devices of a pool are offered at which time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastane_scheduler.pool import Counts, Pool
from elastane_scheduler.simulation.availability import read_availability


@dataclass(frozen=True)
class Offers:
    """Devices offered from each time on; ascending times, the first is 0."""

    changes: tuple[tuple[float, Counts], ...]

    def at(self, now: float) -> Counts:
        """Return what is offered at `now`."""
        found = self.changes[0][1]
        for start, counts in self.changes:
            if start > now:
                break
            found = counts
        return found


def steady(pool: Pool) -> Offers:
    """Return an offer of the whole pool for ever."""
    return Offers(((0.0, pool.counts),))


def read_reclaims(
    text: str, pool: Pool, device_type: str, tick_seconds: float | None = None, offset: int = 0
) -> Offers:
    """Read a trace of spot availability: JSON with `metadata.gap_seconds` and `data`, nodes there at each
    tick.

    Of the pool's devices of one type as many are spot as the trace has nodes at most; each that is not there
    is missing. tick_seconds replaces the trace's own; offset: ticks left out at the beginning. The trace is
    played once, its last value stays. Raises InvalidTrace, InvalidSettings.
    """
    index = pool.index(device_type)
    trace = read_availability(text, tick_seconds)
    gap, data = trace.gap_seconds, trace.nodes
    most = max(data)
    changes: list[tuple[float, Counts]] = []
    for tick, nodes in enumerate(_from(data, offset)):
        counts = tuple(
            max(0, count - (most - nodes)) if i == index else count for i, count in enumerate(pool.counts)
        )
        if not changes or changes[-1][1] != counts:
            changes.append((tick * gap, counts))
    return Offers(tuple(changes))


def _from(data: Sequence[int], offset: int) -> Sequence[int]:
    return data[offset % len(data) :] or data
