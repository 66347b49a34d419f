"""`elastane top`: a live view of jobs on the terminal, drawn by `elastane_cli.screen`."""

from __future__ import annotations

import os
import sys
import time
from itertools import islice
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
    console,
)
from elastane_cli.commands.event_filter import KindOption, SinceOption, WorkerOption, filter_of
from elastane_cli.commands.signals import sigterm_cleans_up

if TYPE_CHECKING:
    from elastane_common.client import MasterClient


def register(app: typer.Typer) -> None:
    app.command("top", rich_help_panel="Look")(top)


@command
def top(
    job: JobArgument = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, help="Minimum time between screen updates, in seconds.")
    ] = 0.25,
    mouse: Annotated[
        bool, typer.Option("--mouse/--no-mouse", help="Take the mouse, which then selects no text.")
    ] = True,
    kind: KindOption = None,
    worker: WorkerOption = None,
    since: SinceOption = "0",
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
) -> None:
    """Show jobs live: their workers, logical workers, tasks, events and curves. Press ? for the keys.

    Without JOB it starts with the list of jobs, or with the only job. Keys also drain workers, scale jobs and
    save checkpoints; each asks first.
    Examples: elastane top; elastane top train; elastane top --kind worker --since 1h
    """
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise typer.BadParameter(
            "top needs a terminal; elsewhere use status, progress --watch or events --follow"
        )
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        raise typer.BadParameter(
            "top needs a terminal that can position text, and according to TERM this one cannot;"
            " use status, progress --watch or events --follow"
        )
    from elastane_cli.screen.news import Watching
    from elastane_cli.screen.operating import Operator
    from elastane_cli.screen.terminal import Inbox, show
    from elastane_cli.screen.view import View
    from elastane_common.client import MasterClient

    wanted = filter_of(kind, worker, since, time.time())
    only = job
    with connect(master, timeout) as client:
        if job is not None:
            client.get_job(job)  # refuses an unknown job before the screen is cleared
        elif len(first := list(islice(client.iter_jobs(), 2))) == 1:
            only = first[0].name
    if only is not None:
        view = View(page="job", job=only, pinned=job is not None, wanted=wanted)
    else:
        view = View(wanted=wanted)

    def connected() -> MasterClient:
        return MasterClient(master, timeout_seconds=timeout)

    inbox = Inbox()
    watching = Watching(connected, inbox.news)
    operator = Operator(connected, lambda notice: inbox.press([notice]))
    try:
        with sigterm_cleans_up():
            view = show(watching, operator, inbox, view, interval, mouse=mouse)
    finally:
        watching.close()
    detail = watching.news.detail
    if detail is not None and detail.job is not None:
        from elastane_cli.commands.jobs import headline

        console().print(headline(detail.job))
