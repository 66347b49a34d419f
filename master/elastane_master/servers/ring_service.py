"""RingService: the workers' sessions, and views of the ring.

A session is one stream from Hello to Bye, served by two tasks: this coroutine writes the session's messages,
and a reader passes the worker's messages to the server. When one ends, the other is ended; a stream that ends
without Bye means a dead worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from itertools import islice

import structlog

from elastane_master.decisions.effects import WorkerMessage
from elastane_master.decisions.events import AppliedReported, Rejection
from elastane_master.decisions.views import ring_view
from elastane_master.jobs import records
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import require_within
from elastane_master.jobs.records import StoredNote
from elastane_master.jobs.resource_series import ResourceSample, Totals
from elastane_master.jobs.serving import once_durable, require_serving, stopping
from elastane_master.jobs.sessions import Session
from elastane_master.servers.attend_encoding import AttendEncoder
from elastane_master.servers.binding import Context, Malformed, first_message, require_version
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.relay_stream import RelayedAttends, RelayedSession, RelayStream
from elastane_master.servers.translate import timestamp
from elastane_master.servers.translate_job import event_message
from elastane_master.servers.translate_session import attend_event, fill_members, hello, rate_report
from elastane_proto.v1 import ring_pb2

logger = structlog.get_logger(__name__)

EVENTS_AT_ONCE = 500
BLOCKS_MAX = 128
"""Blocks of a step that are kept of a worker."""
_NOT_KEPT = (
    "unit_forward_seconds",
    "unit_backward_seconds",
    "forward_overhead_seconds",
    "backward_overhead_seconds",
    "link_workers",
    "link_bytes_per_second",
    "blocks_step",
    "blocks_began",
    "block_seconds",
)
"""Figures for decisions, and those that are kept elsewhere."""
FIGURES_BYTES_MAX = 1000
"""Limit of the figures kept for a worker, three times what they can have; larger ones are ignored."""

Requests = AsyncIterator[ring_pb2.AttendRequest | Malformed]


class RingServicer:
    """Implementation of elastane.v1.RingService. attends: opens relayed calls of it; set before serving."""

    def __init__(self, jobs: JobServers) -> None:
        self.attends: RelayedAttends | None = None
        self._jobs = jobs
        self._encoder = AttendEncoder()

    async def Attend(self, requests: Requests, context: Context) -> AsyncGenerator[bytes]:
        first = await first_message(requests)
        require_version(first.hello.version, f"worker {first.hello.worker_id}")
        server = await self._jobs.find(first.hello.job)
        # A Hello may have waited in this process until its call ended. gRPC then cancels this task in the
        # next turn of the loop, before the worker is admitted and a newer stream of it closed.
        await asyncio.sleep(0)
        if server.stopping:
            raise stopping()
        try:
            session = server.open_session(lambda session_id: hello(first.hello, session_id))
        except Rejection:
            await server.confirm()
            raise

        def parts(message: WorkerMessage) -> tuple[bytes, bytes]:
            return self._encoder.parts(message, server.machine.state.settings, server.traceparent)

        reading = _Reading(server, session)
        reader: asyncio.Task[None] | None = None
        try:
            if isinstance(context, RelayedSession):
                context.read_by(reading, parts)
                session.divert(context)
            else:
                reader = asyncio.create_task(reading.read(requests))
            async for message in session.outgoing():
                yield self._encoder.encode(message, server.machine.state.settings, server.traceparent)
        finally:
            if reader is not None:
                reader.cancel()
            server.stream_over(session, "its stream broke without Bye")

    async def Relay(
        self, requests: AsyncIterator[ring_pb2.RelayRequest | Malformed], context: Context
    ) -> AsyncGenerator[bytes]:
        assert self.attends is not None, "set before the server starts"
        origin, maximum = self.attends.origin(context.peer()), self._jobs.limits.sessions_per_relay_max
        stream = RelayStream(self.attends, origin, maximum)
        reader = asyncio.create_task(stream.read(requests))
        try:
            async for response in stream.responses():
                yield response
        finally:
            reader.cancel()
            await stream.close()

    async def GetRing(self, request: ring_pb2.GetRingRequest, context: Context) -> ring_pb2.GetRingResponse:
        server = await self._jobs.find(request.job)
        view = await once_durable(server, lambda: ring_view(server.machine))
        response = ring_pb2.GetRingResponse(generation=view.generation, step=view.step)
        fill_members(response.members, view.members)
        return response

    async def GetWorkerFigures(
        self, request: ring_pb2.GetWorkerFiguresRequest, context: Context
    ) -> ring_pb2.GetWorkerFiguresResponse:
        server = await self._jobs.find(request.job)
        given, maximum = len(request.worker_ids), server.limits.sessions_per_job_max
        require_within("sessions_per_job_max", given, maximum, "workers in one request")
        response = ring_pb2.GetWorkerFiguresResponse()
        last = server.last_step()
        for worker in request.worker_ids:
            if (figures := server.figures.get(worker)) is not None:
                response.figures[worker].ParseFromString(figures)
                if (told := last.get(worker)) is not None:
                    found = response.figures[worker]
                    found.blocks_step, found.blocks_began = told.step, told.began
                    found.block_seconds.extend(told.spans)
        return response

    async def GetWorkerResources(
        self, request: ring_pb2.GetWorkerResourcesRequest, context: Context
    ) -> ring_pb2.GetWorkerResourcesResponse:
        server = await self._jobs.find(request.job)
        given, maximum = len(request.worker_ids), server.limits.sessions_per_job_max
        require_within("sessions_per_job_max", given, maximum, "workers in one request")
        response = ring_pb2.GetWorkerResourcesResponse()
        for worker in sorted(set(request.worker_ids) or server.sessions):
            if samples := server.resources.samples(worker):
                response.workers.add(worker_id=worker, samples=map(_resource_message, samples))
        return response

    async def WatchEvents(
        self, request: ring_pb2.WatchEventsRequest, context: Context
    ) -> AsyncGenerator[ring_pb2.WatchEventsResponse]:
        server = await self._jobs.find(request.job)
        following = max(request.since, 1)
        with server.watching():
            while True:
                seen = server.noted.count
                notes = await self._notes(server, following)
                for stored in notes:
                    yield ring_pb2.WatchEventsResponse(event=event_message(stored))
                    following = stored.sequence + 1
                if notes:
                    continue
                if not request.follow:
                    return
                require_serving(server)
                await server.noted.beyond(seen)

    async def _notes(self, server: JobServer, since: int) -> list[StoredNote]:
        """Return the next notes from number `since` on, from memory, or older ones from the store."""
        recent = server.recent_notes
        if recent and recent[0].sequence <= since:
            return list(islice(recent, since - recent[0].sequence, None))
        await server.log.settled()
        stored = await self._jobs.history(server).events(since, EVENTS_AT_ONCE)
        return [records.decode_note(payload) for _, payload in stored]


class _Reading:
    """Passes the messages of one session's worker to the server of its job."""

    def __init__(self, server: JobServer, session: Session[WorkerMessage]) -> None:
        self._server = server
        self._session = session

    async def read(self, requests: Requests) -> None:
        """Pass the messages on until the stream or the session ends."""
        try:
            async for request in requests:
                if not self.take(request):
                    return
        except REFUSALS as error:
            await self.refuse(error)
            return
        self.over()

    def take(self, request: ring_pb2.AttendRequest | Malformed, held_seconds: float = 0.0) -> bool:
        """Pass one message on; False once the session has ended. Raises `REFUSALS`.

        held_seconds: for which a relay has kept it.
        """
        server, session = self._server, self._session
        if session.ended:
            return False
        if isinstance(request, Malformed):
            raise request.rejection()
        server.heard(session, held_seconds)
        _keep_figures(server, session, request, held_seconds)
        event = attend_event(request, session.worker, session.id)
        if isinstance(event, AppliedReported):
            event = server.judged(session, event, rate_report(request.heartbeat.figures))
        server.deliver(session, event)
        return not session.ended

    async def refuse(self, error: Exception) -> None:
        """End the session for an error that `take` raised."""
        server, session, rejection = self._server, self._session, as_rejection(error)
        logger.warning(
            "a worker's message was refused",
            job=server.name,
            worker=session.worker,
            generation=server.machine.state.ring.generation,
            step=server.machine.state.steps.committed,
            reason=str(rejection),
        )
        # Confirmed and sent before the worker counts as lost, so that it learns the reason.
        try:
            await server.confirm()
        except REFUSALS as other:
            rejection = as_rejection(other)
        session.end(rejection)
        server.close_session(session, f"its message was refused: {rejection}")

    def over(self) -> None:
        """Handle the end of the worker's messages."""
        self._server.close_session(self._session, "its stream ended without Bye")


def _keep_figures(
    server: JobServer, session: Session[WorkerMessage], request: ring_pb2.AttendRequest, held_seconds: float
) -> None:
    """Keep the figures that came with a heartbeat or Bye, in serialized form because they are rarely read."""
    kind = request.WhichOneof("message")
    if kind not in ("heartbeat", "bye"):
        return
    figures = getattr(request, kind).figures
    if any(getattr(figures, name) for name in _NOT_KEPT):
        told, figures = figures, ring_pb2.WorkerFigures()
        figures.CopyFrom(told)
        for name in _NOT_KEPT:
            figures.ClearField(name)
        if 0 < len(told.block_seconds) <= 2 * BLOCKS_MAX:
            step = told.generation, told.blocks_step, told.blocks_began, told.block_seconds
            server.last_steps.tell(session.worker, *step)
    if 0 < figures.ByteSize() <= FIGURES_BYTES_MAX:
        server.keep_figures(session, figures.SerializeToString())
        if kind == "heartbeat" and server.sessions.get(session.worker) is session:
            server.resources.tell(session.worker, _totals(server.clock() - held_seconds, figures))


def _totals(now: float, figures: ring_pb2.WorkerFigures) -> Totals:
    return Totals(
        time=now,
        cpu_seconds=figures.cpu_seconds,
        resident_bytes=figures.resident_bytes,
        gpu_use=figures.gpu_use,
        gpu_bytes=figures.gpu_bytes,
        step_seconds=figures.step_seconds,
        steps=sum(figures.step_counts),
        data_wait_seconds=figures.data_wait_seconds,
        all_reduce_wait_seconds=figures.all_reduce_wait_seconds,
    )


def _resource_message(sample: ResourceSample) -> ring_pb2.ResourceSample:
    return ring_pb2.ResourceSample(
        time=timestamp(sample.time),
        cpu_cores=sample.cpu_cores,
        resident_bytes=sample.resident_bytes,
        gpu_use=sample.gpu_use,
        gpu_bytes=sample.gpu_bytes,
        steps_per_second=sample.steps_per_second,
        data_wait=sample.data_wait,
        all_reduce_wait=sample.all_reduce_wait,
    )
