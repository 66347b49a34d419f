"""The plan of a running job as text and as plain values (`elastane plan`)."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from elastane_cli.views.runs import age_text
from elastane_cli.views.scaling import scaling_line
from elastane_cli.views.stages import stage_parts
from elastane_cli.views.text import harmless
from elastane_proto.amounts import MICROS, money_text
from elastane_proto.v1 import common_pb2, job_pb2
from elastane_scheduler.mixing import Mixture, Other

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_proto.v1 import ring_pb2, training_pb2
    from elastane_scheduler.job_plan import DeviceSpeed, JobPlan, Rung

#: Rungs shown without --all.
RUNGS_SHOWN = 16
#: Code after backward is shown from this fraction of the time that a logical worker adds to a step.
AFTER_SHOWN_FRACTION = 0.05


def steps_left(job: job_pb2.Job) -> int | None:
    """Return the steps until the job's last epoch is over; None if its script has not said how many."""
    total = job.epochs * job.steps_per_epoch
    return max(0, total - job.step) if total else None


def worker_hour(job: job_pb2.Job) -> float | None:
    """Return the mean price of an hour of the job's workers; None if the price of one is unknown."""
    prices = [
        job.cost.spot_price_micros
        if worker.capacity == common_pb2.CAPACITY_TYPE_SPOT
        else job.cost.on_demand_price_micros
        for worker in job.workers
    ]
    return sum(prices) / len(prices) / MICROS if prices and all(prices) else None


def others_of(
    own: DeviceSpeed,
    runners: Iterable[training_pb2.Runner],
    measured: Iterable[Sequence[ring_pb2.WorkerFigures]],
) -> list[Other]:
    """Return the other device types of connected runners, with all their slots.

    measured: worker metrics of each other job. The relative speed of a type is the ratio of the medians of
    that type and of the job's own one.
    """
    slots: Counter[str] = Counter()
    for runner in runners:
        if runner.attends and runner.device_type != own.device_type:
            slots[runner.device_type] += runner.slots
    usual: dict[str, list[float]] = {own.device_type: []}
    for figures in measured:
        for one in figures:
            if one.est_steps:
                usual.setdefault(one.device_type, []).append(one.est_seconds)
    here = statistics.median(usual[own.device_type]) if usual[own.device_type] else None

    def seconds(device_type: str) -> float | None:
        there = usual.get(device_type)
        return own.est_seconds * statistics.median(there) / here if there and here else None

    return [Other(name, count, seconds(name)) for name, count in sorted(slots.items()) if count]


def mixture_lines(plan: JobPlan, mixed: Sequence[Mixture]) -> list[str]:
    """Describe the gain or cost of D2 for a job bound to its device type, a line for each other type."""
    from rich.markup import escape

    if plan.device is None or not mixed:
        return []
    lines = [f"D1 keeps it on {_device(plan.device)}; with other devices of the service, at D2:"]
    for one in mixed:
        name = f"  {one.other.count} x {escape(harmless(one.other.device_type))}"
        if one.obstacle:
            lines.append(f"{name}: {one.obstacle}")
        elif one.step_seconds is None or one.speedup is None or one.cost_max is None:
            lines.append(f"{name}: not measured: no other job has trained on both types")
        elif one.cost_max <= 1:
            lines.append(f"{name}: no step would be shorter, and D2 makes each longer")
        else:
            step = f"{_seconds(one.step_seconds)} for a step, {one.speedup:.2f} x the steps per second"
            lines.append(
                f"{name}: {step}, if D2 cost nothing; it gains as long as D2 makes a logical worker's part "
                f"less than {one.cost_max:.2f} x as long, which `elastane doctor` measures"
            )
    return lines


def plan_to_plain(plan: JobPlan, currency: str, mixed: Sequence[Mixture] = ()) -> dict[str, Any]:
    """Return the plan for JSON."""
    now = plan.rung_of(plan.workers)
    return {
        "ests": plan.ests,
        "workers": plan.workers,
        "measured": plan.device is not None,
        "step_seconds": plan.step_seconds,
        "rest_seconds": plan.rest_seconds,
        "devices": [
            {
                "device_type": known.device_type,
                "est_seconds": known.est_seconds,
                "spread_seconds": known.spread_seconds,
                "after_est_seconds": known.after_est_seconds,
                "workers": known.workers,
                "steps": known.steps,
                "ests_max": known.ests_max,
            }
            for known in plan.devices
        ],
        "currency": currency,
        "rungs": [
            {
                "workers": rung.workers,
                "ests_most": rung.ests_most,
                "step_seconds": rung.step_seconds,
                "finish_seconds": rung.finish_seconds,
                "cost": rung.cost,
                "now": rung == now,
                "fits": rung.fits,
            }
            for rung in plan.rungs
        ],
        "at_d2": [
            {
                "device_type": one.other.device_type,
                "count": one.other.count,
                "est_seconds": one.other.est_seconds,
                "obstacle": one.obstacle,
                "step_seconds": one.step_seconds,
                "speedup": one.speedup,
                "cost_max": one.cost_max,
            }
            for one in mixed
        ],
    }


def plan_parts(job: job_pb2.Job, plan: JobPlan, *, every: bool) -> list[RenderableType]:
    """Return the lines and the table that `elastane plan` prints. every: all rungs, however many."""
    from rich.markup import escape

    name = f"[bold]{escape(job.name)}[/]"
    scaling = [escape(harmless(line))] if (line := scaling_line(job)) else []
    if job.HasField("pipeline"):
        return [name, *stage_parts(job)]
    if plan.device is None:
        return [
            f"{name}  not measured yet: a worker knows its speed after three steps in one ring; "
            f"{len(job.workers)} attend",
            *scaling,
        ]
    parts: list[RenderableType] = [f"{name}  {plan.ests} logical workers on {_counted(plan.workers)}"]
    parts += scaling
    parts += [_measured(known) for known in plan.devices]
    if len(plan.devices) > 1:
        parts.append(
            "unlike devices: fewer workers are the fastest of these; "
            f"further ones are taken to be {_device(plan.device)}"
        )
    if plan.step_seconds is not None:
        whole, rest = _seconds(plan.step_seconds), _seconds(plan.rest_seconds)
        parts.append(
            f"a step takes {whole} now, of which {rest} are sums, "
            "the master's answer and the optimizer: taken to be the same for other numbers"
        )
    shown = plan.rungs if every else _near(plan)
    target = plan.rung_of(job.scaling.workers_target) if scaling else None
    parts.append(_table(plan, shown, job.cost.currency, target))
    if len(shown) < len(plan.rungs):
        parts.append(f"{len(plan.rungs) - len(shown)} more with --all")
    parts.append(_next_step(plan))
    return parts


def _measured(known: DeviceSpeed) -> str:
    line = (
        f"{_device(known)}: {_seconds(known.est_seconds)} for a logical worker's part of a step "
        f"(± {_seconds(known.spread_seconds)}; {_counted(known.workers)}, {known.steps} steps)"
    )
    after = known.after_est_seconds
    is_shown = after >= AFTER_SHOWN_FRACTION * known.added_seconds
    return f"{line}; {_seconds(after)} of the script's code after it" if is_shown and after else line


def _table(
    plan: JobPlan, shown: tuple[Rung, ...], currency: str, target: Rung | None = None
) -> RenderableType:
    """Return the table of rungs. target: of a job that scales by itself."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("WORKERS", "ESTS EACH", "STEP", "LEFT", "COST"):
        table.add_column(column, justify="right")
    table.add_column("")
    now = plan.rung_of(plan.workers)
    for rung in shown:
        table.add_row(
            str(rung.workers),
            f"≤ {rung.ests_most}",
            _seconds(rung.step_seconds),
            "?" if rung.finish_seconds is None else age_text(rung.finish_seconds),
            "?" if rung.cost is None else money_text(round(rung.cost * MICROS), currency),
            _mark(rung, now, target),
        )
    return table


def _mark(rung: Rung, now: Rung | None, target: Rung | None) -> str:
    if rung == now:
        return "now"
    if rung == target:
        return "asked for"
    return "" if rung.fits else "too little memory"


def _near(plan: JobPlan) -> tuple[Rung, ...]:
    """Return the rungs around the current one."""
    now = plan.rung_of(plan.workers)
    place = plan.rungs.index(now) if now is not None else 0
    first = max(0, min(place - RUNGS_SHOWN // 2, len(plan.rungs) - RUNGS_SHOWN))
    return plan.rungs[first : first + RUNGS_SHOWN]


def _next_step(plan: JobPlan) -> str:
    now = plan.rung_of(plan.workers)
    faster = [rung for rung in plan.rungs if rung.workers > plan.workers]
    if now is None or not faster:
        return "no larger number of workers is faster within the job's limits"
    more = faster[0].workers - plan.workers
    gain = now.step_seconds / faster[0].step_seconds
    unused = f"; {now.workers} would be as fast as {plan.workers}" if plan.workers > now.workers else ""
    fewer = "" if more == 1 else f", fewer than {more} none"
    return f"with {more} more: {gain:.2f} x the steps per second{fewer}{unused}"


def _device(known: DeviceSpeed) -> str:
    from rich.markup import escape

    return escape(harmless(known.device_type))


def _counted(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
