"""Values as scalars of TensorBoard, written by tensorboardX or torch's writer, whichever is installed.

Each writing process creates its own event file, which begins with "steps from here on replace those of
earlier files" (purge_step): so a step that was written after the last cursor, before the leader died, is
shown once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastane.tracking.tracker import Cursor, TrackedRun
from elastane_common.atomic_writes import write_atomically
from elastane_common.errors import RefusedError
from elastane_common.logged import LoggedStep

CURSOR_FILE = "elastane.json"


class TensorBoard:
    """The event files of one run, in WHERE/RUN."""

    replaces = True

    def __init__(self, where: str, run: TrackedRun) -> None:
        if "://" in where:
            raise RefusedError(
                f"tensorboard: {where} is not a folder",
                hint="name one that all hosts share, or run `elastane track` on one host",
            )
        self.folder = Path(where) / run.name
        self._writer: Any = None

    def open(self) -> Cursor:
        self.folder.mkdir(parents=True, exist_ok=True)
        cursor = self._read_cursor()
        self._begin(cursor.next_step)
        return cursor

    def write(self, step: LoggedStep) -> None:
        for name, value in step.values.items():
            self._writer.add_scalar(name, value, step.step, walltime=step.committed)

    def rewind(self, step: int) -> None:
        self._writer.close()
        self._begin(step)

    def flush(self, cursor: Cursor) -> None:
        self._writer.flush()
        text = json.dumps({"next_step": cursor.next_step, "token": cursor.token})
        write_atomically(self.folder / CURSOR_FILE, text)

    def close(self, *, finished: bool) -> None:
        self._writer.close()

    def _begin(self, step: int) -> None:
        # Files are read in the order of their names, which contain only seconds and must never be equal.
        suffix = f".{time.time_ns()}"
        self._writer = _writer_class()(str(self.folder), purge_step=step, filename_suffix=suffix)

    def _read_cursor(self) -> Cursor:
        """Return the last writer's cursor; if it is unknown, the beginning, which replaces all existing
        values."""
        try:
            kept = json.loads((self.folder / CURSOR_FILE).read_text())
            return Cursor(int(kept["next_step"]), str(kept["token"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Cursor()


def _writer_class() -> Any:
    for name in ("tensorboardX", "torch.utils.tensorboard"):
        # They warn of every non-finite value, in a line that names neither value nor step.
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with _without_torch():
            from tensorboardX import SummaryWriter
    except ImportError:
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Make torch unimportable in the block, unless it is already loaded.

    tensorboardX imports it, if installed, for the types in its signatures: seconds of CPU and hundreds of MB
    alongside the training, for a process that writes numbers.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # raises ImportError, as if not installed
    try:
        yield
    finally:
        del sys.modules["torch"]
