"""`elastane events`: every decision of the master with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from elastane.cli.common import (
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
from elastane.cli.event_filter import KindOption, SinceOption, WorkerOption, filter_of
from elastane.views.events import event_line, fold_line, is_wanted
from elastane_proto.folding import folded

if TYPE_CHECKING:
    from elastane_proto.v1 import ring_pb2


def register(app: typer.Typer) -> None:
    app.command("events", rich_help_panel="Look")(events)


@command
def events(
    job: JobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")] = False,
    kind: KindOption = None,
    worker: WorkerOption = None,
    since: SinceOption = "0",
    unfold: Annotated[
        bool, typer.Option("--all", "-a", help="Also print each checkpoint's events on separate lines.")
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to a job and why: joins, deaths, ring changes, checkpoints.

    Consecutive checkpoints are folded into one line, unless --all or --kind is given; new ones are printed
    one by one.
    Examples: elastane events; elastane events train --follow --kind worker; elastane events --worker w1
    --since 10m; elastane events --json | jq .reason
    """
    import time

    from elastane.views.plain import to_plain

    wanted = filter_of(kind, worker, since, time.time())
    out = console()

    def is_wanted_here(event: ring_pb2.Event) -> bool:
        return is_wanted(event, wanted)

    def show(told: Iterable[ring_pb2.Event]) -> None:
        for event in told:
            if as_json:
                print_json(to_plain(event))
            else:
                out.print(event_line(event), soft_wrap=True)

    with connect(master, timeout) as client:
        name = client.only_job(job)
        if as_json or unfold or kind:
            show(filter(is_wanted_here, client.events(name, since=wanted.sequence, follow=follow)))
            return
        past = list(client.events(name, since=wanted.sequence))
        for run in folded(filter(is_wanted_here, past), lambda event: event.kind):
            out.print(fold_line(run), soft_wrap=True)
        if follow:
            after = past[-1].sequence + 1 if past else wanted.sequence
            show(filter(is_wanted_here, client.events(name, since=after, follow=True)))
