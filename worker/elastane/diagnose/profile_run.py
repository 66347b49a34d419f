"""Runs a script in a separate process to profile the units of its pipeline (`elastane profile`)."""

from __future__ import annotations

import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from elastane.diagnose.examine import ScriptFailedError
from elastane.diagnose.profile_report import PROGRESS, ProfileReport, read_report
from elastane_common.determinism import DEFAULT_LEVEL
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.script_environment import script_environment

_LINES_KEPT: Final = 20


def profile_script(
    command: Sequence[str],
    *,
    steps: int,
    samples: Sequence[int] = (),
    threads: int = 1,
    timeout_seconds: float = 600.0,
    told: Callable[[str], None] | None = None,
) -> ProfileReport:
    """Run a script up to its `prepare_pipeline` and return the profiles of its units.

    command: the script and its arguments, as for the interpreter. samples: micro-batch sizes besides the
    script's own. told: called with what is measured now. Raises ScriptFailedError.
    """
    lines: deque[str] = deque(maxlen=_LINES_KEPT)

    def line(name: str, stream: str, text: str) -> None:
        if text.startswith(PROGRESS):
            if told is not None:
                told(text.removeprefix(PROGRESS))
        else:
            lines.append(text)

    with tempfile.TemporaryDirectory(prefix="elastane-profile-") as folder:
        path = Path(folder) / "report.json"
        process = ChildProcess(
            "script",
            [sys.executable, *command],
            environment={
                **script_environment("profile", DEFAULT_LEVEL, threads),
                "ELASTANE_PROFILE_REPORT": str(path),
                "ELASTANE_PROFILE_STEPS": str(steps),
                "ELASTANE_PROFILE_SAMPLES": f"[{','.join(map(str, samples))}]",
            },
            directory=None,
            on_line=line,
        )
        try:
            process.start()
            status = process.wait(timeout_seconds)
        finally:
            process.kill_group()
            process.wait()
        report = read_report(path)
    if report is None or status is None:
        raise _failure(status, list(lines), timeout_seconds)
    return report


def _failure(status: ExitStatus | None, lines: list[str], timeout_seconds: float) -> ScriptFailedError:
    said = "\n".join(lines)
    hint = ""
    if status is None:
        message = f"the script had not finished after {timeout_seconds:g} s"
        hint = "raise --timeout, or measure fewer --steps"
    elif status.returncode == 0:
        message = f"the script never called job.prepare_pipeline ({status})"
        hint = "call elastane.init() first, then job.prepare_pipeline(...)"
    else:
        message = f"the script failed ({status})"
    return ScriptFailedError(f"{message}\n{said}" if said else message, hint=hint)
