"""`elastane curve`: shows logged values as a drawing, CSV or JSON."""

from __future__ import annotations

import csv
import shutil
import sys
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
    print_json,
)
from elastane_cli.views.curves import curve_lines

if TYPE_CHECKING:
    from elastane_proto.v1 import metric_pb2

_ROWS = 12


def register(app: typer.Typer) -> None:
    app.command("curve", rich_help_panel="Look")(curve)


@command
def curve(
    job: JobArgument = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", "-n", help="A logged value; may be repeated.", show_default="all"),
    ] = None,
    points: Annotated[
        int,
        typer.Option(
            "--points", min=1, max=512, help="Maximum number of points per curve.", show_default="512"
        ),
    ] = 512,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: name,step,steps,mean,min,max,last.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Draw what the script logged (job.log), each committed step once.

    A point is the mean over all logical workers, and over the steps it stands for.
    Examples: elastane curve; elastane curve train -n loss; elastane curve --csv > curves.csv
    """
    from elastane_cli.views.plain import to_plain
    from elastane_common.client_errors import RequestRefusedError
    from elastane_common.logged import get_series

    with connect(master, timeout) as client:
        found = client.only_job(job)
        answer = get_series(client, found, name or (), points_max=points)
    missing = sorted(set(name or ()) - {series.name for series in answer.series})
    if missing:
        raise RequestRefusedError(
            f"nothing was logged as {', '.join(missing)}",
            reason="not_found",
            hint="elastane curve without --name shows all there is; scripts log with job.log(name=value)",
            job=found,
        )
    if as_json:
        print_json({"job": found, **to_plain(answer)})
    elif as_csv:
        _print_csv(answer)
    elif not answer.series:
        typer.echo("nothing logged yet: scripts log with job.log(name=value)")
    else:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100
        for series in answer.series:
            for line in curve_lines(series, columns, _ROWS):
                typer.echo(line)
        if answer.names_left_out:
            typer.echo(f"{answer.names_left_out} more names are not kept by the master")


def _print_csv(answer: metric_pb2.GetSeriesResponse) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(["name", "step", "steps", "mean", "min", "max", "last"])
    for series in answer.series:
        for point in series.points:
            row = [series.name, point.step, point.steps, point.mean, point.min, point.max, point.last]
            writer.writerow(row)
