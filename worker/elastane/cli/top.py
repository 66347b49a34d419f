"""`elastane top`: a job live on one screen: phase, workers, data, the last events.

Three watches run in threads of their own and leave their newest news in one place; the screen is drawn
from there when something is new.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastane.cli.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JobArgument,
    MasterOption,
    TimeoutOption,
    command,
    connect,
    console,
)
from elastane.errors import ElastaneError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from elastane.client import MasterClient
    from elastane_proto.v1 import job_pb2, shard_pb2

_OVER = ("succeeded", "failed", "cancelled")


def register(app: typer.Typer) -> None:
    app.command("top", rich_help_panel="Look")(top)


@dataclass
class News:
    """The newest of everything. `changed` is set whenever something is."""

    job: job_pb2.Job | None = None
    datasets: list[shard_pb2.Progress] = field(default_factory=list)
    events: deque[Any] = field(default_factory=lambda: deque(maxlen=8))
    error: ElastaneError | None = None
    changed: threading.Event = field(default_factory=threading.Event)


@command
def top(
    job: JobArgument = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, help="Least time between two pictures, seconds.")
    ] = 0.25,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
) -> None:
    """Show a job live: phase, workers, data, the last events. Ctrl-C leaves.

    Examples: elastane top; elastane top train
    """
    from rich.live import Live

    if not sys.stdout.isatty():
        raise typer.BadParameter("top draws on a terminal; use status, progress --watch or events --follow")
    with connect(master, timeout) as client:
        news = follow(client, client.only_job(job))
        with Live(console=console(), auto_refresh=False, transient=False) as live:
            while True:
                news.changed.wait()
                news.changed.clear()
                if news.error is not None:
                    raise news.error
                live.update(picture(news, time.time()), refresh=True)
                if news.job is not None and _is_over(news.job):
                    return
                time.sleep(interval)  # bounds the rate of drawing; the news wait meanwhile


def follow(client: MasterClient, job: str) -> News:
    """Start the watches; they end when the client is closed."""
    news = News()

    def watch(items: Callable[[], Iterable[Any]], take: Callable[[Any], None]) -> None:
        def run() -> None:
            try:
                for item in items():
                    take(item)
                    news.changed.set()
            except ElastaneError as error:
                news.error = error
                news.changed.set()

        threading.Thread(target=run, daemon=True).start()

    watch(lambda: client.watch_job(job), lambda item: setattr(news, "job", item))
    watch(lambda: client.watch_progress(job), lambda item: setattr(news, "datasets", item))
    watch(lambda: client.events(job, follow=True), news.events.append)
    return news


def picture(news: News, now: float) -> RenderableType:
    """What is drawn. now: seconds since the Unix epoch, for ages."""
    from rich.console import Group

    from elastane.cli.events import event_line
    from elastane.cli.jobs import headline, worker_table
    from elastane.cli.progress import progress_line

    parts: list[RenderableType] = []
    if news.job is not None:
        parts += [headline(news.job), "", worker_table(news.job, now), ""]
    parts += [progress_line(item) for item in news.datasets]
    parts += ["", *(event_line(event) for event in news.events)]
    return Group(*parts)


def _is_over(job: job_pb2.Job) -> bool:
    from elastane.cli.jobs import phase_name

    return phase_name(job) in _OVER
