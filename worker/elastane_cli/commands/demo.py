"""`elastane demo`: trains an example under real faults on this machine, and compares it with stock DDP."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elastane_cli.commands.common import command, console
from elastane_cli.commands.rehearsals import require_new, working_folder
from elastane_cli.commands.signals import sigterm_cleans_up
from elastane_common.exit_codes import CODE_FAILED

if TYPE_CHECKING:
    from rich.console import Console

    from elastane_cli.demo.service_checks import Found

EPOCHS_MIN = {"training": 30, "service": 4}

HELP = "\n\n".join(
    (
        "Train digits elastically while workers and master are killed, and compare with stock DDP.",
        "Three workers; one is killed, two join, one is killed, one is drained, the master is killed and "
        "started again, and one more worker is killed. Then the same script runs under stock DDP(gloo) with "
        "one process per logical worker. Exits with 0 only if weights, optimizer, buffers and losses are "
        "equal bit for bit and every sample counted exactly once per epoch.",
        "With `service` it shows the training service: an elastic run, one of stock DDP and one that checks "
        "its TF_CONFIG go from `elastane submit` to their models, while a rank, the master and the runner "
        "are killed. Exits with 0 only if every line of its table says yes, 1 if one says no.",
        "Examples:",
        "  elastane demo",
        "  elastane demo service --json result.json",
    )
)


def register(app: typer.Typer) -> None:
    app.command("demo", help=HELP, rich_help_panel="Run")(demo)


@command
def demo(
    what: Annotated[
        Literal["training", "service"], typer.Argument(metavar="[training|service]", help="What is shown.")
    ] = "training",
    ests: Annotated[
        int | None,
        typer.Option(
            "--ests",
            min=3,
            help="Number of logical workers, and of stock DDP processes.",
            show_default="4; 3 of service",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", help="Number of epochs, at least 30 (4).", show_default="32; 12 of service"),
    ] = None,
    data_workers: Annotated[
        int | None,
        typer.Option(
            "--data-workers",
            min=0,
            help="Number of data workers per process; not of service.",
            show_default="1",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the result to this file.")
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep", help="Keep logs and reports in this new folder.", show_default="a temporary folder"
        ),
    ] = None,
) -> None:
    require_new(keep)
    if json_file is not None and not json_file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json_file.parent}", param_hint="--json")
    if epochs is not None and epochs < EPOCHS_MIN[what]:
        raise typer.BadParameter(f"{epochs} is less than {EPOCHS_MIN[what]}", param_hint="--epochs")
    out = console()
    if what == "service":
        if data_workers is not None:
            raise typer.BadParameter("the service's demo has no data workers", param_hint="--data-workers")
        ok = _show_service(out, keep, json_file, ests=ests or 3, epochs=epochs or 12)
    else:
        workers = 1 if data_workers is None else data_workers
        ok = _show_training(out, keep, json_file, ests=ests or 4, epochs=epochs or 32, data_workers=workers)
    if not ok:
        raise typer.Exit(CODE_FAILED)


def _show_training(
    out: Console, keep: Path | None, json_file: Path | None, *, ests: int, epochs: int, data_workers: int
) -> bool:
    """Return True if the elastic run and stock DDP are equal."""
    from elastane_cli.demo.run import print_result, run_demo

    with working_folder("demo", keep) as folder:
        result = run_demo(folder, out, ests=ests, epochs=epochs, data_workers=data_workers)
    print_result(out, result)
    _write(json_file, result.as_json())
    return result.equal


def _show_service(out: Console, keep: Path | None, json_file: Path | None, *, ests: int, epochs: int) -> bool:
    """Return True if every line of the table says yes."""
    from elastane_cli.demo.service_checks import lines
    from elastane_cli.demo.service_run import run_service_demo

    begun = time.monotonic()

    def say(text: str) -> None:
        style = "bold red" if text.startswith(">>>") else ""
        out.print(f"{time.monotonic() - begun:5.1f} s  {text}", style=style, markup=False)

    with sigterm_cleans_up(), working_folder("demo", keep) as folder:
        found = run_service_demo(folder.absolute(), say, ests=ests, epochs=epochs)
    print_lines(out, found)
    _write(json_file, found.as_json())
    return all(line.ok for line in lines(found))


def print_lines(out: Console, found: Found) -> None:
    """Print each promise and whether it was kept."""
    from rich.markup import escape
    from rich.table import Table

    from elastane_cli.demo.service_checks import lines

    table = Table(title="The training service while rank, master and runner are killed", title_style="bold")
    for column in ("what", "", "found"):
        table.add_column(column)
    for line in lines(found):
        table.add_row(line.text, "[green]yes[/]" if line.ok else "[red]NO[/]", escape(line.detail))
    out.print(table)
    kept = all(line.ok for line in lines(found))
    out.print(
        f"[bold {'green' if kept else 'red'}]{'every' if kept else 'not every'} line says yes[/], "
        f"{found.seconds:.0f} s",
        highlight=False,
    )


def _write(file: Path | None, result: dict[str, object]) -> None:
    if file is not None:
        file.write_text(json.dumps(result, indent=1) + "\n")
