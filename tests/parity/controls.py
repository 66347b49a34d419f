"""Removes detectors one at a time, and checks that the script which each refuses then gives different bits.

If nothing differed without a detector, its refusals would be needless, and a test that it refuses a script
would not show that. So each is removed from a copy of the worker's package, and the script of the gallery
that it refuses is run by `elastane verify`, beside stock DDP and under kills. Fingerprints, which the master
compares, are off in that run, because they would find most of these differences some steps later.

    make controls                          all, with a table
    python -m parity.controls --only clamp
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from elastane_cli.verify.run import REPEAT_CHECK_VARIABLE
from sim.planting import Mutant

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
GALLERY = TESTS / "integration" / "gallery"
RUNTIME = "elastane.runtime"
REFUSED, DIFFERS, EQUAL = "refused", "differs", "equal"


def off(module: str, old: str, new: str) -> Mutant:
    """Return the mutant that removes a detector by replacing `old` in the module's source by `new`."""
    return Mutant(f"{module}: {old}", module, old, new)


LOOP = off(
    f"{RUNTIME}.loop_carried", "    if found:\n        file, carried", "    if False:\n        file, carried"
)
ATTRIBUTES = off(f"{RUNTIME}.loop_carried", "return attribute.changes >= _TIMES", "return False")
HYPERPARAMETERS = off(
    f"{RUNTIME}.est_step_watch", "        if name is None:\n            return\n", "        return\n"
)
AFTER_STEP = off(
    f"{RUNTIME}.est_step_watch", "elif not est_step.asked_stepped and self._num_ests > 1:", "elif False:"
)
WEIGHTS = off(
    f"{RUNTIME}.est_step_watch", "        if not written:\n            return\n", "        return\n"
)


@dataclass(frozen=True)
class Control:
    """One detector to remove.

    detector: its description. off: the mutants that remove it. command: the script of the gallery that it
    refuses, with arguments. on: variables that enable it, if `verify` disables it.
    """

    detector: str
    off: tuple[Mutant, ...]
    command: str
    ests: int = 3
    on: tuple[tuple[str, str], ...] = ()


CONTROLS = (
    Control("a counter of turns decides the learning rate", (LOOP, HYPERPARAMETERS), "turns.py counter"),
    Control("a running mean divides the loss", (LOOP,), "turns.py running-mean"),
    Control("a criterion counts its calls", (LOOP,), "turns.py criterion-counter"),
    Control("weights are clamped in every turn", (WEIGHTS,), "turns.py clamp"),
    Control("weights are clamped through .data", (WEIGHTS,), "turns.py data-clamp"),
    Control("a module counts its calls", (LOOP, ATTRIBUTES), "turns.py module-counter"),
    Control("a hook counts its calls", (), "turns.py hook", on=((REPEAT_CHECK_VARIABLE, "1"),)),
    Control("an optimizer counts its steps in an attribute", (ATTRIBUTES,), "turns.py optimizer-counter"),
    Control(
        "a second forward starts from buffers the first changed",
        (off(f"{RUNTIME}.forward_watch", "self._broadcast and self._now() != self._versions", "False"),),
        "turns.py second-forward",
    ),
    Control(
        "random numbers are drawn after backward",
        (
            off(
                f"{RUNTIME}.step_body",
                "if changed:",
                "if False:",
            ),
        ),
        "refused.py late-draw",
    ),
    Control(
        "a buffer is written to after backward",
        (off(f"{RUNTIME}.rank0_buffers", "if buffer._version != version:", "if False:"),),
        "refused.py late-buffer",
    ),
    Control(
        "a buffer is written to between epochs",
        (off(f"{RUNTIME}.rank0_buffers", "if not same_bits(buffer, kept):", "if False:"),),
        "refused.py train-mode",
    ),
    Control(
        "how many numbers are drawn depends on the generator's state",
        (off(f"{RUNTIME}.interval", "    def _uneven(self, place: str) -> None:\n        if not self._aside:",
             "    def _uneven(self, place: str) -> None:\n        if False:"),),
        "refused.py uneven-draw",
    ),
    Control(
        "gradients are added to those of the step before",
        (
            off(
                "elastane.collective.reducer",
                "if slots.versions and slots.writes(bucket) < "
                "backward.in_place[bucket] + backward.added[bucket]:",
                "if False:",
            ),
        ),
        "refused.py 'clipped, not zeroed'",
    ),
    Control(
        "a scheduler is not prepared",
        (
            off(f"{RUNTIME}.prepared_objects", 'hasattr(optimizer.step, "_wrapped_by_lr_sched")', "False"),
            HYPERPARAMETERS,
            AFTER_STEP,
        ),
        "refused.py scheduler",
    ),
    Control(
        "a dataset has a generator of its own",
        (off("elastane.data.own_generators", "if present != self._states[index]:", "if False:"),),
        "refused.py dataset-generator",
    ),
    Control(
        "a parameter is unfrozen in the loop",
        (off(f"{RUNTIME}.frozen", "            if param.requires_grad:\n", "            if False:\n"),),
        "refused.py unfrozen",
    ),
)  # fmt: skip


def planted(mutants: tuple[Mutant, ...], folder: Path) -> Path:
    """Copy the worker's package into the folder without these detectors; return the copy."""
    shutil.copytree(ROOT / "worker", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for mutant in mutants:
        path = folder.joinpath(*mutant.module.split(".")).with_suffix(".py")
        path.write_text(mutant.applied(path.read_text()))
    return folder


def verify(control: Control, worker: Path, *, on: bool, runs: int, kills: int, seed: str) -> tuple[str, str]:
    """Run `elastane verify` with the worker's package in this folder; return verdict and detail."""
    script, *arguments = shlex.split(control.command)
    command = [
        sys.executable,
        "-m",
        "elastane_cli.commands.main",
        "verify",
        "--ests",
        str(control.ests),
        "--runs",
        str(runs),
    ]
    command += ["--kills", str(kills), "--seed", seed, "--json", str(GALLERY / script), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(worker), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= dict(control.on) if on else {"ELASTANE_FINGERPRINT_STEPS": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip()
    verdict = {0: EQUAL, 1: DIFFERS, 11: REFUSED}.get(done.returncode, f"exit code {done.returncode}")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return verdict, said[-300:]
    return verdict, json.dumps(found)[:300]


def main(
    only: Annotated[str, typer.Option(help="Only detectors whose words or script contain this.")] = "",
    runs: Annotated[int, typer.Option(help="Elastic runs of each.")] = 1,
    kills: Annotated[int, typer.Option(help="Kills in each run.")] = 1,
    seed: Annotated[str, typer.Option(help="Of the churn.")] = "1",
    verbose: Annotated[bool, typer.Option(help="Show what verify said.")] = False,
) -> None:
    """Switches each detector off and shows that its script then trains other bits.

    Exits with 1 where the detector does not refuse, or where nothing differs without it.
    """
    chosen = [one for one in CONTROLS if only in one.detector or only in one.command]
    if not chosen:
        raise typer.BadParameter(f"no detector has {only!r} in its words", param_hint="--only")
    console = Console()
    table = Table("detector", "script", "on", "off", title="negative controls")
    good = 0
    for control in track(chosen, console=console, description="detectors"):
        seen = []
        for on in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                worker = planted(() if on else control.off, Path(folder, "worker"))
                verdict, said = verify(control, worker, on=on, runs=runs, kills=kills, seed=seed)
            seen.append(verdict)
            if verbose or verdict not in (REFUSED, DIFFERS):
                console.print(f"{control.command}, {'on' if on else 'off'}: {verdict}: {said}", markup=False)
        good += seen == [REFUSED, DIFFERS]
        table.add_row(control.detector, control.command, *seen)
    console.print(table)
    console.print(f"{good} of {len(chosen)} detectors refuse, and without them the bits differ")
    if good < len(chosen):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
