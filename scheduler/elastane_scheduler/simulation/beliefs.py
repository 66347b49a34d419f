"""A policy's knowledge of the steps left: exact, wrong, or none. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastane_scheduler.jobs import Job, JobState

#: A job of unknown length is believed to have at least this many seconds left at its best speed.
GUESS_SECONDS_MIN = 60.0


@dataclass
class Beliefs:
    """Builds the policies' view of jobs.

    sigma: remaining work is wrong by exp(sigma g), g normal, for each job anew. Of a job that has not said
    its steps it is believed that it has done half: it is ranked by the service that it has had.
    """

    sigma: float = 0.0
    seed: int = 0
    _factors: dict[str, float] = field(default_factory=dict)

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Draw the errors, in the order of the jobs."""
        if self.sigma:
            rng = random.Random(self.seed)
            self._factors = {job.name: math.exp(self.sigma * rng.gauss(0, 1)) for job in jobs}

    def see(self, state: JobState, now: float) -> JobState:
        """Return a policy's view."""
        if not state.job.known:
            left = state.remaining_at(now)
            guess = max(state.job.steps - left, self._least(state))
            return state.believed(guess + state.remaining - left)
        if self._factors:
            return state.believed(state.remaining * self._factors[state.name])
        return state

    @staticmethod
    def _least(state: JobState) -> float:
        step = state.shape.levels[0][0]
        return GUESS_SECONDS_MIN / step
