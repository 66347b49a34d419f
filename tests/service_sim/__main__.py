"""`make service-sim`: runs seeds of the training service's simulation; a failure prints its seed and stops.

make service-sim                        the fixed seeds, under half a minute
make service-sim SEED=17                one seed again, with its trace
make service-sim SEEDS=100000 FIRST=0   more of them, on all cores; seeds per second of one core at the end
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from service_sim.simulation import simulate
from sim.world import SimulationError

SEEDS = 2000
BATCH_SEEDS = 250
PROGRESS_SEEDS = 5000


@dataclass
class Totals:
    """What some seeds came to. failures: seed, broken property, text. cpu_seconds: of their process."""

    seeds: int = 0
    cpu_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Add those of other seeds."""
        self.seeds += other.seeds
        self.cpu_seconds += other.cpu_seconds
        self.faults += other.faults
        self.counts += other.counts
        self.failures += other.failures

    def __str__(self) -> str:
        counts = self.counts
        return (
            f"{self.seeds} seeds, {sum(self.faults.values())} faults of {len(self.faults)} kinds,"
            f" {counts['succeeded']} runs succeeded, {counts['failed']} failed,"
            f" {counts['cancelled']} cancelled, {counts['suspended']} times one was suspended,"
            f" {len(self.failures)} failures;"
            f" {self.seeds / self.cpu_seconds:.0f} seeds per second of one core"
        )


def batch(seeds: range, keep_going: bool) -> Totals:
    """Run seeds one after the other, up to the first that fails unless `keep_going`."""
    totals = Totals()
    begun = time.process_time()
    for seed in seeds:
        totals.seeds += 1
        try:
            outcome = simulate(seed)
            totals.faults.update(outcome.injected)
            totals.counts.update(outcome.checkers.counts)
        except SimulationError as error:
            totals.failures.append((seed, error.checker, str(error)))
            if not keep_going:
                break
    totals.cpu_seconds = time.process_time() - begun
    return totals


def batches(first: int, seeds: int, jobs: int, keep_going: bool) -> Iterator[Totals]:
    """Run seeds in batches, so many at once; yield what each came to, in their order."""
    parts = [
        range(begin, min(begin + BATCH_SEEDS, first + seeds))
        for begin in range(first, first + seeds, BATCH_SEEDS)
    ]
    if jobs == 1 or len(parts) == 1:
        for part in parts:
            yield batch(part, keep_going)
        return
    with ProcessPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(batch, part, keep_going) for part in parts]:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def main(
    seed: Annotated[int | None, typer.Option(help="Run this one alone and print its trace.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = SEEDS,
    jobs: Annotated[int, typer.Option(help="Seeds at once.", show_default="cores", min=0)] = 0,
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
    totals = Totals()
    for part in batches(first, seeds, jobs or len(os.sched_getaffinity(0)), keep_going):
        before, failures = totals.seeds, part.failures
        totals.add(part)
        for _, _, text in failures:
            console.print(escape(text))
        if failures and not keep_going:
            break
        if totals.seeds // PROGRESS_SEEDS > before // PROGRESS_SEEDS:
            console.print(f"{totals.seeds} seeds")
    console.print(str(totals))
    for number, checker, _ in totals.failures:
        console.print(f"seed {number}: {checker}; make service-sim SEED={number}")
    if totals.failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
