"""Autoscaling decisions as text (`elastane scale --auto`, `elastane plan`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from elastane_proto.amounts import money_text
from elastane_scheduler.autoscaling.modes import mode_text, time_text

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2


def decision_lines(told: job_pb2.JobServiceScaleResponse, *, in_future: bool) -> Iterator[str]:
    """Yield a line for each decision. in_future: they would be taken; else they are expected."""
    currency = told.job.cost.currency
    for number, one in enumerate(told.decisions):
        done = "" if one.action == "none" else f" ({one.action.replace('_', ' ')})"
        begin = ("would ask for" if in_future else "asks for") if not number else "then"
        counted = f"{one.workers_target} worker{'' if one.workers_target == 1 else 's'}"
        yield f"{begin} {counted}{done}: {one.reason}{_outlook(one, currency)}"


def _outlook(one: job_pb2.ScalingDecision | job_pb2.Scaling, currency: str) -> str:
    found = []
    if one.HasField("predicted_finish"):
        found.append(f"ends {time_text(one.predicted_finish.ToNanoseconds() / 1e9)}")
    if one.HasField("predicted_cost_micros"):
        found.append(f"costs {money_text(one.predicted_cost_micros, currency)} in all")
    return f"; {', '.join(found)}" if found else ""


def scaling_line(job: job_pb2.Job) -> str:
    """Describe the target of a job that scales by itself, and its reason; "" for others."""
    if not job.HasField("scaling"):
        return ""
    of = job.scaling
    on_demand = f", {of.on_demand_target} of them on demand" if of.on_demand_target else ""
    return (
        f"scales by itself ({mode_text(of.mode)}): asks for {of.workers_target} workers{on_demand}: "
        f"{of.reason}{_outlook(of, job.cost.currency)}"
    )


def scaling_to_plain(job: job_pb2.Job) -> dict[str, Any] | None:
    """Return the scaling for JSON; None for a job that does not scale by itself."""
    from elastane_cli.views.plain import to_plain

    return to_plain(job.scaling) if job.HasField("scaling") else None
