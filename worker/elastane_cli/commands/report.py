"""`elastane report`: a job in one file, to keep or to send."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    JobArgument,
    MasterOption,
    TimeoutOption,
    command,
    connect,
)
from elastane_common.errors import ElastaneError


class ReportFileError(ElastaneError):
    "The report file cannot be written."

    code = "ELA423"


def register(app: typer.Typer) -> None:
    app.command("report", rich_help_panel="Look")(report)


@command
def report(
    job: JobArgument = None,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help='Output file; "-" is the terminal.',
            show_default="JOB-report.html",
        ),
    ] = "",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="html|markdown",
            help="Format of the report.",
            show_default="from the file's name",
        ),
    ] = "",
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
) -> None:
    """Write a report of a job into one file: its ring over time, throughput, faults and what they cost.

    The file is self-contained: it loads no script, style or picture. The report of a running job covers what
    has happened so far.
    Examples: elastane report; elastane report train -o train.md; elastane report -o - --format markdown
    """
    chosen = _form(output, form)
    from elastane_cli.report.facts import gather
    from elastane_cli.report.html import as_html
    from elastane_cli.report.markdown import as_markdown
    from elastane_common.logged import StepStream, get_series

    with connect(master, timeout) as client:
        found = client.get_job(client.only_job(job))
        events = list(client.events(found.name))
        series = list(get_series(client, found.name).series)
        batches = StepStream(client, found.name).batches(follow=False)
        now = time.time()
        facts = gather(found, events, (step for batch in batches for step in batch), series, now)
    text = as_html(facts, now) if chosen == "html" else as_markdown(facts, now)
    if output == "-":
        sys.stdout.write(text)
        return
    file = Path(output or f"{found.name}-report.html")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportFileError(
            f"the report cannot be written to {file}: {error.strerror}", hint="name another file with -o"
        ) from error
    typer.echo(f"{file}: {facts.phase}, {facts.steps.next_step} steps, {len(facts.incidents)} incidents")


def _form(output: str, form: str) -> Literal["html", "markdown"]:
    given = form.lower() or ("markdown" if output == "-" or output.endswith((".md", ".markdown")) else "html")
    if given == "html":
        return "html"
    if given in ("markdown", "md"):
        return "markdown"
    raise typer.BadParameter(f"{form!r} is not html or markdown", param_hint="--format")
