"""`elastane ps replay`: an asynchronous run, computed again from its journal."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import JsonOption, command, console, print_json
from elastane_cli.commands.rehearsals import watching, working_folder
from elastane_cli.commands.run_options import ModuleOption, require_script
from elastane_common.exit_codes import CODE_FAILED, CODE_RUN_FAILED

if TYPE_CHECKING:
    from elastane_cli.rehearse.replay import ReplayEnd

_SHOWN = 10


@command
def replay(
    journal: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER", help="Folder or URL of the run, its --checkpoint.", show_default=False
        ),
    ],
    script: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="The script of the run.", show_default=False),
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="NAME",
            help="A checkpoint of the run to go to and compare with.",
            show_default="the newest snapshots",
        ),
    ] = "",
    module: ModuleOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compute a run with --ps-journal again in one process, and compare bit for bit.

    Every task is computed from the weights that it had pulled, and its gradients are applied in the order of
    the run, slot by slot. Names the first task whose gradients are others. Exits with 0 if all slots are as
    the run has saved them, 1 if one is not or the journal lacks something, 11 if the script fails after that.
    """
    from elastane_cli.commands.signals import sigterm_cleans_up
    from elastane_cli.rehearse.replay import run_replay
    from elastane_cli.slot_export import CHECKPOINTS_FOLDER

    require_script(script, is_file=not module)
    ends = f"{CHECKPOINTS_FOLDER}/{checkpoint}" if checkpoint else "slots"
    arguments = ["-m", *script] if module else list(script)
    with ExitStack() as stack:
        folder = stack.enter_context(working_folder("replay", None))
        stack.enter_context(sigterm_cleans_up())
        watcher = stack.enter_context(watching(quiet=as_json, bar=True))
        result = run_replay(
            journal,
            arguments,
            folder,
            ends=ends,
            watcher=watcher,
            on_line=lambda text: typer.echo(text, err=as_json),
        )
    differing = result.differing
    total = hashlib.sha256("".join(one.sha256 for one in result.slots).encode()).hexdigest()
    if as_json:
        from msgspec import to_builtins

        print_json(
            {
                "equal": not differing,
                "tasks": result.tasks,
                "sha256": total,
                "slots": to_builtins(result.slots),
                "other_rates": result.other_rates,
                "torn": result.torn,
            }
        )
    else:
        _print_end(result, total)
    if differing:
        raise typer.Exit(CODE_FAILED)
    if result.status.returncode:
        raise typer.Exit(CODE_RUN_FAILED)


def _print_end(result: ReplayEnd, total: str) -> None:
    out = console()
    for one in result.differing[:_SHOWN]:
        text = f"slot {one.slot}, version {one.version} of life {one.life}: sha256 {one.sha256[:16]}"
        out.print(f"{text}, and {one.expected[:16]} in the run", style="red", markup=False)
    if result.torn:
        out.print(
            f"{', '.join(result.torn)}: the process died while it wrote there; nothing needed that",
            markup=False,
        )
    if result.other_rates:
        out.print(f"in {result.other_rates} tasks the script has other rates; those of the run were used")
    if result.status.returncode:
        out.print(f"the script failed after its last task: {result.status}", markup=False)
    if result.differing:
        out.print(f"{len(result.differing)} of {len(result.slots)} slots differ", style="bold red")
    else:
        out.print(
            f"equal, bit for bit: {result.tasks} tasks, {len(result.slots)} slots, sha256 {total}",
            style="green",
        )
