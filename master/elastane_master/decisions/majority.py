"""Comparison of workers' values: finds the odd one out and describes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

CURE = (
    "A Python variable that lives across epochs, which a worker that joins later does not have, belongs in"
    " job.carry(...); what only the leader changes belongs behind the training; if neither is so, look at the"
    " hardware"
)
"""Advice on the usual causes of differences between workers."""


def odd_ones_out(found: Mapping[str, Hashable]) -> list[str]:
    """Workers whose value is not that of the majority; all of them if there is no majority."""
    counts = Counter(found.values())
    if len(counts) < 2:
        return []
    value, count = counts.most_common(1)[0]
    if 2 * count <= len(found):
        return sorted(found)
    return sorted(worker for worker, own in found.items() if own != value)


def in_words(odd: list[str], everybody: list[str]) -> str:
    """Describe who differs from whom."""
    others = sorted(worker for worker in everybody if worker not in odd)
    verb = "holds" if len(odd) == 1 else "hold"
    if others:
        return f"{' and '.join(odd)} {verb} other state than {', '.join(others)}"
    return f"{' and '.join(odd)} {verb} different state"
