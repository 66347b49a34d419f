"""`make service-sim`: runs seeds of the training service's simulation; a failure prints its seed and stops.

make service-sim                        the fixed seeds, under half a minute
make service-sim SEED=17                one seed again, with its trace
make service-sim SEEDS=100000 FIRST=0   more of them; seeds per second of one core at the end
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from service_sim.simulation import simulate
from sim.world import SimulationError

SEEDS = 2000
PROGRESS_SEEDS = 5000


def main(
    seed: Annotated[int | None, typer.Option(help="Run this one alone and print its trace.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = SEEDS,
    keep_going: Annotated[bool, typer.Option(help="Go on after a failure.")] = False,
) -> None:
    """Runs whole training services under faults in virtual time.

    Exits with 1 when a property does not hold.
    """
    console = Console(soft_wrap=True)
    if seed is not None:
        try:
            console.print(escape(simulate(seed, trace_lines=None).simulation.trace_text(None)))
        except SimulationError as error:
            console.print(escape(str(error)))
            raise typer.Exit(1) from None
        console.print(f"seed {seed}: every property holds")
        return
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    failures: list[tuple[int, str]] = []
    cpu = time.process_time()
    done = 0
    for number in range(first, first + seeds):
        try:
            outcome = simulate(number)
            faults.update(outcome.injected)
            counts.update(outcome.checkers.counts)
        except SimulationError as error:
            failures.append((number, error.checker))
            console.print(escape(str(error)))
        done += 1
        if failures and not keep_going:
            break
        if done % PROGRESS_SEEDS == 0:
            console.print(f"{done} seeds")
    cpu = time.process_time() - cpu
    console.print(
        f"{done} seeds, {sum(faults.values())} faults of {len(faults)} kinds,"
        f" {counts['succeeded']} runs succeeded, {counts['failed']} failed, {counts['cancelled']} cancelled,"
        f" {counts['suspended']} times one was suspended, {len(failures)} failures;"
        f" {done / cpu:.0f} seeds per second of one core"
    )
    for number, checker in failures:
        console.print(f"seed {number}: {checker}; make service-sim SEED={number}")
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
