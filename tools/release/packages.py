"""sdist and wheel of one commit: the same bytes wherever and whenever they are built."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from release.paths import ROOT


def commit_time(commit: str, root: Path = ROOT) -> int:
    """Return when a commit was made, in seconds since 1970. Raises subprocess.CalledProcessError."""
    said = subprocess.run(
        ["git", "show", "--no-patch", "--format=%ct", commit],
        cwd=root,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return int(said.stdout)


def export(commit: str, folder: Path, root: Path = ROOT) -> None:
    """Write the files of a commit, and nothing that lies around uncommitted. Raises CalledProcessError."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", commit], cwd=root, check=True, stdout=subprocess.PIPE
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


def build(source: Path, out: Path, source_date_epoch: int) -> list[Path]:
    """Build sdist and wheel of a source folder into `out`; return both.

    The build backend is this environment's, which constraints.txt pins. source_date_epoch: the
    time that every file in them bears, in seconds since 1970. Raises subprocess.CalledProcessError.
    """
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(out), "-t", "sdist", "-t", "wheel"],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(source_date_epoch)},
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return sorted(path for path in out.iterdir() if path.name.endswith((".whl", ".tar.gz")))
