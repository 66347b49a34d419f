"""Saving the trained model where the training service expects it: `elastane.save_model`. No torch here.

Many processes run the same script, and one of them uploads (see `Role`). All have the same bits, and where
files go depends on their content alone (see `elastane_common.artifacts`). So the others know what to wait
for, and may upload in the leader's place: two that do so at once write the same files.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from elastane_common.errors import StepError

if TYPE_CHECKING:
    from elastane_common.artifacts import ArtifactManifest

_log = structlog.get_logger(__name__)

#: fsspec URL of the folder of the run's model; set by the training service.
MODEL_URL: Final = "MODEL_URL"
#: Grows with each launch of a run; one that was given up does not replace the model. Set by the service.
RUN_FENCE: Final = "ELASTANE_RUN_FENCE"
#: Between two looks at what the leader has uploaded.
LOOK_SECONDS: Final = 0.25


@contextmanager
def _kept_random() -> Iterator[None]:
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


def _turn_by_rank() -> int | None:
    """Answer for a script that trains without `elastane.init`, by the variable that launchers set."""
    if os.environ.get("ELASTANE_MODE") == "elastic":
        raise StepError(
            "elastane.save_model was called before elastane.init",
            hint="which worker saves is known once the job has begun",
        )
    return 0 if os.environ.get("RANK", "0") == "0" else None


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Role:
    """Role of a process in its job.

    turn: returns 0 if this process uploads, n if it does so should n others fail, None if it never does.
    ring_changes: returns whether the leader may just have been lost. isolated: context in which draws of the
    storage's library do not move the script's generators. takeover_seconds: how long each turn lasts.
    """

    turn: Callable[[], int | None] = _turn_by_rank
    ring_changes: Callable[[], bool] = _never
    isolated: Callable[[], AbstractContextManager[None]] = _kept_random
    takeover_seconds: float = 60.0


class _Process:
    """The role of this process: without a job until `elastane.init` has opened one."""

    role = Role()


def take_role(role: Role) -> None:
    """Set what this process is in its job. Called when a job is opened."""
    _Process.role = role


def save(path: str | os.PathLike[str]) -> str:
    """Upload a file or folder, or see it uploaded (see `elastane.save_model`)."""
    role, local = _Process.role, Path(path)
    turn = role.turn()
    if turn is None:
        return ""
    url = os.environ.get(MODEL_URL, "")
    if not url:
        if turn == 0:
            _log.info(f"the model stays at {local}: {MODEL_URL} is not set, so it is not uploaded")
        return ""
    if turn > 0 and not local.exists():
        return ""
    with role.isolated():
        manifest = _saved(role, turn, url, local)
    return f"{url.rstrip('/')}/{manifest.folder}"


def _saved(role: Role, turn: int, url: str, local: Path) -> ArtifactManifest:
    from elastane_common.artifacts import local_files, manifest_of, read_manifest, write_artifacts

    files, fence = local_files(local), _fence()
    if turn > 0:
        expected, end = manifest_of(files), time.monotonic() + turn * role.takeover_seconds
        while time.monotonic() < end and not role.ring_changes():
            there = read_manifest(url)
            if there is not None and there.files == expected.files and there.fence >= fence:
                return there
            time.sleep(LOOK_SECONDS)
    manifest = write_artifacts(url, files, fence=fence)
    size_bytes = sum(entry.size_bytes for entry in manifest.files)
    _log.info("the model is saved", url=url, files=len(manifest.files), size_bytes=size_bytes)
    return manifest


def _fence() -> int:
    given = os.environ.get(RUN_FENCE, "")
    return int(given) if given.isascii() and given.isdigit() else 0
