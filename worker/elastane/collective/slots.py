"""Memory of a worker's gradients in one generation and layout: a slot for each EST, and the sums.

    slots.views[slot][index]   the scaled gradient of parameter `index` of the worker's slot-th EST
    slots.averages[index]      its sum over all N ESTs, after the all-reduce

Both are views of the flat vectors that `CanonicalAllreduce` works on, placed as in DDP's buckets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from elastane.collective.allreduce import CanonicalAllreduce, Memory
from elastane.collective.buckets import Bucket
from elastane.collective.order import Ranges
from elastane.collective.shared_members import SharedMembers
from elastane.collective.shared_memory import own_arena

#: Gradients smaller than this on average are copied together and scaled at once: the calls for each one would
#: cost more than a second pass over memory that is still in the cache.
GATHERED_ELEMENTS_MAX: Final = 1 << 15

#: Reusable memory blocks, by (elements, dtype, device, whether others may read it).
Pool = dict[tuple[int, torch.dtype, torch.device, bool], list[Tensor]]


@dataclass(slots=True)
class Slots:
    """The memory of one generation and layout; indices are the parameters'."""

    layout: list[Bucket]
    plans: list[CanonicalAllreduce]
    views: list[list[Tensor]]
    averages: list[Tensor]
    bucket_of: list[int]
    #: By bucket: its gradients are small, and copied all at once when the last has arrived.
    gathered: list[bool]
    #: The same by parameter: its bucket if that is gathered, else None.
    waits_in: list[int | None]
    #: Version of each bucket's sums when gradients were last taken or shown; shows later writes to p.grad.
    #: Empty: unknown, in new memory.
    versions: list[int] = field(default_factory=list)

    def recycled(self, *, sums: bool) -> Pool:
        """Return the memory for reuse; without the sums while the script's p.grad shows them."""
        pool: Pool = defaultdict(list)
        arena = own_arena()
        for plan in self.plans:
            for block in plan.blocks if sums else plan.blocks[:-1]:
                shared = arena is not None and arena.offset_of(block) is not None
                pool[block.numel(), block.dtype, block.device, shared].append(block)
        return pool

    def settle(self) -> None:
        """Wait until the slots may be written to again. Raises RingAborted or RingBroken."""
        for plan in self.plans:
            plan.settle()

    @property
    def sums(self) -> list[Tensor]:
        """Memory of each bucket's sums."""
        return [plan.blocks[-1] for plan in self.plans]

    @property
    def sum_versions(self) -> list[int]:
        """Version counter of each bucket's sums."""
        return [plan.out._version for plan in self.plans]

    def note_versions(self) -> None:
        """Record the current version counters."""
        self.versions = self.sum_versions

    def writes(self, bucket: int) -> int:
        """Return the number of writes to a bucket's sums (the script's p.grad) since `note_versions`."""
        return self.plans[bucket].out._version - self.versions[bucket]


def allocate(
    layout: list[Bucket],
    ranges: Ranges,
    me: int,
    parameters: int,
    pool: Pool,
    members: SharedMembers | None = None,
    sums: Sequence[Tensor] | None = None,
) -> Slots:
    """Allocate slots and sums for a layout.

    ranges: ESTs of each member; me: this member's index; pool: memory to reuse; members: given if they share
    memory. sums: memory of the sums of the same layout, which keep their place, and with it their contents,
    where their length does not depend on the ring.
    """
    plans = [
        CanonicalAllreduce(
            bucket.elements,
            bucket.dtype,
            ranges,
            me,
            _memory(pool, bucket, members),
            members=members if bucket.device.type == "cpu" else None,
            sums=None if sums is None else sums[number],
        )
        for number, bucket in enumerate(layout)
    ]
    start, end = ranges[me]
    by_slot: list[dict[int, Tensor]] = [{} for _ in range(end - start)]
    averages: dict[int, Tensor] = {}
    bucket_of = [0] * parameters
    for number, (bucket, plan) in enumerate(zip(layout, plans, strict=True)):
        for views, slot in zip(by_slot, plan.slots, strict=True):
            views.update(bucket.views(slot))
        averages.update(bucket.views(plan.out))
        for place in bucket.places:
            bucket_of[place.index] = number
    gathered = [_is_gathered(bucket) for bucket in layout]
    return Slots(
        layout,
        plans,
        [_in_order(views, parameters) for views in by_slot],
        _in_order(averages, parameters),
        bucket_of,
        gathered,
        [bucket if gathered[bucket] else None for bucket in bucket_of],
    )


def provide(layout: list[Bucket], ests: int, members: SharedMembers | None) -> Pool:
    """Return memory for the slots of so many ESTs in a ring to come, already touched: pages are in place.

    members: given if they share memory.
    """
    pool: Pool = defaultdict(list)
    for bucket in layout:
        shared = members is not None and bucket.device.type == "cpu"
        take = _memory({}, bucket, members)
        blocks = [take(bucket.elements, shared=shared).zero_() for _ in range(ests)]
        pool[bucket.elements, bucket.dtype, bucket.device, shared] += blocks
    return pool


def _is_gathered(bucket: Bucket) -> bool:
    # NaNs of the narrow types get other bits when scaled in place than when scaled into other memory.
    exact = bucket.dtype in (torch.float32, torch.float64)
    return exact and bucket.elements < GATHERED_ELEMENTS_MAX * len(bucket.places)


def _in_order(views: dict[int, Tensor], parameters: int) -> list[Tensor]:
    return [views[index] for index in range(parameters)]


def _memory(pool: Pool, bucket: Bucket, members: SharedMembers | None) -> Memory:
    def take(elements: int, *, shared: bool = False) -> Tensor:
        fitting = pool.get((elements, bucket.dtype, bucket.device, shared))
        if fitting:
            return fitting.pop()
        if shared:
            assert members is not None
            return members.own.empty(elements, bucket.dtype)
        return torch.empty(elements, dtype=bucket.dtype, device=bucket.device)

    return take
