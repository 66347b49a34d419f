"""Commands for runs of the training service: `elastane queue`, `artifacts`, `retry` and `priority`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JsonOption,
    MasterOption,
    TimeoutOption,
    command,
    console,
    print_json,
)
from elastane_cli.commands.run_ids import RunArgument, run_id
from elastane_cli.commands.training import connect_training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastane_common.training_client import TrainingClient
    from elastane_proto.v1 import training_pb2

PRIORITY_MIN, PRIORITY_MAX = -1000, 1000
_CLEAR = "\x1b[H\x1b[2J"


def register(app: typer.Typer) -> None:
    app.command("queue", rich_help_panel="Look")(queue)
    app.command("artifacts", rich_help_panel="Look")(artifacts)
    app.command("retry", rich_help_panel="Operate")(retry)
    # A negative priority is no option.
    settings = {"ignore_unknown_options": True}
    app.command("priority", rich_help_panel="Operate", context_settings=settings)(priority)


@command
def queue(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again whenever it changes.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, help="Time between two looks with --watch, in seconds.")
    ] = 1.0,
    owner: Annotated[
        str, typer.Option("--owner", metavar="NAME", help="Only runs of this owner.", show_default="all")
    ] = "",
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show the runs that wait, in the order of the queue: place, owner, priority, age, and the reason.

    Examples: elastane queue; elastane queue --watch; elastane queue --json
    """
    from elastane_cli.views.plain import to_plain

    with connect_training(master, timeout) as training:
        shown: object = None
        for runs, service in _looks(training, owner, interval if watch else None):
            if as_json:
                document = [to_plain(run) for run in runs]
                if document != shown:
                    print_json(document)
                shown = document
            elif sys.stdout.isatty() and watch:
                sys.stdout.write(_CLEAR)
                _print_queue(runs, service)
            elif [run.SerializeToString(deterministic=True) for run in runs] != shown:
                shown = [run.SerializeToString(deterministic=True) for run in runs]
                _print_queue(runs, service)


def _looks(
    training: TrainingClient, owner: str, interval_seconds: float | None
) -> Iterator[tuple[list[training_pb2.Run], training_pb2.TrainingServiceGetServiceResponse]]:
    """Yield the waiting runs in their order and the service; once, or again after each interval."""
    from elastane_cli.views.runs import queued_in_order
    from elastane_proto.v1 import training_pb2

    waiting = (
        training_pb2.RUN_STATE_WAITING_DATA,
        training_pb2.RUN_STATE_QUEUED,
        training_pb2.RUN_STATE_SUSPENDED,
    )
    while True:
        yield queued_in_order(training.iter_runs(states=waiting, owner=owner)), training.get_service()
        if interval_seconds is None:
            return
        time.sleep(interval_seconds)


def _print_queue(
    runs: list[training_pb2.Run], service: training_pb2.TrainingServiceGetServiceResponse
) -> None:
    from elastane_cli.views.runs import queue_lines, queue_table, service_line

    for line in (service_line(service), *queue_lines(service)):
        typer.echo(line)
    if runs:
        console().print(queue_table(runs, time.time()))
    sys.stdout.flush()


@command
def artifacts(
    run: RunArgument,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List the files that a run has left: its model, logs and record, with sizes and digests.

    Examples: elastane artifacts 17; elastane artifacts 17 --json
    """
    from elastane_cli.views.plain import to_plain
    from elastane_cli.views.runs import artifact_table

    number = run_id(run)
    with connect_training(master, timeout) as training:
        found = training.list_artifacts(number)
        url = training.get(number).artifact_url
    if as_json:
        print_json({"run_id": number, "url": url, "artifacts": [to_plain(artifact) for artifact in found]})
        return
    typer.echo(f"run {number}: {url}" if found else f"run {number} has no artifacts yet")
    if found:
        console().print(artifact_table(found))


@command
def retry(
    run: RunArgument,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Queue a failed or cancelled run again; it keeps its number and has all its retries again.

    Example: elastane retry 17
    """
    number = run_id(run)
    with connect_training(master, timeout) as training:
        report_run(training.retry(number), as_json)


@command
def priority(
    run: RunArgument,
    value: Annotated[
        int,
        typer.Argument(
            metavar="N",
            min=PRIORITY_MIN,
            max=PRIORITY_MAX,
            help="The new priority, from -1000 to 1000; higher goes first.",
            show_default=False,
        ),
    ],
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Change a run's priority in the queue.

    Examples: elastane priority 17 100; elastane priority 17 -5
    """
    number = run_id(run)
    with connect_training(master, timeout) as training:
        changed = training.set_priority(number, value)
    report_run(changed, as_json, f"priority {changed.priority}; ")


def report_run(run: training_pb2.Run, as_json: bool, text: str = "") -> None:
    """Print a run's state after a change, as one line or as JSON. text: what was changed."""
    from elastane_cli.views.plain import to_plain
    from elastane_cli.views.runs import change_line

    if as_json:
        print_json(to_plain(run))
    else:
        name, _, state = change_line(run).partition(": ")
        typer.echo(f"{name}: {text}{state}")
