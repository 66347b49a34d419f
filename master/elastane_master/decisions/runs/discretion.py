"""Hides other owners' runs from a caller: it learns that there are some, but not which. Pure.

Reasons name runs (`run 3`, `runs 3, 4 and 5`) whose turn comes first or whose slots are awaited. Numbers of
runs that the caller may not see are removed when such a text leaves the master; the store keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from elastane_master.decisions.runs.allocation import RunDecision
from elastane_master.decisions.runs.forecast import Forecast
from elastane_master.decisions.runs.run import Run

Covers = Callable[[str], bool]
"""Whether the caller may see runs of an owner."""


def everything(owner: str) -> bool:
    """A caller who may see all runs."""
    return True


_RUNS = re.compile(r"\bruns? (\d+(?:, \d+)*(?: and \d+)?)")


class Discretion:
    """One caller's view of runs. runs: all of them; a deleted run is visible to callers who may see all."""

    def __init__(self, runs: Mapping[int, Run], covers: Covers) -> None:
        self._runs, self._covers = runs, covers

    def sees(self, run_id: int) -> bool:
        """True if the caller may see this run."""
        run = self._runs.get(run_id)
        return self._covers(run.owner if run is not None else "")

    def text(self, text: str) -> str:
        """Return a text without numbers of runs that the caller may not see."""
        return _RUNS.sub(self._replaced, text)

    def decision(self, decision: RunDecision) -> RunDecision:
        """Return a decision whose texts are for the caller."""
        return msgspec.structs.replace(
            decision,
            choice=self.text(decision.choice),
            rejected=tuple(map(self.text, decision.rejected)),
            reason=self.text(decision.reason),
        )

    def forecast(self, forecast: Forecast) -> Forecast:
        """Return a forecast with those holders alone that the caller may see."""
        holders = tuple(holder for holder in forecast.holders if self.sees(holder.run_id))
        return msgspec.structs.replace(forecast, holders=holders, reason=self.text(forecast.reason))

    def _replaced(self, match: re.Match[str]) -> str:
        numbers = re.findall(r"\d+", match[1])
        seen = [number for number in numbers if self.sees(int(number))]
        hidden = len(numbers) - len(seen)
        if not hidden:
            return match[0]
        if not seen:
            return "another run" if hidden == 1 else f"{hidden} other runs"
        others = "1 other" if hidden == 1 else f"{hidden} others"
        return f"{'runs' if len(seen) > 1 else 'run'} {', '.join(seen)} and {others}"
