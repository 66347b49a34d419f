"""Where a release is made from."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


def version_of(folder: Path) -> str:
    """Return the version that the pyproject.toml of a folder states."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])
