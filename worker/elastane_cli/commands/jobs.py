"""`elastane status` and `elastane jobs`: the state of one job or run, and the lists of both."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JsonOption,
    MasterOption,
    TimeoutOption,
    command,
    connect,
    console,
    print_json,
)
from elastane_cli.commands.run_ids import JobOrRunArgument, named
from elastane_cli.commands.training import UNKNOWN_SERVICE, connect_training
from elastane_cli.views.jobs import ests_text, phase_name
from elastane_cli.views.text import counted, harmless
from elastane_common.job_words import phase_words, progress_words, working

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

    from elastane_common.client import MasterClient
    from elastane_proto.v1 import job_pb2, ps_pb2, ring_pb2, training_pb2

#: Runs that `elastane jobs` lists after the jobs.
_RUNS_SHOWN: Final = 20

_PHASE_STYLES = {
    "waiting": "yellow",
    "running": "green",
    "suspended": "yellow",
    "max wait exceeded": "red",
    "doing tasks": "green",
    "tasks done": "bold green",
    "succeeded": "bold green",
    "failed": "bold red",
    "cancelled": "red",
    "damaged": "bold red",
    "too new": "bold red",
}


def register(app: typer.Typer) -> None:
    app.command("status", rich_help_panel="Look")(status)
    app.command("jobs", rich_help_panel="Look")(jobs)
    app.command("list", hidden=True)(jobs)


@command
def status(
    job: JobOrRunArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show a job with its workers, or a run with its ranks and its history.

    Examples: elastane status; elastane status train --json; elastane status 17
    """
    from elastane_cli.views.plain import to_plain

    if isinstance(name := named(job, "JOB|RUN"), int):
        with connect_training(master, timeout) as training:
            run = training.get(name)
        if as_json:
            print_json(to_plain(run))
        else:
            _show_run(run)
        return
    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(name))
        slots = client.find_slots(found.name) if found.settings.ests else None
        figures: Mapping[str, ring_pb2.WorkerFigures] = {}
        if found.HasField("pipeline"):
            figures = client.worker_figures(found.name, [worker.worker_id for worker in found.workers])
        resources = client.worker_resources(found.name) if found.workers else {}
    if as_json:
        from elastane_cli.views.last_step import last_step_to_plain
        from elastane_cli.views.resources import resources_to_plain

        step = {"last_step": last_step_to_plain(found, figures)} if found.HasField("pipeline") else {}
        used = {"resources": resources_to_plain(resources)} if resources else {}
        print_json({**to_plain(found), **step, **used})
    else:
        _show_job(found, figures, slots, resources)


def _show_run(run: training_pb2.Run) -> None:
    from elastane_cli.views.runs import headline as run_headline
    from elastane_cli.views.runs import history_table, rank_table

    out, now = console(), time.time()
    out.print(run_headline(run, now))
    if run.ranks:
        out.print(rank_table(run, now))
    if run.history:
        out.print(history_table(run))


def _show_job(
    found: job_pb2.Job,
    figures: Mapping[str, ring_pb2.WorkerFigures],
    slots: ps_pb2.GetSlotsResponse | None,
    resources: Mapping[str, Sequence[ring_pb2.ResourceSample]],
) -> None:
    from rich.markup import escape
    from rich.text import Text

    from elastane_cli.views.last_step import last_step_parts
    from elastane_cli.views.resources import resource_table
    from elastane_cli.views.slots import status_lines
    from elastane_cli.views.stages import stage_parts

    out = console()
    if found.damages:
        out.print(f"[bold]{escape(found.name)}[/]  {_phase(found)}: it is held and not served")
        for line in damage_lines(found.damages):
            out.print(Text(line), soft_wrap=True)
        hint = f"put the keys back and say `elastane repair {found.name}`, or go on without: --accept-loss"
        out.print(Text(hint), soft_wrap=True)
        return
    if phase_name(found) == "too_new":
        out.print(f"[bold]{escape(found.name)}[/]  {_phase(found)}: it is held and not served")
        out.print(Text(harmless(found.reason)), soft_wrap=True)
        out.print(Text("start a master at least as new as the one that wrote it"), soft_wrap=True)
        return
    out.print(headline(found))
    for part in (*stage_parts(found), *last_step_parts(found, figures)):
        out.print(part)
    if found.workers:
        out.print(worker_table(found, time.time()))
    else:
        out.print("no workers")
    if resources:
        out.print(resource_table(resources))
    if slots is not None:
        for line in status_lines(slots):
            out.print(Text(line), soft_wrap=True)


@command
def jobs(
    runs: Annotated[
        bool, typer.Option("--runs", help="List the runs alone, all of them; with --json as JSON.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List all jobs of the master, and the newest runs of its training service.

    Examples: elastane jobs --master 10.0.0.5:50051; elastane jobs --runs --json
    """
    from elastane_cli.views.plain import to_plain

    if runs:
        with connect_training(master, timeout) as training:
            all_runs = list(training.iter_runs())
        if as_json:
            print_json([to_plain(run) for run in all_runs])
        else:
            _show_runs(all_runs)
        return
    with connect(master, timeout) as client:
        found = client.list_jobs()
        newest = [] if as_json else _newest_runs(client)
    if as_json:
        print_json([to_plain(job) for job in found])
        return
    if found:
        console().print(_job_table(found))
    elif not newest:
        typer.echo("no jobs")
    if newest:
        if found:
            typer.echo()
        _show_runs(newest[:_RUNS_SHOWN])
        if len(newest) > _RUNS_SHOWN:
            typer.echo("older runs: elastane jobs --runs")


def _newest_runs(client: MasterClient) -> list[training_pb2.Run]:
    """Return the runs to list and one more; none if the caller may not see runs, or the master has none."""
    from elastane_common.client_errors import RequestRefusedError
    from elastane_common.training_client import TrainingClient

    wanted = _RUNS_SHOWN + 1
    try:
        return list(islice(TrainingClient(client).iter_runs(page_size=wanted), wanted))
    except RequestRefusedError as error:
        if error.reason not in (UNKNOWN_SERVICE, "permission_denied"):
            raise
        return []


def _show_runs(runs: list[training_pb2.Run]) -> None:
    from elastane_cli.views.runs import run_table

    if runs:
        console().print(run_table(runs, time.time()))
    else:
        typer.echo("no runs")


def _job_table(found: Iterable[job_pb2.Job]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for column in ("JOB", "PHASE", "PROGRESS", "EPOCH", "WORKERS", "ESTS", "REASON"):
        table.add_column(column, no_wrap=column != "REASON")
    for job in found:
        table.add_row(
            Text(job.name),
            _phase(job),
            progress_words(job),
            _epoch(job),
            str(working(job)),
            str(job.settings.ests),
            Text(_reason(job)),
        )
    return table


def damage_lines(damages: Iterable[job_pb2.Damage]) -> list[str]:
    """Describe the missing parts of a damaged job, one line for each gap."""
    return [
        f"{damage.key}{f' from number {damage.sequence}' if damage.sequence else ''}: {harmless(damage.lost)}"
        for damage in damages
    ]


def worker_table(job: job_pb2.Job, now: float) -> Table:
    """Return a table with one row per worker. now: seconds since the Unix epoch, for ages."""
    from rich.table import Table
    from rich.text import Text

    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import job_pb2

    table = Table(box=None, header_style="bold")
    for column in ("WORKER", "STATE", "ESTS", "APPLIED", "HEARD", "HOST", "PID", "REASON"):
        table.add_column(column, no_wrap=column != "REASON")
    for worker in job.workers:
        state = enum_word(job_pb2.WorkerState.DESCRIPTOR, worker.state)
        heard = now - worker.last_heard.seconds - worker.last_heard.nanos / 1e9
        table.add_row(
            Text(worker.worker_id),
            state,
            ests_text(worker.ests.start, worker.ests.end),
            str(worker.applied_step),
            f"{max(heard, 0.0):.1f} s ago" if worker.HasField("last_heard") else "-",
            Text(harmless(worker.host)),
            str(worker.pid or "-"),
            Text(harmless(worker.reason)),
        )
    return table


def headline(job: job_pb2.Job) -> str:
    """Return name, phase, reason, step, sizes and cost of a job, in rich's markup."""
    from rich.markup import escape

    from elastane_cli.commands.cost import cost_line
    from elastane_proto.v1 import job_pb2

    reason = f": {escape(_reason(job))}" if _reason(job) else ""
    limits = f"{job.settings.workers_min}:{job.settings.workers_max}"
    if job.settings.recovery == job_pb2.RECOVERY_POLICY_FIXED:
        limits += ", fixed recovery"
    if seconds := job.settings.max_wait.ToTimedelta().total_seconds():
        limits += f", max wait {seconds:g} s"
    if job.settings.sentinel_steps:
        limits += f", sentinel every {job.settings.sentinel_steps} steps"
    cost = cost_line(job.cost)
    saved = f", saved at step {job.saved_step}" if job.saved_step >= 0 else ""
    at = f", epoch {_epoch(job)}, generation {job.generation}{saved}" if not job.HasField("tasks") else ""
    return (
        f"[bold]{escape(job.name)}[/]  {_phase(job)}{reason}\n"
        f"{progress_words(job)}{at}\n"
        f"{counted(job.settings.ests, 'EST')} on {counted(working(job), 'worker')} (wanted: {limits})"
        + (f"\n{cost}" if cost else "")
    )


def _phase(job: job_pb2.Job) -> str:
    phase = phase_words(job)
    return f"[{_PHASE_STYLES.get(phase, 'default')}]{phase}[/]"


def _reason(job: job_pb2.Job) -> str:
    """Return why it is in its phase; of a job that does tasks, why it would wait for a ring is no matter."""
    return "" if phase_words(job) in ("doing tasks", "tasks done") else harmless(job.reason)


def _epoch(job: job_pb2.Job) -> str:
    """Format the epoch, counted from one; stays at the last one when all are done."""
    return f"{min(job.epoch + 1, job.epochs)}/{job.epochs}" if job.epochs else "-"
