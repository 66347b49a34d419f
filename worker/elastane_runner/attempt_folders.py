"""Folders of the attempts that an engine has started: RUNS/RUN/ATTEMPT.

Each has a record of its plan, with the fence, before anything is started; so a late launch of an older lease
is known as such.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final

from elastane_runner.engine import AttemptPlan, EngineError
from elastane_runner.process_records import PLAN, read_record
from elastane_runner.rank_labels import check_name

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")


def attempt_folder(runs: Path, run: str, attempt: int) -> Path:
    """Return the folder of an attempt. Raises EngineError for a name that cannot be a run's."""
    check_name(run, "run")
    return runs / run / str(attempt)


def attempts_of(runs: Path, run: str) -> list[Path]:
    """Return the folders of a run's attempts, in their order; [] for an unknown run."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        found = [folder for folder in (runs / run).iterdir() if _NUMBER.fullmatch(folder.name)]
        return sorted(found, key=lambda folder: int(folder.name))
    return []


def refuse_stale(runs: Path, plan: AttemptPlan) -> None:
    """Raise EngineError for an attempt that already exists, or that comes after one with a higher fence."""
    for folder in attempts_of(runs, plan.run):
        if int(folder.name) == plan.attempt:
            raise EngineError(f"attempt {plan.attempt} of {plan.run} is there already")
        seen = (read_record(folder / PLAN) or {"fence": plan.fence})["fence"]
        if seen > plan.fence:
            raise EngineError(
                f"the fence {plan.fence} of {plan.run} is stale: {seen} was seen",
                hint="another lease of the run came later",
            )
