"""What one worker measures of its steps, and the small file its agent reads. No torch here, and no thread.

One observation is an addition to a number: the step is not to feel it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

STEP_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper ends of the buckets of step times, in seconds; a last one has no end."""


@dataclass
class WorkerFigures:
    """Since the process began. Written by the script's thread, read by one other; each value by itself.

    step: the next to apply. generation: of the ring; 0: none yet. ests: hosted now. step_counts: steps by
    STEP_BOUNDS. replay_seconds: of step_seconds, in steps done again. all_reduce_wait_seconds: from the end
    of backward until the sums are there. prepared_wait_seconds: from then until the master lets the step be
    applied. data_wait_seconds: for batches. ring_change_seconds: from Go until the ring trains, hand-over
    included.
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
        """A step is applied, `seconds` after it was begun."""
        self.step_seconds += seconds
        self.step_counts[bisect_left(STEP_BOUNDS, seconds)] += 1
        if replayed:
            self.steps_replayed += 1
            self.replay_seconds += seconds


class AgentCounts:
    """What one agent counts. starts: by worker. exits: by "finished", "drained", "failed", "killed".

    The agent's thread counts, a server's thread reads.
    """

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.exits: Counter[str] = Counter()
        self.spot_notices = 0
        self.master_restarts = 0

    def exited(self, returncode: int, drained_code: int) -> None:
        """A worker's process ended with this code, negative for a signal."""
        if returncode < 0:
            self.exits["killed"] += 1
        elif returncode == drained_code:
            self.exits["drained"] += 1
        else:
            self.exits["failed" if returncode else "finished"] += 1

    @property
    def running(self) -> int:
        """Processes of workers that were started and have not been seen to end."""
        return sum(self.starts.values()) - sum(self.exits.values())


def figures_file(folder: Path, worker: str) -> Path:
    """Where this worker of an agent writes its figures."""
    return folder / f"{worker.replace('/', '_')}.figures.json"


def write_figures(path: Path, figures: WorkerFigures) -> None:
    """Whoever reads the file finds all of it or none. Raises OSError."""
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(figures)))
    temporary.replace(path)


def read_figures(path: Path) -> WorkerFigures | None:
    """What a worker told last; None where there is nothing that can be read."""
    try:
        told = json.loads(path.read_text())
        known = {one.name: told[one.name] for one in fields(WorkerFigures) if one.name in told}
    except (OSError, ValueError, TypeError):
        return None
    return WorkerFigures(**known)
