"""`elastane plan`: which numbers of workers pay for a running job, and what each would change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JobArgument,
    JsonOption,
    MasterOption,
    TimeoutOption,
    command,
    connect,
    console,
    print_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastane_proto.v1 import job_pb2, ring_pb2
    from elastane_scheduler.job_plan import JobPlan


def register(app: typer.Typer) -> None:
    app.command("plan", rich_help_panel="Look")(plan)


@command
def plan(
    job: JobArgument = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also numbers beyond --workers, and all of a long list.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show which numbers of workers pay for a running job: step time, time left and cost of each.

    By what its workers have measured. A step lasts as long as the worker with the most logical workers needs,
    so only some numbers are faster than the number before: with 16 logical workers, 9 workers are as fast as
    8. Nothing is changed; `elastane scale` does that.

    Examples: elastane plan; elastane plan train --all; elastane plan train --json
    """
    from elastane_cli.views.plans import plan_parts, plan_to_plain

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
        figures = client.worker_figures(found.name, [worker.worker_id for worker in found.workers])
    made = _plan(found, figures, every=every)
    if as_json:
        print_json({"job": found.name, **plan_to_plain(made, found.cost.currency)})
        return
    out = console()
    for part in plan_parts(found, made, every=every):
        out.print(part)


def _plan(found: job_pb2.Job, figures: Mapping[str, ring_pb2.WorkerFigures], *, every: bool) -> JobPlan:
    from elastane_cli.views.plans import steps_left, worker_hour
    from elastane_scheduler.job_plan import WorkerSpeed, job_plan

    speeds = [
        WorkerSpeed(
            device_type=known.device_type,
            ests=known.ests,
            generation=known.generation,
            ring_workers=known.ring_workers,
            est_seconds=known.est_seconds,
            est_spread_seconds=known.est_seconds_spread,
            est_steps=known.est_steps,
            ring_step_seconds=known.ring_step_seconds,
            ring_steps=known.ring_steps,
            ests_max=known.ests_max,
        )
        for known in figures.values()
        if known.ests
    ]
    settings = found.settings
    return job_plan(
        settings.ests,
        speeds,
        workers_min=1 if every else max(1, settings.workers_min),
        workers_max=0 if every else settings.workers_max,
        steps_left=steps_left(found),
        worker_hour=worker_hour(found),
    )
