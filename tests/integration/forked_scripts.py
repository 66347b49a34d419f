"""Runs scripts to their end in a fork of the session's server, which has torch loaded (conftest)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import patience
from elastane_common.processes.child import ChildProcess, ExitStatus
from integration.forked_cli import FIXED_VARIABLES


def run_forked(
    *command: str, environment: Mapping[str, str], timeout_seconds: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND` to its end, with patience. environment: changes to this process's."""
    said: dict[str, list[str]] = {"stdout": [], "stderr": []}
    script = ChildProcess(
        "script",
        [sys.executable, *command],
        environment={**os.environ, **FIXED_VARIABLES, **environment},
        on_line=lambda _, stream, text: said[stream].append(text),
    )

    def ended(seconds: float) -> ExitStatus:
        status = script.wait(seconds)
        if status is None:
            raise subprocess.TimeoutExpired(command, seconds, "\n".join(said["stdout"]))
        return status

    script.start()
    try:
        status = patience.wait(ended, timeout_seconds)
    finally:
        script.kill_group()
    return subprocess.CompletedProcess((), status.returncode, *("\n".join(said[name]) for name in said))
