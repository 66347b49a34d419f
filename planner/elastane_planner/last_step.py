"""A measured step as a timeline, from each device's record on its own clock.

Clocks of devices differ. If a block seems to begin before its input was ready, its device's times are shifted
against the previous stage by the smallest sufficient amount; if no shift satisfies all blocks, by the middle
of the range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from elastane_planner.plan import Plan
from elastane_planner.schedule import Block, blocks
from elastane_planner.simulate import Span, Timeline

BLOCKS_TOLD_MAX = 128
"""Blocks of a step that a device tells; of a step with more of them on one device nothing is told."""

Blocks = Sequence[tuple[float, float]]
"""(start, end) of a device's blocks, in schedule order."""


def measured_timeline(
    plan: Plan, micro_batches: int, told: Mapping[int, tuple[float, Blocks]]
) -> Timeline | None:
    """Return a measured step of a plan; None if a device's blocks are missing, or are not those of the plan.

    told: by device: start of the step on its clock, and its blocks, in seconds from then. Frames and
    sums are not measured. Called for the dashboard and `elastane plan`.
    """
    order = blocks(plan, micro_batches)
    spans: dict[Block, Span] = {}
    for stage in plan.stages:
        for device in stage.devices:
            began, found = told.get(device, (0.0, ()))
            own = order.get(device, ())
            if len(found) != len(own) or not _are_times(began, found):
                return None
            here = [
                Span(device, block, began + start, began + end)
                for block, (start, end) in zip(own, found, strict=True)
            ]
            shift = _shift(here, spans)
            for span in here:
                spans[span.block] = Span(
                    device, span.block, span.start_seconds + shift, span.end_seconds + shift
                )
    if not spans:
        return None
    first = min(span.start_seconds for span in spans.values())
    shown = tuple(
        Span(span.device, span.block, span.start_seconds - first, span.end_seconds - first)
        for span in spans.values()
    )
    until = max(span.end_seconds for span in shown)
    busy = sum(span.end_seconds - span.start_seconds for span in shown)
    bubble = 1 - busy / (until * len(plan.devices)) if until > 0 else 0.0
    return Timeline(until, shown, (), (), bubble, ())


def is_too_long(plan: Plan, micro_batches: int) -> bool:
    """True if a device of the plan has more blocks than workers report: no step is ever measured."""
    return any(2 * -(-micro_batches // len(stage.devices)) > BLOCKS_TOLD_MAX for stage in plan.stages)


def _shift(here: Sequence[Span], before: Mapping[Block, Span]) -> float:
    """Return the shift of a device's clock against those of the previous stage."""
    least, most = -math.inf, math.inf
    for span in here:
        kind, stage, micro_batch = span.block
        if (other := before.get(Block(kind, stage - 1, micro_batch))) is None:
            continue
        if kind == "F":
            least = max(least, other.end_seconds - span.start_seconds)
        else:
            most = min(most, other.start_seconds - span.end_seconds)
    if least > most:
        return (least + most) / 2
    return min(max(0.0, least), most)


def _are_times(began: float, found: Blocks) -> bool:
    return math.isfinite(began) and all(
        math.isfinite(start) and math.isfinite(end) and 0 <= start <= end for start, end in found
    )
