"""`elastane events`: every decision of the master with its reason."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
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
from elastane_cli.commands.event_filter import KindOption, SinceOption, WorkerOption, filter_of
from elastane_cli.views.events import event_line, fold_line, is_wanted
from elastane_proto.folding import folded

if TYPE_CHECKING:
    from elastane_common.client import MasterClient
    from elastane_proto.v1 import ring_pb2

LEAVE_SECONDS = 5.0
"""Time to wait for the last workers of a job that is over: they leave, which are its last events."""


def register(app: typer.Typer) -> None:
    app.command("events", rich_help_panel="Look")(events)


@command
def events(
    job: JobArgument = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events until the job is over.")
    ] = False,
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

    from elastane_cli.views.plain import to_plain

    wanted = filter_of(kind, worker, since, time.time())
    out = console()

    def is_wanted_here(event: ring_pb2.Event) -> bool:
        return is_wanted(event, wanted)

    def show(found: Iterable[ring_pb2.Event]) -> None:
        for event in found:
            if as_json:
                print_json(to_plain(event))
            else:
                out.print(event_line(event), soft_wrap=True)

    with connect(master, timeout) as client, connect(master, timeout) as watcher:
        name, after = client.only_job(job), wanted.sequence
        if not (as_json or unfold or kind):
            past = list(client.events(name, since=after))
            after = past[-1].sequence + 1 if past else after
            for run in folded(filter(is_wanted_here, past), lambda event: event.kind):
                out.print(fold_line(run), soft_wrap=True)
            if not follow:
                return
        found = _until_over(client, watcher, name, after) if follow else client.events(name, since=after)
        show(filter(is_wanted_here, found))


def _until_over(
    client: MasterClient, watcher: MasterClient, job: str, since: int
) -> Iterator[ring_pb2.Event]:
    """Yield the events until the job is over and its workers have left, or it is deleted. Closes `client`.

    watcher: a second connection, which watches for the end of the job.
    """
    from elastane_cli.views.jobs import is_over
    from elastane_common.client_errors import RequestRefusedError
    from elastane_common.errors import ElastaneError

    failures: list[ElastaneError] = []

    def watch() -> None:
        last: threading.Timer | None = None
        try:
            for seen in watcher.watch_job(job):
                if is_over(seen) and not seen.workers:
                    break
                if is_over(seen) and last is None:
                    last = threading.Timer(LEAVE_SECONDS, client.close)
                    last.daemon = True
                    last.start()
        except RequestRefusedError:
            pass  # asked for its last events, the same connection raises it again
        except ElastaneError as error:
            failures.append(error)
        finally:
            if last is not None:
                last.cancel()
        client.close()

    client.get_job(job)  # raises if it never existed: whatever is missing later was deleted
    threading.Thread(target=watch, name="elastane-job", daemon=True).start()
    try:
        for event in client.events(job, since=since, follow=True):
            since = event.sequence + 1
            yield event
        if failures:
            raise failures[0]
        yield from watcher.events(job, since=since)
    except RequestRefusedError as refusal:
        if refusal.reason != "not_found":
            raise
        typer.echo(f"job {job} was deleted", err=True)
