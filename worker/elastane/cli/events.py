"""`elastane events`: every decision of the master with its reason."""

from __future__ import annotations

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
    local_time,
    one_line,
    print_json,
)

if TYPE_CHECKING:
    from rich.text import Text

    from elastane_proto.v1 import ring_pb2

_ALARMING = (
    "lost",
    "died",
    "evicted",
    "failed",
    "broken",
    "rejected",
    "stuck",
    "refused",
    "unusable",
    "forgotten",
    "faulty",
    "liar",  # the same in events of before
    "undecided",
)


def register(app: typer.Typer) -> None:
    app.command("events", rich_help_panel="Look")(events)


@command
def events(
    job: JobArgument = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events.")] = False,
    since: Annotated[int, typer.Option("--since", min=0, help="First sequence number wanted.")] = 0,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to a job and why: joins, deaths, ring changes, checkpoints.

    Examples: elastane events; elastane events train --follow; elastane events --json | jq .reason
    """
    from elastane.cli.plain import to_plain

    out = console()
    with connect(master, timeout) as client:
        for event in client.events(client.only_job(job), since=since, follow=follow):
            if as_json:
                print_json(to_plain(event))
            else:
                out.print(event_line(event), soft_wrap=True)


def event_line(event: ring_pb2.Event) -> Text:
    """One event on one line: number, local time, kind, generation and step, worker, reason.

    Of an event of another day the date too.
    """
    from rich.text import Text

    alarming = any(word in event.kind for word in _ALARMING)
    line = Text()
    line.append(f"{event.sequence:>5} ", style="dim")
    line.append(f"{local_time(event.time.seconds + event.time.nanos / 1e9)} ", style="cyan")
    line.append(f"{event.kind:<20} ", style="bold red" if alarming else "bold")
    line.append(f"g{event.generation} s{event.step} ", style="dim")
    if event.worker_id:
        line.append(f"{event.worker_id}  ", style="green")
    line.append(_beside_its_worker(event))
    return one_line(line)


def _beside_its_worker(event: ring_pb2.Event) -> str:
    """The reason without the worker's name at its beginning, which stands before it anyway."""
    reason, name = event.reason, event.worker_id
    if name and reason.startswith((f"{name}: ", f"{name} ")):
        return reason[len(name) :].lstrip(": ")
    return reason
