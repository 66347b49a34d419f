"""`elastane simulate`: plays a trace of jobs through scheduling policies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastane_cli.commands.common import JsonOption, command, console, print_json

if TYPE_CHECKING:
    from elastane_scheduler.costs import Costs
    from elastane_scheduler.pool import Pool
    from elastane_scheduler.simulation.engine import Outcome, Progress
    from elastane_scheduler.simulation.offers import Offers
    from elastane_scheduler.simulation.report import Report
    from elastane_scheduler.simulation.traces import Workload

GENERATED = "generated"
_GENERATED_JOBS = 100
_BAR_JOBS_MIN = 500
"""Traces with fewer jobs are played in seconds and need no bar."""


def register(app: typer.Typer) -> None:
    app.command("simulate", rich_help_panel="Look")(simulate)


@command
def simulate(
    trace: Annotated[
        str,
        typer.Argument(
            help="A trace as CSV: ours, EasyScale's, Philly's, Tiresias' or Sia's. "
            '"generated" makes one from --seed.',
            show_default=False,
        ),
    ] = "",
    policy: Annotated[
        str, typer.Option("--policy", "-p", help="Policies, comma-separated, or all.")
    ] = "srtf,maxmin,foresight",
    cost: Annotated[
        str,
        typer.Option(
            "--cost",
            help="Seconds of a worker's start, of a stall at a change, and of save and load.",
            metavar="START,STALL,RESTORE",
        ),
    ] = "start=2,stall=0.5,restore=1",
    pool: Annotated[
        str, typer.Option("--pool", help="Devices of each type.", metavar="TYPE=N,...")
    ] = "v100=32,p100=16,t4=16",
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=1, help="Number of devices of one type, in place of --pool."),
    ] = None,
    price: Annotated[
        str,
        typer.Option(
            "--price", help="Price of a device per hour.", metavar="TYPE=X,...", show_default="1 each"
        ),
    ] = "",
    times: Annotated[
        list[Path] | None,
        typer.Option(
            "--times",
            help="A table of step times, for EasyScale's and Sia's traces; may be repeated.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    reclaim: Annotated[
        Path | None,
        typer.Option(
            "--reclaim", help="Spot availability as JSON; applies to one type.", exists=True, dir_okay=False
        ),
    ] = None,
    reclaim_type: Annotated[
        str,
        typer.Option("--reclaim-type", help="The type that is reclaimed.", show_default="the pool's first"),
    ] = "",
    reclaim_tick: Annotated[
        float | None,
        typer.Option(
            "--reclaim-tick", help="Seconds between the trace's values.", show_default="the trace's own"
        ),
    ] = None,
    reclaim_offset: Annotated[
        int, typer.Option("--reclaim-offset", min=0, help="Values left out at the beginning.")
    ] = 0,
    noise: Annotated[
        float,
        typer.Option("--noise", min=0.0, help="Policies see remaining work times exp(NOISE x normal)."),
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of noise and of a generated trace.")] = 0,
    dense: Annotated[float, typer.Option("--dense", help="Factor by which arrivals are denser.")] = 1.0,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="The first jobs alone; of a generated trace: how many."),
    ] = None,
    ests_per_gpu: Annotated[
        int,
        typer.Option(
            "--ests-per-gpu", min=1, help="ESTs for each device that a job of Philly or Tiresias had."
        ),
    ] = 1,
    artifact: Annotated[
        bool,
        typer.Option(
            "--artifact",
            help="Read as EasyScale's published simulator: rows merged by name, rounds of 60 s, 20 s for "
            "a first start, other changes free.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Write completion times and devices by job as SVG.", dir_okay=False),
    ] = None,
    spot: Annotated[
        list[str] | None,
        typer.Option(
            "--spot",
            help="In place of a trace of jobs: spot availability as JSON, or generated, for one job with a "
            "deadline; may be repeated.",
            metavar="TRACE",
        ),
    ] = None,
    deadline: Annotated[
        list[float] | None,
        typer.Option(
            "--deadline",
            help="With --spot: times the hours of work; may be repeated.",
            show_default="1.1, 1.25, 1.5",
        ),
    ] = None,
    ests: Annotated[int, typer.Option("--ests", min=1, help="With --spot: of the job.")] = 16,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="With --spot: whose cost on demand is 1.")
    ] = 8,
    hours: Annotated[
        float, typer.Option("--hours", help="With --spot: of work with that many workers.")
    ] = 24.0,
    spot_price: Annotated[
        float, typer.Option("--spot-price", help="With --spot: over the price on demand.")
    ] = 0.33,
    cold_start: Annotated[
        float,
        typer.Option("--cold-start", help="With --spot: seconds from asking for a machine until it trains."),
    ] = 360.0,
    as_json: JsonOption = False,
) -> None:
    """Play a trace of jobs through scheduling policies: completion times, fairness, use, money.

    With --spot: a job with a deadline on machines that come and go, under two policies. Time is virtual,
    every cost of a change is charged, and the same input gives the same output.
    Examples: elastane simulate generated; elastane simulate philly.csv --jobs 10000 --gpus 4096 -p srtf;
    elastane simulate --spot availability.json --deadline 1.25
    """
    if spot:
        if trace:
            raise typer.BadParameter("give a trace of jobs or --spot, not both", param_hint="--spot")
        _play_spot(spot, deadline or [], (ests, workers, hours, spot_price, cold_start), seed, as_json)
        return
    if not trace:
        raise typer.BadParameter("give a trace of jobs, or --spot", param_hint="TRACE")
    if deadline:
        raise typer.BadParameter("only with --spot", param_hint="--deadline")
    from elastane_scheduler.costs import parse_costs
    from elastane_scheduler.errors import SchedulerError
    from elastane_scheduler.policies.catalogue import POLICIES
    from elastane_scheduler.pool import parse_pool
    from elastane_scheduler.simulation.offers import read_reclaims, steady

    if plot is not None and not plot.absolute().parent.is_dir():  # before an hour of playing
        raise typer.BadParameter(f"{plot.parent} is not a folder", param_hint="--plot")
    names = list(POLICIES) if policy == "all" else [name.strip() for name in policy.split(",")]
    try:
        devices = parse_pool(f"gpu={gpus}" if gpus else pool, price)
        costs = parse_costs(cost)
        workload = _read(trace, devices, times or [], jobs, ests_per_gpu, artifact, seed)
        _densify(workload, dense)
        offers = steady(devices)
        if reclaim is not None:
            kind = reclaim_type or devices.types[0]
            offers = read_reclaims("".join(_lines(reclaim)), devices, kind, reclaim_tick, reclaim_offset)
        run = _Runs(workload, devices, costs, offers, (noise, seed), artifact, bool(plot), as_json)
        reports = run.reports(names)
    except SchedulerError as error:
        hint = f". {error.hint}" if error.hint else ""
        raise typer.BadParameter(f"{error}{hint}") from error
    if plot is not None:
        try:
            plot.write_text(run.picture(names))
        except OSError as error:
            raise typer.BadParameter(f"{plot} cannot be written: {error}", param_hint="--plot") from error
    if as_json:
        print_json(
            {
                "jobs": len(workload.jobs),
                "notices": workload.notices,
                "policies": [report.to_plain() for report in reports],
            }
        )
        return
    for notice in workload.notices:
        typer.echo(f"note: {notice}", err=True)
    _print(reports)


def _play_spot(
    paths: Sequence[str],
    deadlines: Sequence[float],
    job: tuple[int, int, float, float, float],
    seed: int,
    as_json: bool,
) -> None:
    from elastane_cli.commands.spot_table import DEADLINES, generated_traces, print_spot_rows, spot_rows
    from elastane_scheduler.errors import SchedulerError
    from elastane_scheduler.simulation.availability import read_availability
    from elastane_scheduler.simulation.spot_replay import SpotJob

    try:
        traces = []
        for path in paths:
            if path == GENERATED:
                traces += generated_traces(job[0], seed)
            else:
                traces.append(read_availability("".join(_lines(Path(path)))))
        rows = spot_rows(traces, SpotJob(*job), deadlines or DEADLINES)
    except SchedulerError as error:
        hint = f". {error.hint}" if error.hint else ""
        raise typer.BadParameter(f"{error}{hint}") from error
    print_spot_rows(rows, as_json)


def _read(
    trace: str,
    pool: Pool,
    times: Sequence[Path],
    jobs: int | None,
    ests_per_gpu: int,
    artifact: bool,
    seed: int,
) -> Workload:
    """Read or generate the trace. Raises SchedulerError, and BadParameter for an unreadable file."""
    from elastane_scheduler.simulation.formats import ReadOptions, add_times, read_trace
    from elastane_scheduler.simulation.generated import generate
    from elastane_scheduler.simulation.times import StepTimes

    if trace == GENERATED:
        return generate(pool, jobs or _GENERATED_JOBS, seed)
    measured = StepTimes()
    for table in times:
        add_times(measured, _lines(table), table.name)
    return read_trace(_lines(Path(trace)), pool, measured, ReadOptions(jobs, ests_per_gpu, artifact))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error


def _densify(workload: Workload, dense: float) -> None:
    from dataclasses import replace

    from elastane_scheduler.amounts import check_amount

    factor = check_amount("--dense", dense, positive=True)
    if factor != 1.0:
        workload.jobs = [replace(job, arrival_seconds=job.arrival_seconds / factor) for job in workload.jobs]


class _Runs:
    """Simulations of the trace, one for each policy."""

    def __init__(
        self,
        workload: Workload,
        pool: Pool,
        costs: Costs,
        offers: Offers,
        noise: tuple[float, int],
        artifact: bool,
        record: bool,
        quiet: bool,
    ) -> None:
        self._workload, self._pool, self._costs, self._offers = workload, pool, costs, offers
        self._noise, self._artifact, self._record, self._quiet = noise, artifact, record, quiet
        self._outcomes: dict[str, Outcome] = {}

    def reports(self, names: Sequence[str]) -> list[Report]:
        """Simulate every policy, and a fair share for comparison. Raises SchedulerError."""
        from elastane_scheduler.policies.catalogue import make_policy
        from elastane_scheduler.simulation.report import report_of

        for name in names:
            make_policy(name)  # refuse an unknown one before an hour of playing
        fair = self._play("maxmin")
        return [report_of(name, self._play(name), self._pool, fair) for name in names]

    def picture(self, names: Sequence[str]) -> str:
        """Return the SVG of all policies, with the devices of the last."""
        from elastane_scheduler.simulation.plot import draw

        times = {name: [job.completion_seconds for job in self._outcomes[name].ended] for name in names}
        return draw(times, self._outcomes[names[-1]].held, names[-1])

    def _play(self, name: str) -> Outcome:
        from elastane_scheduler.policies.catalogue import make_policy
        from elastane_scheduler.simulation.beliefs import Beliefs
        from elastane_scheduler.simulation.engine import Rounds, Simulation

        if name not in self._outcomes:
            with _bar(name, 0 if self._quiet else len(self._workload.jobs)) as progress:
                self._outcomes[name] = Simulation(
                    self._workload.jobs,
                    make_policy(name),
                    self._pool,
                    self._costs,
                    offers=self._offers,
                    beliefs=Beliefs(*self._noise),
                    rounds=Rounds(60.0, 20.0) if self._artifact else None,
                    record=self._record,
                    progress=progress,
                ).run()
        return self._outcomes[name]


@contextmanager
def _bar(name: str, jobs: int) -> Iterator[Progress | None]:
    """Show progress in finished jobs, on a terminal, for a long trace."""
    if jobs < _BAR_JOBS_MIN or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=jobs)
        yield lambda over, _: bar.update(task, completed=over)


def _print(reports: Sequence[Report]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    headings = ("policy", "average s", "p50", "p90", "p99", "makespan", "wait", "rho max", "rho p95", "use")
    for place, heading in enumerate((*headings, "changes", "money")):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for report in reports:
        seconds = (report.average, report.p50, report.p90, report.p99, report.makespan, report.wait)
        table.add_row(
            report.policy,
            *(f"{value:,.0f}" for value in seconds),
            *("-" if rho is None else f"{rho:.2f}" for rho in (report.rho_max, report.rho_p95)),
            f"{report.use:.0%}",
            f"{report.reallocations:,}",
            f"{report.money:,.2f}",
        )
    console().print(table)
    for report in reports:
        if report.unfinished:
            typer.echo(
                f"{report.policy}: {report.unfinished} jobs fit on no devices that are offered", err=True
            )
