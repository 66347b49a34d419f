"""Queues: each has a guaranteed part of the pool, and borrows unused devices of others by weight. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastane_scheduler.amounts import check_amount
from elastane_scheduler.errors import InvalidSettings
from elastane_scheduler.pool import Counts


@dataclass(frozen=True)
class Queue:
    """A queue of a pool. weight: its part of what is not guaranteed. guaranteed: devices it can have at any
    time.

    Raises InvalidSettings.
    """

    name: str
    weight: float = 1.0
    guaranteed: Counts = ()

    def __post_init__(self) -> None:
        check_amount(f"the weight of queue {self.name}", self.weight, positive=True)
        if any(count < 0 for count in self.guaranteed):
            raise InvalidSettings(f"queue {self.name} is guaranteed a negative number", hint="Count from 0.")


def check_guarantees(queues: Sequence[Queue], pool: Counts) -> None:
    """Refuse guarantees that the pool cannot keep together. Raises InvalidSettings."""
    for i, most in enumerate(pool):
        promised = sum(queue.guaranteed[i] for queue in queues if queue.guaranteed)
        if promised > most:
            raise InvalidSettings(
                f"{promised} devices of type {i} are guaranteed, and the pool has {most}",
                hint="Lower the guarantees.",
            )


def entitlements(
    queues: Sequence[Queue], demands: Mapping[str, Counts], offered: Counts
) -> dict[str, Counts]:
    """Return the devices of each queue, by name: what it wants of its guarantee, then the rest by weight.

    demands: the devices that the jobs of each queue can use. What a queue does not want is borrowed by the
    others. With less offered than is guaranteed, the queues that come first are served first.
    """
    shares: dict[str, list[int]] = {queue.name: [0] * len(offered) for queue in queues}
    for i, most in enumerate(offered):
        free = most
        for queue in queues:
            guaranteed = queue.guaranteed[i] if queue.guaranteed else 0
            taken = min(free, guaranteed, demands.get(queue.name, (0,) * len(offered))[i])
            shares[queue.name][i] += taken
            free -= taken
        _lend(queues, demands, shares, i, free)
    return {name: tuple(counts) for name, counts in shares.items()}


def _lend(
    queues: Sequence[Queue],
    demands: Mapping[str, Counts],
    shares: Mapping[str, list[int]],
    i: int,
    free: int,
) -> None:
    """Give one device after another to the queue with the fewest for its weight that can use more."""
    hungry = [queue for queue in queues if queue.name in demands]
    while free > 0:
        hungry = [queue for queue in hungry if shares[queue.name][i] < demands[queue.name][i]]
        if not hungry:
            return
        poorest = min(hungry, key=lambda queue: shares[queue.name][i] / queue.weight)
        shares[poorest.name][i] += 1
        free -= 1
