"""Compares each recipe with its original: stock DDP, and the converted script while workers are killed.

    make gallery                        every recipe on 2, 3 and 4 logical workers, a table at the end
    make gallery ONLY=vae,nanogpt SEEDS=5 KILLS=2

examples/recipes has a pair for each: NAME_ddp.py, an ordinary DDP script, and NAME.py, its conversion. Both
end with a line of digests, and only these are compared.

Exit codes: 0 all equal, 1 one is not, 2 usage.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import difflib
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from elastane_common.processes.child import ChildProcess
from integration.forked_cli import shared_server
from integration.forkserver import ForkServer, start_forked
from patience import Patience, communicate, wait
from recipes import kills

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"
RUN_SECONDS_MAX = 120.0
ORIGINAL_SECONDS_MAX = 300.0
STOP_SECONDS = 10.0
_DIGEST = re.compile(r"\bdigest ((?:\w+=[0-9a-f]{16} ?)+)$", re.MULTILINE)
_LINES_SHOWN = 25

Digests = dict[str, str]
Lines = queue.SimpleQueue[str | None]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A pair of scripts: NAME_ddp.py and NAME.py."""

    name: str

    @property
    def original(self) -> Path:
        return FOLDER / f"{self.name}_ddp.py"

    @property
    def converted(self) -> Path:
        return FOLDER / f"{self.name}.py"

    def changed_lines(self) -> tuple[int, int]:
        """Number of lines removed from the original and added in the converted script, without docstrings."""
        diff = list(difflib.ndiff(_code(self.original), _code(self.converted)))
        return sum(line.startswith("- ") for line in diff), sum(line.startswith("+ ") for line in diff)


RECIPES = tuple(Recipe(path.stem.removesuffix("_ddp")) for path in sorted(FOLDER.glob("*_ddp.py")))


def _code(path: Path) -> list[str]:
    """The lines behind the docstring that are not blank, without their indentation."""
    text = path.read_text()
    docstring = ast.parse(text).body[0]
    return [line.strip() for line in text.splitlines()[docstring.end_lineno :] if line.strip()]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of a converted script. verdict: "equal", "different: NAMES" or "failed"."""

    recipe: Recipe
    ests: int
    verdict: str
    killed: tuple[str, ...]
    seconds: float
    said: str = ""


class RecipeError(Exception):
    """The original did not finish; the text contains its last lines."""


class Ground:
    """Environment in which the scripts run. Use `ground`, which cleans up."""

    def __init__(self, folder: Path, environment: dict[str, str], server: ForkServer) -> None:
        self._folder = folder
        self._environment = environment
        self._server = server

    def original(self, recipe: Recipe, ests: int, *, torchrun: bool = False) -> Digests:
        """Return the final line of the original under stock DDP.

        torchrun: it is started by torchrun itself, and not in forks that have torchrun's variables.
        Raises RecipeError.
        """
        folder = self._new(f"{recipe.name}-{ests}-original")
        start = self._torchrun if torchrun else self._ranks
        lines: Lines = queue.SimpleQueue()  # None: a process has ended
        said: list[str] = []
        running = start(folder, recipe.original, ests, lines)
        left = len(running)
        limit = Patience(ORIGINAL_SECONDS_MAX)
        try:
            while left:
                line = wait(lambda seconds: lines.get(timeout=seconds), limit.left())
                left -= line is None
                said.append(line or "")
                if (found := _digests(line or "")) is not None:
                    return found  # what comes now is its end, in which stock DDP at times hangs
        except queue.Empty:
            said.append(f"no end after {ORIGINAL_SECONDS_MAX:g} s")
        finally:
            for process in running:
                process.stop(STOP_SECONDS)
        raise RecipeError(f"{recipe.original.name} on {ests} processes:\n" + "\n".join(said[-_LINES_SHOWN:]))

    def converted(
        self, recipe: Recipe, expected: Digests, ests: int, *, seed: int, kill_count: int
    ) -> Outcome:
        """Run the converted script on 1 to `ests` workers, with `kill_count` kills drawn by the seed."""
        began = time.monotonic()
        draw = random.Random(f"{recipe.name}/{ests}/{seed}")
        # A recipe has at least twenty visits for each of its logical workers; a killed worker's come again.
        at = draw.sample(range(1, 20 * ests), kill_count)
        folder = self._new(f"{recipe.name}-{ests}-{seed}")
        command = ["run", "--ests", f"{ests}", "--workers", f"1:{ests}", str(recipe.converted)]
        with kills.Kills(folder / "kills", at) as killed:
            done = subprocess.Popen(
                [sys.executable, "-m", "integration.forked_cli", *command],
                cwd=folder,
                env=self._environment | {kills.VARIABLE: str(killed.path), "ELASTANE_PROGRESS": "0"},
                pass_fds=[self._server.fileno()],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            with done:
                try:
                    said, _ = communicate(done, RUN_SECONDS_MAX)
                except subprocess.TimeoutExpired:
                    done.send_signal(signal.SIGINT)
                    said = f"no end after {RUN_SECONDS_MAX:g} s\n{done.communicate()[0]}"
        verdict = _verdict(done.returncode, said, expected)
        shown = "" if verdict == "equal" else f"exit code {done.returncode}\n{_end(said)}"
        seconds = time.monotonic() - began
        return Outcome(recipe, ests, verdict, tuple(killed.killed), seconds, shown)

    def _new(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))

    def _torchrun(self, folder: Path, script: Path, ests: int, lines: Lines) -> list[ChildProcess]:
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", f"{ests}", str(script)]
        torchrun = self._child("torchrun", command, folder, {}, lines)
        torchrun.start()
        return [torchrun]

    def _ranks(self, folder: Path, script: Path, ests: int, lines: Lines) -> list[ChildProcess]:
        """In forks, with the variables that torchrun sets."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(ests):
            variables = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": f"{port}",
                "RANK": f"{rank}",
                "LOCAL_RANK": f"{rank}",
                "WORLD_SIZE": f"{ests}",
                "LOCAL_WORLD_SIZE": f"{ests}",
            }
            ranks.append(self._child(f"rank{rank}", [str(script)], folder, variables, lines))
            assert start_forked(ranks[-1], lambda *_: self._server)
        return ranks

    def _child(
        self, name: str, command: list[str], folder: Path, variables: dict[str, str], lines: Lines
    ) -> ChildProcess:
        return ChildProcess(
            name,
            [sys.executable, *command],
            environment=self._environment | variables | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            directory=folder,
            on_line=lambda _name, _stream, text: lines.put(text),
            on_exit=lambda _child, _status: lines.put(None),
            death_signal=signal.SIGTERM,
        )


@contextlib.contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    """A place under `folder` for the time of a block."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    clean |= {"PYTHONPATH": os.pathsep.join(sys.path), "ELASTANE_SPOT": "none"}
    with shared_server(folder, clean, kills.__file__) as (variables, server):
        yield Ground(folder, clean | variables, server)


def _digests(said: str) -> Digests | None:
    """Return the digests in the script's last line; None if it did not get that far."""
    found = _DIGEST.findall(said)
    return dict(part.split("=") for part in found[-1].split()) if found else None


def _verdict(returncode: int, said: str, expected: Digests) -> str:
    found = _digests(said)
    if returncode != 0 or found is None:
        return "failed"
    unlike = [name for name in expected if found.get(name) != expected[name]]
    return f"different: {', '.join(unlike)}" if unlike else "equal"


def _end(said: str) -> str:
    return "\n".join(said.splitlines()[-_LINES_SHOWN:])


def table(outcomes: Sequence[Outcome]) -> str:
    """Script, lines changed, and how often each result was found."""
    rows = [("script", "lines out, in", "runs", "kills", "result")]
    for recipe in dict.fromkeys(outcome.recipe for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.recipe == recipe]
        out, put_in = recipe.changed_lines()
        verdicts = [outcome.verdict for outcome in mine]
        result = "; ".join(f"{verdict} ({verdicts.count(verdict)})" for verdict in dict.fromkeys(verdicts))
        killed = sum(len(outcome.killed) for outcome in mine)
        rows.append((recipe.name, f"-{out} +{put_in}", f"{len(mine)}", f"{killed}", result))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of recipes, with commas")
    parser.add_argument("--ests", default="2,3,4", help="numbers of logical workers, with commas")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the kills")
    parser.add_argument(
        "--seeds", type=int, default=1, help="runs of each recipe and number of logical workers"
    )
    parser.add_argument("--kills", type=int, default=2, help="in each run")
    parser.add_argument("--no-torchrun", action="store_true", help="originals in forks too, which is faster")
    args = parser.parse_args(arguments)
    names = [name for name in args.only.split(",") if name] or [recipe.name for recipe in RECIPES]
    unknown = set(names) - {recipe.name for recipe in RECIPES}
    if unknown or args.seeds < 1:
        parser.error(f"no recipe {', '.join(sorted(unknown))}" if unknown else "--seeds must be positive")
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="elastane-recipes-") as folder, ground(Path(folder)) as place:
        for name in names:
            for ests in map(int, args.ests.split(",")):
                expected = place.original(Recipe(name), ests, torchrun=not args.no_torchrun)
                for seed in range(args.first, args.first + args.seeds):
                    outcome = place.converted(Recipe(name), expected, ests, seed=seed, kill_count=args.kills)
                    outcomes.append(outcome)
                    killed = ", ".join(outcome.killed) or "nobody"
                    print(
                        f"{name}, {ests} logical workers, seed {seed}: {outcome.verdict}"
                        f" (killed: {killed}; {outcome.seconds:.1f} s)",
                        flush=True,
                    )
                    if outcome.said:
                        print(outcome.said, flush=True)
    print(table(outcomes))
    return int(any(outcome.verdict != "equal" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
