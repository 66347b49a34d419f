"""`elastane why`: explains the slots of a run, or the workers of a job."""

from __future__ import annotations

import time
from typing import Annotated

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
from elastane_cli.commands.run_ids import JobOrRunArgument, named
from elastane_cli.commands.training import connect_training

DECISIONS_DEFAULT = 10
DECISIONS_MAX = 1000


def register(app: typer.Typer) -> None:
    app.command("why", rich_help_panel="Look")(why)


@command
def why(
    name: JobOrRunArgument = None,
    last: Annotated[
        int,
        typer.Option("--last", "-n", metavar="N", min=1, max=DECISIONS_MAX, help="How many, the newest."),
    ] = DECISIONS_DEFAULT,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show why a run has the slots that it has, or a job its workers and their ranges.

    Of a run: the last decisions of the scheduling policy about it, and the alternatives that were rejected,
    with their scores. Of a job: the changes of its ring, and what led to them.

    Examples: elastane why 17; elastane why train; elastane why 17 --json
    """
    found = named(name)
    if isinstance(found, int):
        _of_run(found, last, master, timeout, as_json)
    else:
        _of_job(found, last, master, timeout, as_json)


def _of_run(run_id: int, last: int, master: str, timeout: float, as_json: bool) -> None:
    from elastane_cli.views.plain import to_plain
    from elastane_cli.views.runs import state_name
    from elastane_cli.views.scheduling import run_parts

    with connect_training(master, timeout) as training:
        run = training.get(run_id)
        scheduling = training.get_scheduling(run_id, limit=last)
    if as_json:
        print_json(
            {
                "run_id": run_id,
                "state": state_name(run),
                "reason": run.reason,
                **{name: to_plain(run)[name] for name in ("earliest_start", "holders")},
                **to_plain(scheduling),
            }
        )
        return
    out = console()
    for part in run_parts(run, scheduling, time.time()):
        out.print(part)


def _of_job(job: str | None, last: int, master: str, timeout: float, as_json: bool) -> None:
    from dataclasses import asdict

    from elastane_cli.explain import ring_changes
    from elastane_cli.views.scheduling import job_parts
    from elastane_cli.views.slots import status_lines

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
        events = list(client.events(found.name))
        slots = client.find_slots(found.name)
    changes, complete = ring_changes(events)
    if as_json:
        document = [asdict(change) for change in changes[-last:]]
        print_json({"job": found.name, "reason": found.reason, "changes": document})
        return
    out = console()
    for part in job_parts(found, changes[-last:], complete=complete and len(changes) <= last):
        out.print(part)
    if slots is not None:
        for line in status_lines(slots):
            out.print(line, markup=False)
