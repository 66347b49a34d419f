"""`elastane audit`: reads the committed history of a job and checks it with `elastane_cli.audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

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
from elastane_common.exit_codes import CODE_FAILED

if TYPE_CHECKING:
    from elastane_cli.audit import AuditResult, EpochAudit


def register(app: typer.Typer) -> None:
    app.command("audit", rich_help_panel="Look")(audit)


@command
def audit(
    job: JobArgument = None,
    dataset: Annotated[
        str, typer.Option("--dataset", "-d", help="Check only this dataset.", show_default="all")
    ] = "",
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples",
            min=1,
            help="Number of samples in the dataset.",
            show_default="all samples seen in any epoch",
        ),
    ] = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Check that every sample of every epoch counts exactly once in the job's history.

    Exits with 1 on a violation. Examples: elastane audit; elastane audit train --samples 50000
    """
    from elastane_cli.audit import audit as check

    with connect(master, timeout) as client:
        name = client.only_job(job)
        found = client.get_job(name)
        totals = {item.dataset: item.total for item in client.get_progress(name, dataset) if item.total}
        entries = list(client.audit_log(name, dataset))
    sizes = {entry.dataset: samples for entry in entries} if samples is not None else None
    result = check(
        entries,
        ests=found.settings.ests or None,
        steps_per_epoch=found.steps_per_epoch or None,
        dataset_sizes=sizes,
        tasks_per_epoch=totals,
    )
    if as_json:
        print_json({"job": name, "ok": result.ok, **asdict(result)})
    else:
        _print(name, result)
    if not result.ok:
        raise typer.Exit(CODE_FAILED)


def _print(job: str, result: AuditResult) -> None:
    from rich.table import Table

    out = console()
    if not result.entries:
        out.print(f"{job}: nothing committed yet")
        return
    table = Table(box=None, header_style="bold")
    for column in ("DATASET", "EPOCH", "TASKS", "SAMPLES", "MISSING", "TWICE", "PADDED", "DROPPED", ""):
        table.add_column(column, justify="left" if column in ("DATASET", "") else "right")
    for epoch, last in fold_epochs(result.epochs):
        table.add_row(
            epoch.dataset or "-",
            str(epoch.epoch) if last == epoch.epoch else f"{epoch.epoch}-{last}",
            str(epoch.tasks),
            str(epoch.samples),
            str(epoch.missing),
            str(epoch.duplicated),
            str(epoch.padded),
            str(epoch.dropped),
            "[red]VIOLATED[/]" if epoch.violations else "ok" if epoch.complete else "ok so far",
        )
    out.print(table)
    out.print(
        f"{result.entries} entries, {result.superseded} of them superseded by a later run of their task"
    )
    for violation in result.violations:
        out.print(f"violation: {violation}", style="red", markup=False)
    if result.ok:
        out.print("every sample of every epoch counts exactly once", style="green")


def fold_epochs(epochs: Sequence[EpochAudit]) -> list[tuple[EpochAudit, int]]:
    """Merge consecutive equal epochs; return the first of each run with the number of its last.

    Only complete epochs without violations are merged, so that every violation stays visible.
    """
    folds: list[tuple[EpochAudit, int]] = []
    for epoch in epochs:
        if folds and epoch.complete and not epoch.violations and epoch.epoch == folds[-1][1] + 1:
            first = folds[-1][0]
            if replace(epoch, epoch=first.epoch) == first:
                folds[-1] = first, epoch.epoch
                continue
        folds.append((epoch, epoch.epoch))
    return folds
