"""A separate folder for each run of a proof, so that no run finds another one's files.

A run starts in `work`, which replaces the folder that the proof was started in. Small entries are copied
there, large ones linked: relative paths to data still work, and new and changed files stay in the run's
folder. Files that a script writes into a linked folder or to an absolute path are not contained;
`Workplace.written_through` reports the former.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Limits of the data copied for one run, smallest entries first; the rest is linked.
COPIED_BYTES_MAX: Final = 64 * 2**20
COPIED_FILES_MAX: Final = 300
#: Number of files examined by `written_through`.
_LOOKED_AT_MAX: Final = 20_000


@dataclass(frozen=True)
class Workplace:
    """Folder of a run. directory: where its processes start.

    linked: entries of the origin that were not copied.
    """

    directory: Path
    environment: Mapping[str, str]
    linked: tuple[Path, ...]
    began: float

    def written_through(self) -> list[str]:
        """Return files in linked folders written since the run began, as far as it is cheap to know."""
        return sorted(_changed(self.linked, self.began))


@contextlib.contextmanager
def workplace(folder: Path, origin: Path) -> Iterator[Workplace]:
    """Create `work` in `folder` for one run, as a replacement of `origin`.

    Temporary files are removed afterwards.
    """
    directory = folder / "work"
    directory.mkdir(parents=True)
    linked = _fill(directory, origin.absolute())
    # Not in `folder`: the path of a unix socket is limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="elastane-tmp-", ignore_cleanup_errors=True) as temporary:
        variables = {"TMPDIR": temporary, "PWD": str(directory)}
        yield Workplace(directory, variables, tuple(linked), time.time())


def absolute_command(command: Sequence[str], origin: Path) -> list[str]:
    """Return the command adapted to another folder: the script, and paths that leave `origin`, become
    absolute.

    The script is the first word that names an existing .py file. Of its arguments (also `--data=../x`) those
    that begin with ".." and exist are changed; all others are found in the run's own folder.
    """
    changed, script_seen = [], False
    for word in command:
        option, equals, value = word.partition("=")
        if not script_seen and word.endswith(".py") and (origin / word).is_file():
            script_seen = True
            changed.append(str((origin / word).absolute()))
        elif _leaves(word, origin):
            changed.append(os.path.normpath(origin / word))
        elif equals and option.startswith("-") and _leaves(value, origin):
            changed.append(f"{option}={os.path.normpath(origin / value)}")
        else:
            changed.append(word)
    return changed


def _leaves(word: str, origin: Path) -> bool:
    return word.split("/")[0] == ".." and (origin / word).exists()


def _fill(directory: Path, origin: Path) -> list[Path]:
    """Copy small entries and link the rest; return the linked ones."""
    entries = []
    for entry in origin.iterdir():
        if directory.is_relative_to(entry):
            continue  # the proof's own folder
        files, size = _measured(entry)
        entries.append((size, files, entry))
    bytes_left, files_left, linked = COPIED_BYTES_MAX, COPIED_FILES_MAX, []
    for size, files, entry in sorted(entries):
        target = directory / entry.name
        if size <= bytes_left and files <= files_left:
            try:
                _copy(entry, target)
            except OSError:  # not all of it is readable; shutil.Error of several such
                shutil.rmtree(target, ignore_errors=True)
                target.unlink(missing_ok=True)
            else:
                bytes_left, files_left = bytes_left - size, files_left - files
                continue
        target.symlink_to(entry)
        linked.append(entry)
    return linked


def _copy(entry: Path, target: Path) -> None:
    if entry.is_dir():
        shutil.copytree(entry, target, symlinks=True)
    else:
        shutil.copy2(entry, target, follow_symlinks=entry.is_file())


def _measured(entry: Path) -> tuple[int, int]:
    """Return (files, bytes) under `entry`; above the limits for entries that are always linked."""
    too_much = COPIED_FILES_MAX + 1, COPIED_BYTES_MAX + 1
    if entry.is_symlink() and entry.is_dir():
        return too_much
    if not entry.is_dir():
        # A pipe or a socket cannot be copied; a broken link is copied as a link.
        return (1, entry.stat().st_size) if entry.is_file() else (1, 0) if entry.is_symlink() else too_much
    if entry.name.startswith("."):
        return too_much
    files = size = 0
    for parent, _, names in os.walk(entry):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(parent, name).lstat().st_size
        files += len(names) + 1
        if files > COPIED_FILES_MAX or size > COPIED_BYTES_MAX:
            return too_much
    return files, size


def _changed(folders: Sequence[Path], since: float) -> Iterator[str]:
    left = _LOOKED_AT_MAX
    for folder in folders:
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        for parent, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if not name.startswith((".", "__pycache__"))]
            for name in names:
                left -= 1
                if left < 0:
                    return
                with contextlib.suppress(OSError):
                    path = Path(parent, name)
                    if path.lstat().st_mtime >= since:
                        yield str(path.relative_to(folder.parent))
