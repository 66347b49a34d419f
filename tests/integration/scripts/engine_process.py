"""A runner that only has an engine: engine_process.py ROOT PLAN KILL_AT

Launches the plan (JSON: run, attempt, fence, folder, commands, environment), says "launched" and how many
lines that took, and carries out what it reads: "stop GRACE". With KILL_AT from 1 it kills itself before that
line of the launch, each line of the package counted once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from elastane_runner.engine import AttemptPlan, RankPlan
from elastane_runner.process_engine import ProcessEngine


class Lines:
    """Counts lines while `counting`, also those of threads that are started later."""

    def __init__(self, kill_at: int) -> None:
        self.seen: set[tuple[str, int]] = set()
        self.counting = False
        self._kill_at = kill_at

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if f"{os.sep}elastane_runner{os.sep}" not in frame.f_code.co_filename:
            return None
        if event == "line" and self.counting:
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(self.seen) == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


async def main(root: Path, given: dict[str, Any], kill_at: int) -> None:
    lines = Lines(kill_at)
    threading.settrace(lines.trace)
    sys.settrace(lines.trace)
    engine = ProcessEngine(root)
    await engine.adopt()
    plan = AttemptPlan(
        run=given["run"],
        attempt=given["attempt"],
        fence=given["fence"],
        folder=Path(given["folder"]),
        ranks=tuple(
            RankPlan(tuple(command), given["environment"], rank)
            for rank, command in enumerate(given["commands"])
        ),
    )
    lines.counting = True
    await engine.launch(plan)
    lines.counting = False
    print("launched", len(lines.seen), flush=True)
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        await engine.stop(plan.run, plan.attempt, float(words[1]))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])))
