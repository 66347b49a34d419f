"""A policy for each priority: jobs of a higher priority are served first, others share the rest. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from elastane_scheduler.policies.giving import less, total
from elastane_scheduler.view import Decision, Policy, View


class PrioritizedPolicy:
    """Uses a separate policy for the jobs of each priority, the highest first."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._policies: dict[int, Policy] = {}
        self.name = make().name

    def decide(self, view: View) -> Decision:
        """Return devices for each job."""
        bands: dict[int, list[int]] = {}
        for index, state in enumerate(view.jobs):
            bands.setdefault(state.job.priority, []).append(index)
        self._policies = {priority: self._policies.get(priority) or self._make() for priority in bands}
        none = (0,) * len(view.offered)
        allocation, free = [none] * len(view.jobs), view.offered
        wake = math.inf
        choices: list[str] = []
        rejected: list[str] = []
        for priority in sorted(bands, reverse=True):
            jobs = [view.jobs[index] for index in bands[priority]]
            decision = self._policies[priority].decide(replace(view, jobs=jobs, offered=free))
            for index, devices in zip(bands[priority], decision.allocation, strict=True):
                allocation[index] = devices
            free = less(free, total(decision.allocation, len(none)))
            wake = min(wake, decision.wake_seconds)
            named = f"priority {priority}: " if len(bands) > 1 else ""
            choices.append(named + decision.choice)
            rejected += [named + text for text in decision.rejected]
        return Decision(allocation, wake, "; ".join(choices) or "no jobs", tuple(rejected))
