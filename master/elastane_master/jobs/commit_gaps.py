"""Time without a committed step around each ring change: the cost of losing a worker. Pure.

history (order of commits) --> take(committed, generation) --> costs(incidents)
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from elastane_proto.history.incidents import Incident

GAPS_MAX: Final = 2000
"""Changes of the ring that are remembered, the newest ones."""
STEPS_MAX: Final = 255
"""Steps before a change from which its usual step is computed."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Two consecutive commits of different rings. before, after: their generations. seconds: between them.

    usual_seconds: median time between commits before it; None if the ring before committed only one step.
    """

    before: int
    after: int
    seconds: float
    usual_seconds: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    """Time that an incident cost. shared: an earlier incident cost the same time, which counts once."""

    seconds: float
    shared: bool = False


@dataclass(slots=True)
class CommitGaps:
    """Accumulates the commits of one job, in bounded memory."""

    gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=GAPS_MAX))
    _steps: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_MAX))
    _last: tuple[float, int] | None = None

    def take(self, committed: float, generation: int) -> None:
        """Add the next commit. committed: seconds since the Unix epoch."""
        if self._last is not None:
            at, before = self._last
            seconds = max(committed - at, 0.0)
            if generation == before:
                self._steps.append(seconds)
            else:
                usual = statistics.median(self._steps) if self._steps else None
                self.gaps.append(Gap(before, generation, seconds, usual))
        self._last = committed, generation

    def costs(self, incidents: Iterable[Incident]) -> dict[int, Cost]:
        """Return what the losses of ring members cost, by the number of the incident's event.

        An incident is missing here if no ring trained before it, or none has committed a step after it.
        incidents: oldest first.
        """
        found: dict[int, Cost] = {}
        counted: set[int] = set()
        for one in incidents:
            gap = self._around(one.generation) if one.generation is not None else None
            if gap is not None:
                cost = max(gap.seconds - (gap.usual_seconds or 0.0), 0.0)
                found[one.sequence] = Cost(cost, shared=gap.after in counted)
                counted.add(gap.after)
        return found

    def _around(self, generation: int) -> Gap | None:
        """Return the gap that the end of a generation is in, whether or not it has committed a step."""
        return next((gap for gap in reversed(self.gaps) if gap.before <= generation < gap.after), None)
