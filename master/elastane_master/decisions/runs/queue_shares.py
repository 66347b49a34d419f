"""Queues of the training service: parts of its slots, by owner. Pure.

A queue has a weight, guaranteed slots, and the runs of some owners. Guaranteed slots that its runs do not use
are borrowed by others, and returned at the first decision of the scheduling policy in which its runs can use
them. Minimums of running runs (`instances_min`, black boxes) are never taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from elastane_master.decisions.runs.allocation import Instances, Target
from elastane_master.decisions.runs.run import Run
from elastane_master.decisions.runs.runner import Runner

DEFAULT_QUEUE = "default"
"""Queue of runs whose owner is in no queue: weight 1 and no guarantee, unless it is configured."""


class QueueShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One queue. weight: its relative share of slots that are not guaranteed. owners: patterns.

    guaranteed: slots by device type; names are patterns, and the first that matches a type counts.
    """

    name: str
    weight: float = 1.0
    guaranteed: dict[str, int] = {}
    owners: tuple[str, ...] = ()

    def guaranteed_of(self, device_type: str) -> int:
        """Return the slots of a device type that are guaranteed."""
        return next((slots for name, slots in self.guaranteed.items() if fnmatchcase(device_type, name)), 0)


class QueueUse(msgspec.Struct, frozen=True):
    """Current use of a queue. slots_used: by device type. running, waiting: numbers of runs."""

    share: QueueShare
    slots_used: dict[str, int]
    running: int
    waiting: int


def queue_of(queues: Iterable[QueueShare], owner: str) -> str:
    """Return the queue of an owner's runs: the first that names it."""
    for queue in queues:
        if any(fnmatchcase(owner, pattern) for pattern in queue.owners):
            return queue.name
    return DEFAULT_QUEUE


def slots_held(
    queues: Sequence[QueueShare], runs: Iterable[Run], runners: Mapping[str, Runner]
) -> Counter[tuple[str, str]]:
    """Return the slots that these runs hold, by queue and device type."""
    held: Counter[tuple[str, str]] = Counter()
    for run in runs:
        name = queue_of(queues, run.owner)
        for record in run.ranks:
            if record.placed and record.runner_id in runners:
                held[name, runners[record.runner_id].computes_on] += run.demand.slots_per_instance
    return held


def guarantee_is_due(
    queues: Sequence[QueueShare],
    runs: Mapping[int, Run],
    runners: Mapping[str, Runner],
    wanted: Mapping[int, Instances],
) -> bool:
    """True if a queue has less than its guarantee and could use more. wanted: instances by run."""
    guaranteed = {queue.name: queue for queue in queues if queue.guaranteed}
    if not guaranteed:
        return False
    held = slots_held(queues, (run for run in runs.values() if run.launch is not None), runners)
    should: Counter[tuple[str, str]] = Counter()
    for run_id, instances in wanted.items():
        name, each = queue_of(queues, runs[run_id].owner), runs[run_id].demand.slots_per_instance
        should.update({(name, kind): count * each for kind, count in instances.items()})
    return any(
        held[name, kind] < min(count, guaranteed[name].guaranteed_of(kind))
        for (name, kind), count in should.items()
        if name in guaranteed
    )


def guaranteed_first(
    queues: Sequence[QueueShare], runs: Mapping[int, Run], wanted: Sequence[Target]
) -> list[Target]:
    """Return the targets in order, with those within their queues' guarantees first.

    Policies do not know the minimums of running runs. If these exceed their queue's share, other queues get
    less, but never less than their guarantees.
    """
    guaranteed = {queue.name: queue for queue in queues if queue.guaranteed}
    if not guaranteed:
        return list(wanted)
    given: Counter[tuple[str, str]] = Counter()
    first: list[Target] = []
    others: list[Target] = []
    for target in wanted:
        run = runs.get(target.run_id)
        queue = guaranteed.get(queue_of(queues, run.owner)) if run is not None else None
        if run is None or queue is None or not target.instances:
            others.append(target)
            continue
        slots = {kind: max(0, n) * run.demand.slots_per_instance for kind, n in target.instances.items()}
        if all(given[queue.name, kind] + n <= queue.guaranteed_of(kind) for kind, n in slots.items()):
            given.update({(queue.name, kind): n for kind, n in slots.items()})
            first.append(target)
        else:
            others.append(target)
    return [*first, *others]


def uses(
    queues: Sequence[QueueShare], runs: Iterable[Run], runners: Mapping[str, Runner]
) -> tuple[QueueUse, ...]:
    """Return the current use of each queue, in order; () without queues.

    The default queue comes last, if it is not configured and has runs.
    """
    if not queues:
        return ()
    alive = [run for run in runs if not run.over]
    held = slots_held(queues, alive, runners)
    running = Counter(queue_of(queues, run.owner) for run in alive if run.launch is not None)
    waiting = Counter(queue_of(queues, run.owner) for run in alive if run.launch is None)
    shown = list(queues)
    if (
        all(queue.name != DEFAULT_QUEUE for queue in queues)
        and running[DEFAULT_QUEUE] + waiting[DEFAULT_QUEUE]
    ):
        shown.append(QueueShare(DEFAULT_QUEUE))
    return tuple(
        QueueUse(
            queue,
            {kind: slots for (name, kind), slots in sorted(held.items()) if name == queue.name},
            running[queue.name],
            waiting[queue.name],
        )
        for queue in shown
    )
