"""Plants bugs into the code, one at a time, and hunts them with a simulation.

A mutant is a piece of a module's source and its replacement. The piece must occur exactly once, so that a
mutant that no longer applies raises an error. Each runs in a separate process: the module is compiled
from the changed source when it is first imported, and no file is changed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1]
ROOTS = ("common", "proto", "shard_service", "scheduler", "planner", "master", "worker")
SOURCES = [str(TESTS.parent / name) for name in ROOTS]


@dataclass(frozen=True)
class Mutant:
    """One planted bug: in `module`, `old` is replaced by `new`. more: further such pairs.

    also: planted with it, into other modules: one guard covers for the other.
    drawn_by: module whose `draw(seed)` returns something that `fits` in the seeds that can show it; empty:
    all can.
    """

    name: str
    module: str
    old: str
    new: str
    more: tuple[tuple[str, str], ...] = ()
    drawn_by: str = ""
    fits: Callable[[Any], bool] = bool
    also: tuple[Mutant, ...] = ()

    def applied(self, source: str) -> str:
        """Return the changed source. Raises LookupError unless every old text occurs exactly once."""
        for old, new in ((self.old, self.new), *self.more):
            if source.count(old) != 1:
                raise LookupError(f"{self.name!r}: {self.module} has its text {source.count(old)} times")
            source = source.replace(old, new)
        return source

    def path(self) -> Path:
        """Return the module's file without importing it."""
        return next(
            path
            for root in (*SOURCES, str(TESTS))
            if (path := Path(root, *self.module.split(".")).with_suffix(".py")).exists()
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its changed source."""

    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        source = self._mutant.applied(Path(self.path).read_text())
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        file = str(self._mutant.path())
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file, self._mutant))


def hunt(mutant: Mutant, seeds_max: int, simulation: str) -> dict[str, object]:
    """Plant the bug and run seeds from 0 until a checker finds it. Call this in a fresh process.

    simulation: the module whose `simulate` runs a seed.
    """
    for planted in (mutant, *mutant.also):
        assert planted.module not in sys.modules, "the module is there already, unchanged"
        sys.meta_path.insert(0, _Finder(planted))
    simulate: Callable[[int], object] = import_module(simulation).simulate
    from sim.world import SimulationError

    begun = time.monotonic()
    draw = import_module(mutant.drawn_by).draw if mutant.drawn_by else lambda seed: True
    seeds = (seed for seed in itertools.count() if mutant.fits(draw(seed)))
    for number, seed in enumerate(itertools.islice(seeds, seeds_max), 1):
        try:
            simulate(seed)
        except SimulationError as error:
            text = str(error).partition("\n")[0].removeprefix(f"{error.checker}: ")
            seconds = time.monotonic() - begun
            return {"seeds": number, "checker": error.checker, "text": text, "seconds": seconds}
    return {"seeds": seeds_max, "checker": "", "text": "", "seconds": time.monotonic() - begun}


def hunt_in_process(mutant: Mutant, seeds_max: int, module: str) -> dict[str, object]:
    """Run `hunt` in a separate process of `module`. Raises RuntimeError if that process fails."""
    command = [sys.executable, "-m", module, "--one", mutant.name, "--seeds", str(seeds_max)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*SOURCES, str(TESTS)])}
    done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{mutant.name}: {done.stderr[-2000:]}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def hunt_all(
    chosen: Iterable[Mutant], hunted: Callable[[Mutant], dict[str, object]], as_json: bool = False
) -> bool:
    """Hunt one after the other and print a table; True if all were found."""
    console = Console(stderr=as_json)
    table = Table("planted bug", "seeds", "found by", "as", title="mutants")
    mutants = list(chosen)
    found_count = 0
    for mutant in mutants:
        found = hunted(mutant)
        found_count += bool(found["checker"])
        if as_json:
            print(json.dumps({"mutant": mutant.name, **found}), flush=True)
        else:
            console.print(f"{mutant.name}: {found['checker'] or 'NOT FOUND'} after {found['seeds']} seeds")
        table.add_row(
            mutant.name, str(found["seeds"]), str(found["checker"]) or "NOT FOUND", str(found["text"])
        )
    console.print(table)
    console.print(f"{found_count} of {len(mutants)} found")
    return found_count == len(mutants)


def command(
    mutants: Sequence[Mutant], module: str, simulation: str, seeds_max: int
) -> Callable[[str, int, str, bool], None]:
    """Return the command line of a table of mutants. module: with the table; simulation: finds them."""

    def main(
        only: Annotated[str, typer.Option(help="Only mutants whose name contains this.")] = "",
        seeds: Annotated[
            int, typer.Option(help="Number of seeds after which a mutant is given up.")
        ] = seeds_max,
        one: Annotated[str, typer.Option(hidden=True)] = "",
        as_json: Annotated[bool, typer.Option("--json", help="One line of JSON for each mutant.")] = False,
    ) -> None:
        """Plants known bugs one at a time and shows in how many seeds the simulation finds each.

        Exits with 1 when one is not found.
        """
        if one:
            mutant = next(mutant for mutant in mutants if mutant.name == one)
            print(json.dumps(hunt(mutant, seeds, simulation)))
            return
        chosen = [mutant for mutant in mutants if only in mutant.name]
        if not chosen:
            raise typer.BadParameter(f"no mutant has {only!r} in its name", param_hint="--only")
        if not hunt_all(chosen, lambda mutant: hunt_in_process(mutant, seeds, module), as_json):
            raise typer.Exit(1)

    return main
