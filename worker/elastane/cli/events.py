"""`elastane events`: every decision of the master with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from elastane.cli.event_filter import KindOption, SinceOption, WorkerOption, filter_of, is_wanted
from elastane_proto.folding import fold_words, folded

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

    from elastane.cli.plain import to_plain

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


def fold_line(run: Sequence[ring_pb2.Event]) -> Text:
    """Routine events that follow each other on the line of their last; one event as it is."""
    from elastane_proto.history_wire import told_of

    if len(run) == 1:
        return event_line(run[0])
    last = type(run[-1])()
    last.CopyFrom(run[-1])
    last.kind, last.worker_id = f"{last.kind} x{len(run)}", ""
    last.reason = fold_words([told_of(event) for event in run])
    return event_line(last)


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
