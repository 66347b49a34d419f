"""Whether the ratios of a run are worse than the kept ones by more than noise. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One case, then and now. now: None when the case was not measured any more.

    worse: by which factor the ratio is worse; below 1, better.
    """

    benchmark: str
    case: str
    kept: float
    now: float | None
    worse: float
    noise: float

    @property
    def regression(self) -> bool:
        """Whether noise does not explain it."""
        return self.now is None or self.worse > self.noise


def compare(name: str, kept: dict[str, Any], now: dict[str, Any]) -> list[Comparison]:
    """The cases of one benchmark that have a ratio, in the kept order.

    kept, now: figures as `Report.as_dict` gives them. A case that is gone counts as a regression, unless one
    of the two is the quick form and the other is not: they may measure different cases.
    """
    fresh = {row["case"]: row for row in now["rows"]}
    alike = kept["quick"] == now["quick"]
    found = []
    for row in kept["rows"]:
        case, before = row["case"], row["ratio"]
        if before is None:
            continue
        after = fresh[case]["ratio"] if case in fresh else None
        if after is None:
            if alike:
                found.append(Comparison(name, case, before, None, float("inf"), row["noise"]))
            continue
        worse = before / after if row["better"] == "higher" else after / before
        if row["slack"] and _within_slack(fresh[case]):
            worse = min(worse, 1.0)
        found.append(Comparison(name, case, before, after, worse, row["noise"]))
    return found


def least_worse(first: Sequence[Comparison], second: Sequence[Comparison]) -> list[Comparison]:
    """Of two measurements of the same cases the better one of each, in the order of `first`.

    A busy moment of the machine makes a ratio worse in one of them; what the code makes worse is so in both.
    second: may lack cases that were not measured again.
    """
    again = {(one.benchmark, one.case): one for one in second}
    found = []
    for one in first:
        other = again.get((one.benchmark, one.case))
        better = other is not None and other.now is not None and (one.now is None or other.worse < one.worse)
        found.append(other if better and other is not None else one)
    return found


def _within_slack(row: dict[str, Any]) -> bool:
    """Ours is worse than the peer's by less than what is allowed whatever the ratio."""
    return bool(row["met"])
