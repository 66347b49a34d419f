"""Least attained service, in two queues: jobs that have had little service go first (Tiresias). Pure."""

from __future__ import annotations

import math

from elastane_scheduler.policies.whole import all_requests, whole_in_order
from elastane_scheduler.view import Decision, View

#: Device-seconds after which a job goes to the second queue.
THRESHOLD_DEVICE_SECONDS = 3_200.0
_SLACK = 1e-6


class LeastAttainedService:
    """Needs no knowledge of how long jobs are. Within a queue the oldest go first."""

    name = "las"

    def decide(self, view: View) -> Decision:
        """Give each job its request or nothing; decide again when a running job changes its queue."""
        second = [state.service_at(view.now) >= THRESHOLD_DEVICE_SECONDS - _SLACK for state in view.jobs]
        allocation = all_requests(view)
        if allocation is None:
            order = sorted(range(len(second)), key=lambda i: (second[i], i))
            allocation = whole_in_order(view, order)
        wake = math.inf
        for state, devices, late in zip(view.jobs, allocation, second, strict=True):
            if not late and any(devices):
                left = THRESHOLD_DEVICE_SECONDS - state.service_at(view.now)
                wake = min(wake, view.now + left / sum(devices))
        return Decision(allocation, wake, "least service attained first")
