"""Gradients of a stage by EST, in the order of the job's buckets.

Whatever the plan, the buckets are those of the whole model: an element's position in its bucket decides in
which order the ESTs' gradients are added. A stage holds some of each bucket's gradients, packed into flat
vectors, one per dtype and EST; each stretch of a vector knows its chunk of the bucket.

    rows[g][slot]              scaled gradients of the stage's slot-th local EST, flat, in group g (one dtype)
    views[slot][index]         the same for parameter `index`, with the parameter's strides
    sums[g], averages[index]   sums over all N ESTs, which overwrite the first local EST's gradients
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elastane.collective.buckets import Bucket
from elastane.collective.order import chunk_elements


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements [low, high) of a group's vectors, all of one chunk of one bucket."""

    low: int
    high: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Group:
    """Held gradients of one dtype. places: (parameter index, offset in the vector, shape, stride)."""

    dtype: torch.dtype
    elements: int
    stretches: tuple[Stretch, ...]
    places: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...]], ...]


def groups_of(layout: Sequence[Bucket], held: frozenset[int], num_ests: int) -> list[Group]:
    """Return the layout of held gradients by dtype. layout: the job's buckets. held: parameter indices."""
    elements: dict[torch.dtype, int] = {}
    stretches: dict[torch.dtype, list[Stretch]] = {}
    places: dict[torch.dtype, list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]] = {}
    for bucket in layout:
        if not any(place.index in held for place in bucket.places):
            continue
        chunk = chunk_elements(bucket.elements, bucket.element_size, num_ests) if bucket.elements else 1
        for number, place in enumerate(bucket.places):
            if place.index not in held:
                continue
            last = number + 1 == len(bucket.places)
            end = bucket.elements if last else bucket.places[number + 1].offset
            start = elements.setdefault(bucket.dtype, 0)
            places.setdefault(bucket.dtype, []).append((place.index, start, place.shape, place.stride))
            known = stretches.setdefault(bucket.dtype, [])
            low = place.offset
            while low < end:
                high = min(end, (low // chunk + 1) * chunk)
                here = elements[bucket.dtype]
                new = Stretch(here, here + high - low, low // chunk)
                if known and known[-1].chunk == new.chunk and known[-1].high == new.low:
                    new = Stretch(known.pop().low, new.high, new.chunk)
                known.append(new)
                elements[bucket.dtype] = here + high - low
                low = high
    return [
        Group(dtype, count, tuple(stretches.get(dtype, ())), tuple(places[dtype]))
        for dtype, count in elements.items()
    ]


class GradientMemory:
    """A stage's gradient vectors on one member. ests: those that it computes; empty for a shadow."""

    def __init__(self, groups: Sequence[Group], ests: Sequence[int], device: torch.device) -> None:
        self.groups = list(groups)
        self.slot_of: Mapping[int, int] = {est: slot for slot, est in enumerate(ests)}
        self.rows = [
            [torch.empty(group.elements, dtype=group.dtype, device=device) for _ in ests] for group in groups
        ]
        self.sums = [
            rows[0] if rows else torch.empty(group.elements, dtype=group.dtype, device=device)
            for group, rows in zip(groups, self.rows, strict=True)
        ]
        self.views: list[dict[int, Tensor]] = [{} for _ in ests]
        self.averages: dict[int, Tensor] = {}
        for group, rows, sums in zip(self.groups, self.rows, self.sums, strict=True):
            for index, offset, shape, stride in group.places:
                for views, row in zip(self.views, rows, strict=True):
                    views[index] = row.as_strided(shape, stride, offset)
                self.averages[index] = sums.as_strided(shape, stride, offset)

    @property
    def nbytes(self) -> int:
        """Size of all vectors in bytes."""
        return sum(t.nbytes for vectors in (*self.rows, () if self.views else self.sums) for t in vectors)
