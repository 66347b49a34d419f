"""Values as history of a W&B run, resumed by its id, so that all leaders of a job write into one run."""

from __future__ import annotations

import re
from typing import Any

from elastane.tracking.tracker import Cursor, TrackedRun
from elastane_common.logged import LoggedStep


class WandbRun:
    """One run of a project. W&B's own step, which only grows, is the cursor."""

    replaces = False

    def __init__(self, project: str, run: TrackedRun) -> None:
        self._project = project
        self._tracked = run
        self._run: Any = None

    def open(self) -> Cursor:
        import wandb

        name = self._tracked.name
        self._run = wandb.init(
            project=self._project,
            id=re.sub(r"[^A-Za-z0-9_-]", "-", name),
            name=name,
            group=self._tracked.job,
            resume="allow",
        )
        return Cursor(int(self._run.step))

    def write(self, step: LoggedStep) -> None:
        self._run.log(dict(step.values), step=step.step, commit=True)

    def rewind(self, step: int) -> None:
        raise AssertionError("W&B keeps what it has")

    def flush(self, cursor: Cursor) -> None:
        """Do nothing: W&B sends in the background."""

    def close(self, *, finished: bool) -> None:
        # Without finish(), W&B would report a run as crashed that another leader continues.
        self._run.finish(exit_code=0 if finished else None)
