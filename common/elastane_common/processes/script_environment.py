"""Environment of a user's script that a command runs by itself, and not in a job: doctor, profile, replay."""

from __future__ import annotations

import os

from elastane_common.determinism import Level, process_environment


def script_environment(mode: str, level: Level, threads: int) -> dict[str, str]:
    """Return all variables for a script in this ELASTANE_MODE; the caller adds those of the mode.

    threads: torch's.
    """
    # Variables of a job, left in the shell, would change the script's behaviour.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ELASTANE_")}
    return {
        **inherited,
        **process_environment(level, threads),
        "PYTHONUNBUFFERED": "1",
        "ELASTANE_MODE": mode,
        "ELASTANE_TORCH_THREADS": str(threads),
    }
