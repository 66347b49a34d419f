"""A runner's process with an engine, which a test kills: a script of tests/integration/scripts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parents[2]


class EngineRunner:
    """Runs `script` with `arguments`, the plan of a launch, and the line at which it is killed."""

    def __init__(self, script: Path, *arguments: str, plan: Mapping[str, Any], kill_at: int = 0) -> None:
        roots = (str(_SOURCES / name) for name in ("common", "proto", "worker"))
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments, json.dumps(plan), str(kill_at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
        )

    async def launched(self) -> int:
        """Wait for the launch, and return how many lines it took."""
        assert self.process.stdout is not None
        word, lines = (await asyncio.to_thread(self.process.stdout.readline)).split()
        assert word == "launched"
        return int(lines)

    def stop(self, grace_seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"stop {grace_seconds}\n")
        self.process.stdin.flush()

    async def kill(self) -> None:
        self.process.kill()
        await asyncio.to_thread(self.process.communicate)
