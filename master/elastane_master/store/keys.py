"""Names of the keys of a job: one place, so that no two writers can disagree.

All keys of a job bear the same hash tag, `{JOB}`, so that a Redis Cluster keeps them on one node
and a script may touch them together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from elastane_master.store.errors import BadJobName

JOBS_KEY = "elastane:jobs"
"""Set of the names of all jobs of the store."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def checked_job_name(job: str) -> str:
    """`job` itself; raises BadJobName when it cannot be part of a key or a path."""
    if not _JOB_NAME.fullmatch(job):
        raise BadJobName(f"{job[:80]!r} cannot be the name of a job", job=job[:80])
    return job


@dataclass(frozen=True, slots=True)
class JobKeys:
    """Keys of one job.

    fence: hash of the token of the master that may write, and the sequence number of the last
    write. log: write-ahead stream, one entry per batch. snapshot: the machine's state, and which
    part of the log it covers. history: stream of commits. events: stream of decisions' reasons.
    """

    fence: str
    log: str
    snapshot: str
    history: str
    events: str

    @classmethod
    def of(cls, job: str) -> JobKeys:
        """Keys of `job`; raises BadJobName."""
        prefix = f"elastane:{{{checked_job_name(job)}}}:"
        return cls(*(prefix + part for part in ("fence", "log", "snapshot", "history", "events")))
