"""Runs the user's own DDP command, unmodified, and reads the hook's records.

The command is run unchanged, except for the environment: PYTHONPATH begins with `reference_hook`, threads and
libraries are pinned as in our own runs, and torchrun gets a free port if the command names none.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from elastane.reference_hook import elastane_reference as hook
from elastane_cli.rehearse.results import Taken
from elastane_cli.verify.original import read_events
from elastane_common.determinism import Level, process_environment
from elastane_common.errors import ElastaneError
from elastane_common.exit_codes import (
    CODE_ORIGINAL_EMPTY,
    CODE_ORIGINAL_FAILED,
    CODE_ORIGINAL_LATE,
    CODE_ORIGINAL_RANKS,
    CODE_OTHER_ARCHITECTURE,
    CODE_OTHER_STEPS,
)
from elastane_common.ports import unused_port
from elastane_common.processes.child import ChildProcess, ExitStatus

HOOK: Final = Path(hook.__file__).parent
_LINES_SHOWN: Final = 20
_EXIT_SECONDS: Final = 10.0
"""Time limit for the reference to exit after all of its ranks have reported.

PyTorch's gloo group can hang for good if DDP is freed after destroy_process_group: its destructor waits,
holding the GIL, for a thread that waits for the GIL.
"""
_LOOK_SECONDS: Final = 0.5


class OriginalError(ElastaneError):
    """The user's own DDP script cannot serve as a reference; exit_code: of `elastane verify`."""

    code = "ELA370"
    exit_code = CODE_ORIGINAL_FAILED


class OriginalLateError(OriginalError):
    """The script did not end in time."""

    code = "ELA371"
    exit_code = CODE_ORIGINAL_LATE


class OriginalEmptyError(OriginalError):
    """The script succeeded, but trained nothing with DistributedDataParallel."""

    code = "ELA372"
    exit_code = CODE_ORIGINAL_EMPTY


class OriginalRanksError(OriginalError):
    """The script ran with a number of ranks other than --ests."""

    code = "ELA373"
    exit_code = CODE_ORIGINAL_RANKS


class OtherArchitectureError(OriginalError):
    """The converted script trains different parameters."""

    code = "ELA374"
    exit_code = CODE_OTHER_ARCHITECTURE


class OtherStepsError(OriginalError):
    """The converted script makes a different number of steps."""

    code = "ELA375"
    exit_code = CODE_OTHER_STEPS


@dataclass(frozen=True, slots=True)
class Original:
    """Result of a run of the reference. ranks: N; events: of each rank, if traced.

    facts: properties of rank 0's process that decide the bits.
    """

    ranks: int
    taken: Taken
    events: Mapping[int, Sequence[Mapping[str, Any]]]
    facts: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(reports: Mapping[int, Mapping[str, Any]]) -> Original:
        """Build it from the ranks' reports; one of rank 0 is required."""
        events = {rank: report["events"] for rank, report in reports.items()}
        return Original(len(reports), Taken.of(reports[0]), events, reports[0].get("facts") or {})

    def unlike(self, other: Original) -> list[str]:
        """Return the facts in which two runs differ, as text."""
        return [
            f"{name} {self.facts[name]} in the reference, {value} here"
            for name, value in other.facts.items()
            if name in self.facts and self.facts[name] != value
        ]


def parse_reference(text: str) -> list[str]:
    """Split --reference into words and locate its program. Raises OriginalError if it cannot be started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OriginalError(f"--reference cannot be read: {error}", hint="quote it as in a shell") from None
    if not words:
        raise OriginalError(
            "--reference is empty",
            hint='give a command, such as --reference "torchrun --nproc-per-node 4 train_ddp.py"',
        )
    program = shutil.which(words[0], path=_search_path(os.environ))
    if program is None:
        raise OriginalError(
            f"--reference: no program {words[0]!r}",
            hint=f"it is searched for next to {sys.executable} and in PATH",
        )
    return [program, *words[1:]]


def run_original(
    folder: Path,
    command: Sequence[str],
    *,
    directory: Path,
    environment: Mapping[str, str],
    determinism: Level,
    threads: int,
    traced: bool,
    timeout_seconds: float,
) -> Original:
    """Run the reference in `directory`, with reports and log in `folder`. Raises an OriginalError.

    environment: further variables. None of its processes is left running in any case.
    """
    reports = folder / "reports"
    reports.mkdir(parents=True, exist_ok=True)
    variables = reference_environment(
        {**os.environ, **environment}, reports, determinism=determinism, threads=threads, traced=traced
    )
    log = folder / "reference.log"
    process = ChildProcess(
        "reference",
        command,
        environment=variables,
        directory=directory,
        log=log,
        # If this process is killed: torchrun then ends its ranks, which no other signal of ours would reach.
        death_signal=signal.SIGTERM,
    )
    try:
        process.start()
        status = _ended(process, reports, timeout_seconds)
    finally:
        process.kill_group()
        _kill_bearers(reports)  # torchrun's ranks are leaders of their own sessions
        process.wait()
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return judge(
        status, lines, read_reports(reports), seen=(reports / "seen").exists(), seconds=timeout_seconds
    )


def _ended(process: ChildProcess, reports: Path, timeout_seconds: float) -> ExitStatus | None:
    """Wait for the reference; None if it has not ended in time, or hangs after all ranks have reported."""
    deadline = time.monotonic() + timeout_seconds
    complete_since: float | None = None
    while True:
        now = time.monotonic()
        if not _all_reported(reports):
            complete_since = None
        elif complete_since is None:
            complete_since = now
        end = deadline if complete_since is None else min(deadline, complete_since + _EXIT_SECONDS)
        status = process.wait(min(_LOOK_SECONDS, max(0.0, end - now)))
        if status is not None or now >= end:
            return status


def _all_reported(folder: Path) -> bool:
    """True if there is a report of every rank; a rank that continues training deletes its report."""
    paths = list(folder.glob("rank-*.json"))
    with contextlib.suppress(FileNotFoundError):
        return bool(paths) and len(paths) == json.loads(paths[0].read_text())["world"]
    return False


def reference_environment(
    inherited: Mapping[str, str], reports: Path, *, determinism: Level, threads: int, traced: bool
) -> dict[str, str]:
    """Return the variables of the reference: the hook first, and settings that decide the bits as in our
    runs."""
    kept = {name: value for name, value in inherited.items() if not name.startswith("ELASTANE_")}
    pinned = process_environment(determinism, threads)
    pinned.pop("ELASTANE_DETERMINISM")
    return {
        **kept,
        **pinned,
        "PATH": _search_path(inherited),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), inherited.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
        # If the command names none: two proofs on one machine would both use torchrun's 29500.
        "PET_MASTER_PORT": inherited.get("PET_MASTER_PORT", str(unused_port())),
        **hook_variables(reports, determinism=determinism, threads=threads, traced=traced),
    }


def hook_variables(reports: Path, *, determinism: Level, threads: int, traced: bool) -> dict[str, str]:
    """Return the hook's variables: its folder, and settings that `elastane.init` makes in our own runs."""
    settings = {"threads": threads, "deterministic": True, "precise": determinism is Level.D2}
    return {
        hook.DIRECTORY: str(reports.absolute()),
        hook.SETTINGS: json.dumps(settings),
        hook.TRACE: "1" if traced else "",
    }


def read_reports(folder: Path) -> dict[int, dict[str, Any]]:
    """Read the ranks' reports, by rank, with "events" if the run was traced."""
    found = {}
    for path in sorted(folder.glob("rank-*.json")):
        report = json.loads(path.read_text())
        trace = folder / f"trace-{report['rank']}.jsonl"
        report["events"] = read_events(trace.read_text().splitlines()) if trace.exists() else []
        found[int(report["rank"])] = report
    return found


def judge(
    status: ExitStatus | None,
    lines: Sequence[str],
    reports: Mapping[int, Mapping[str, Any]],
    *,
    seen: bool,
    seconds: float,
) -> Original:
    """Turn the outcome of the run into a result. Pure. Raises an OriginalError.

    status: None if it did not end, which is accepted once every rank has reported. seen: True if the hook was
    ever loaded.
    """
    said = "\n".join(lines[-_LINES_SHOWN:])
    complete = bool(reports) and len(reports) == reports[min(reports)]["world"]
    if status is None and not complete:
        raise OriginalLateError(
            f"the reference did not finish within {seconds:g} s\n{said}",
            hint="give it more time with --timeout; check by hand that all its ranks finish",
        )
    if status is not None and status.returncode != 0 and not (complete and _aborted_at_exit(lines)):
        raise OriginalError(
            f"the reference failed ({status})\n{said}",
            hint="the command runs in a folder of its own: give paths outside yours as absolute paths",
        )
    if not seen:
        raise OriginalEmptyError(
            "the reference never started a Python that loads the recording hook",
            hint="do not use `python -I`, `-E`, `-S` or `env -i`; PYTHONPATH must reach its ranks",
        )
    if not reports:
        raise OriginalEmptyError(
            f"the reference built no torch.nn.parallel.DistributedDataParallel\n{said}",
            hint="give the script that trains under DDP; FSDP and DeepSpeed are not supported",
        )
    for rank, report in sorted(reports.items()):
        if report.get("error"):
            raise OriginalError(
                f"the result of rank {rank} of the reference could not be recorded: {report['error']}",
                hint=(
                    "this is not a fault of the script; report this message with the tensor or object "
                    "that it names"
                ),
            )
    if not complete or 0 not in reports or "models" not in reports[0]:
        raise OriginalEmptyError(
            f"the reference ended without a result of {_missing(reports)}\n{said}",
            hint="a rank must end normally, not by a signal or by replacing its process (exec)",
        )
    steps = sorted({int(report["steps"]) for report in reports.values()})
    if steps[-1] == 0:
        raise OriginalEmptyError(
            "no optimizer of the reference made a step", hint="give it enough data for at least one step"
        )
    if len(steps) > 1:
        raise OriginalError(
            f"the ranks of the reference made different numbers of steps: {', '.join(map(str, steps))}",
            hint="for a comparison all ranks must make the same number of steps",
        )
    return Original.of(reports)


def _missing(reports: Mapping[int, Mapping[str, Any]]) -> str:
    world = reports[min(reports)]["world"]
    missing = [str(rank) for rank in range(world) if rank not in reports]
    return f"rank {', '.join(missing)}" if missing else "rank 0"


def _aborted_at_exit(lines: Sequence[str]) -> bool:
    """True if torch's threads aborted the interpreter's exit; the results were written before."""
    return any("Signal 6 (SIGABRT)" in line for line in lines)


def _search_path(environment: Mapping[str, str]) -> str:
    """Return PATH with this Python's folder first, which contains its torchrun."""
    return os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])


def _kill_bearers(reports: Path) -> None:
    """Send SIGKILL to every process that still has this run's folder in its environment."""
    mark = f"{hook.DIRECTORY}={reports.absolute()}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            pidfd = os.pidfd_open(int(entry.name))
            try:
                # Read after the pidfd was opened, so that the pid cannot have been reused by another process.
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
