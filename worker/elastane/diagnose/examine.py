"""Runs a script in separate processes, to examine it and to measure the cost of level D2.

The environment tells the process its task (`job.DoctorSettings`); it leaves a report. Nothing of the script
is imported here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from elastane.diagnose.findings import CODES, COMPLETE, Finding, Report, Severity, Timing, read_report
from elastane_common.determinism import Level
from elastane_common.errors import ElastaneError
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.script_environment import script_environment

_LINES_KEPT: Final = 20
#: Ratio of the medians below which the cost is not reported.
_COST_NOTED: Final = 1.05


class ScriptFailedError(ElastaneError):
    """The script ended before it was examined; the text contains its last lines.

    report: findings up to that point.
    """

    code = "ELA412"

    def __init__(self, message: str, *, hint: str = "", report: Report | None = None) -> None:
        super().__init__(message, hint=hint)
        self.report = report


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of level D2 compared with D1 on the user's model.

    Medians in seconds; ratio D2 / D1 with its range over the pairs of runs; same_bits: True if the gradients
    of the first step were the same at both levels.
    """

    d1_seconds: float
    d2_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    steps: int
    same_bits: bool


class Examination:
    """A script to be examined. command: the script and its arguments, as for the interpreter.

    ests: N, or None for the job's default. threads: of torch. timeout_seconds: of each process.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        ests: int | None = None,
        steps: int = 2,
        threads: int = 1,
        timeout_seconds: float = 300.0,
        directory: Path | None = None,
        launch: Callable[..., ChildProcess] = ChildProcess,
    ) -> None:
        self._command = list(command)
        self._ests = ests
        self._steps = steps
        self._threads = threads
        self._timeout_seconds = timeout_seconds
        self._directory = directory
        self._launch = launch

    def inspect(self) -> Report:
        """Run the script's loop for a few steps. Raises ScriptFailedError."""
        report, status, lines = self._run(Level.D1, {"ELASTANE_DOCTOR_TASK": "inspect"})
        if report is not None and report.stage == COMPLETE:
            return report
        raise _failure(report, status, lines, self._timeout_seconds)

    def cost(self, *, seconds: float = 4.0, pairs: int = 2) -> Cost:
        """Time the script's steps at D1 and D2 alternately. Raises ScriptFailedError."""
        found: dict[Level, list[Timing]] = {Level.D1: [], Level.D2: []}
        for _ in range(pairs):
            for level, timings in found.items():
                variables = {"ELASTANE_DOCTOR_TASK": "time", "ELASTANE_DOCTOR_SECONDS": str(seconds)}
                report, status, lines = self._run(level, variables)
                if report is None or report.stage != COMPLETE or not report.timing.seconds:
                    raise _failure(report, status, lines, self._timeout_seconds)
                timings.append(report.timing)
        return compare_costs(found[Level.D1], found[Level.D2])

    def _run(
        self, level: Level, variables: Mapping[str, str]
    ) -> tuple[Report | None, ExitStatus | None, list[str]]:
        lines: deque[str] = deque(maxlen=_LINES_KEPT)
        with tempfile.TemporaryDirectory(prefix="elastane-doctor-") as folder:
            path = Path(folder) / "report.json"
            environment = {
                **script_environment("doctor", level, self._threads),
                "ELASTANE_DOCTOR_REPORT": str(path),
                "ELASTANE_DOCTOR_STEPS": str(self._steps),
                **({"ELASTANE_ESTS": str(self._ests)} if self._ests is not None else {}),
                **variables,
            }
            process = self._launch(
                "script",
                [sys.executable, *self._command],
                environment=environment,
                directory=self._directory,
                on_line=lambda name, stream, text: lines.append(text),
            )
            try:
                process.start()
                status = process.wait(self._timeout_seconds)
            finally:
                process.kill_group()
                process.wait()
            return read_report(path), status, list(lines)


def compare_costs(d1: Sequence[Timing], d2: Sequence[Timing]) -> Cost:
    """Compute the cost from the timings of both levels. Pure."""
    medians_1 = [statistics.median(timing.seconds) for timing in d1]
    medians_2 = [statistics.median(timing.seconds) for timing in d2]
    ratios = [two / one for one in medians_1 for two in medians_2]
    return Cost(
        d1_seconds=statistics.median(medians_1),
        d2_seconds=statistics.median(medians_2),
        ratio=statistics.median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        steps=sum(len(timing.seconds) for timing in (*d1, *d2)),
        same_bits=len({timing.digest for timing in (*d1, *d2)}) == 1,
    )


def judge_cost(cost: Cost) -> list[Finding]:
    """Return findings about the measured cost."""
    measured = f"x {cost.ratio:.2f} (range {cost.ratio_low:.2f} to {cost.ratio_high:.2f})"
    found = []
    if cost.ratio_low > _COST_NOTED:
        found.append(
            Finding(
                severity=Severity.COSTS,
                kind="d2",
                code=CODES["d2"],
                what=f"a step at level D2 takes {measured} as long as at D1",
                where="--determinism d2",
                todo="use D2 when CPUs differ; among equal ones D1 gives the same guarantee",
            )
        )
    if not cost.same_bits:
        found.append(
            Finding(
                severity=Severity.NOTE,
                kind="d2",
                code=CODES["d2"],
                what="the gradients of this model depend on the instruction set: D1 and D2 differ here",
                where="--determinism",
                todo="on CPUs that differ use --determinism d2; with D1 the master refuses to mix them",
            )
        )
    return found


def _failure(
    report: Report | None, status: ExitStatus | None, lines: list[str], timeout_seconds: float
) -> ScriptFailedError:
    said = "\n".join(lines)
    if status is None:
        message = f"the script had not finished after {timeout_seconds:g} s"
        hint = "raise --timeout, or give the script less to do"
    elif report is None:
        message = f"the script never called elastane.init ({status})"
        hint = "call elastane.init() first, job.prepare(...) and job.epochs(...)"
    elif status.returncode == 0:
        message = f"the script ended at stage {report.stage!r}, before its loader loop was examined"
        hint = "the script must reach the loop over the prepared loader, and run a few steps of it"
    else:
        message, hint = f"the script failed ({status}) at stage {report.stage!r}", ""
    return ScriptFailedError(f"{message}\n{said}" if said else message, hint=hint, report=report)
