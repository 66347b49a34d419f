"""A policy for each queue, over the queue's current part of the pool. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from elastane_scheduler.pool import Counts
from elastane_scheduler.queues import Queue, check_guarantees, entitlements
from elastane_scheduler.view import Decision, Policy, View


class QueuedPolicy:
    """Divides the pool among queues, and uses a separate policy for each part.

    Guaranteed devices go back to their queue at the first decision in which its jobs can use them. Jobs of
    queues that are not named form queues of weight 1 without a guarantee, in the order in which they appear.
    """

    def __init__(self, queues: Sequence[Queue], make: Callable[[], Policy], pool: Counts) -> None:
        """Raises InvalidSettings for guarantees that the pool cannot keep."""
        check_guarantees(queues, pool)
        self._queues = tuple(queues)
        self._policy = ByQueuePolicy(make)
        self.name = self._policy.name

    def decide(self, view: View) -> Decision:
        """Return devices for each job, within its queue's part."""
        return self._policy.decide(replace(view, queues=self._queues), queued=True)


class ByQueuePolicy:
    """The same for the queues of each view, whose guarantees may exceed what the pool has now.

    Those that come first are then served first. Where the view has no queues, one policy shares all out.
    """

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._alone = make()
        self._policies: dict[str, Policy] = {}
        self.name = self._alone.name

    def decide(self, view: View, *, queued: bool = False) -> Decision:
        """Return devices for each job, within its queue's part. queued: also without named queues."""
        if not view.queues and not queued:
            return self._alone.decide(view)
        members: dict[str, list[int]] = {}
        for index, state in enumerate(view.jobs):
            members.setdefault(state.job.queue, []).append(index)
        known = {queue.name for queue in view.queues}
        queues = [*view.queues, *(Queue(name) for name in members if name not in known)]
        self._policies = {name: self._policies.get(name) or self._make() for name in members}
        return self._share_out(view, members, queues)

    def _share_out(self, view: View, members: Mapping[str, list[int]], queues: Sequence[Queue]) -> Decision:
        demands = {name: _demand(view, indices) for name, indices in members.items()}
        parts = entitlements(queues, demands, view.offered)
        allocation = [(0,) * len(view.offered)] * len(view.jobs)
        wake = math.inf
        choices: list[str] = []
        rejected: list[str] = []
        for name, indices in members.items():
            jobs = [view.jobs[index] for index in indices]
            decision = self._policies[name].decide(replace(view, jobs=jobs, offered=parts[name]))
            for index, devices in zip(indices, decision.allocation, strict=True):
                allocation[index] = devices
            wake = min(wake, decision.wake_seconds)
            choices.append(f"queue {name} has {view.pool.describe(parts[name])}: {decision.choice}")
            rejected += [f"queue {name}, {text}" for text in decision.rejected]
        return Decision(allocation, wake, "; ".join(choices) or "no jobs", tuple(rejected))


def _demand(view: View, indices: Sequence[int]) -> Counts:
    """Return the devices of each type that a queue's jobs can use, at most those offered."""
    wanted = [0] * len(view.offered)
    for index in indices:
        shape = view.jobs[index].shape
        for i in shape.usable:
            wanted[i] += min(shape.ests, shape.workers_max or shape.ests)
    return tuple(min(most, count) for most, count in zip(view.offered, wanted, strict=True))
