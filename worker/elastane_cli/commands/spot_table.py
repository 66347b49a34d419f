"""The spot part of `elastane simulate`: the cost of a job with a deadline on machines that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastane_cli.commands.common import console, print_json

if TYPE_CHECKING:
    from elastane_scheduler.simulation.availability import Availability
    from elastane_scheduler.simulation.spot_replay import SpotJob, SpotRow

DEADLINES = (1.1, 1.25, 1.5)
GENERATED_TRACES, GENERATED_TICKS = 3, 4000


def generated_traces(nodes: int, seed: int) -> list[Availability]:
    """Return generated traces, of about two weeks each."""
    from elastane_scheduler.simulation.availability import generate_availability

    return [
        generate_availability(nodes, GENERATED_TICKS, GENERATED_TRACES * seed + place)
        for place in range(GENERATED_TRACES)
    ]


def spot_rows(traces: Sequence[Availability], job: SpotJob, deadlines: Sequence[float]) -> list[SpotRow]:
    """Simulate the job under both policies with each deadline. Raises SchedulerError."""
    from elastane_scheduler.autoscaling.spot_deadline import UniformProgress, WideSpot
    from elastane_scheduler.simulation.spot_replay import replay_all

    policies = (WideSpot(), UniformProgress(job.workers))
    return [replay_all(traces, job, deadline, policy) for deadline in deadlines for policy in policies]


def print_spot_rows(rows: Sequence[SpotRow], as_json: bool) -> None:
    """Print the rows as a table, or as JSON."""
    if as_json:
        print_json({"spot": [row.to_plain() for row in rows]})
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    headings = ("policy", "deadline", "starts", "late", "cost / on demand", "least", "most", "on demand")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for row in rows:
        plain = row.to_plain()
        table.add_row(
            row.policy,
            f"x{row.deadline:g}",
            str(plain["starts"]),
            str(plain["late"]),
            *(f"{plain[name]:.3f}" for name in ("cost", "cost_least", "cost_most")),
            f"{plain['on_demand_share']:.0%}",
        )
    console().print(table)
