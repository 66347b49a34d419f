"""Names of the keys of a job, and of the training service's runs, defined in one place.

All keys of a job have the same hash tag, `{JOB}`, so that a Redis Cluster keeps them on one node and a script
may access them together.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from elastane_master.store.errors import BadJobName

JOBS_KEY = "elastane:jobs"
"""Set of the names of all jobs in the store. Names are added before the jobs are created."""

STORED_JOBS_KEY = "elastane:jobs:stored"
"""Set of the names of stored jobs; names are added before a creation is acknowledged.

A job in this set has keys, and each of the two sets can restore the other after a loss.
"""

JOB_PATTERN = "elastane:{*}:fence"
"""Matches one key of every job, whether the job is listed or not."""

RUNS = "@runs"
"""Name of the log of the training service's runs; no job can have it."""

RUNS_STORED_KEY = "elastane:runs:stored"
"""Exists once a run was stored: from then on, missing keys of `RUNS` count as a loss."""

_RUNS_PREFIX = "elastane:runs:{runs}:"

_STAMP_LOWEST = 2**42
"""Lowest stamp: above the milliseconds with which older masters, and the store itself, number entries."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def checked_job_name(job: str) -> str:
    """Return `job` if it is valid. Raises BadJobName if it cannot be part of a key or a path."""
    if not _JOB_NAME.fullmatch(job):
        raise BadJobName(f"{job[:80]!r} cannot be the name of a job", job=job[:80])
    return job


@dataclass(frozen=True, slots=True)
class JobKeys:
    """Keys of one job, or of `RUNS`.

    fence: hash with the token of the master that may write, and the sequence number of the last write. log:
    write-ahead stream, one entry per batch. snapshot: the machine's state, and up to which write it covers
    the log. history: stream of commits. events: stream of decisions' reasons. stamp: a number derived from
    the job's name that is part of its entries' ids, so that entries of another job are recognised.
    """

    fence: str
    log: str
    snapshot: str
    history: str
    events: str
    stamp: int

    @classmethod
    def of(cls, job: str) -> JobKeys:
        """Return the keys of `job`. Raises BadJobName."""
        prefix = _RUNS_PREFIX if job == RUNS else f"elastane:{{{checked_job_name(job)}}}:"
        digest = hashlib.sha256(job.encode()).digest()
        stamp = _STAMP_LOWEST + int.from_bytes(digest[:5], "big")
        fence, log, snapshot, history, events = (
            prefix + part for part in ("fence", "log", "snapshot", "history", "events")
        )
        return cls(fence, log, snapshot, history, events, stamp)

    @property
    def all(self) -> tuple[str, str, str, str, str]:
        """All keys, the fence first: the order that the scripts expect."""
        return (self.fence, self.log, self.snapshot, self.history, self.events)

    def commits_in(self, entry: str) -> int | None:
        """Number of the commit in a history entry's id; None if the entry belongs to another job.

        The result is 0 for an entry by a master that did not number commits yet.
        """
        stamp, _, number = entry.partition("-")
        if int(stamp) < _STAMP_LOWEST:
            return 0
        return int(number) if int(stamp) == self.stamp else None

    def event_in(self, entry: str) -> int | None:
        """Number of the event in an entry's id; None if the entry belongs to another job."""
        number, _, stamp = entry.partition("-")
        return int(number) if int(stamp) in (0, self.stamp) else None


def job_of(fence: str) -> str:
    """Return the job to which a fence's key belongs."""
    return fence.partition("{")[2].partition("}")[0]
