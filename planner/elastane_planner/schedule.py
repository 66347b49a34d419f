"""The order in which each device runs the blocks of a step.

A block is the forward (F) or the backward (B) of one micro-batch on one stage. The order is the same in the
simulator, in the executor and in pictures; it depends on the plan's shape alone, never on times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Literal, NamedTuple

from elastane_planner.errors import InvalidRequest
from elastane_planner.plan import Plan


class Block(NamedTuple):
    """The forward or backward of one micro-batch on one stage."""

    kind: Literal["F", "B"]
    stage: int
    micro_batch: int


Order = Mapping[int, tuple[Block, ...]]
"""Blocks of a step by device, in the order in which it runs them. Devices without a stage are not there."""


def blocks(plan: Plan, micro_batches: int) -> dict[int, tuple[Block, ...]]:
    """Return the list ordering of a plan (SPP, INFOCOM 2022, execution scheduler).

    A micro-batch passes 4S - 3 places: forwards and sends of stages 0..S-2 in turn, both blocks of the last
    stage as one, sends and backwards back to stage 0. In each pass every place that has one takes its first
    micro-batch and hands it to the next; a device keeps the order of the passes, forward before backward.
    Raises InvalidRequest without a micro-batch.
    """
    if micro_batches < 1:
        raise InvalidRequest("a step has at least one micro-batch", micro_batches=micro_batches)
    last = len(plan.stages) - 1
    places = 4 * last + 1
    order: dict[int, list[Block]] = {device: [] for device in plan.devices}
    waiting: list[deque[int]] = [deque(range(micro_batches)), *(deque() for _ in range(places))]
    while len(waiting[places]) < micro_batches:
        taken = [(place, waiting[place].popleft()) for place in range(places) if waiting[place]]
        for place, micro_batch in taken:
            waiting[place + 1].append(micro_batch)
            if place % 2:
                continue  # a send
            stage = min(place, places - 1 - place) // 2
            own = order[plan.stages[stage].replica_of(micro_batch)]
            if place <= 2 * last:
                own.append(Block("F", stage, micro_batch))
            if place >= 2 * last:
                own.append(Block("B", stage, micro_batch))
    return {device: tuple(own) for device, own in order.items()}
