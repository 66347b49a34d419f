"""Names of the keys of a job: one place, so that no two writers can disagree.

All keys of a job bear the same hash tag, `{JOB}`, so that a Redis Cluster keeps them on one node
and a script may touch them together.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from elastane_master.store.errors import BadJobName

JOBS_KEY = "elastane:jobs"
"""Set of the names of all jobs of the store, listed before they are created."""

STORED_JOBS_KEY = "elastane:jobs:stored"
"""Set of the names of those that were stored, before anybody is told that they were created. A job in it has
keys; and of the two sets one makes up for the loss of the other."""

JOB_PATTERN = "elastane:{*}:fence"
"""Matches a key of every job, whether it is listed or not."""

_STAMP_LOWEST = 2**42
"""Beyond the milliseconds that older masters, and the store itself, number entries with."""

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
    stamp: a number of the job that is part of its entries' ids: those of another job are told from its own.
    """

    fence: str
    log: str
    snapshot: str
    history: str
    events: str
    stamp: int

    @classmethod
    def of(cls, job: str) -> JobKeys:
        """Keys of `job`; raises BadJobName."""
        prefix = f"elastane:{{{checked_job_name(job)}}}:"
        digest = hashlib.sha256(job.encode()).digest()
        stamp = _STAMP_LOWEST + int.from_bytes(digest[:5], "big")
        fence, log, snapshot, history, events = (
            prefix + part for part in ("fence", "log", "snapshot", "history", "events")
        )
        return cls(fence, log, snapshot, history, events, stamp)

    @property
    def all(self) -> tuple[str, str, str, str, str]:
        """Every key, the fence first: the order in which the scripts expect them."""
        return (self.fence, self.log, self.snapshot, self.history, self.events)

    def commits_in(self, entry: str) -> int | None:
        """The number of the commit that a history entry's id names; None: it is another job's.

        0: it was written by a master that did not number them yet.
        """
        stamp, _, number = entry.partition("-")
        if int(stamp) < _STAMP_LOWEST:
            return 0
        return int(number) if int(stamp) == self.stamp else None

    def event_in(self, entry: str) -> int | None:
        """The number of the event that an entry's id names; None: it is another job's."""
        number, _, stamp = entry.partition("-")
        return int(number) if int(stamp) in (0, self.stamp) else None


def job_of(fence: str) -> str:
    """The job whose fence's key this is."""
    return fence.partition("{")[2].partition("}")[0]
