"""Checks the simulator: twelve small jobs on a real training service and in `elastane simulate`.

    python benchmarks/fidelity.py [--policies packing,elastic-srtf,foresight] [--seed N] [--json [FILE]]

A probe measures the cost of starts and changes on this machine, and each job runs once undisturbed. The more
workers start at once, the longer a start takes, as they share the processors; the first start on a machine is
not representative, because later ones find its files in the page cache. Then a real service (a master, and a
runner with four slots) gets the jobs at the times of the trace, once under each policy, and the simulator
runs the same jobs with the measured costs. Steps mostly sleep, so that two cores can run four workers. Exits
with 0 only if each policy's average completion time is within a tenth of the simulated one, the policies rank
in the same order, and each job has the weights of its undisturbed run; 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fidelity_jobs import Measured, Played, SmallJob, Training, as_plain, faults, simulate, small_jobs
from fidelity_service import SLOTS, Probe, Say, followed_service, play_trace, undisturbed
from rich.console import Console
from rich.table import Table

from elastane_cli.commands.signals import sigterm_cleans_up
from elastane_common.errors import ElastaneError
from elastane_scheduler.errors import SchedulerError
from elastane_scheduler.policies.catalogue import make_policy

JOBS: Final = 12
POLICIES: Final = "packing,elastic-srtf,foresight"
TRACE_SEED: Final = 4
"""Seed of a trace on which the policies differ so much that their order is not a matter of chance."""


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default=POLICIES, help=f"comma-separated (default: {POLICIES})")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"(default: {JOBS})")
    parser.add_argument("--seed", type=int, default=TRACE_SEED, help=f"of the trace (default: {TRACE_SEED})")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="print all figures as JSON, or write them"
    )
    options = parser.parse_args()
    policies = [name.strip() for name in options.policies.split(",")]
    try:
        for name in policies:
            make_policy(name)
    except SchedulerError as error:
        parser.error(f"{error}. {error.hint}")
    if options.jobs < 1:
        parser.error("--jobs has to be at least 1")
    jobs = small_jobs(options.jobs, options.seed)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        with sigterm_cleans_up(), tempfile.TemporaryDirectory(prefix="elastane-fidelity-") as folder:
            measured, references, played = run(Path(folder), jobs, policies, say)
    except ElastaneError as error:
        print(f"fidelity: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fidelity: interrupted; all processes are gone", file=sys.stderr)
        return 130
    found = faults(played, references, jobs)
    document = json.dumps(as_plain(jobs, measured, played, found), indent=1)
    if options.json == "-":
        print(document)
    else:
        show(measured, played, found, time.monotonic() - began)
        if options.json:
            Path(options.json).write_text(document + "\n")
    return 1 if found else 0


def run(
    folder: Path, jobs: Sequence[SmallJob], policies: Sequence[str], say: Say
) -> tuple[Measured, dict[Training, str], list[Played]]:
    """Measure and simulate; return the costs, the weights of undisturbed runs, and each policy's figures."""
    trainings = sorted({job.training for job in jobs})
    with followed_service(folder / "probe", say, policies[-1]) as followed:
        measured = Probe(followed).measure()
        say(f"measured: {measured}")
        say(f"{len(trainings)} undisturbed runs")
        references = undisturbed(followed.service, folder, trainings)
    played = []
    for policy in policies:
        say(f">>> {policy}")
        times, weights, starts = play_trace(folder / policy, jobs, policy, say)
        played.append(Played(policy, times, simulate(jobs, policy, measured, SLOTS), weights, starts))
        say(f"{policy}: {played[-1].measured_average:.1f} s, simulated {played[-1].simulated_average:.1f} s")
    return measured, references, played


def show(measured: Measured, played: Sequence[Played], found: Sequence[str], seconds: float) -> None:
    """Print the table."""
    console = Console()
    table = Table(box=None, header_style="bold")
    for place, heading in enumerate(
        ("policy", "measured s", "simulated s", "ratio", "changes", "first starts s")
    ):
        table.add_column(heading, justify="left" if place == 0 else "right")
    for one in played:
        figures = (f"{one.measured_average:.1f}", f"{one.simulated_average:.1f}", f"{one.ratio:.3f}")
        starts = " / ".join(
            f"{statistics.mean(seconds):.1f}" for seconds in (one.starts, one.simulation.starts)
        )
        table.add_row(one.policy, *figures, str(one.changes), starts)
    console.print(table)
    starts = ", ".join(f"{count} at once {took:.1f} s" for count, took in measured.starts.items())
    console.print(
        f"costs: first start {measured.first_start:.1f} s; later: {starts}; stall {measured.stall:.2f} s; "
        f"{seconds:.0f} s in all",
        highlight=False,
    )
    for fault in found:
        console.print(f"[bold red]no:[/] {fault}", highlight=False)
    if not found:
        console.print("[bold green]as simulated: averages, order and bits[/]", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
