"""Launches and ranks as messages between runner and master."""

from __future__ import annotations

import time
from typing import Final

from google.protobuf import json_format

from elastane_proto import message_codec
from elastane_proto.v1 import training_pb2
from elastane_runner import launching
from elastane_runner.launches import LaunchKey, LaunchRecord, Rank

LINE_CHARACTERS_MAX: Final = 500

_STATES: Final = {
    "pending": training_pb2.RankStatus.STATE_PENDING,
    "prepared": training_pb2.RankStatus.STATE_PREPARED,
    "running": training_pb2.RankStatus.STATE_RUNNING,
    "exited": training_pb2.RankStatus.STATE_EXITED,
    "lost": training_pb2.RankStatus.STATE_LOST,
}


def rank_report(key: LaunchKey, rank: Rank, *, runner_id: str, host: str) -> training_pb2.RankReport:
    """Return the state of a rank of a launch, as this runner, on this host, has it."""
    status = training_pb2.RankStatus(
        rank=rank.rank,
        state=_STATES[rank.state],
        runner_id=runner_id,
        host=host,
        exit_code=rank.exit_code,
        last_line=shown(rank.last_line),
        reason=rank.reason[:LINE_CHARACTERS_MAX],
    )
    if rank.started_at is not None:
        message_codec.set_timestamp(status.started, rank.started_at)
    if rank.ended_at is not None:
        message_codec.set_timestamp(status.ended, rank.ended_at)
    return training_pb2.RankReport(attempt=attempt_of(key), status=status)


def shown(line: bytes) -> str:
    """Return a line of a rank's output as text, truncated and without control characters."""
    text = line.decode(errors="replace")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)[
        :LINE_CHARACTERS_MAX
    ]


def key_of(attempt: training_pb2.AttemptKey) -> LaunchKey:
    """Return the launch that a message names."""
    return LaunchKey(attempt.run_id, attempt.attempt, attempt.fence)


def attempt_of(key: LaunchKey) -> training_pb2.AttemptKey:
    """Inverse of `key_of`."""
    return training_pb2.AttemptKey(run_id=key.run_id, attempt=key.attempt, fence=key.fence)


def record_of(message: training_pb2.RunnerPrepare) -> LaunchRecord:
    """Return the record of a launch that begins now with this message."""
    return LaunchRecord(
        **key_of(message.attempt)._asdict(),
        elastic=launching.is_elastic(message.spec),
        job=message.job,
        artifact_url=message.artifact_url,
        checkpoint_url=message.checkpoint_url,
        data_url=message.data_url,
        spec=json_format.MessageToDict(message.spec, preserving_proto_field_name=True),
        created_at=time.time(),
    )
