"""Bandwidth between devices when only some links were measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

UNKNOWN_BYTES_PER_SECOND = 1.25e9
"""Assumed where nothing like it was measured: 10 Gbit/s."""
STEPS_PER_DECADE = 10
"""Links count as alike within a tenth of a decade, 26 %: measured bandwidth varies, and a plan must not."""


def bandwidth_matrix(
    hosts: Sequence[str], measured: Mapping[tuple[str, str], float], *, exact: bool = True
) -> tuple[tuple[float, ...], ...]:
    """Return `Cluster.bandwidth` of devices on these hosts. measured: bytes per second by (source, target).

    An unmeasured link gets the bandwidth of the opposite direction; without that, the median of the links of
    its kind, between hosts or within one, or `UNKNOWN_BYTES_PER_SECOND` if none of these was measured.
    Impossible values (0, negative, NaN, infinite) count as not measured. exact: False: measured links are
    rounded to `STEPS_PER_DECADE`.
    """
    known = {
        ends: value if exact else rounded(value) for ends, value in measured.items() if is_bandwidth(value)
    }
    usual = {
        within: median(values)
        for within in (True, False)
        if (values := [value for (source, target), value in known.items() if (source == target) == within])
    }

    def link(source: str, target: str) -> float:
        found = known.get((source, target), known.get((target, source)))
        return usual.get(source == target, UNKNOWN_BYTES_PER_SECOND) if found is None else found

    return tuple(tuple(link(source, target) for target in hosts) for source in hosts)


def is_bandwidth(value: float) -> bool:
    """True for a possible bandwidth in bytes per second."""
    return math.isfinite(value) and 1.0 <= value <= 1e15


def rounded(value: float) -> float:
    """Return a measured bandwidth rounded for planning."""
    return float(10.0 ** (round(STEPS_PER_DECADE * math.log10(value)) / STEPS_PER_DECADE))
