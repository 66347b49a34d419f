"""Operators' commands: `elastane scale`, `drain`, `checkpoint`, `suspend`, `resume`, `cancel`, `repair`
and `delete`.

Each sends one write with a request id of its own, so that a call repeated over a broken connection takes
effect once. The first positional argument is the job and may be left out: the number of arguments shows it.
`cancel` and `delete` take runs of the training service, too.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Literal

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
    print_json,
    worker_limits,
)
from elastane_cli.commands.job_options import in_bounds, scaling_mode
from elastane_cli.commands.run_ids import JobOrRunArgument, named
from elastane_cli.commands.runs import report_run
from elastane_cli.commands.training import connect_training

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2


_LIMITS = re.compile(r"[0-9]+(:[0-9]+)?")


def register(app: typer.Typer) -> None:
    for function in (scale, drain, checkpoint, suspend, resume, cancel, repair, delete):
        app.command(function.__name__, rich_help_panel="Operate")(function)


@command
def scale(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB] [MIN:]MAX",
            help="The job and the limits; without MIN: the minimum is unchanged. With --auto the limits may "
            "be left out.",
            show_default=False,
        ),
    ] = None,
    auto: Annotated[
        str,
        typer.Option(
            "--auto",
            metavar="MODE",
            help="The master chooses the number within the limits: efficiency[=THETA]; utility=Y0,X0 or "
            "utility=T1:U1,T2:U2,...; budget=MONEY; deadline=TIME, as 2026-12-04T18:00+01:00, 18:00 or +2h; "
            "off: the maximum decides again.",
            show_default=False,
            parser=scaling_mode,
        ),
    ] = "",
    over_budget: Annotated[
        Literal["cheapest", "suspend"] | None,
        typer.Option(
            "--over-budget",
            help="Once a budget is spent: train with the number of workers that costs least, or suspend "
            "the job.",
            show_default="unchanged",
        ),
    ] = None,
    on_demand_workers: Annotated[
        int | None,
        typer.Option(
            "--on-demand-workers",
            min=0,
            metavar="COUNT",
            help="Maximum number of on-demand workers for a deadline.",
            show_default="unchanged",
            callback=in_bounds("on_demand_workers"),
        ),
    ] = None,
    spot_policy: Annotated[
        Literal["wide", "uniform"] | None,
        typer.Option(
            "--spot-policy",
            help="For a deadline: wide: all useful spot workers, and on demand only when time runs out; "
            "uniform: Uniform Progress.",
            show_default="unchanged",
        ),
    ] = None,
    cold_start: Annotated[
        float | None,
        typer.Option(
            "--cold-start",
            min=0,
            metavar="SECONDS",
            help="For a deadline: time from the request for a worker until it trains.",
            show_default="unchanged",
            callback=in_bounds("cold_start_seconds"),
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: say what would be decided from now on.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Change a job's minimum and maximum number of workers, or have the master choose the number.

    Takes effect at a step boundary. A time without a zone is one of this machine.

    Examples: elastane scale 1:8; elastane scale train 2:4; elastane scale 4 (at most 4, minimum unchanged);
    elastane scale train --auto deadline=18:00 --dry-run; elastane scale train 1:16 --auto budget=25
    """
    if not auto:
        for option, value in (
            ("--over-budget", over_budget),
            ("--on-demand-workers", on_demand_workers),
            ("--spot-policy", spot_policy),
            ("--cold-start", cold_start),
        ):
            if value is not None:
                raise typer.BadParameter("it goes with --auto MODE: give both", param_hint=option)
        _scale_to(arguments or [], dry_run, master, timeout, as_json)
        return
    given = list(arguments or [])
    limits_text = given.pop() if given and _LIMITS.fullmatch(given[-1]) else ""
    if len(given) > 1:
        raise typer.BadParameter(f"expected [JOB] [MIN:MAX], got {' '.join(arguments or [])!r}")
    low, high = worker_limits(limits_text, "MIN:MAX") if limits_text else (0, 0)
    least = low if ":" in limits_text else 0
    with connect(master, timeout) as client:
        name = client.only_job(given[0] if given else None)

        def ask(dry: bool) -> job_pb2.JobServiceScaleResponse:
            return client.scale_job_by_itself(
                name,
                auto,
                least,
                high,
                over_budget=over_budget,
                on_demand_workers=on_demand_workers,
                spot_policy=spot_policy,
                cold_start_seconds=cold_start,
                dry_run=dry,
            )

        told = ask(True)
        changed = told if dry_run else ask(False)
    if as_json:
        from elastane_cli.views.plain import to_plain

        print_json(to_plain(changed))
        return
    from elastane_cli.views.scaling import decision_lines

    settings = changed.job.settings
    if not dry_run:
        how = f"scales by itself within {settings.workers_min}:{settings.workers_max} workers"
        _report(changed.job, False, how if settings.scaling else "no longer scales by itself")
    for line in decision_lines(told, in_future=dry_run):
        typer.echo(line)


def _scale_to(arguments: list[str], dry_run: bool, master: str, timeout: float, as_json: bool) -> None:
    if dry_run:
        raise typer.BadParameter("it goes with --auto MODE: give both", param_hint="--dry-run")
    job, limits_text = _job_and(arguments, "MIN:MAX")
    low, high = worker_limits(limits_text, "MIN:MAX")
    with connect(master, timeout) as client:
        # One number is the maximum. The minimum is kept, or the job would stop although fewer workers
        # suffice.
        changed = client.scale_job(client.only_job(job), low if ":" in limits_text else 0, high)
    settings = changed.settings
    by_itself = ", of which the master chooses" if settings.scaling else ""
    _report(changed, as_json, f"scaled to {settings.workers_min}:{settings.workers_max} workers{by_itself}")


@command
def drain(
    arguments: Annotated[
        list[str], typer.Argument(metavar="[JOB] WORKER", help="The job, and the worker.", show_default=False)
    ],
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Ask one worker to leave at the next step boundary; no step is lost.

    Examples: elastane drain w2; elastane drain train w2
    """
    job, worker = _job_and(arguments, "WORKER")
    with connect(master, timeout) as client:
        changed = client.drain_worker(client.only_job(job), worker)
    _report(changed, as_json, f"{worker} leaves at the next step boundary")


@command
def checkpoint(
    job: JobArgument = None,
    wait: Annotated[
        float, typer.Option("--wait", min=1.0, help="Time limit for the checkpoint, in seconds.")
    ] = 600.0,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Save a checkpoint at the next step boundary, and wait until it is complete.

    Example: elastane checkpoint train
    """
    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        saved = client.checkpoint_job(client.only_job(job), wait_seconds=wait)
    if as_json:
        print_json(to_plain(saved))
    else:
        typer.echo(f"saved at step {saved.step}: {saved.url}")


@command
def suspend(
    job: JobArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Save a checkpoint, then release all workers; `elastane resume` continues the job.

    Example: elastane suspend train
    """
    with connect(master, timeout) as client:
        changed = client.suspend_job(client.only_job(job))
    _report(changed, as_json, "to be suspended")


@command
def resume(
    job: JobArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Resume a suspended job, or one that exceeded --max-wait, as soon as workers are available.

    Example: elastane resume train
    """
    with connect(master, timeout) as client:
        changed = client.resume_job(client.only_job(job))
    _report(changed, as_json, "resumed")


@command
def cancel(
    job: JobOrRunArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """End a job at once, or a run; checkpoints stay.

    A run's processes get SIGTERM, and its grace period to end.

    Examples: elastane cancel train; elastane cancel 17
    """
    if isinstance(name := named(job, "JOB|RUN"), int):
        with connect_training(master, timeout) as training:
            report_run(training.cancel(name), as_json)
        return
    with connect(master, timeout) as client:
        changed = client.cancel_job(client.only_job(name))
    _report(changed, as_json, "cancelled")


@command
def repair(
    job: JobArgument = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Serve the job without what is lost; `elastane status` says what that is."
        ),
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Serve a damaged job again, once its keys are restored to the store, or without what is lost.

    Examples: elastane repair train; elastane repair train --accept-loss
    """
    from elastane_cli.commands.jobs import damage_lines
    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        name = client.only_job(job)
        repaired = client.repair_job(name, accept_loss=accept_loss)
    if as_json:
        print_json(to_plain(repaired))
        return
    for line in damage_lines(repaired.accepted):
        typer.echo(f"given up: {line}")
    if repaired.removed:
        typer.echo(f"{name}: removed, no state of it was left; its checkpoints stay")
    else:
        _report(repaired.job, as_json, "served")


@command
def delete(
    job: Annotated[
        str, typer.Argument(metavar="JOB|RUN", help="The job, or the run; required.", show_default=False)
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Cancel the job or run first if it is not over.")
    ] = False,
    keep_artifacts: Annotated[
        bool,
        typer.Option("--keep-artifacts", help="Of a run: leave its model and its record where they are."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Delete a finished job or run and everything that the master stores about it.

    Of a job this deletes its settings, progress, history (audit), events, logged values and contexts; its
    checkpoints stay. Of a run it deletes its record, its logs and its artifacts. A master deletes finished
    jobs by itself after some time: `elastane master --keep-finished`.

    Examples: elastane delete train; elastane delete train --force --yes; elastane delete 17 --keep-artifacts
    """
    name = named(job, "JOB|RUN")
    is_run = isinstance(name, int)
    if keep_artifacts and not is_run:
        raise typer.BadParameter("only runs have artifacts", param_hint="--keep-artifacts")
    shown = f"run {name}" if is_run else str(name)
    if not yes:
        if not _can_ask():
            raise typer.BadParameter(
                f"cannot ask for confirmation to delete {shown} without a terminal: add --yes"
            )
        of_run = "its logs" if keep_artifacts else "its logs and artifacts"
        what = of_run if is_run else "its history, events and logged values"
        typer.confirm(f"Delete {shown} with {what}?", abort=True, err=True)
    if isinstance(name, int):
        _delete_run(name, force, keep_artifacts, master, timeout)
        kept = "its model and record are unchanged" if keep_artifacts else "nothing of it is left"
    else:
        with connect(master, timeout) as client:
            client.delete_job(str(name), force=force)
        kept = "its checkpoints are unchanged"
    if as_json:
        print_json({"deleted": name})
    else:
        typer.echo(f"{shown}: deleted; {kept}")


def _delete_run(run_id: int, force: bool, keep_artifacts: bool, master: str, timeout_seconds: float) -> None:
    """Delete a run. force: cancel it, and wait until it is over."""
    with connect_training(master, timeout_seconds) as training:
        if force:
            training.cancel(run_id)
            for _ in training.watch(run_id):  # ends with the run
                pass
        training.delete(run_id, keep_artifacts=keep_artifacts)


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _job_and(arguments: list[str], what: str) -> tuple[str | None, str]:
    """Split the arguments into the optional job and the required one. what: its name, for the error."""
    if len(arguments) == 1:
        return None, arguments[0]
    if len(arguments) == 2:
        return arguments[0], arguments[1]
    raise typer.BadParameter(f"expected [JOB] {what}, got {len(arguments)} arguments")


def _report(job: job_pb2.Job, as_json: bool, text: str) -> None:
    from elastane_cli.views.jobs import phase_name
    from elastane_cli.views.plain import to_plain

    if as_json:
        print_json(to_plain(job))
        return
    reason = f": {job.reason}" if job.reason else ""
    typer.echo(f"{job.name}: {text}; now {phase_name(job)}{reason}")
