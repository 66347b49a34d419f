"""`elastane demo`: trains an example under real faults on this machine, and compares it with stock DDP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from elastane_cli.commands.common import CODE_FAILED, command, console
from elastane_cli.commands.rehearsals import require_new, working_folder


def register(app: typer.Typer) -> None:
    app.command("demo", rich_help_panel="Run")(demo)


@command
def demo(
    ests: Annotated[
        int, typer.Option("--ests", min=3, help="Number of logical workers, and of stock DDP processes.")
    ] = 4,
    epochs: Annotated[int, typer.Option("--epochs", min=30, help="Number of epochs.")] = 32,
    data_workers: Annotated[
        int, typer.Option("--data-workers", min=0, help="Number of data workers per process.")
    ] = 1,
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
    """Train digits elastically while workers and master are killed, and compare with stock DDP.

    Three workers; one is killed, two join, one is killed, one is drained, the master is killed and started
    again, and one more worker is killed. Then the same script runs under stock DDP(gloo) with one process per
    logical worker. Exits with 0 only if weights, optimizer, buffers and losses are equal bit for bit
    and every sample counted exactly once per epoch.
    """
    from elastane_cli.demo.run import print_result, run_demo

    require_new(keep)
    if json_file is not None and not json_file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json_file.parent}", param_hint="--json")
    out = console()
    with working_folder("demo", keep) as folder:
        result = run_demo(folder, out, ests=ests, epochs=epochs, data_workers=data_workers)
    print_result(out, result)
    if json_file is not None:
        json_file.write_text(json.dumps(result.as_json(), indent=1) + "\n")
    if not result.equal:
        raise typer.Exit(CODE_FAILED)
