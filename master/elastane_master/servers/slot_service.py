"""SlotService: sessions of parameter servers, the model and the map, checkpoints of slots."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator

import structlog

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.slot_effects import ToldMap
from elastane_master.decisions.slot_events import (
    MapSeen,
    ModelRegistered,
    PsDrainRequested,
    SlotsCheckpointRequested,
    SlotsRewindRequested,
)
from elastane_master.decisions.slots.checkpoints import folder_of
from elastane_master.decisions.slots.view import slots_view
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.limits import require_within
from elastane_master.jobs.serving import once_durable, outcome_of, require_serving, stopping
from elastane_master.jobs.slot_sessions import PsSession
from elastane_master.servers import translate_slots
from elastane_master.servers.binding import Context, Malformed, first_message, require_version
from elastane_master.servers.errors import REFUSALS, as_rejection
from elastane_master.servers.translate import checked_name, checked_request_id, shown
from elastane_proto.v1 import ps_pb2

logger = structlog.get_logger(__name__)

FIGURES_BYTES_MAX = 2**18
"""Limit of the figures kept for a parameter server: 40 bytes for each of 4,096 slots; larger are ignored."""

Requests = AsyncIterator[ps_pb2.AttendSlotsRequest | Malformed]


class SlotServicer:
    """Implementation of elastane.v1.SlotService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs
        self._map: ToldMap | None = None
        self._map_job = ""
        self._map_bytes = b""

    async def AttendSlots(self, requests: Requests, context: Context) -> AsyncGenerator[bytes]:
        first = await first_message(requests)
        require_version(first.hello.version, f"parameter server {first.hello.ps_id}")
        server = await self._jobs.find(first.hello.job)
        # As of a worker's: a Hello may have waited here until its call ended.
        await asyncio.sleep(0)
        if server.stopping:
            raise stopping()
        if server.paused is not None:
            raise server.paused
        try:
            session = server.slots.open(lambda session_id: translate_slots.hello(first.hello, session_id))
        except Rejection:
            await server.confirm()
            raise
        reader = asyncio.create_task(_read(server, session, requests))
        try:
            async for message in session.outgoing():
                if isinstance(message, ToldMap):
                    yield self._encoded_map(message, server.name)
                    continue
                response = translate_slots.attend_response(
                    message, server.name, server.machine.state.settings
                )
                yield response.SerializeToString()
        finally:
            reader.cancel()
            server.slots.stream_over(session, "its stream broke without PsBye", stopping=server.stopping)

    async def RegisterModel(
        self, request: ps_pb2.RegisterModelRequest, context: Context
    ) -> ps_pb2.RegisterModelResponse:
        server = await self._jobs.find(request.job)
        worker = checked_name(request.worker_id, "worker_id")
        given = len(request.model.tensors) + len(request.model.tables) + len(request.model.absent)
        require_within("tensors_max", given, server.limits.tensors_max, "tensors and tables")
        facts = len(request.model.environment)
        require_within("facts_max", facts, server.limits.facts_max, "facts of the environment")
        created = await server.submit(ModelRegistered(worker, translate_slots.model_of(request.model)))
        response = ps_pb2.RegisterModelResponse(
            created=bool(created),
            settings=translate_slots.settings_message(server.machine.state.settings),
        )
        if server.slots.told is not None:
            response.map.CopyFrom(translate_slots.map_message(server.slots.told, server.name))
        return response

    async def WatchMap(
        self, request: ps_pb2.WatchMapRequest, context: Context
    ) -> AsyncGenerator[ps_pb2.WatchMapResponse]:
        server = await self._jobs.find(request.job)
        known, told = request.generation, server.slots.told
        if told is not None and told.map.generation < known:
            await server.submit(MapSeen(known))
        with server.watching():
            while True:
                seen = server.slots.changed.count
                require_serving(server)
                told = server.slots.told
                if told is not None and told.map.generation != known:
                    known = told.map.generation
                    yield ps_pb2.WatchMapResponse(map=translate_slots.map_message(told, server.name))
                await server.slots.changed.beyond(seen)

    async def GetSlots(self, request: ps_pb2.GetSlotsRequest, context: Context) -> ps_pb2.GetSlotsResponse:
        server = await self._jobs.find_or_only(request.job)

        def view() -> ps_pb2.GetSlotsResponse:
            machine, slots = server.machine, server.slots
            found = slots_view(machine.state.slots, machine.queues)
            return translate_slots.slots_message(found, machine.state.settings, slots.figures, slots.told)

        return await once_durable(server, view)

    async def CheckpointSlots(
        self, request: ps_pb2.CheckpointSlotsRequest, context: Context
    ) -> ps_pb2.CheckpointSlotsResponse:
        server = await self._jobs.find(request.job)
        request_id = checked_request_id(request.request_id) or uuid.uuid4().hex
        event = SlotsCheckpointRequested(request_id, request.in_flight)
        return await outcome_of(server, event, lambda: _outcome(server, request_id))

    async def RewindSlots(
        self, request: ps_pb2.RewindSlotsRequest, context: Context
    ) -> ps_pb2.RewindSlotsResponse:
        server = await self._jobs.find(request.job)
        checkpoint = checked_name(request.checkpoint, "checkpoint")
        event = SlotsRewindRequested(checked_request_id(request.request_id), checkpoint)
        generation = await server.submit(event)
        assert isinstance(generation, int)
        return ps_pb2.RewindSlotsResponse(generation=generation)

    async def DrainPs(self, request: ps_pb2.DrainPsRequest, context: Context) -> ps_pb2.DrainPsResponse:
        server = await self._jobs.find(request.job)
        ps = checked_name(request.ps_id, "ps_id")
        await server.submit(
            PsDrainRequested(checked_request_id(request.request_id), ps, shown(request.reason))
        )
        return ps_pb2.DrainPsResponse()

    def _encoded_map(self, told: ToldMap, job: str) -> bytes:
        """Encode a map once for all parameter servers that are told of it."""
        if self._map is not told or self._map_job != job:
            response = ps_pb2.AttendSlotsResponse(map=translate_slots.map_message(told, job))
            self._map, self._map_job, self._map_bytes = told, job, response.SerializeToString()
        return self._map_bytes


async def _read(server: JobServer, session: PsSession, requests: Requests) -> None:
    """Pass the messages of a parameter server to the server until the stream or the session ends."""
    slots = server.slots
    try:
        async for request in requests:
            if isinstance(request, Malformed):
                raise request.rejection()
            slots.heard(session)
            figures = request.heartbeat.figures
            if request.HasField("heartbeat") and 0 < figures.ByteSize() <= FIGURES_BYTES_MAX:
                slots.keep_figures(session, figures.SerializeToString(), figures.push_frames)
            event = translate_slots.attend_event(request, session.worker, session.id)
            if event is not None:
                slots.deliver(session, event)
            if session.ended:
                return
    except REFUSALS as error:
        rejection = as_rejection(error)
        logger.warning(
            "a message of a parameter server was refused",
            job=server.name,
            ps=session.worker,
            reason=str(rejection),
        )
        try:
            await server.confirm()
        except REFUSALS as other:
            rejection = as_rejection(other)
        session.end(rejection)
        slots.close(session, f"its message was refused: {rejection}", stopping=server.stopping)
        return
    slots.close(session, "its stream ended without PsBye", stopping=server.stopping)


def _outcome(server: JobServer, request_id: str) -> ps_pb2.CheckpointSlotsResponse | None:
    """Outcome of a requested checkpoint; None while it is being made. Raises Rejection."""
    state = server.machine.state
    book = state.slots
    for saved in book.checkpoints:
        if request_id in saved.requests:
            url = f"{state.settings.checkpoint_url.rstrip('/')}/{folder_of(saved.checkpoint)}"
            response = ps_pb2.CheckpointSlotsResponse(checkpoint=saved.checkpoint, url=url, tasks=saved.tasks)
            for slot, runs in sorted(saved.surplus.items()):
                translate_slots.fill_runs(response.surplus.add(slot=slot).tasks, runs)
            return response
    for failed in book.failed_checkpoints:
        if request_id in failed.requests:
            raise Rejection(
                "wrong_phase",
                f"the checkpoint could not be saved: {failed.error}",
                checkpoint=failed.checkpoint,
            )
    if book.checkpoint is None or request_id not in book.checkpoint.requests:
        raise Rejection("not_found", "the outcome of this request is no longer known", request_id=request_id)
    return None
