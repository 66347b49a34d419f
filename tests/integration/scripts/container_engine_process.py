"""A runner that only has a container engine: container_engine_process.py ROOT URL PLAN KILL_AT

As engine_process.py, whose plan it takes, with `image` and `write_folder` beside.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from engine_process import Lines

from elastane_runner.container_engine import ContainerEngine
from elastane_runner.container_plan import ContainerOptions
from elastane_runner.engine import AttemptPlan, RankPlan


async def main(root: Path, url: str, given: dict[str, Any], kill_at: int) -> None:
    lines = Lines(kill_at)
    threading.settrace(lines.trace)
    sys.settrace(lines.trace)
    options = ContainerOptions(image=given["image"], write_folders=(Path(given["write_folder"]),))
    engine = ContainerEngine(root, runner="runner-1", options=lambda _: options, url=url)
    await engine.adopt()
    plan = AttemptPlan(
        run=given["run"],
        attempt=given["attempt"],
        fence=given["fence"],
        folder=Path(given["folder"]),
        ranks=tuple(RankPlan(tuple(command), {}, rank) for rank, command in enumerate(given["commands"])),
    )
    lines.counting = True
    await engine.launch(plan)
    lines.counting = False
    print("launched", len(lines.seen), flush=True)
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        await engine.stop(plan.run, plan.attempt, float(words[1]))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])))
