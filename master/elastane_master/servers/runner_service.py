"""RunnerService: the sessions of runners.

A session is one stream from Hello on, served by two tasks: this coroutine writes the session's messages, and
a reader passes the runner's messages to the server. A runner whose stream ends keeps its instances, and comes
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import structlog

from elastane_master.decisions.events import Rejection
from elastane_master.jobs.serving import stopping
from elastane_master.runs.run_server import HEARTBEAT_SECONDS, RunnerSession, RunServer
from elastane_master.runs.service import TrainingRuns
from elastane_master.servers import callers
from elastane_master.servers.binding import Context, Malformed, first_message
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.translate import duration
from elastane_master.servers.translate_run import runner_event, runner_joined, runner_response
from elastane_proto.v1 import training_pb2

logger = structlog.get_logger(__name__)


Requests = AsyncIterator[training_pb2.RunnerServiceAttendRequest | Malformed]


class RunnerServicer:
    """Implementation of elastane.v1.RunnerService."""

    def __init__(self, runs: TrainingRuns) -> None:
        self._runs = runs

    async def Attend(
        self, requests: Requests, context: Context
    ) -> AsyncGenerator[training_pb2.RunnerServiceAttendResponse]:
        first = await first_message(requests)
        server, caller = self._runs.server, callers.principal.get()
        owners = () if "*" in caller.owners else (caller.name, *caller.owners)
        if server.stopping:
            raise stopping()
        try:
            session = server.open_session(lambda session_id: runner_joined(first.hello, session_id, owners))
        except Rejection:
            await server.confirm()
            raise
        reader = asyncio.create_task(_read(server, session, requests))
        artifacts = self._runs.artifacts
        try:
            yield await self._welcome(server)
            async for message in session.outgoing():
                yield runner_response(
                    message, lambda run_id: (artifacts.run_url(run_id), artifacts.checkpoint_url(run_id))
                )
        finally:
            reader.cancel()
            server.stream_over(session, "its stream broke")

    async def _welcome(self, server: RunServer) -> training_pb2.RunnerServiceAttendResponse:
        settings = server.machine.state.settings
        welcome = training_pb2.RunnerWelcome(
            heartbeat_interval=duration(HEARTBEAT_SECONDS),
            lease=duration(settings.lease_seconds),
            prepare=duration(settings.prepare_seconds),
            artifact_url=self._runs.options.artifact_url,
            artifact_mark=await self._runs.artifacts.mark(),
        )
        return training_pb2.RunnerServiceAttendResponse(welcome=welcome)


async def _read(server: RunServer, session: RunnerSession, requests: Requests) -> None:
    """Pass the runner's messages to the server until the stream or the session ends."""
    try:
        async for request in requests:
            if isinstance(request, Malformed):
                raise request.rejection()
            server.heard(session)
            kind = request.WhichOneof("message")
            if kind == "log_chunk":
                server.relay.received(session.id, request.log_chunk)
            elif kind != "heartbeat":
                server.deliver(session, runner_event(request, session.worker, session.id))
            if session.ended:
                return
    except REFUSALS as error:
        rejection = as_rejection(error)
        logger.warning("a runner's message was refused", runner=session.worker, reason=str(rejection))
        try:  # confirmed and sent before the stream ends, so that it learns the reason
            await server.confirm()
        except REFUSALS as other:
            rejection = as_rejection(other)
        session.end(rejection)
        server.stream_over(session, f"its message was refused: {rejection}")
        return
    server.stream_over(session, "its stream ended")
