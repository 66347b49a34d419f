"""Runs seeds of the simulation of slots one after the other; a failure prints its seed and stops.

python -m slot_sim                  50 seeds
python -m slot_sim --seed 17        one seed again, with its trace
python -m slot_sim --seeds 1000 --first 600
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from sim.world import BEGIN, SimulationError
from slot_sim.simulation import simulate

SEEDS = 50


def main(
    seed: Annotated[int | None, typer.Option(help="Run this one alone and print its trace.")] = None,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = SEEDS,
) -> None:
    """Run jobs whose tasks push to slots, under faults in virtual time. Exit with 1 on a broken property."""
    if seed is not None:
        try:
            outcome = simulate(seed, trace_lines=None)
        except SimulationError as error:
            typer.echo(str(error))
            raise typer.Exit(1) from None
        typer.echo("\n".join([*outcome.world.trace, f"seed {seed}: every property holds"]))
        return
    faults: Counter[str] = Counter()
    virtual, reopened, lives, left, began = 0.0, 0, 0, 0, time.process_time()
    for number in range(first, first + seeds):
        try:
            outcome = simulate(number)
        except SimulationError as error:
            typer.echo(f"{error}\npython -m slot_sim --seed {number}")
            raise typer.Exit(1) from None
        faults.update(outcome.injected)
        virtual += outcome.world.now - BEGIN
        reopened, lives, left = reopened + outcome.reopened, lives + outcome.lives, left + outcome.left
    cpu = time.process_time() - began
    typer.echo(
        f"{seeds} seeds, {virtual / 3600:.1f} virtual hours, {faults.total()} faults of {len(faults)} "
        f"kinds, {reopened} tasks opened again, {lives} lives of slots, {left} FAILED tasks left parts; "
        f"{round(3600 * seeds / cpu)} seeds per hour of one core"
    )


if __name__ == "__main__":
    typer.run(main)
