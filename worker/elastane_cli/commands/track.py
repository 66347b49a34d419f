"""`elastane track`: writes a job's logged values to a tracker, from any host, while it runs or later."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JobArgument,
    MasterOption,
    TimeoutOption,
    command,
    connect,
)

if TYPE_CHECKING:
    from elastane.tracking.follow import Following
    from elastane_common.client import MasterClient


def register(app: typer.Typer) -> None:
    app.command("track", rich_help_panel="Look")(track)


@command
def track(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="KIND[:WHERE]",
            help="tensorboard:FOLDER, mlflow:EXPERIMENT or wandb:PROJECT.",
            show_default=False,
        ),
    ],
    job: JobArgument = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep writing until the job is over.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
) -> None:
    """Write what the script logged to TensorBoard, MLflow or W&B, each step once.

    Run again, it continues where it stopped. With job.log_to(...) in the script, the leader does this itself.
    Examples: elastane track --to tensorboard:runs; elastane track train --to mlflow:digits --follow
    """
    from elastane.tracking.follow import Following
    from elastane.tracking.tracker import parse_specs
    from elastane_common.errors import ElastaneError, RefusedError

    specs = parse_specs(to)
    if len(specs) != 1:
        raise typer.BadParameter("give exactly one tracker", param_hint="--to")
    with connect(master, timeout) as watcher:
        found = watcher.only_job(job)
        with connect(master, timeout) as client:
            following = Following(client, found, specs[0])
            if follow:
                threading.Thread(target=_end_with, args=(watcher, found, following), daemon=True).start()
            try:
                steps = following.run(follow=follow)
            except ElastaneError:
                raise
            except Exception as error:
                raise RefusedError(
                    f"{specs[0]} cannot be written: {type(error).__name__}: {error}",
                    hint="what was written before stays; run again, this continues after it",
                ) from error
    typer.echo(f"{found}: {steps} steps are in {specs[0]}")


def _end_with(watcher: MasterClient, job: str, following: Following) -> None:
    """Watch the job, and let the tracker end when the job is over and all its steps are written."""
    from elastane_cli.views.jobs import is_over
    from elastane_common.errors import ElastaneError, MasterUnreachableError

    while True:
        try:
            for seen in watcher.watch_job(job):
                if is_over(seen):
                    following.finish_at(seen.step)
                    return
            return  # the client was closed, because the command ends
        except MasterUnreachableError:
            continue  # if it lasts, the thread that reads the steps reports it
        except ElastaneError:
            return  # reported by the thread that reads the steps
