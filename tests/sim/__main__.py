"""`make sim`: runs seeds of the simulation one after the other; a failure prints its seed and stops.

make sim                        the fixed seeds, about a minute
make sim SEED=17                one seed again, with its trace
make sim SEEDS=10000 FIRST=600  other seeds, and more of them; seeds per hour at the end
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sim.simulation import Outcome, simulate
from sim.world import BEGIN, SimulationError

SEEDS = 1000


@dataclass
class Totals:
    """Totals over all runs."""

    seeds: int = 0
    virtual_seconds: float = 0.0
    steps: int = 0
    rewinds: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, object]] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.virtual_seconds += outcome.world.now - BEGIN
        self.steps += len(outcome.checkers.standing)
        self.rewinds += outcome.checkers.notes.get("history_rewound", 0)
        for name, count in outcome.injected.items():
            self.faults[name] = self.faults.get(name, 0) + count


def main(
    seed: Annotated[int | None, typer.Option(help="Run this one alone and print its trace.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = SEEDS,
    keep_going: Annotated[bool, typer.Option(help="Go on after a failure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Runs whole jobs under faults in virtual time.

    Exits with 1 when a property does not hold, with 130 on Ctrl-C.
    """
    console = Console(stderr=as_json, soft_wrap=True)
    if seed is not None:
        _replay(seed, console, as_json)
        return
    totals = Totals()
    wall, cpu = time.monotonic(), time.process_time()
    interrupted = False
    columns = TextColumn("seed {task.fields[seed]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("seeds", total=seeds, seed=first)
        try:
            for number in range(first, first + seeds):
                progress.update(task, seed=number)
                totals.seeds += 1
                try:
                    totals.add(simulate(number))
                except SimulationError as error:
                    totals.failures.append({"seed": number, "checker": error.checker})
                    console.print(escape(str(error)))
                    if not keep_going:
                        break
                progress.advance(task)
        except KeyboardInterrupt:
            interrupted = True
            totals.seeds -= 1
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    per_hour = round(3600 * totals.seeds / cpu) if cpu else 0
    if as_json:
        facts = {"seconds": wall, "cpu_seconds": cpu, "seeds_per_hour_of_one_core": per_hour}
        print(json.dumps({**totals.__dict__, **facts}))
    else:
        console.print(
            f"{totals.seeds} seeds, {totals.virtual_seconds / 3600:.1f} hours of virtual time,"
            f" {sum(totals.faults.values())} faults of {len(totals.faults)} kinds,"
            f" {totals.steps} steps committed, history rewound {totals.rewinds} times,"
            f" {len(totals.failures)} failures"
        )
        console.print(f"{wall:.0f} s; {per_hour} seeds per hour of one core")
        for failure in totals.failures:
            console.print(f"seed {failure['seed']}: {failure['checker']}; make sim SEED={failure['seed']}")
    if interrupted:
        raise typer.Exit(130)
    if totals.failures:
        raise typer.Exit(1)


def _replay(seed: int, console: Console, as_json: bool) -> None:
    try:
        outcome = simulate(seed, trace_lines=None)
    except SimulationError as error:
        if as_json:
            print(json.dumps({"seed": seed, "checker": error.checker, "text": str(error)}))
        else:
            console.print(escape(str(error)))
        raise typer.Exit(1) from None
    if as_json:
        facts = {"seed": seed, "checker": "", "faults": outcome.injected, "trace": outcome.world.trace}
        print(json.dumps(facts))
        return
    console.print(escape("\n".join(outcome.world.trace)))
    console.print(f"seed {seed}: every property holds")


if __name__ == "__main__":
    typer.run(main)
