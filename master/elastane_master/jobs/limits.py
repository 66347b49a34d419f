"""Resource limits enforced by the master: on everything that a caller can make it keep.

docs/limits.md lists them. A request beyond a limit is refused before anything is decided: with LIMIT_EXCEEDED
if it can never be accepted, with BUSY if there are too many at the moment. Both errors name the limit. Stored
events were within the limits when they were accepted, and are never refused.
"""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from elastane_master.decisions.events import Rejection

MEBIBYTE = 2**20


class Limits(BaseSettings):
    """Resource limits enforced by the master. Field names end in `<unit>_max`."""

    model_config = SettingsConfigDict(env_prefix="ELASTANE_", extra="ignore", frozen=True)

    message_bytes_max: int = Field(
        default=64 * MEBIBYTE, ge=2**16, description="size of a message to the master"
    )
    answer_bytes_max: int = Field(
        default=256 * MEBIBYTE, ge=2**16, description="size of a message from the master"
    )
    streams_per_connection_max: int = Field(
        default=128, ge=1, description="concurrent calls on one connection"
    )
    jobs_max: int = Field(default=1000, ge=1, description="unfinished jobs")
    ests_per_job_max: int = Field(default=10_000, ge=1, description="logical workers of a job")
    datasets_per_job_max: int = Field(default=1000, ge=1, description="dynamic datasets of a job")
    dataset_entries_max: int = Field(
        default=5_000_000, ge=1, description="entries of a dataset that is given as a list"
    )
    tasks_per_lease_max: int = Field(default=10_000, ge=1, le=10_000, description="tasks in one LeaseTasks")
    reports_per_lease_max: int = Field(default=10_000, ge=1, description="reports in one LeaseTasks")
    lease_waiters_per_job_max: int = Field(
        default=10_000, ge=1, description="LeaseTasks calls waiting for tasks"
    )
    sessions_per_job_max: int = Field(default=10_000, ge=1, description="workers connected to a job")
    sessions_per_relay_max: int = Field(default=4096, ge=1, description="workers connected through a relay")
    ps_per_job_max: int = Field(default=1000, ge=1, description="parameter servers connected to a job")
    session_messages_max: int = Field(default=1000, ge=10, description="unread messages queued for a worker")
    output_lines_per_worker_max: int = Field(
        default=1000, ge=1, description="last lines of output kept of a worker"
    )
    output_bytes_per_worker_max: int = Field(
        default=64 * 2**10, ge=2**12, description="size of the last lines kept of a worker"
    )
    output_bytes_per_job_max: int = Field(
        default=16 * MEBIBYTE, ge=2**16, description="size of the last lines kept of all workers of a job"
    )
    watchers_per_job_max: int = Field(
        default=1000, ge=1, description="concurrent watches of a job: Watch*, Checkpoint"
    )
    runs_waiting_max: int = Field(default=50_000, ge=1, description="runs that have not been launched")
    run_watchers_max: int = Field(
        default=10_000, ge=1, description="concurrent watches of runs and streams of submissions"
    )
    run_log_readers_max: int = Field(default=1000, ge=1, description="logs of running runs read at a time")
    watch_write_seconds_max: float = Field(
        default=30.0, gt=0, description="time that a watcher may take to read a message"
    )
    context_bytes_max: int = Field(default=16 * MEBIBYTE, ge=2**10, description="size of an EST's context")
    # A snapshot holds those of three steps, and Redis takes no value of more than 512 MiB.
    contexts_bytes_max: int = Field(
        default=160 * MEBIBYTE, ge=2**10, description="total size of the contexts of a step"
    )
    context_parts_max: int = Field(
        default=1000, ge=10, description="parts of a context, such as generators and registered items"
    )
    name_characters_max: int = Field(
        default=300, ge=16, description="length of the name of a registered item, metric or fact"
    )
    url_characters_max: int = Field(
        default=4096, ge=16, description="length of the URL of a job's checkpoints"
    )
    metrics_per_task_max: int = Field(default=256, ge=0, description="values logged for an EST in a step")
    tensors_max: int = Field(
        default=200_000, ge=1, description="parameters and buffers in a script's signature"
    )
    facts_max: int = Field(default=200, ge=10, description="facts of the environment in a script's signature")
    note_characters_max: int = Field(
        default=4000, ge=100, description="length of an event's reason; longer ones are truncated"
    )
    backlog_requests_max: int = Field(
        default=10_000, ge=1, description="requests waiting while the store is unavailable"
    )
    store_reads_max: int = Field(default=32, ge=1, description="concurrent reads of history and events")
    store_connections_max: int = Field(
        default=32, ge=1, description="connections to the store, for the writes of all jobs"
    )
    http_connections_max: int = Field(default=128, ge=4, description="connections to the HTTP port")
    log_lines_per_second_max: int = Field(
        default=100, ge=1, description="log lines of one kind per second; the rest are only counted"
    )


def require_within(limit: str, given: int, maximum: int, what: str, **facts: object) -> None:
    """Raise Rejection("limit_exceeded") if `given` of `what` exceeds the limit."""
    if given > maximum:
        raise Rejection(
            "limit_exceeded",
            f"{given} {what}; this master accepts at most {maximum}",
            hint=f"ELASTANE_{limit.upper()} of the master raises the limit; see docs/limits.md",
            limit=limit,
            maximum=maximum,
            given=given,
            **facts,
        )


def require_room(limit: str, present: int, maximum: int, what: str, **facts: object) -> None:
    """Raise Rejection("busy") if there are already `maximum` of `what`."""
    if present >= maximum:
        raise Rejection(
            "busy",
            f"this master already serves {present} {what} and accepts no more at the moment",
            hint=f"try again later; ELASTANE_{limit.upper()} of the master raises the limit",
            limit=limit,
            maximum=maximum,
            **facts,
        )


def clip(text: str, characters: int = 4000) -> str:
    """Return `text`, cut to `characters` with a remark on how much is missing."""
    left_out = len(text) - characters
    return text if left_out <= 0 else f"{text[:characters]}... ({left_out} more characters)"
