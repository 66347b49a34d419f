"""`elastane logs`: the output of one rank of a run or of the workers of a job, once or as it comes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import (
    MASTER_DEFAULT,
    TIMEOUT_DEFAULT,
    MasterOption,
    TimeoutOption,
    command,
    connect,
)
from elastane_cli.commands.job_logs import JobLog
from elastane_cli.commands.log_output import LogOutput, last_lines, print_log
from elastane_cli.commands.run_ids import JobOrRunArgument, named
from elastane_cli.commands.training import connect_training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elastane_common.client import MasterClient
    from elastane_common.training_client import TrainingClient
    from elastane_proto.v1 import job_pb2, log_pb2, training_pb2


def register(app: typer.Typer) -> None:
    app.command("logs", rich_help_panel="Look")(logs)


@command
def logs(
    run: JobOrRunArgument = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="R", min=0, help="The rank.", show_default="0")
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            "--worker",
            metavar="ID",
            help="The worker; repeat it for several of a job. Of an elastic run, the rank that is it.",
            show_default="of a job: all",
        ),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", metavar="A", min=1, help="The attempt, from 1.", show_default="the newest"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the attempt, or the job, is over.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            "--lines",
            "-n",
            metavar="LINES",
            min=0,
            help="Only the last lines.",
            show_default="all lines",
        ),
    ] = None,
    tail_bytes: Annotated[
        int | None,
        typer.Option(
            "--tail-bytes", metavar="BYTES", min=1, help="Only the last bytes.", show_default="all bytes"
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="On a terminal too, print control characters and invalid UTF-8 as they are."
        ),
    ] = False,
    master: MasterOption = MASTER_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT,
    as_json: Annotated[bool, typer.Option("--json", help="Of a job: print a JSON object per line.")] = False,
) -> None:
    """Print the output of one rank of a run, or of the workers of a job; with --follow as it comes.

    On a terminal, control characters and invalid UTF-8 are replaced; elsewhere the bytes are those of the
    rank. Of a job the master has the last 1,000 lines of each worker, also of one that has died, and the
    first 4 KiB of each line: "[N bytes left out]" stands for the rest. `elastane run --log-dir` keeps every
    byte.

    Examples: elastane logs 17; elastane logs -f 17 --rank 2; elastane logs 17 --attempt 1 --tail 100;
    elastane logs train --worker w1 -f; elastane logs train --worker w0 --worker w1 --lines 20 --json
    """
    number = named(run)
    chosen_workers = list(dict.fromkeys(worker or ()))
    if "" in chosen_workers:
        raise typer.BadParameter(
            "a worker's id is not empty; leave --worker out for all", param_hint="--worker"
        )
    if not isinstance(number, int):
        for name, value in {"--rank": rank, "--attempt": attempt, "--tail-bytes": tail_bytes}.items():
            if value is not None:
                raise typer.BadParameter(
                    f"a job has workers and no ranks: {name} is for runs", param_hint=name
                )
        clean = sys.stdout.isatty() and not raw
        printer = JobLog(sys.stdout, prefixed=len(chosen_workers) != 1, clean=clean, as_json=as_json)
        with connect(master, timeout) as client:
            job = client.only_job(number)
            found = _output_of(client, job, chosen_workers, lines=tail, follow=follow)
            if follow:
                printer.print(found)
            else:
                printer.print_sorted(found)
        return
    if as_json:
        raise typer.BadParameter("the log of a run is bytes: --json is for jobs", param_hint="--json")
    if len(chosen_workers) > 1:
        raise typer.BadParameter("a run has a log for each rank: give one --worker", param_hint="--worker")
    if rank is not None and chosen_workers:
        raise typer.BadParameter("give --rank or --worker, not both", param_hint="--worker")
    if tail is not None and tail_bytes is not None:
        raise typer.BadParameter("give --tail or --tail-bytes, not both", param_hint="--tail-bytes")
    chosen = rank or 0
    if chosen_workers:
        chosen = _worker_rank(master, timeout, number, chosen_workers[0])
    output = LogOutput(sys.stdout, clean=sys.stdout.isatty() and not raw)
    with connect_training(master, timeout) as training:
        begun = _attempt(training, number, attempt, follow=follow)
        if begun is None:
            return
        offset = -(tail_bytes or 0)
        if tail is not None:
            data, offset = last_lines(
                lambda start: training.stream_logs(number, rank=chosen, attempt=begun, offset=start), tail
            )
            output.write(data)
        if tail is None or follow:
            print_log(
                training.stream_logs(number, rank=chosen, attempt=begun, offset=offset, follow=follow), output
            )
        output.end()


def _output_of(
    client: MasterClient, job: str, workers: list[str], *, lines: int | None, follow: bool
) -> Iterator[log_pb2.LogServiceReadResponse]:
    """Yield the lines that the master has of these workers; of all if none are given."""
    if len(workers) < 2:
        yield from client.read_output(job, "".join(workers), lines=lines, follow=follow)
    elif follow:  # one stream of all workers, of which the others are dropped here
        found = client.read_output(job, lines=lines, follow=True)
        yield from (piece for piece in found if piece.worker_id in workers)
    else:
        for worker in workers:
            yield from client.read_output(job, worker, lines=lines)


def _attempt(training: TrainingClient, run_id: int, attempt: int | None, *, follow: bool) -> int | None:
    """Return the attempt to read: this one, or the newest; None, with a message on stderr, if none has begun.

    follow: wait until it has begun, or the run is over without it.
    """
    from elastane_cli.views.runs import change_line, is_over, is_waiting

    said = ""
    for run in training.watch(run_id) if follow else [training.get(run_id)]:
        if run.attempt >= (attempt or 1) and not (follow and attempt is None and is_waiting(run)):
            return attempt or run.attempt
        if run.attempt >= 1 and is_over(run):
            return attempt or run.attempt  # that attempt never existed: the master reports it
        line = change_line(run)
        if line != said:
            typer.echo(line, err=True)
        said = line
    missing = f"attempt {attempt} has not begun" if attempt else "no attempt has begun"
    typer.echo(f"run {run_id} has no output: {missing}", err=True)
    return None


def _worker_rank(master: str, timeout_seconds: float, run_id: int, worker_id: str) -> int:
    """Return the rank that is a worker of the run's job. Raises BadParameter if it is not known."""
    with connect_training(master, timeout_seconds) as training:
        run = training.get(run_id)
    if not run.job:
        raise typer.BadParameter(
            f"run {run_id} is not elastic: it has ranks and no workers", param_hint="--worker"
        )
    with connect(master, timeout_seconds) as client:
        job = client.get_job(run.job)
    try:
        return rank_of_worker(run, job, worker_id)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--worker") from None


def rank_of_worker(run: training_pb2.Run, job: job_pb2.Job, worker_id: str) -> int:
    """Return the rank whose process is the worker: the only one on the worker's host.

    Raises ValueError, which names the choices, for an unknown worker or a host with several ranks.
    """
    hosts = {worker.worker_id: worker.host for worker in job.workers}
    if worker_id not in hosts:
        raise ValueError(
            f"job {job.name} has no worker {worker_id!r}; it has: {', '.join(sorted(hosts)) or 'none'}"
        )
    workers = run.ranks[: len(run.ranks) - run.spec.parameter_servers]
    ranks = [rank.rank for rank in workers if rank.host == hosts[worker_id]]
    if len(ranks) == 1:
        return ranks[0]
    choices = ", ".join(map(str, ranks)) or "none"
    raise ValueError(
        f"the ranks on {hosts[worker_id]}, the host of {worker_id}, are {choices}: choose with --rank"
    )
