"""Mark in a local artifact folder, so that a runner notices a different folder at the same path.

The default artifact URL is a folder on the master's machine. A runner on a machine that does not share it
would store models and logs where nobody looks for them. So the master writes a mark into the folder and sends
it to its runners, which compare. URLs that mean the same everywhere need none.
"""

from __future__ import annotations

import json
import uuid
from typing import Final
from urllib.parse import urlsplit

from elastane_common import layout
from elastane_common.artifacts import ArtifactError
from elastane_common.storage import Folder

_BYTES_MAX: Final = 4096


def make_mark(artifact_url: str) -> str:
    """Return the mark of a local folder, made if it has none; "" for other URLs. Raises ArtifactError."""
    if not _is_local(artifact_url):
        return ""
    if mark := _read(artifact_url):
        return mark
    mark = uuid.uuid4().hex
    Folder(artifact_url, ArtifactError).write(layout.SERVICE, [json.dumps({"mark": mark}).encode()])
    return mark


def check_mark(artifact_url: str, mark: str) -> None:
    """Raise ArtifactError unless the folder here has the mark. mark: "": nothing is compared."""
    if mark and _read(artifact_url) != mark:
        raise ArtifactError(
            f"{artifact_url} is not the service's folder on this machine",
            hint="give the service an --artifact-url that all runners reach, or share that folder",
        )


def _is_local(url: str) -> bool:
    return bool(url) and urlsplit(url).scheme in ("", "file", "local")


def _read(url: str) -> str:
    data = Folder(url, ArtifactError).read(layout.SERVICE, bytes_max=_BYTES_MAX)
    try:
        return str(json.loads(data)["mark"]) if data is not None else ""
    except (ValueError, LookupError, TypeError):
        return ""
