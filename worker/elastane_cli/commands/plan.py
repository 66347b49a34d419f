"""`elastane plan`: which numbers of workers pay for a running job; or a pipeline, planned from a profile."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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


_PIPELINE = "Plan a pipeline from a profile, without a master"
#: Options that have no effect without another one.
_NEEDS: Final = {
    "--bandwidth": "--devices",
    "--memory": "--devices",
    "--horizon": "--keep",
    "--transfers": "--csv",
}


def _file(option: str, text: str, *, reads: bool) -> Any:
    return typer.Option(
        option, help=text, metavar="FILE", exists=reads, dir_okay=False, rich_help_panel=_PIPELINE
    )


def _number(option: str, metavar: str, text: str, *, least: int) -> Any:
    return typer.Option(option, help=text, metavar=metavar, min=least, rich_help_panel=_PIPELINE)


def register(app: typer.Typer) -> None:
    app.command("plan", rich_help_panel="Look")(plan)


@command
def plan(
    context: typer.Context,
    job: JobArgument = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also numbers beyond --workers, and all of a long list.")
    ] = False,
    cluster_out: Annotated[
        Path | None,
        typer.Option(
            "--cluster-out",
            help="Of a running pipeline: write its workers and the links they have measured, for --cluster.",
            metavar="FILE",
            dir_okay=False,
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        _file(
            "--profile",
            "The model's units, from `elastane profile`; or a graph.txt of PipeDream.",
            reads=True,
        ),
    ] = None,
    devices: Annotated[int | None, _number("--devices", "N", "Number of equal devices.", least=1)] = None,
    bandwidth: Annotated[
        str,
        typer.Option(
            "--bandwidth",
            help="With --devices: bandwidth of every link, in each direction, per second.",
            metavar="BYTES",
            rich_help_panel=_PIPELINE,
        ),
    ] = "1.25GB",
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            help="With --devices: memory of each that a plan may use.",
            metavar="BYTES",
            show_default="no limit",
            rich_help_panel=_PIPELINE,
        ),
    ] = "",
    cluster: Annotated[
        Path | None,
        _file("--cluster", "Devices with speeds and memory, and their links, as JSON.", reads=True),
    ] = None,
    micro_batches: Annotated[
        int | None,
        _number(
            "--micro-batches", "M", "Micro-batches of a step: the job's logical workers N. Required.", least=1
        ),
    ] = None,
    stages: Annotated[
        str,
        typer.Option(
            "--stages",
            help="Minimum and maximum number of stages, or one number.",
            metavar="MIN:MAX",
            show_default="any",
            rich_help_panel=_PIPELINE,
        ),
    ] = "",
    shadow: Annotated[
        int, _number("--shadow", "K", "Copies of each stage beside the first, replicas included.", least=0)
    ] = 0,
    keep: Annotated[
        Path | None,
        _file(
            "--keep",
            "The current plan, as printed by --json: another has to be worth the move.",
            reads=True,
        ),
    ] = None,
    horizon: Annotated[
        int, _number("--horizon", "STEPS", "With --keep: steps for which the move has to pay.", least=1)
    ] = 1000,
    units_max: Annotated[
        int | None,
        _number("--units-max", "N", "Merge neighbouring units until at most N are left.", least=1),
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            help="Time for the search, in seconds.",
            metavar="SECONDS",
            min=0.0,
            rich_help_panel=_PIPELINE,
        ),
    ] = 10.0,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Compare with data parallel, GPipe, 1F1B, PipeDream and HetPipe.",
            rich_help_panel=_PIPELINE,
        ),
    ] = False,
    schedule: Annotated[
        Path | None,
        _file(
            "--schedule", "Compare with a schedule as --csv writes it; its stages are balanced.", reads=True
        ),
    ] = None,
    gantt: Annotated[
        Path | None, _file("--gantt", "Write the predicted step as a picture (SVG).", reads=False)
    ] = None,
    csv: Annotated[
        Path | None,
        _file("--csv", "Write the schedule as CSV of torch.distributed.pipelining.", reads=False),
    ] = None,
    transfers: Annotated[
        bool,
        typer.Option(
            "--transfers",
            help="With --csv: also sends and receives (compute_comms).",
            rich_help_panel=_PIPELINE,
        ),
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show which numbers of workers are worthwhile for a running job; with --profile, plan a pipeline.

    Of a running job, by what its workers have measured: step time, time left and cost of each number. A step
    lasts as long as the worker with the most logical workers needs, so only some numbers are faster than the
    number before: with 16 logical workers, 9 workers are as fast as 8. Nothing is changed; `elastane scale`
    does that. Of a job at D1, which stays on one device type, it also says what other types of the training
    service would change at D2. Of a pipeline: its stages, what a death would cost, and its last step.

    With --profile: divides a model into stages on the devices given, and predicts the step, each device's
    memory, and what bounds the step. Needs no master. `elastane profile` measures a script's units. Exits
    with 2 for files or numbers that cannot be used, 1 if nothing fits.

    Examples: elastane plan; elastane plan train --all; elastane plan train --cluster-out cluster.json;
    elastane plan --profile profile.json --devices 4
    --micro-batches 8 --memory 2GiB --baselines; elastane plan --profile profile.json --cluster cluster.json
    --micro-batches 16 --gantt step.svg --json
    """
    given = _given(context)
    if profile is not None:
        from elastane_cli.commands.plan_pipeline import PipelineRequest, plan_pipeline

        if job is not None or every or cluster_out is not None:
            raise typer.BadParameter("is for a plan without a job", param_hint="--profile")
        if micro_batches is None:
            raise typer.BadParameter("is needed with --profile", param_hint="--micro-batches")
        for option, other in _NEEDS.items():
            if option in given and other not in given:
                raise typer.BadParameter(f"is for a plan with {other}", param_hint=option)
        request = PipelineRequest(
            profile=profile,
            devices=devices,
            cluster=cluster,
            bandwidth=bandwidth,
            memory=memory,
            micro_batches=micro_batches,
            stages=stages,
            shadows=shadow,
            keep=keep,
            horizon_steps=horizon,
            units_max=units_max,
            budget_seconds=budget,
            gantt=gantt,
            csv=csv,
            transfers=transfers,
            schedule=schedule,
            baselines=baselines,
        )
        plan_pipeline(request, as_json=as_json)
        return
    if given:
        raise typer.BadParameter("is for a plan with --profile", param_hint=min(given))
    from elastane_cli.views.last_step import last_step_parts, last_step_to_plain
    from elastane_cli.views.plans import mixture_lines, plan_parts, plan_to_plain
    from elastane_cli.views.scaling import scaling_to_plain
    from elastane_cli.views.stages import stages_to_plain
    from elastane_scheduler.mixing import mixtures

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
        figures = client.worker_figures(found.name, [worker.worker_id for worker in found.workers])
        made = _plan(found, figures, every=every)
        mixed = mixtures(made, _others(client, found, made)) if _is_bound(found) else []
    written = _write_cluster(found, cluster_out) if cluster_out is not None else ""
    if as_json:
        told = plan_to_plain(made, found.cost.currency, mixed)
        shown = {
            "scaling": scaling_to_plain(found),
            "pipeline": stages_to_plain(found),
            "last_step": last_step_to_plain(found, figures),
        }
        print_json({"job": found.name, **told, **shown})
        return
    out = console()
    parts = [*plan_parts(found, made, every=every), *last_step_parts(found, figures)]
    for part in (*parts, *mixture_lines(made, mixed)):
        out.print(part)
    if written:
        out.print(written, markup=False)


def _write_cluster(found: job_pb2.Job, path: Path) -> str:
    """Write a pipeline's workers and links as a cluster file; returns a description."""
    from elastane_cli.commands.plan_pipeline import write_file
    from elastane_cli.views.stages import cluster_of

    if not found.pipeline.devices:
        raise typer.BadParameter(
            f"{found.name} is not a running pipeline: it has no plan yet", param_hint="--cluster-out"
        )
    cluster, measured, links = cluster_of(found)
    write_file(path, cluster.to_json().decode(), "--cluster-out")
    told = f"{path}: {len(cluster.devices)} devices; {measured} of {links} links between them are measured"
    return told if measured == links else f"{told}, the others are taken to be like these, or 10 Gbit/s"


def _given(context: typer.Context) -> set[str]:
    """Return the pipeline options on the command line."""
    return {
        parameter.opts[0]
        for parameter in context.command.params
        if getattr(parameter, "rich_help_panel", None) == _PIPELINE
        and (source := context.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
    }


def _is_bound(found: job_pb2.Job) -> bool:
    """True if the job's level keeps it on the device type that it began with."""
    from elastane_proto.v1 import job_pb2

    return found.settings.determinism == job_pb2.DETERMINISM_LEVEL_D1


def _others(client: MasterClient, found: job_pb2.Job, made: JobPlan) -> list[Other]:
    """Return the device types of runners, with this job's speed there; [] without a training service.

    Measurements of other jobs give the speed of a type relative to the job's own one.
    """
    from elastane_cli.views.plans import others_of
    from elastane_common.errors import ElastaneError
    from elastane_common.training_client import TrainingClient

    if made.device is None:
        return []
    try:
        runners = TrainingClient(client).get_service().runners
    except ElastaneError:  # an older master, or a token without this right
        return []
    names = {runner.device_type for runner in runners if runner.attends}
    if not names - {made.device.device_type}:
        return []
    measured = []
    for job in itertools.islice(client.iter_jobs(), JOBS_ASKED_MAX):
        if job.name != found.name and job.workers:
            with contextlib.suppress(ElastaneError):  # deleted just now
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
            after_est_seconds=known.after_est_seconds,
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
