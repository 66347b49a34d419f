"""The plan of a running job as text and as plain values (`elastane plan`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastane_cli.views.runs import age_text
from elastane_cli.views.text import harmless
from elastane_proto.amounts import MICROS, money_text
from elastane_proto.v1 import common_pb2, job_pb2

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane_scheduler.job_plan import DeviceSpeed, JobPlan, Rung

#: Rungs shown without --all.
RUNGS_SHOWN = 16


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


def plan_to_plain(plan: JobPlan, currency: str) -> dict[str, Any]:
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
    }


def plan_parts(job: job_pb2.Job, plan: JobPlan, *, every: bool) -> list[RenderableType]:
    """Return the lines and the table that `elastane plan` prints. every: all rungs, however many."""
    from rich.markup import escape

    name = f"[bold]{escape(job.name)}[/]"
    if plan.device is None:
        return [
            f"{name}  not measured yet: a worker knows its speed after three steps in one ring; "
            f"{len(job.workers)} attend"
        ]
    parts: list[RenderableType] = [f"{name}  {plan.ests} logical workers on {_counted(plan.workers)}"]
    parts += [
        f"{_device(known)}: {_seconds(known.est_seconds)} for a logical worker's part of a step "
        f"(± {_seconds(known.spread_seconds)}; {_counted(known.workers)}, {known.steps} steps)"
        for known in plan.devices
    ]
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
    parts.append(_table(plan, shown, job.cost.currency))
    if len(shown) < len(plan.rungs):
        parts.append(f"{len(plan.rungs) - len(shown)} more with --all")
    parts.append(_next_step(plan))
    return parts


def _table(plan: JobPlan, shown: tuple[Rung, ...], currency: str) -> RenderableType:
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
            "now" if rung == now else "" if rung.fits else "too little memory",
        )
    return table


def _near(plan: JobPlan) -> tuple[Rung, ...]:
    """Return the rungs around the present one."""
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
