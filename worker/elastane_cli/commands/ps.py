"""`elastane ps`: shows the parameter servers of a job, and operates them.

The first argument is a job unless it names an action; use `show` for a job with such a name.
"""

from __future__ import annotations

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
from elastane_cli.commands.ps_replay import replay
from elastane_cli.commands.run_options import SCRIPT_SETTINGS
from elastane_common.exit_codes import CODE_FAILED
from elastane_common.help_text import Application, HelpGroup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elastane_cli.slot_audit import SlotsAudit
    from elastane_proto.v1 import ps_pb2

HELP = "\n\n".join(
    (
        "Show a job's parameter servers and slots; audit, checkpoint, rewind, export, drain or replay them.",
        "Examples:",
        "  elastane ps   (the only job)",
        "  elastane ps train --slots",
        "  elastane ps audit train",
        "  elastane ps checkpoint train",
        "  elastane ps drain train ps-1",
        "  elastane ps replay runs/train train.py --epochs 2",
    )
)

_PS_COLUMNS: Final = (
    "PS",
    "STATE",
    "SLOTS",
    "BACKUPS",
    "ROWS",
    "BYTES",
    "PUSHES",
    "STALENESS P50",
    "P99",
    "MAX",
    "HOT SLOTS",
)
_SLOT_COLUMNS: Final = ("SLOT", "PS", "BACKUP", "STATE", "LIFE", "VERSION", "ROWS", "BYTES", "SAVED")
_TEXTS: Final = frozenset({"PS", "STATE", "BACKUP", "HOT SLOTS"})
_RUNS_SHOWN: Final = 10


class _Actions(HelpGroup):
    """Treats a first argument that names no action as the job to show."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["show", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    actions = Application(cls=_Actions, help=HELP)
    actions.callback()(lambda: None)
    for function in (show, audit, checkpoint, rewind, export, drain):
        actions.command(function.__name__)(function)
    actions.command("replay", context_settings=dict(SCRIPT_SETTINGS))(replay)
    app.add_typer(actions, name="ps", rich_help_panel="Look")


@command
def show(
    job: JobArgument = None,
    slots: Annotated[bool, typer.Option("--slots", help="Also show every slot.")] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show the parameter servers: their slots, rows, bytes, the staleness of pushes, and hot slots.

    A hot slot has more than twice the bytes of the mean.
    """
    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        name = client.only_job(job)
        found = client.get_slots(name)
    if as_json:
        print_json({"job": name, **to_plain(found)})
        return
    _print_slots(name, found, every_slot=slots)


@command
def audit(
    job: JobArgument = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Read every slot, and check that it has applied exactly the DONE tasks.

    Names what a slot lacks, what it has beside the tasks of the job, and what FAILED tasks have left in it.
    May be called while the job trains. It reads from the parameter servers, so it needs a worker's token
    where a master has tokens. Exits with 1 on a fault.
    """
    from dataclasses import asdict

    from elastane_cli.slot_reading import audit_job

    with connect(master, timeout) as client:
        name = client.only_job(job)
        result = audit_job(client, name, timeout)
    if as_json:
        print_json({"job": name, "ok": result.ok, **asdict(result)})
    else:
        _print_audit(name, result)
    if not result.ok:
        raise typer.Exit(CODE_FAILED)


@command
def checkpoint(
    job: JobArgument = None,
    in_flight: Annotated[
        bool,
        typer.Option("--in-flight", help="Do not wait for tasks in flight; the checkpoint lists them."),
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=1.0, help="How long to wait for it.")
    ] = 600.0,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Save all slots and what is DONE as one checkpoint, and wait until it is complete.

    No new task is leased until those in flight are over, unless --in-flight is given.
    """
    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client:
        name = client.only_job(job)
        saved = client.checkpoint_slots(name, in_flight=in_flight, wait_seconds=wait)
    if as_json:
        print_json({"job": name, **to_plain(saved)})
        return
    typer.echo(f"{name}: checkpoint {saved.checkpoint} of {saved.tasks} DONE tasks in {saved.url}")
    beside = sorted({run_text(run) for slot in saved.surplus for run in slot.tasks})
    if beside:
        more = f" and {len(beside) - _RUNS_SHOWN} more" if len(beside) > _RUNS_SHOWN else ""
        shown = ", ".join(beside[:_RUNS_SHOWN])
        typer.echo(f"some slots also have tasks in flight, or left by FAILED ones: {shown}{more}")


@command
def rewind(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] CHECKPOINT", help="The job, and the checkpoint's name.", show_default=False
        ),
    ],
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Take all slots back to a checkpoint: tasks that became DONE since are done again."""
    job, name = _job_and(arguments, "CHECKPOINT")
    with connect(master, timeout) as client:
        job = client.only_job(job)
        generation = client.rewind_slots(job, name)
    if as_json:
        print_json({"job": job, "checkpoint": name, "generation": generation})
    else:
        typer.echo(f"{job}: all slots go back to {name}; map {generation}")


@command
def drain(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] PS", help="The job, and the parameter server's name.", show_default=False
        ),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the events.")] = "",
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Ask one parameter server to leave; its slots move to the others first, and nothing goes back."""
    job, ps_id = _job_and(arguments, "PS")
    with connect(master, timeout) as client:
        job = client.only_job(job)
        client.drain_ps(job, ps_id, reason=reason)
    if as_json:
        print_json({"job": job, "ps_id": ps_id, "draining": True})
    else:
        typer.echo(f"{job}: {ps_id} drains; its slots move to the other parameter servers")


@command
def export(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[JOB] FILE", help="The job, and the file for the state_dict.", show_default=False
        ),
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint", metavar="NAME", help="A checkpoint of the job.", show_default="a new one is saved"
        ),
    ] = "",
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=1.0, help="How long to wait for a new one.")
    ] = 600.0,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out what no slot has: frozen parameters and buffers.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Write the model as a state_dict, which torch.load reads, from a checkpoint of all slots.

    The checkpoint's folder must be readable from here. Rows of tables that no task has used have their
    initial values. The file has all keys of the script's model, or says which it lacks (--partial).
    """
    job, target = _job_and(arguments, "FILE")
    with connect(master, timeout) as client:
        job = client.only_job(job)
        if not checkpoint:
            checkpoint = client.checkpoint_slots(job, wait_seconds=wait).checkpoint
        found = client.get_slots(job)
    from elastane_cli.slot_export import export_state

    exported = export_state(found, checkpoint, Path(target), partial=partial)
    if as_json:
        print_json({"job": job, "checkpoint": checkpoint, **exported})
    else:
        typer.echo(
            f"{job}: {exported['parameters']} parameters of checkpoint {checkpoint} in {exported['file']}"
        )
        if exported["absent"]:
            typer.echo(f"left out, as no slot has them: {', '.join(exported['absent'])}")


def run_text(run: ps_pb2.TaskRunName) -> str:
    """Format tasks of an epoch: "clicks 0:5-9"."""
    last = f"-{run.end - 1}" if run.end > run.start + 1 else ""
    return f"{run.dataset} {run.epoch}:{run.start}{last}"


# ------------------------------------------------------------------ printing


def _print_slots(job: str, found: ps_pb2.GetSlotsResponse, *, every_slot: bool) -> None:
    from elastane_cli.views.slots import ps_rows, slot_rows, summary_lines

    out = console()
    if not found.processes and not found.HasField("model"):
        out.print(f"{job}: no parameter server has come, and no worker has registered a model")
        return
    _print_table(_PS_COLUMNS, ps_rows(found))
    if every_slot:
        _print_table(_SLOT_COLUMNS, slot_rows(found))
    for line in summary_lines(found):
        out.print(line, markup=False)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in _TEXTS else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


def _print_audit(job: str, result: SlotsAudit) -> None:
    out = console()
    for slot in result.slots:
        for fault in slot.faults:
            out.print(f"slot {slot.slot}: {fault}", style="red", markup=False)
    if result.failed:
        left = sum(slot.left > 0 for slot in result.slots)
        text = f"{result.failed} FAILED tasks, parts of which are in {left} of {len(result.slots)} slots"
        out.print(f"{text}; `elastane ps` lists them")
    if result.closing:
        out.print(f"{result.closing} FAILED tasks are not closed at every slot yet: audit again")
    flying = max((slot.in_flight for slot in result.slots), default=0)
    if flying:
        out.print(f"up to {flying} tasks of a slot are in flight")
    if result.ok:
        text = f"{job}: {result.tasks} DONE tasks are applied once in each of {len(result.slots)} slots"
        out.print(text, style="green")


def _job_and(arguments: list[str], what: str) -> tuple[str | None, str]:
    if not 1 <= len(arguments) <= 2:
        raise typer.BadParameter(f"expected [JOB] {what}, got {len(arguments)} arguments")
    return (arguments[0] if len(arguments) == 2 else None), arguments[-1]
