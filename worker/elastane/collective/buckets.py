"""Bucket layouts of DistributedDataParallel: which gradients are summed together.

The bounds of the all-reduce's chunks, and with them the order of additions, depend on the position of a
gradient in its bucket. So the layouts are DDP's own, computed by the function DDP uses:

    the first step      one bucket per dtype, in registration order, without a limit on size;
    every later step    a first bucket of 1 MiB and then 25 MiB, filled in the order in which the
                        gradients of EST 0 became ready in the first step (of a static graph: the second);
    unused parameters   with find_unused_parameters: those limits, in registration order, in all steps.

That order is job state: a joining worker receives it from the master, and never measures its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size

#: Limit of the first bucket, bytes (`dist._DEFAULT_FIRST_BUCKET_BYTES`).
FIRST_BUCKET_BYTES: Final = 1 << 20
#: Default of DDP's `bucket_cap_mb`.
BUCKET_CAP_MIB: Final = 25


@dataclass(frozen=True, slots=True)
class Place:
    """Position of the gradient of parameter `index` (registration order); stride is the parameter's."""

    index: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are summed as one flat vector of `elements` elements, without padding."""

    places: tuple[Place, ...]
    elements: int
    dtype: torch.dtype
    device: torch.device

    @property
    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def view(self, flat: Tensor, place: int) -> Tensor:
        """Return the `place`-th gradient inside `flat` (1-d, at least `elements` long, any storage
        offset)."""
        where = self.places[place]
        return flat.as_strided(where.shape, where.stride, flat.storage_offset() + where.offset)

    def views(self, flat: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (parameter index, its gradient inside `flat`) for every gradient of the bucket."""
        for number, place in enumerate(self.places):
            yield place.index, self.view(flat, number)


def first_layout(params: Sequence[Tensor]) -> list[Bucket]:
    """Return the buckets of the first step. params: all that require a gradient, in registration order."""
    return _layout(params, _compute_bucket_assignment_by_size(list(params), [sys.maxsize])[0])


def rebuilt_layout(
    params: Sequence[Tensor], ready_order: Sequence[int], bucket_cap_mb: float | None = None
) -> list[Bucket]:
    """Return the buckets of every later step, in the order in which they are all-reduced.

    ready_order: indices into params in the order in which EST 0's gradients became ready, each exactly once.
    bucket_cap_mb: limit of a bucket in MiB, as DDP's argument; if given, it also applies to the first bucket.
    """
    assert sorted(ready_order) == list(range(len(params))), "ready_order is not a permutation"
    groups, _ = _compute_bucket_assignment_by_size(
        [params[index] for index in ready_order],
        _limits(bucket_cap_mb),
        [False] * len(params),
        list(ready_order),
    )
    return _layout(params, groups)


def unused_layout(params: Sequence[Tensor], bucket_cap_mb: float | None = None) -> list[Bucket]:
    """Return the buckets of every step with find_unused_parameters; arguments as for the other layouts."""
    groups, _ = _compute_bucket_assignment_by_size(list(params), _limits(bucket_cap_mb))
    return _layout(params, list(reversed(groups)))


def _limits(bucket_cap_mb: float | None) -> list[int]:
    """Return the limits of the first and of all further buckets, in bytes."""
    if bucket_cap_mb is None:
        return [FIRST_BUCKET_BYTES, BUCKET_CAP_MIB << 20]
    return [int(bucket_cap_mb * 1024 * 1024)]


def _layout(params: Sequence[Tensor], groups: Sequence[Sequence[int]]) -> list[Bucket]:
    return [_bucket(params, group) for group in groups]


def _bucket(params: Sequence[Tensor], group: Sequence[int]) -> Bucket:
    offsets = list(accumulate((params[index].numel() for index in group), initial=0))
    places = tuple(
        Place(index, offset, tuple(params[index].shape), params[index].stride())
        for index, offset in zip(group, offsets, strict=False)
    )
    first = params[group[0]]
    return Bucket(places, offsets[-1], first.dtype, first.device)
