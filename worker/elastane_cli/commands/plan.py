"""`elastane plan`: which numbers of workers pay for a running job, and what each would change."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Annotated, Final

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

    from elastane_common.client import MasterClient
    from elastane_proto.v1 import job_pb2, ring_pb2
    from elastane_scheduler.job_plan import JobPlan
    from elastane_scheduler.mixing import Other


JOBS_ASKED_MAX: Final = 50
"""Other jobs that are asked how fast the service's device types are."""


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
    8. Nothing is changed; `elastane scale` does that. Of a job at D1, which stays on one device type, it also
    says what other types of the training service would change at D2.

    Examples: elastane plan; elastane plan train --all; elastane plan train --json
    """
    from elastane_cli.views.plans import mixture_lines, plan_parts, plan_to_plain
    from elastane_cli.views.scaling import scaling_to_plain
    from elastane_cli.views.stages import stages_to_plain
    from elastane_scheduler.mixing import mixtures

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
        figures = client.worker_figures(found.name, [worker.worker_id for worker in found.workers])
        made = _plan(found, figures, every=every)
        mixed = mixtures(made, _others(client, found, made)) if _is_bound(found) else []
    if as_json:
        told = plan_to_plain(made, found.cost.currency, mixed)
        shown = {"scaling": scaling_to_plain(found), "pipeline": stages_to_plain(found)}
        print_json({"job": found.name, **told, **shown})
        return
    out = console()
    for part in (*plan_parts(found, made, every=every), *mixture_lines(made, mixed)):
        out.print(part)


def _is_bound(found: job_pb2.Job) -> bool:
    """True if the job's level keeps it on the device type that it began with."""
    from elastane_proto.v1 import job_pb2

    return found.settings.determinism == job_pb2.DETERMINISM_LEVEL_D1


def _others(client: MasterClient, found: job_pb2.Job, made: JobPlan) -> list[Other]:
    """Return the device types of the training service's runners, with this job's speed there; [] without one.

    What other jobs have measured tells how fast a type is beside the job's own one.
    """
    from elastane_cli.views.plans import others_of
    from elastane_common.errors import ElastaneError
    from elastane_common.training_client import TrainingClient

    if made.device is None:
        return []
    try:
        runners = TrainingClient(client).get_service().runners
    except ElastaneError:  # a master of before, or a token that is not for it
        return []
    names = {runner.device_type for runner in runners if runner.attends}
    if not names - {made.device.device_type}:
        return []
    measured = []
    for job in itertools.islice(client.iter_jobs(), JOBS_ASKED_MAX):
        if job.name != found.name and job.workers:
            with contextlib.suppress(ElastaneError):  # it has just been deleted
                measured.append(
                    list(client.worker_figures(job.name, [one.worker_id for one in job.workers]).values())
                )
    return others_of(made.device, runners, measured)


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
