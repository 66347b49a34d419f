"""Compares the ratios of a run with the kept ones, allowing for noise. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """One case before and now. kept, now: ratios; now is None if the case was not measured.

    worse: factor by which the ratio is worse; below 1: better. noise: factor that is tolerated.
    """

    benchmark: str
    case: str
    kept: float
    now: float | None
    worse: float
    noise: float

    @property
    def regression(self) -> bool:
        """True if the case is missing, or worse by more than noise explains."""
        return self.now is None or self.worse > self.noise


def compare(name: str, kept: dict[str, Any], now: dict[str, Any]) -> list[Comparison]:
    """Compare the cases of one benchmark that have a ratio, in the kept order.

    kept, now: figures as returned by `Report.as_dict`. A missing case counts as a regression, unless only one
    of the two is the quick form, since the forms may measure different cases.
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
    """Return the better of two measurements of each case, in the order of `first`.

    Other load on the machine makes a ratio worse in one of them, a regression of the code in both.
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
    """True if the case meets its target, which includes an absolute slack."""
    return bool(row["met"])
