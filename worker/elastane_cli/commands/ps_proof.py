"""Output of `elastane verify --ps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from elastane_cli.commands.common import print_json
from elastane_common.exit_codes import CODE_FAILED, CODE_OK

if TYPE_CHECKING:
    from rich.console import Console

    from elastane_cli.verify.ps_run import PsRunResult


def print_ps_proof(out: Console, runs: Sequence[PsRunResult], seed: int, *, as_json: bool) -> int:
    """Print the runs; return the exit code."""
    equal = not any(run.differing for run in runs)
    code = CODE_OK if equal else CODE_FAILED
    if as_json:
        print_json({"equal": equal, "exit_code": code, "seed": seed, "runs": to_builtins(runs)})
        return code
    from rich.table import Table

    table = Table()
    for column in ("run", "after how many tasks", "seconds", "differs in"):
        table.add_column(column)
    for number, run in enumerate(runs, 1):
        slots = ", ".join(map(str, run.differing))
        differing = f"[red]slots {slots}[/]" if run.differing else "[green]nothing[/]"
        table.add_row(str(number), "\n".join(run.acts), f"{run.seconds:.1f}", differing)
    out.print(table)
    out.print("[bold green]equal[/], bit for bit" if equal else "[bold red]differs[/]")
    return code
