"""A runner that only has a cluster: pod_engine_process.py ROOT KUBECONFIG PLAN KILL_AT

As engine_process.py, whose plan it takes, with `namespace` beside.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from engine_process import Lines

from elastane_runner.engine import AttemptPlan, RankPlan
from elastane_runner.pod_client import PodClient
from elastane_runner.pod_engine import PodEngine
from elastane_runner.pod_plan import PodOptions


async def main(root: Path, config: str, given: dict[str, Any], kill_at: int) -> None:
    lines = Lines(kill_at)
    threading.settrace(lines.trace)
    sys.settrace(lines.trace)
    options = PodOptions(image="digits:3", namespace=given["namespace"])
    engine = PodEngine(root, PodClient("runner-1", options, kubeconfig=config), look_seconds=0.1)
    await engine.adopt()
    plan = AttemptPlan(
        run=given["run"],
        attempt=given["attempt"],
        fence=given["fence"],
        folder=Path("/"),
        ranks=tuple(RankPlan(tuple(command), {}, rank) for rank, command in enumerate(given["commands"])),
    )
    lines.counting = True
    await engine.launch(plan)
    lines.counting = False
    print("launched", len(lines.seen), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])))
