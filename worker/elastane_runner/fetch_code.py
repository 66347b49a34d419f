"""Fetches the code of a run for a pod: python -m elastane_runner.fetch_code SOURCE FOLDER

SOURCE is a JSON object: service_url and archive_sha256, or git_url and git_commit. The code is in FOLDER/code
afterwards. Exits with 3 if the same would happen again, 1 if it may pass; the last line says why.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from elastane_common.code_archive import ArchiveError
from elastane_common.errors import ElastaneError
from elastane_runner.archive import ArchiveLimits
from elastane_runner.code_folder import CodeCache, CodeError, clone, make_readable
from elastane_runner.pod_plan import FETCH_EXIT_PERMANENT

EXIT_FAILED: Final = 1


def fetch(source: Mapping[str, str], folder: Path) -> None:
    """Fetch code into the new folder `code` of a folder. Raises ArchiveError, CodeError or OSError."""
    target = folder / "code"
    shutil.rmtree(target, ignore_errors=True)  # of a container that was restarted
    if digest := source.get("archive_sha256"):
        cache = folder / "cache"
        CodeCache(cache).unpack(source.get("service_url", ""), digest, target, ArchiveLimits())
        shutil.rmtree(cache)
    else:
        clone(source.get("git_url", ""), source.get("git_commit", ""), target)
    make_readable(target)


def main(arguments: list[str]) -> int:
    """Fetch, and return the exit code."""
    try:
        fetch(json.loads(arguments[0]), Path(arguments[1]))
    except (ElastaneError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        permanent = isinstance(error, ArchiveError) or (isinstance(error, CodeError) and error.is_permanent)
        return FETCH_EXIT_PERMANENT if permanent else EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
