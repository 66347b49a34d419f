"""Where a worker's gradients lie in one generation and layout: a slot for each EST, and the sums.

    slots.views[slot][index]   the scaled gradient of parameter `index` of the worker's slot-th EST
    slots.averages[index]      its sum over all N ESTs, after the all-reduce

Both are views of the flat vectors that `CanonicalAllreduce` works on, placed as in DDP's buckets.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from elastane.collective.allreduce import CanonicalAllreduce, Memory
from elastane.collective.buckets import Bucket
from elastane.collective.order import Ranges
from elastane.collective.shared_members import SharedMembers
from elastane.collective.shared_memory import own_arena

#: Gradients of fewer elements on average are copied together and then scaled as one: each on its own costs
#: more in calls than a second pass over memory that is still in the cache.
GATHERED_ELEMENTS_MAX: Final = 1 << 15

#: Blocks of memory that may be used again, by (elements, dtype, device, whether others may read it).
Pool = dict[tuple[int, torch.dtype, torch.device, bool], list[Tensor]]


@dataclass(slots=True)
class Slots:
    """The memory of one generation and layout; indices are the parameters'."""

    layout: list[Bucket]
    plans: list[CanonicalAllreduce]
    views: list[list[Tensor]]
    averages: list[Tensor]
    bucket_of: list[int]
    #: By bucket: its gradients are small, and put into it all at once when the last is in.
    gathered: list[bool]
    #: Version of each bucket's sums when the last gradients were taken or shown: tells who has written to
    #: p.grad since. Empty: not known, in memory that is new.
    versions: list[int] = field(default_factory=list)

    def recycled(self, *, sums: bool) -> Pool:
        """The memory, to be used again; without the sums while the script's p.grad shows them."""
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
    def sum_versions(self) -> list[int]:
        """How often each bucket's sums have been written to."""
        return [plan.out._version for plan in self.plans]

    def note_versions(self) -> None:
        """Take down how often the sums were written to until now."""
        self.versions = self.sum_versions

    def writes(self, bucket: int) -> int:
        """How often a bucket's sums (p.grad, for the script) were written to since `note_versions`."""
        return self.plans[bucket].out._version - self.versions[bucket]


def allocate(
    layout: list[Bucket],
    ranges: Ranges,
    me: int,
    parameters: int,
    pool: Pool,
    members: SharedMembers | None = None,
) -> Slots:
    """Slots and sums of a layout; ranges: ESTs of each member; me: its index; pool: memory that may fit;
    members: given where the members share memory."""
    plans = [
        CanonicalAllreduce(
            bucket.elements,
            bucket.dtype,
            ranges,
            me,
            _memory(pool, bucket, members),
            members=members if bucket.device.type == "cpu" else None,
        )
        for bucket in layout
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
    return Slots(
        layout,
        plans,
        [_in_order(views, parameters) for views in by_slot],
        _in_order(averages, parameters),
        bucket_of,
        [_is_gathered(bucket) for bucket in layout],
    )


def _is_gathered(bucket: Bucket) -> bool:
    # Scaling in place gives the NaNs of the narrow types other bits than scaling into other memory does.
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
