"""Fake of the part of W&B that Elastane uses; writes $FAKE_TRACKERS/wandb-ID.json. Steps must increase."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Run:
    def __init__(self, file: Path, facts: dict[str, Any]) -> None:
        self._file = file
        self._kept = json.loads(file.read_text()) if file.exists() else {"facts": facts, "rows": []}
        self._kept["ended"] = False
        self.step = self._kept["rows"][-1]["_step"] + 1 if self._kept["rows"] else 0

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is not None and commit
        if step < self.step:
            self._kept.setdefault("ignored", []).append(step)
        else:
            self._kept["rows"].append({"_step": step, **data})
            self.step = step + 1
        self._write()

    def finish(self, exit_code: int | None = None) -> None:
        self._kept["ended"] = True
        self._write()

    def _write(self) -> None:
        """Write the file atomically, because the process may be killed at any moment."""
        partial = self._file.with_suffix(".new")
        partial.write_text(json.dumps(self._kept))
        partial.replace(self._file)


def init(project: str, id: str, name: str, group: str, resume: str) -> Run:
    assert resume == "allow"
    file = Path(os.environ["FAKE_TRACKERS"]) / f"wandb-{id}.json"
    return Run(file, {"project": project, "name": name, "group": group})
