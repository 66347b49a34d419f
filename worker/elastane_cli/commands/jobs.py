"""`elastane status` and `elastane jobs`: state of one job with its workers, and the list of jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

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
from elastane_cli.views.jobs import ests_text, phase_name
from elastane_cli.views.text import counted, harmless

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from elastane_proto.v1 import job_pb2

_PHASE_STYLES = {
    "waiting": "yellow",
    "running": "green",
    "suspended": "yellow",
    "max_wait_exceeded": "red",
    "succeeded": "bold green",
    "failed": "bold red",
    "cancelled": "red",
    "damaged": "bold red",
    "too_new": "bold red",
}


def register(app: typer.Typer) -> None:
    app.command("status", rich_help_panel="Look")(status)
    app.command("jobs", rich_help_panel="Look")(jobs)
    app.command("list", hidden=True)(jobs)


@command
def status(
    job: JobArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show a job: phase and reason, step, generation, cost, and its workers.

    Examples: elastane status; elastane status train --json
    """
    from rich.markup import escape
    from rich.text import Text

    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
    if as_json:
        print_json(to_plain(found))
        return
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
    if found.workers:
        out.print(worker_table(found, time.time()))
    else:
        out.print("no workers")


@command
def jobs(
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List all jobs of the master.

    Example: elastane jobs --master 10.0.0.5:50051
    """
    from rich.table import Table
    from rich.text import Text

    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        found = client.list_jobs()
    if as_json:
        print_json([to_plain(job) for job in found])
        return
    if not found:
        typer.echo("no jobs")
        return
    table = Table(box=None, header_style="bold")
    for column in ("JOB", "PHASE", "STEP", "EPOCH", "WORKERS", "ESTS", "REASON"):
        table.add_column(column, no_wrap=column != "REASON")
    for job in found:
        table.add_row(
            Text(job.name),
            _phase(job),
            _step(job),
            _epoch(job),
            str(_members(job)),
            str(job.settings.ests),
            Text(harmless(job.reason)),
        )
    console().print(table)


def damage_lines(damages: Iterable[job_pb2.Damage]) -> list[str]:
    """Describe what is missing of a damaged job, one line for each gap."""
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

    reason = f": {escape(harmless(job.reason))}" if job.reason else ""
    limits = f"{job.settings.workers_min}:{job.settings.workers_max}"
    if job.settings.recovery == job_pb2.RECOVERY_POLICY_FIXED:
        limits += ", fixed recovery"
    if seconds := job.settings.max_wait.ToTimedelta().total_seconds():
        limits += f", max wait {seconds:g} s"
    if job.settings.sentinel_steps:
        limits += f", sentinel every {job.settings.sentinel_steps} steps"
    cost = cost_line(job.cost)
    saved = f", saved at step {job.saved_step}" if job.saved_step >= 0 else ""
    return (
        f"[bold]{escape(job.name)}[/]  {_phase(job)}{reason}\n"
        f"step {_step(job)}, epoch {_epoch(job)}, generation {job.generation}{saved}\n"
        f"{counted(job.settings.ests, 'EST')} on {counted(_members(job), 'worker')} (wanted: {limits})"
        + (f"\n{cost}" if cost else "")
    )


def _phase(job: job_pb2.Job) -> str:
    phase = phase_name(job)
    return f"[{_PHASE_STYLES.get(phase, 'default')}]{phase.replace('_', ' ')}[/]"


def _step(job: job_pb2.Job) -> str:
    total = job.steps_per_epoch * job.epochs
    return f"{job.step}/{total}" if total else str(job.step)


def _epoch(job: job_pb2.Job) -> str:
    """Format the epoch, counted from one; stays at the last one when all are done."""
    return f"{min(job.epoch + 1, job.epochs)}/{job.epochs}" if job.epochs else "-"


def _members(job: job_pb2.Job) -> int:
    return sum(1 for worker in job.workers if worker.ests.end > worker.ests.start)
