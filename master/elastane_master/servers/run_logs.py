"""Logs of runs: from the runner while an attempt runs, from storage afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs.events import AttemptKey
from elastane_master.decisions.runs.run import Run
from elastane_master.runs.run_server import RunnerSession, RunServer
from elastane_master.runs.service import TrainingRuns
from elastane_proto.v1 import training_pb2

STORED_SECONDS = 30.0
"""Time limit for a runner to store the logs of an attempt that is over, while a reader follows."""
POLL_SECONDS = 0.2
"""Interval at which such a reader looks for a stored log: storage gives no event."""


async def stream_log(
    runs: TrainingRuns, run: Run, request: training_pb2.TrainingServiceStreamLogsRequest
) -> AsyncGenerator[training_pb2.TrainingServiceStreamLogsResponse]:
    """Yield a rank's output: from its runner while its launch lasts, from storage afterwards.

    The caller must be allowed to see the run. Raises Rejection.
    """
    server = runs.server
    attempt = request.attempt or run.attempt
    if not 0 < attempt <= run.attempt:
        raise Rejection(
            "not_found",
            f"run {run.run_id} has no attempt {attempt}",
            hint=f"it has begun {run.attempt}",
            field="attempt",
        )
    launch = run.launch
    if launch is None or launch.attempt != attempt:
        async with aclosing(_stored(runs, run, attempt, request)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    record = next((record for record in run.ranks if record.rank == request.rank), None)
    session = server.sessions.get(record.runner_id) if record is not None else None
    if session is None:
        raise Rejection(
            "busy" if record is not None else "not_found",
            f"rank {request.rank} of run {run.run_id} has no runner that is connected"
            if record is not None
            else f"run {run.run_id} has no rank {request.rank}",
            hint="try again in a moment",
        )
    key = AttemptKey(run.run_id, attempt, launch.fence)
    async with aclosing(_from_runner(server, session, key, request)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _stored(
    runs: TrainingRuns, run: Run, attempt: int, request: training_pb2.TrainingServiceStreamLogsRequest
) -> AsyncGenerator[training_pb2.TrainingServiceStreamLogsResponse]:
    """Yield a stored log; a reader who follows waits until it is stored, if the attempt has just ended."""
    clock = asyncio.get_running_loop().time
    waits = request.follow and request.rank < run.demand.instances
    deadline = clock() + (STORED_SECONDS if waits else 0.0)
    while True:
        stored = runs.artifacts.read_log(run.run_id, attempt, request.rank, request.offset)
        try:
            async with aclosing(stored) as blocks:
                async for offset, data in blocks:
                    yield training_pb2.TrainingServiceStreamLogsResponse(offset=offset, data=data)
            return
        except Rejection as error:  # of its size, before the first block
            if error.reason != "not_found" or clock() >= deadline:
                raise
        await asyncio.sleep(POLL_SECONDS)


async def _from_runner(
    server: RunServer,
    session: RunnerSession,
    key: AttemptKey,
    request: training_pb2.TrainingServiceStreamLogsRequest,
) -> AsyncGenerator[training_pb2.TrainingServiceStreamLogsResponse]:
    wanted = training_pb2.RunnerReadLog(rank=request.rank, offset=request.offset, follow=request.follow)
    wanted.attempt.run_id, wanted.attempt.attempt, wanted.attempt.fence = key.run_id, key.attempt, key.fence

    def send(message: training_pb2.RunnerReadLog) -> None:
        session.put(message)

    async with aclosing(server.relay.read(session.id, send, wanted)) as chunks:
        async for chunk in chunks:
            yield chunk
