"""`elastane trace` and `elastane stacks`: what the workers of a job do at the moment."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
)
from elastane_cli.views.text import counted, harmless
from elastane_common.exit_codes import CODE_FAILED
from elastane_common.sizes import size_text

if TYPE_CHECKING:
    from elastane_proto.v1 import capture_pb2

_INTERRUPTED = 130

WorkersOption = Annotated[
    list[str] | None,
    typer.Option("--worker", metavar="ID", help="Only this worker; repeatable.", show_default="all"),
]


def register(app: typer.Typer) -> None:
    app.command("trace", rich_help_panel="Look")(trace)
    app.command("stacks", rich_help_panel="Look")(stacks)


@dataclass
class _Answer:
    """The data received from one worker. end: it is complete, or there is an error."""

    data: bytearray = field(default_factory=bytearray)
    steps_done: int = 0
    end: bool = False
    error: str = ""
    first_est: int = 0
    end_est: int = 0


class _Answers:
    """Answers of all workers as they come. steps: of the trace; 0: stacks."""

    def __init__(self, steps: int) -> None:
        self.by_worker: dict[str, _Answer] = {}
        self._steps = steps
        self._shows = steps > 0 and sys.stderr.isatty()

    def take(self, parts: Iterable[capture_pb2.CaptureServiceCaptureResponse]) -> None:
        """Take all parts, and show the progress on a terminal."""
        try:
            for part in parts:
                if part.worker_ids:  # also when the master was restarted and the capture begins again
                    self.by_worker = {worker: _Answer() for worker in part.worker_ids}
                    continue
                answer = self.by_worker[part.worker_id]
                answer.data += part.data
                answer.steps_done = max(answer.steps_done, part.steps_done)
                answer.end, answer.error = answer.end or part.end, answer.error or part.error
                if part.end:
                    answer.first_est, answer.end_est = part.first_est, part.end_est
                self._show()
        finally:
            if self._shows:
                typer.echo("\r\x1b[K", nl=False, err=True)

    def report_missing(self) -> int:
        """Report workers without a complete answer on stderr, and return how many there are."""
        failed = {name: one.error for name, one in self.by_worker.items() if one.error or not one.end}
        for name, error in failed.items():
            typer.echo(f"{name}: {harmless(error) or 'no answer'}", err=True)
        return len(failed)

    def _show(self) -> None:
        if self._shows:
            all_answers = self.by_worker.values()
            least = min(answer.steps_done for answer in all_answers)
            size = sum(len(answer.data) for answer in all_answers) / 2**20
            text = f"step {least} of {self._steps}, {size:.1f} MiB from {counted(len(all_answers), 'worker')}"
            typer.echo(f"\r\x1b[K{text}", nl=False, err=True)


@command
def trace(
    job: JobArgument = None,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, max=1000, help="Number of the next steps to trace.")
    ] = 5,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File to write.",
            show_default="JOB-trace.json.gz",
            dir_okay=False,
        ),
    ] = None,
    worker: WorkersOption = None,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
) -> None:
    """Trace the next steps of a job with torch.profiler, all workers in one file.

    The file is for https://ui.perfetto.dev or chrome://tracing; with a name that ends in .json it is not
    compressed. The traced steps are slower; their results are the same bits. Ctrl-C ends the trace, and
    nothing is written.

    Examples: elastane trace train --steps 5; elastane trace train --worker w0 -o w0.json
    """
    answers = _Answers(steps)
    with connect(master, timeout) as client:
        name = client.only_job(job)
        file = out or Path(f"{name}-trace.json.gz")
        try:
            with _kept_if_written(file):
                answers.take(client.capture(name, worker or (), trace_steps=steps))
                missing = _write_trace(file, answers, steps)
        except KeyboardInterrupt:
            typer.echo("the trace was ended; nothing is written", err=True)
            raise typer.Exit(_INTERRUPTED) from None
    if missing:
        raise typer.Exit(CODE_FAILED)


@contextmanager
def _kept_if_written(file: Path) -> Iterator[None]:
    """Refuse a file that cannot be written before the block, and remove one that is empty after it."""
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        why = f"{file} cannot be written: {error.strerror}"
        raise typer.BadParameter(why, param_hint="'--out' / '-o'") from error
    try:
        yield
    finally:
        if not file.stat().st_size:
            file.unlink()


def _write_trace(file: Path, answers: _Answers, steps: int) -> int:
    """Write the traces of all workers as one; return the number of workers whose trace is missing."""
    from elastane_cli.trace_merge import WorkerTrace, merged

    missing = answers.report_missing()
    traces = [
        WorkerTrace(name, one.first_est, one.end_est, json.loads(gzip.decompress(one.data)))
        for name, one in answers.by_worker.items()
        if one.end and not one.error
    ]
    if traces:
        data = json.dumps(merged(traces)).encode()
        written = file.write_bytes(gzip.compress(data, 5) if file.name.endswith(".gz") else data)
        what = f"{counted(steps, 'step')} of {counted(len(traces), 'worker')}"
        typer.echo(f"{file}: {what}, {size_text(written)}")
    return missing


@command
def stacks(
    job: JobArgument = None,
    worker: WorkersOption = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0.1, help="How long workers may take.")
    ] = 15.0,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
) -> None:
    """Show the stacks of all threads of a job's workers: where a worker hangs.

    With native code, where py-spy is installed beside the worker and may look at its process; else as Python
    sees them.

    Examples: elastane stacks train; elastane stacks train --worker w1
    """
    answers = _Answers(0)
    with connect(master, timeout) as client:
        answers.take(client.capture(client.only_job(job), worker or (), wait_seconds=wait))
    for name, answer in answers.by_worker.items():
        if answer.data:
            typer.echo(f"== {name}\n{harmless(answer.data.decode('utf-8', 'replace')).rstrip()}\n")
    if answers.report_missing():
        raise typer.Exit(CODE_FAILED)
