"""Replays the tasks of a journal with their script (`elastane ps replay`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from elastane.runtime.replay_request import PROGRESS, RESULT, ReplayRequest
from elastane.runtime.slots.errors import ReplayError
from elastane.tables.journal_file import FOLDER, JournalReading
from elastane.tables.journal_records import JournalError
from elastane_cli.rehearse.watcher import Watcher
from elastane_common.determinism import level_from_text
from elastane_common.processes.child import ChildProcess, ExitStatus
from elastane_common.processes.script_environment import script_environment
from elastane_common.storage import Folder
from elastane_proto.v1 import ps_pb2

_LOOK_SECONDS = 0.2


class SlotEnd(msgspec.Struct, frozen=True):
    """Final state of a slot. sha256: of the replay; expected: of the run's snapshot."""

    slot: int
    life: int
    version: int
    sha256: str
    expected: str


@dataclass(frozen=True)
class ReplayEnd:
    """Result of a replay. tasks: number replayed. torn: segments ending inside a record that was not needed.

    other_rates: tasks for which the script's learning rates differ from the run's, which were used.
    """

    slots: list[SlotEnd]
    tasks: int
    torn: list[str]
    other_rates: int
    status: ExitStatus

    @property
    def differing(self) -> list[SlotEnd]:
        """Slots that differ from the run's snapshots."""
        return [one for one in self.slots if one.sha256 != one.expected]


def run_replay(
    url: str,
    command: Sequence[str],
    folder: Path,
    *,
    ends: str,
    watcher: Watcher,
    on_line: Callable[[str], None],
    directory: Path | None = None,
) -> ReplayEnd:
    """Replay a run and compare. url: of its folder. ends: of the snapshots below it.

    command: script and arguments. directory: where it starts. folder: for files of this command. Raises
    JournalError, ReplayError.
    """
    url = url.rstrip("/").removesuffix(f"/{FOLDER}")
    model = ps_pb2.PsWelcome.FromString(next(JournalReading(Folder(url, JournalError)).models())).model
    threads = int(model.environment.get("threads", "1"))
    level = level_from_text(model.environment.get("determinism", "d1"))
    process = ChildProcess(
        "script",
        [sys.executable, *command],
        environment={
            **script_environment("replay", level, threads),
            "ELASTANE_SEED": str(model.seed),
            **ReplayRequest(url, ends, str(folder)).environment(),
        },
        directory=directory,
        on_line=lambda name, stream, text: on_line(text),
    )
    total, progress = "", folder / PROGRESS
    try:
        process.start()
        while process.wait(_LOOK_SECONDS) is None:
            if progress.exists():
                done, known = progress.read_text().split()
                if known != total:
                    total = known
                    watcher.stage(f"computing {total} tasks again", int(total))
                watcher.step(int(done))
    finally:
        process.kill_group()
        status = process.wait()
    assert status is not None
    return _end_of(folder, status)


def _end_of(folder: Path, status: ExitStatus) -> ReplayEnd:
    result = folder / RESULT
    if not result.exists():
        progress = folder / PROGRESS
        after = f" after {progress.read_text().replace(' ', ' of ')} tasks" if progress.exists() else ""
        why = f": {status.error}" if status.error else ""
        raise ReplayError(
            f"the script ended{after} ({status}{why})",
            hint="it has to prepare its model with prepare_ps, and to go through all its tasks",
        )
    found: dict[str, Any] = json.loads(result.read_text())
    if (told := found.get("error")) is not None:
        error = ReplayError(told["message"], hint=told["hint"], **told["facts"])
        error.code = told["code"]
        raise error
    slots = msgspec.convert(found["slots"], list[SlotEnd])
    return ReplayEnd(slots, found["tasks"], found["torn"], found["other_rates"], status)
