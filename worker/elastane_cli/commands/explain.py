"""`elastane explain`: why a worker is in, stands by, or is out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JsonOption,
    MasterOption,
    TimeoutOption,
    command,
    connect,
    console,
    print_json,
)
from elastane_cli.views.explanation import explanation_lines

if TYPE_CHECKING:
    pass

_NAMES_SHOWN = 20


def register(app: typer.Typer) -> None:
    app.command("explain", rich_help_panel="Look")(explain)


@command
def explain(
    worker: Annotated[str, typer.Argument(help="The worker; it may have left already.", show_default=False)],
    job: Annotated[
        str | None,
        typer.Option("--job", "-j", help="The job.", show_default="the only job"),
    ] = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Explain why a worker is in the ring, stands by, or is out: the events that led to it.

    Examples: elastane explain w1; elastane explain node7-0 --job train --json
    """
    from dataclasses import asdict

    from elastane_cli.explain import explain as explained
    from elastane_cli.explain import known_workers
    from elastane_common.client_errors import RequestRefusedError

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
        events = list(client.events(found.name))
    result = explained(worker, found, events)
    if result is None:
        names = known_workers(found, events)
        shown = ", ".join(names[-_NAMES_SHOWN:]) + (" and more" if len(names) > _NAMES_SHOWN else "")
        raise RequestRefusedError(
            f"job {found.name!r} has had no worker {worker!r}",
            reason="not_found",
            hint=f"known workers: {shown}" if names else "no worker has joined it yet",
            job=found.name,
            worker=worker,
        )
    if as_json:
        print_json({"job": found.name, **asdict(result)})
        return
    out = console()
    for line in explanation_lines(result):
        out.print(line, soft_wrap=True)
