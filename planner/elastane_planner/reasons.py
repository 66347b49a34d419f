"""Explains the duration of a step: the most loaded stage or link, in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, lcm
from typing import Literal

import msgspec

from elastane_planner.amounts import bytes_text, seconds_text
from elastane_planner.costs import Costs
from elastane_planner.plan import Plan

_SHARE_TOLD = 0.4
"""A unit that takes so much of its stage is named: the stage cannot be divided much better."""


class Slowest(msgspec.Struct, frozen=True):
    """The bottleneck of a step: a stage's blocks, its sums, or the link before stage `stage` (kind "link").

    seconds: of one step. reason: a sentence for people.
    """

    kind: Literal["blocks", "sums", "link"]
    stage: int
    seconds: float
    reason: str


def slowest(costs: Costs, plan: Plan, step_seconds: float) -> Slowest:
    """Return the most loaded stage or link of a step, and why: for `elastane plan` and the dashboard."""
    found = [option for index in range(len(plan.stages)) for option in _of_stage(costs, plan, index)]
    found += [_of_link(costs, plan, index) for index in range(1, len(plan.stages))]
    worst = max(found, key=lambda option: option.seconds)
    if 0 < step_seconds < inf:
        bounds, separator, detail = worst.reason.partition("; ")
        share = f", {worst.seconds / step_seconds:.0%} of the step"
        return msgspec.structs.replace(worst, reason=f"{bounds}{share}{separator}{detail}")
    return worst


def stage_seconds(costs: Costs, plan: Plan, index: int) -> float:
    """Return the computing time per step of a stage's busiest replica, in seconds."""
    stage = plan.stages[index]
    local = -(-costs.micro_batches // stage.replicas)
    return local * max(
        sum(costs.block_seconds(stage.first_unit, stage.end_unit, device, stage.memory))
        for device in stage.devices
    )


def _of_stage(costs: Costs, plan: Plan, index: int) -> list[Slowest]:
    stage = plan.stages[index]
    local = -(-costs.micro_batches // stage.replicas)
    blocks = stage_seconds(costs, plan, index)
    text = (
        f"stage {index}: {_counted(local, 'micro-batch', 'micro-batches')} of {seconds_text(blocks / local)}"
    )
    if stage.replicas > 1:
        text += f" on each of {stage.replicas} replicas"
    slow = min(costs.speeds[device] for device in stage.devices)
    if slow < max(costs.speeds):
        text += f", one of which runs at {slow / max(costs.speeds):.0%} of the fastest device's speed"
    if stage.memory != "plain":
        text += f", with {'recomputation' if stage.memory == 'checkpoint' else 'swaps'} to save memory"
    units = costs.profile.units[stage.first_unit : stage.end_unit]
    times = [unit.forward_seconds + unit.backward_seconds for unit in units]
    longest = max(range(len(units)), key=lambda place: times[place])
    share = times[longest] / total if (total := sum(times)) else 0.0
    if len(units) > 1 and share >= _SHARE_TOLD:
        text += f"; {_unit(stage.first_unit + longest, units[longest].name)} alone is {share:.0%} of it"
    elif len(units) == 1 and len(plan.stages) > 1:
        text += f"; {_unit(stage.first_unit, units[0].name)} is all it has, so it cannot be divided"
    options = [Slowest("blocks", index, blocks, text)]
    shadows = plan.shadows_of(index)
    sums = costs.sum_seconds(stage.first_unit, stage.end_unit, stage.devices, shadows)
    if sums:
        size = sum(unit.parameter_bytes for unit in units)
        to = f" and to {_counted(len(shadows), 'shadow', 'shadows')}" if shadows else ""
        text = f"the sums of stage {index}: {bytes_text(size)} over "
        text += _counted(stage.replicas, "replica", "replicas")
        options.append(Slowest("sums", index, sums, f"{text}{to} take {seconds_text(sums)}"))
    return options


def _of_link(costs: Costs, plan: Plan, index: int) -> Slowest:
    before, after = plan.stages[index - 1], plan.stages[index]
    seconds = costs.link_load(after.first_unit, before.devices, after.devices)
    frames = -(-costs.micro_batches // lcm(before.replicas, after.replicas))
    size = costs.profile.units[after.first_unit - 1].boundary_bytes
    text = f"the link between stages {index - 1} and {index}: {_counted(frames, 'frame', 'frames')} of "
    text += f"{bytes_text(size)} "
    ending = "no link leads there" if seconds == inf else f"each way take {seconds_text(seconds)}"
    return Slowest("link", index, seconds, text + ending)


def names_of(cluster_names: Sequence[str], devices: Sequence[int]) -> str:
    """Return devices as people read them: a, b, c; runs of numbered names as gpu0..gpu7."""
    parts: list[list[str]] = []
    for device in devices:
        name = cluster_names[device]
        if parts and _follows(parts[-1][-1], name):
            parts[-1].append(name)
        else:
            parts.append([name])
    return ", ".join(
        part[0] if len(part) == 1 else ", ".join(part) if len(part) == 2 else f"{part[0]}..{part[-1]}"
        for part in parts
    )


def _follows(before: str, name: str) -> bool:
    """Return whether a name is the previous one with its number increased by one."""
    stem = before.rstrip("0123456789")
    digits = before[len(stem) :]
    return bool(digits) and name == stem + str(int(digits) + 1).zfill(len(digits))


def _unit(index: int, name: str) -> str:
    return f"unit {index}" if name == str(index) else f"unit {index} ({name})"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
