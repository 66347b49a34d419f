"""One step of a plan in virtual time.

Devices run their blocks in order, each as soon as its input has arrived. Links are full duplex, one for each
ordered pair of devices, and carry one frame at a time, in the order in which they are made. The sums of a
stage begin after its last block. The optimizer and the transfer of batches from and to the workers that load
them are not included. A block takes the time of its units and, if profiled, an overhead.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf, lcm

import msgspec

from elastane_planner.cluster import Cluster
from elastane_planner.costs import Costs
from elastane_planner.plan import Plan
from elastane_planner.profile import Profile
from elastane_planner.schedule import Block, Order, linear, listed


class Span(msgspec.Struct, frozen=True):
    """A block on a device; times in seconds from the start of the step."""

    device: int
    block: Block
    start_seconds: float
    end_seconds: float


class Transfer(msgspec.Struct, frozen=True):
    """A frame on a link: the output of `block`, from one device to another."""

    source: int
    target: int
    block: Block
    start_seconds: float
    end_seconds: float


class Sum(msgspec.Struct, frozen=True):
    """The summation of a stage's gradients over its replicas, and their transfer to its shadows."""

    stage: int
    start_seconds: float
    end_seconds: float


class Timeline(msgspec.Struct, frozen=True):
    """A simulated step. `bubble` is the share of time in which computing devices wait, until the last block.

    in_flight: by stage, the most micro-batches that a replica keeps for its backward at once.
    """

    step_seconds: float
    spans: tuple[Span, ...]
    transfers: tuple[Transfer, ...]
    sums: tuple[Sum, ...]
    bubble: float
    in_flight: tuple[int, ...]


def timeline(
    profile: Profile, cluster: Cluster, plan: Plan, micro_batches: int, order: Order | None = None
) -> Timeline:
    """Return the simulated step of a plan; order: None for `schedule.blocks`.

    Raises InvalidPlan if the plan does not belong to this profile and cluster, or if the order deadlocks.
    """
    plan.check(len(profile.units), len(cluster.devices), profile.cuts)
    costs = Costs(profile, cluster, micro_batches)
    if order is None:
        sequence: Iterable[Block] = listed(tuple(stage.replicas for stage in plan.stages), micro_batches)
    else:
        sequence = linear(order, plan, micro_batches)
    recorder = _Recorder(plan)
    ends = _run(costs, plan, sequence, recorder)
    sums = tuple(
        Sum(stage, end, end + seconds)
        for stage, (end, seconds) in enumerate(zip(ends, _sum_seconds(costs, plan), strict=True))
    )
    busy, until = sum(span.end_seconds - span.start_seconds for span in recorder.spans), max(ends)
    return Timeline(
        step_seconds=max(each.end_seconds for each in sums),
        spans=tuple(recorder.spans),
        transfers=tuple(recorder.transfers),
        sums=sums,
        bubble=1 - busy / (until * len(plan.devices)) if 0 < until < inf else 0.0,
        in_flight=tuple(recorder.most),
    )


def step_seconds(costs: Costs, plan: Plan) -> float:
    """Return the seconds of a step in list ordering, as `timeline` does. The plan is not checked."""
    sequence = listed(tuple(stage.replicas for stage in plan.stages), costs.micro_batches)
    ends = _run(costs, plan, sequence, None)
    return max(end + seconds for end, seconds in zip(ends, _sum_seconds(costs, plan), strict=True))


def least_seconds(costs: Costs, plan: Plan) -> float:
    """Return a lower bound of a plan's step in any order of blocks, quick to compute.

    A device begins when its first micro-batch has passed the earlier stages, runs all its micro-batches, and
    the last one must return to stage 0. Shadows are ignored.
    """
    stages = plan.stages
    first_sums = costs.floor(stages[0]).sums
    least = head = tail = 0.0
    for index, stage in enumerate(stages):
        floor = costs.floor(stage)
        least = max(least, head + floor.work + max(floor.sums, tail + first_sums))
        if index + 1 < len(stages):
            after = stages[index + 1]
            head += floor.forward + costs.frame_floor(after.first_unit, stage.devices, after.devices)
            tail += floor.backward + costs.frame_floor(after.first_unit, after.devices, stage.devices)
    return least


def _sum_seconds(costs: Costs, plan: Plan) -> list[float]:
    """Return the seconds of the sums of each stage."""
    return [
        costs.sum_seconds(stage.first_unit, stage.end_unit, stage.devices, plan.shadows_of(index))
        for index, stage in enumerate(plan.stages)
    ]


class _Recorder:
    """Records what `_run` simulates."""

    def __init__(self, plan: Plan) -> None:
        self.spans: list[Span] = []
        self.transfers: list[Transfer] = []
        self.most = [0] * len(plan.stages)
        self._kept: dict[int, int] = dict.fromkeys(plan.devices, 0)

    def span(self, device: int, block: Block, start: float, end: float) -> None:
        self.spans.append(Span(device, block, start, end))
        self._kept[device] += 1 if block.kind == "F" else -1
        self.most[block.stage] = max(self.most[block.stage], self._kept[device])

    def transfer(self, source: int, target: int, block: Block, start: float, end: float) -> None:
        self.transfers.append(Transfer(source, target, block, start, end))


def _run(costs: Costs, plan: Plan, sequence: Iterable[Block], recorder: _Recorder | None) -> list[float]:
    """Simulate blocks, given in an order in which each comes after its inputs; return the ends of stages."""
    stages, count = plan.stages, costs.micro_batches
    last = len(stages) - 1
    replicas = [stage.replicas for stage in stages]
    seconds = [
        [costs.block_seconds(s.first_unit, s.end_unit, device, s.memory) for device in s.devices]
        for s in stages
    ]
    down = _links(costs, plan, forward=True)
    up = _links(costs, plan, forward=False)
    pairs = [len(frames) for frames in down]
    free = [[0.0] * each for each in replicas]
    down_free = [[0.0] * each for each in pairs]
    up_free = [[0.0] * each for each in pairs]
    arrived = [0.0] * count
    for block in sequence:
        kind, stage, micro_batch = block
        replica = micro_batch % replicas[stage]
        devices_free = free[stage]
        start = devices_free[replica]
        if arrived[micro_batch] > start:
            start = arrived[micro_batch]
        if kind == "F":
            end = start + seconds[stage][replica][0]
            link, frames, links_free = stage, down, down_free
        else:
            end = start + seconds[stage][replica][1]
            link, frames, links_free = stage - 1, up, up_free
        devices_free[replica] = end
        if recorder is not None:
            recorder.span(stages[stage].devices[replica], block, start, end)
        if link < 0 or (kind == "F" and link == last):
            arrived[micro_batch] = end
            continue
        pair = micro_batch % pairs[link]
        sent = links_free[link][pair]
        if end > sent:
            sent = end
        arrival = sent + frames[link][pair]
        links_free[link][pair] = arrived[micro_batch] = arrival
        if recorder is not None:
            target = stages[link + (kind == "F")].replica_of(micro_batch)
            recorder.transfer(stages[stage].devices[replica], target, block, sent, arrival)
    return [max(each) for each in free]


def _links(costs: Costs, plan: Plan, *, forward: bool) -> list[list[float]]:
    """Return, by cut, a frame's seconds on each of its links; micro-batch m is on link m mod their number."""
    found = []
    for before, after in pairwise(plan.stages):
        number = min(lcm(before.replicas, after.replicas), costs.micro_batches)
        ends = [(before.replica_of(pair), after.replica_of(pair)) for pair in range(number)]
        cut = after.first_unit
        found.append([costs.frame_seconds(cut, *(pair if forward else pair[::-1])) for pair in ends])
    return found
