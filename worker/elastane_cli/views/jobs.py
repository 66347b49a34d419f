"""A job's phase and ranges of ESTs in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastane_proto.v1 import job_pb2


def ests_text(start: int, end: int) -> str:
    """Format the EST range [start, end): "0-3", "2", or "-" if it is empty."""
    if end <= start:
        return "-"
    return str(start) if end == start + 1 else f"{start}-{end - 1}"


def phase_name(job: job_pb2.Job) -> str:
    """Return the phase in lower case, such as "running"."""
    from elastane_proto.message_codec import enum_word
    from elastane_proto.v1 import job_pb2

    return enum_word(job_pb2.JobPhase.DESCRIPTOR, job.phase)


def is_over(job: job_pb2.Job) -> bool:
    """True if the job has succeeded, failed or was cancelled, which are final phases."""
    return phase_name(job) in ("succeeded", "failed", "cancelled")
