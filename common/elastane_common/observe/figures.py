"""Figures that a worker measures of its steps, and the file in which its agent reads them.

Imports no torch and starts no thread. One observation is an addition to a number, so that it does not slow
down the step.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

STEP_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram buckets of step times, in seconds; one more bucket is unbounded."""


@dataclass
class WorkerFigures:
    """Figures of one worker since its process began.

    Written by the script's thread and read by one other without a lock: each value is consistent by itself.

    step: the next to apply. generation: of the ring; 0: none yet. ests: number hosted now. step_seconds:
    total of all steps. step_counts: steps by bucket of STEP_BOUNDS. replay_seconds: part of step_seconds in
    steps done again. all_reduce_wait_seconds: from the end of backward until the sums are complete.
    prepared_wait_seconds: from then until the master lets the step be applied. data_wait_seconds: waiting for
    batches. ring_change_seconds: from Go until the ring trains, hand-over included.
    """

    step: int = 0
    generation: int = 0
    ests: int = 0
    step_seconds: float = 0.0
    step_counts: list[int] = field(default_factory=lambda: [0] * (len(STEP_BOUNDS) + 1))
    steps_replayed: int = 0
    replay_seconds: float = 0.0
    data_wait_seconds: float = 0.0
    all_reduce_wait_seconds: float = 0.0
    prepared_wait_seconds: float = 0.0
    rings_formed: int = 0
    ring_change_seconds: float = 0.0
    handover_seconds: float = 0.0
    handover_bytes_sent: int = 0
    handover_bytes_received: int = 0

    def step_done(self, seconds: float, *, replayed: bool) -> None:
        """Count an applied step that took `seconds`. replayed: it was done again."""
        self.step_seconds += seconds
        self.step_counts[bisect_left(STEP_BOUNDS, seconds)] += 1
        if replayed:
            self.steps_replayed += 1
            self.replay_seconds += seconds


class AgentCounts:
    """Counters of one agent, written by its thread and read by the server's.

    starts: by worker id. exits: by "finished", "drained", "failed", "killed". spot_notices: received for this
    node or its hosts.
    """

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.spot_notices = 0
        self.master_restarts = 0

    def exited(self, returncode: int, drained_codes: Collection[int]) -> None:
        """Count the end of a worker's process. returncode: negative for a signal."""
        if returncode < 0:
            self.exits["killed"] += 1
        elif returncode in drained_codes:
            self.exits["drained"] += 1
        else:
            self.exits["failed" if returncode else "finished"] += 1

    @property
    def running(self) -> int:
        """Number of worker processes that were started and have not been seen to end."""
        return sum(self.starts.values()) - sum(self.exits.values())


LINE: Final = "elastane-figures: "
"""Prefix of the output lines in which the agent on another host sends its worker's figures."""


def figures_line(text: str) -> str:
    """Return the output line that carries the text of a figures file."""
    return LINE + text


def figures_of_line(line: str) -> WorkerFigures | None:
    """Parse such a line; None if it is another one, or malformed."""
    return _parsed(line.removeprefix(LINE)) if line.startswith(LINE) else None


def figures_file(folder: Path, worker: str) -> Path:
    """Return the path of the file for a worker's figures."""
    return folder / f"{worker.replace('/', '_')}.figures.json"


def write_figures(path: Path, figures: WorkerFigures) -> None:
    """Replace the file atomically, so that a reader never sees a part of it. Raises OSError."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(figures)))
    temporary.replace(path)


def read_figures(path: Path) -> WorkerFigures | None:
    """Read the last figures of a worker; None if the file is missing or malformed."""
    try:
        return _parsed(path.read_text())
    except OSError:
        return None


def _parsed(text: str) -> WorkerFigures | None:
    """Parse and validate figures, since a worker's script could have written anything; None if invalid."""
    try:
        told = json.loads(text)
        known = {one.name: told[one.name] for one in fields(WorkerFigures) if one.name in told}
    except (ValueError, TypeError):
        return None
    counts = known.get("step_counts", _NO_COUNTS)
    numbers = [value for name, value in known.items() if name != "step_counts"]
    if (
        not isinstance(counts, list)
        or len(counts) != len(_NO_COUNTS)
        or not all(map(_is_number, numbers + counts))
    ):
        return None
    return WorkerFigures(**known)


_NO_COUNTS: Final = [0] * (len(STEP_BOUNDS) + 1)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class HostFigures:
    """The latest figures of each worker on another host, received in lines of its output.

    A port on every host would have to be opened, found and reached, whereas the connection that carries the
    output exists already. A scrape of the agent then has all its workers, under their usual ids.

    Written by one thread per worker, read by others without a lock. Since hosts come and go under new names,
    `keep` must be called to bound it.
    """

    def __init__(self) -> None:
        self._told: dict[str, WorkerFigures] = {}

    def take(self, worker: str, line: str) -> bool:
        """Take a line of output if it carries figures; return False if it is the worker's own output."""
        if not line.startswith(LINE):
            return False
        figures = figures_of_line(line)
        if figures is not None:
            self._told[worker] = figures
        return figures is not None

    def keep(self, workers: Collection[str]) -> None:
        """Drop the figures of all other workers."""
        self._told = {worker: figures for worker, figures in self._told.items() if worker in workers}

    def all(self) -> dict[str, WorkerFigures]:
        """Return a copy of the latest figures, by worker id."""
        return dict(self._told)
