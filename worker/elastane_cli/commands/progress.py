"""`elastane progress`: progress through the datasets, once or live.

Live it shows a bar per dataset on a terminal, else one line per dataset and change; with --json one
document per change. It follows until every dataset is complete, or the job is over.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

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
from elastane_cli.views.progress import duration_text, progress_line
from elastane_common.errors import ElastaneError

if TYPE_CHECKING:
    from elastane_common.client import MasterClient
    from elastane_proto.v1 import shard_pb2


def register(app: typer.Typer) -> None:
    app.command("progress", rich_help_panel="Look")(progress)


@command
def progress(
    job: JobArgument = None,
    dataset: Annotated[
        str, typer.Option("--dataset", "-d", help="Show only this dataset.", show_default="all")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow until every dataset is complete.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, help="Minimum time between updates, in seconds.")
    ] = 0.5,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show progress through the data: tasks to do, doing, done, re-queued; samples/s and time left.

    Examples: elastane progress; elastane progress train --watch; elastane progress --watch --json
    """
    from elastane_cli.views.plain import to_plain

    with connect(master, timeout) as client, connect(master, timeout) as watcher:
        name = client.only_job(job)
        updates: Iterable[list[shard_pb2.Progress]]
        if watch:
            updates = until_complete(until_over(client, watcher, name, dataset, interval))
        else:
            updates = [client.get_progress(name, dataset)]
        if as_json:
            for datasets in updates:
                print_json({"job": name, "datasets": [to_plain(item) for item in datasets]})
        elif watch and sys.stdout.isatty():
            _show_live(updates)
        else:
            _show_lines(updates)


def until_over(
    client: MasterClient, watcher: MasterClient, job: str, dataset: str, interval_seconds: float
) -> Iterator[list[shard_pb2.Progress]]:
    """Yield the updates until the job is over, and then the final state. Closes `client`.

    watcher: a second connection, which watches for the end of the job.
    """
    from elastane_cli.views.jobs import is_over
    from elastane_common.client_errors import ClientClosedError

    over = threading.Event()

    def watch() -> None:
        with contextlib.suppress(ElastaneError):  # a lasting error is raised by the other connection too
            for seen in watcher.watch_job(job):
                if is_over(seen):
                    over.set()
                    client.close()
                    return

    threading.Thread(target=watch, name="elastane-job", daemon=True).start()
    try:
        yield from client.watch_progress(job, dataset, interval_seconds=interval_seconds)
    except ClientClosedError:
        if not over.is_set():
            raise
    if over.is_set():
        yield watcher.get_progress(job, dataset)


def until_complete(updates: Iterable[list[shard_pb2.Progress]]) -> Iterator[list[shard_pb2.Progress]]:
    """Yield the updates up to the first in which every dataset is complete."""
    for datasets in updates:
        yield datasets
        if datasets and all(item.complete for item in datasets):
            return


def _show_lines(updates: Iterable[Sequence[shard_pb2.Progress]]) -> None:
    last: dict[str, str] = {}
    for datasets in updates:
        if not datasets and not last:
            last[""] = "no dataset yet"
            typer.echo(last[""])
        for item in datasets:
            line = progress_line(item)
            if last.get(item.dataset) != line:
                last[item.dataset] = line
                typer.echo(line)
        sys.stdout.flush()


def _show_live(updates: Iterable[Sequence[shard_pb2.Progress]]) -> None:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("[bold]{task.fields[name]}"),
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("[cyan]{task.fields[rate]}"),
        TextColumn("[magenta]{task.fields[left]}"),
        refresh_per_second=8,
    ) as bars:
        tasks: dict[str, Any] = {}
        for datasets in updates:
            for item in datasets:
                fields = _live_fields(item)
                if item.dataset not in tasks:
                    tasks[item.dataset] = bars.add_task("", total=None, **fields)
                bars.update(tasks[item.dataset], total=item.total or None, completed=item.done, **fields)


def _live_fields(item: shard_pb2.Progress) -> dict[str, Any]:
    counts = f"todo {item.todo} doing {item.doing} done {item.done}"
    if item.requeued:
        counts += f" [yellow]re-queued {item.requeued}[/]"
    if item.failed:
        counts += f" [red]failed {item.failed}[/]"
    return {
        "name": item.dataset or "(job)",
        "epoch": f"{min(item.epoch + 1, item.epochs or item.epoch + 1)}/{item.epochs or '?'}",
        "counts": counts,
        "rate": f"{item.samples_per_second:,.1f} samples/s",
        "left": "complete" if item.complete else f"left {duration_text(item)}",
    }
