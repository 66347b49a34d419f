"""Layout of files below the artifact URL of a training service. Pure.

service.json                        tells a local folder from one of the same path elsewhere
code/SHA256.zip                     code archives, shared by all runs
runs/ID/                            the folder of a run
    model/manifest.json             names the files of the model (see `artifacts`)
    model/VERSION/...               the files
    model/launches/FENCE.json       the same manifest, of the latest launch that has written one
    attempts/N/rank-R.log           output of a rank
    record.json                     record of the run, written when it is over (see `run_record`)
"""

from __future__ import annotations

import re
from typing import Final

SERVICE: Final = "service.json"
CODE: Final = "code"
MODEL: Final = "model"
RECORD: Final = "record.json"
ATTEMPTS: Final = "attempts"

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RANK_LOG: Final = re.compile(rf"{ATTEMPTS}/[1-9][0-9]*/rank-[0-9]+\.log")


def join(url: str, *names: str) -> str:
    """Return the URL of something below a folder's URL."""
    return "/".join([url.rstrip("/") or "", *names])


def code_archive(sha256: str) -> str:
    """Return the path of a code archive. Raises ValueError if `sha256` is not 64 hexadecimal digits."""
    if not _SHA256.fullmatch(sha256):
        raise ValueError(f"{sha256[:80]!r} is not a sha256 in 64 lower-case hexadecimal digits")
    return f"{CODE}/{sha256}.zip"


def archive_digest(name: str) -> str | None:
    """Return the digest of a file in the folder of code archives; None for any other file."""
    digest, _, ending = name.rpartition(".")
    return digest if ending == "zip" and _SHA256.fullmatch(digest) else None


def run_folder(run_id: int) -> str:
    """Return the path of a run's folder."""
    return f"runs/{run_id}"


def model_url(run_url: str) -> str:
    """Return the URL of the model in the folder of a run: the MODEL_URL of its processes."""
    return join(run_url, MODEL)


def rank_log(attempt: int, rank: int) -> str:
    """Return the path of a rank's log in the folder of its run."""
    return f"{ATTEMPTS}/{attempt}/rank-{rank}.log"


def kind_of(path: str) -> str:
    """Return the kind of a file in the folder of a run: model, log, record or other."""
    if path.startswith(f"{MODEL}/"):
        return "model"
    if _RANK_LOG.fullmatch(path):
        return "log"
    return "record" if path == RECORD else "other"
