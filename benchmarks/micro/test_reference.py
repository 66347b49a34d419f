"""The reference for the other micro-benchmarks: a fixed amount of plain Python work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Entry:
    """An object that the reference work looks up and changes."""

    index: int
    count: int = 0


def work() -> int:
    """Do a thousand look-ups, attribute writes, calls and additions."""
    entries = {f"w{index}": Entry(index) for index in range(100)}
    total = 0
    for turn in range(1000):
        entry = entries[f"w{turn % 100}"]
        entry.count += turn
        total += entry.count - entry.index
    return total


def test_reference(benchmark: Any) -> None:
    """Time the reference work: ratios to it can be compared between machines."""
    assert benchmark(work) == sum(
        (sum(range(turn % 100, turn + 1, 100)) - turn % 100) for turn in range(1000)
    )
