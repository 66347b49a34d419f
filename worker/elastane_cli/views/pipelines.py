"""Pipeline profiles and plans as text and as plain values (`elastane profile`, `elastane plan --profile`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from elastane_cli.views.stages import STASHES, units_text
from elastane_cli.views.text import counted, harmless
from elastane_planner.amounts import bytes_text, seconds_text
from elastane_planner.baselines import Baseline
from elastane_planner.cluster import Cluster
from elastane_planner.costs import Costs
from elastane_planner.plan import Plan
from elastane_planner.planner import Answer
from elastane_planner.profile import Profile
from elastane_planner.reasons import Slowest, names_of, slowest, stage_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane.diagnose.profile_report import Sized

UNITS_SHOWN = 60
"""Rows of a profile's table; the file has all."""


def profile_table(sized: Sized, classes: Sequence[str]) -> RenderableType:
    """Return the table of a profile: a row for each unit, and their sum."""
    from rich.markup import escape

    table = _table("UNIT", "", "FORWARD", "BACKWARD", "VARIES", "PARAMETERS", "OPTIMIZER", "OUTPUT", "STASH")
    units = sized.profile.units
    for index, (unit, kind, spread) in enumerate(zip(units, classes, sized.spread, strict=True)):
        if index == UNITS_SHOWN:
            table.add_row("…", f"{len(units) - index} more in the file")
            break
        table.add_row(
            f"{index} {escape(harmless(unit.name))}" if unit.name != str(index) else str(index),
            escape(harmless(kind)) + (f", tie {unit.tie}" if unit.tie else ""),
            seconds_text(unit.forward_seconds),
            seconds_text(unit.backward_seconds),
            f"± {spread:.0%}",
            *(
                bytes_text(size)
                for size in (
                    unit.parameter_bytes,
                    unit.optimizer_bytes,
                    unit.boundary_bytes,
                    unit.activation_bytes,
                )
            ),
        )
    table.add_row(
        "all",
        "",
        seconds_text(sum(unit.forward_seconds for unit in units)),
        seconds_text(sum(unit.backward_seconds for unit in units)),
        "",
        bytes_text(sum(unit.parameter_bytes for unit in units)),
        bytes_text(sum(unit.optimizer_bytes for unit in units)),
        "",
        bytes_text(sum(unit.activation_bytes for unit in units)),
        style="bold",
    )
    return table


def sizes_table(profiles: Sequence[Sized]) -> RenderableType:
    """Return the table that compares micro-batch sizes; larger ones are usually cheaper per sample."""
    table = _table("SAMPLES", "FORWARD + BACKWARD", "A SAMPLE", "STASH")
    for sized in profiles:
        units = sized.profile.units
        seconds = sum(unit.forward_seconds + unit.backward_seconds for unit in units)
        table.add_row(
            str(sized.samples),
            seconds_text(seconds),
            seconds_text(seconds / sized.samples) if sized.samples else "?",
            bytes_text(sum(unit.activation_bytes for unit in units)),
        )
    return table


def answer_parts(
    profile: Profile, cluster: Cluster, micro_batches: int, answer: Answer, others: Sequence[Baseline] = ()
) -> list[RenderableType]:
    """Return the lines and tables that `elastane plan --profile` prints."""
    from rich.markup import escape

    plan, costs = answer.plan, Costs(profile, cluster, micro_batches)
    names = [harmless(device.name) for device in cluster.devices]
    step = seconds_text(answer.step_seconds) if answer.step_seconds else "unknown: no times in the profile"
    computing = len(plan.devices)
    parts: list[RenderableType] = [
        f"step: [bold]{step}[/] predicted, bubble {_share(answer.timeline.bubble)}; "
        f"{counted(len(plan.stages), 'stage')} on {computing} of {counted(len(names), 'device')}, "
        f"{micro_batches} micro-batches",
        _stages_table(costs, names, answer),
    ]
    if idle := [device for device in range(len(names)) if device not in set(plan.devices)]:
        parts.append(f"without a stage: {escape(names_of(names, idle))}")
    if answer.step_seconds:
        parts.append(f"slowest: {escape(harmless(slowest(costs, plan, answer.step_seconds).reason))}")
    parts.append(_loss_line(plan))
    parts += [f"search: {line}" for line in _gain_lines(answer)]
    parts += [f"note: {escape(harmless(note))}" for note in answer.notes]
    if others:
        parts.append(_baselines_table(answer, others))
    return parts


def answer_to_plain(
    profile: Profile, cluster: Cluster, micro_batches: int, answer: Answer, others: Sequence[Baseline] = ()
) -> dict[str, Any]:
    """Return a plan for JSON; `plan` in it is what `--keep` reads."""
    costs = Costs(profile, cluster, micro_batches)
    worst: Slowest | None = slowest(costs, answer.plan, answer.step_seconds) if answer.step_seconds else None
    return {
        "micro_batches": micro_batches,
        "step_seconds": answer.step_seconds,
        "bubble": answer.timeline.bubble,
        "plan": plan_to_plain(answer.plan, cluster),
        "in_flight": list(answer.timeline.in_flight),
        "memory": {
            cluster.devices[device].name: {**need._asdict(), "total": need.total}
            for device, need in sorted(answer.memory.items())
        },
        "slowest": None
        if worst is None
        else {"kind": worst.kind, "stage": worst.stage, "seconds": worst.seconds, "reason": worst.reason},
        "search": [gain._asdict() for gain in answer.gains],
        "notes": list(answer.notes),
        "baselines": [
            {
                "name": other.name,
                "step_seconds": other.step_seconds if isfinite(other.step_seconds) else None,
                "bubble": other.bubble,
                "plan": plan_to_plain(other.plan, cluster),
                "problem": other.problem,
            }
            for other in others
        ],
    }


def plan_to_plain(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Return a plan with its devices by name: their order in a cluster may change."""

    def names(devices: Sequence[int]) -> list[str]:
        return [cluster.devices[device].name for device in devices]

    return {
        "stages": [
            {
                "first_unit": stage.first_unit,
                "end_unit": stage.end_unit,
                "devices": names(stage.devices),
                "shadows": names(plan.shadows_of(index)),
                "memory": stage.memory,
            }
            for index, stage in enumerate(plan.stages)
        ]
    }


def _stages_table(costs: Costs, names: Sequence[str], answer: Answer) -> RenderableType:
    from rich.markup import escape

    plan, micro_batches = answer.plan, costs.micro_batches
    shadowed = any(plan.shadows)
    columns = ["STAGE", "UNITS", "DEVICES", "MICRO-BATCHES EACH", "COMPUTES", "IN FLIGHT", "MEMORY", "STASH"]
    table = _table(*columns, *(["SHADOWS"] if shadowed else []))
    for index, stage in enumerate(plan.stages):
        most = max((answer.memory[device] for device in stage.devices), key=lambda need: need.total)
        limits = [costs.cluster.devices[device].memory_bytes for device in stage.devices]
        limit = min((limit for limit in limits if limit is not None), default=None)
        table.add_row(
            str(index),
            units_text(stage.first_unit, stage.end_unit),
            escape(names_of(names, stage.devices)),
            _each(micro_batches, stage.replicas),
            seconds_text(stage_seconds(costs, plan, index)) if answer.step_seconds else "?",
            str(answer.timeline.in_flight[index]),
            bytes_text(most.total) + (f" of {bytes_text(limit)}" if limit is not None else ""),
            STASHES[stage.memory] + (f" ({bytes_text(most.host)})" if stage.memory == "swap" else ""),
            *([escape(names_of(names, plan.shadows_of(index))) or "-"] if shadowed else []),
        )
    return table


def _baselines_table(answer: Answer, others: Sequence[Baseline]) -> RenderableType:
    from rich.markup import escape

    table = _table("COMPARED WITH", "STEP", "LONGER BY", "BUBBLE", "STAGES")
    for other in others:
        runs = other.step_seconds < inf
        longer = other.step_seconds / answer.step_seconds - 1 if runs and answer.step_seconds else None
        replicas = ", ".join(str(stage.replicas) for stage in other.plan.stages)
        table.add_row(
            other.name,
            seconds_text(other.step_seconds) if runs else "-",
            "-" if longer is None else f"{longer:+.1%}",
            _share(other.bubble) if runs else "-",
            f"{len(other.plan.stages)} (replicas {replicas})" if runs else escape(harmless(other.problem)),
        )
    return table


def _loss_line(plan: Plan) -> str:
    """Describe the cost of a device's death."""
    alone = [
        str(index)
        for index, stage in enumerate(plan.stages)
        if stage.replicas + len(plan.shadows_of(index)) == 1
    ]
    if not alone:
        return "a death: costs the step in flight; every unit has another holder"
    stages = f"stage {alone[0]}" if len(alone) == 1 else f"stages {', '.join(alone)}"
    return (
        f"a death: of a device of {stages} the job goes back to its last checkpoint; --shadow 1 avoids that"
    )


def _gain_lines(answer: Answer) -> list[str]:
    """Describe the result of each stage of the search."""
    lines = []
    before: float | None = None
    for gain in answer.gains:
        gained = f", {1 - gain.step_seconds / before:.1%} less" if before and before < inf else ""
        text = f"{seconds_text(gain.step_seconds)}{gained}"
        lines.append(f"{gain.search}: {text} ({counted(gain.simulations, 'simulation')} so far)")
        before = gain.step_seconds
    return lines


def _share(value: float) -> str:
    """Return a share in percent, without rounding errors around 0."""
    return f"{max(0.0, value):.1%}"


def _each(micro_batches: int, replicas: int) -> str:
    most, least = -(-micro_batches // replicas), micro_batches // replicas
    return str(most) if most == least else f"{least} or {most}"


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        right = column not in ("UNIT", "", "DEVICES", "STASH", "SHADOWS", "STAGES", "COMPARED WITH")
        table.add_column(column, justify="right" if right else "left")
    return table
