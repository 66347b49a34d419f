"""JobService: creating jobs, looking at them, and what operators ask of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from functools import partial

from elastane_master.decisions.events import (
    AnyEvent,
    CancelRequested,
    CheckpointRequested,
    DrainRequested,
    Rejection,
    ResumeRequested,
    ScaleRequested,
    SuspendRequested,
)
from elastane_master.decisions.liveness import Liveness
from elastane_master.decisions.operators import scale_preview
from elastane_master.decisions.views import checkpoints_view, job_view
from elastane_master.jobs.job_server import JobServer
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.job_table import ClosedJob
from elastane_master.jobs.serving import once_durable, outcome_of, require_serving
from elastane_master.servers import callers
from elastane_master.servers.binding import Context
from elastane_master.servers.translate import (
    checked_name,
    checked_request_id,
    invalid_field,
    shown,
    timestamp,
)
from elastane_master.servers.translate_job import (
    damage_message,
    decision_message,
    held_message,
    job_message,
    job_settings,
    prices_requested,
)
from elastane_master.store.keys import RUNS, checked_job_name
from elastane_proto import message_codec
from elastane_proto.v1 import job_pb2

WATCH_SECONDS_MIN = 0.05
"""A watcher gets the newest job at most so often, however many changes there are."""

JOBS_AT_ONCE = 500
"""Number of jobs added to a list before other tasks of the event loop run."""

JOBS_PAGE_MAX = 5000
"""Jobs in a page of a list: some megabytes."""

_NOBODY = Liveness()


class JobServicer:
    """Serves elastane.v1.JobService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs

    async def Create(
        self, request: job_pb2.JobServiceCreateRequest, context: Context
    ) -> job_pb2.JobServiceCreateResponse:
        checked_request_id(request.request_id)
        server, created = await self._jobs.create(request.name, job_settings(request.settings))
        return job_pb2.JobServiceCreateResponse(job=_job(server), created=created)

    async def Get(
        self, request: job_pb2.JobServiceGetRequest, context: Context
    ) -> job_pb2.JobServiceGetResponse:
        held = self._jobs.held().get(request.name)
        if held is not None:
            return job_pb2.JobServiceGetResponse(job=held_message(held))
        if (closed := self._jobs.closed_job(request.name)) is not None:
            return job_pb2.JobServiceGetResponse(job=_closed_job(closed))
        server = self._jobs.get(request.name)
        return job_pb2.JobServiceGetResponse(job=await _durable_job(server))

    async def List(
        self, request: job_pb2.JobServiceListRequest, context: Context
    ) -> job_pb2.JobServiceListResponse:
        after = checked_job_name(request.page_token) if request.page_token else ""
        count = min(request.page_size, JOBS_PAGE_MAX)
        page = self._jobs.page(after, count or None, callers.covers.get())
        jobs: list[job_pb2.Job] = []
        for number, job in enumerate(page.jobs, 1):
            if isinstance(job, JobServer):
                jobs.append(_job(job))
            else:
                jobs.append(_closed_job(job) if isinstance(job, ClosedJob) else held_message(job))
            if number % JOBS_AT_ONCE == 0:
                await asyncio.sleep(0)
        for job in page.jobs:
            if isinstance(job, JobServer):
                await job.log.settled()
        return job_pb2.JobServiceListResponse(jobs=jobs, next_page_token=page.last)

    async def Watch(
        self, request: job_pb2.JobServiceWatchRequest, context: Context
    ) -> AsyncGenerator[job_pb2.JobServiceWatchResponse]:
        server = await self._jobs.find(request.name)
        revision = -1
        with server.watching():
            while True:
                seen = server.changed.count
                require_serving(server)
                if server.machine.state.revision != revision:
                    job = _job(server)
                    # An agent ends with the phase it is told: it must not be one that a crash takes back.
                    if await server.log.settled():
                        revision = job.revision
                        yield job_pb2.JobServiceWatchResponse(job=job)
                        await asyncio.sleep(WATCH_SECONDS_MIN)
                await server.changed.beyond(seen)

    async def Scale(
        self, request: job_pb2.JobServiceScaleRequest, context: Context
    ) -> job_pb2.JobServiceScaleResponse:
        checked_request_id(request.request_id)
        try:
            event = message_codec.read(ScaleRequested, request)
        except message_codec.InvalidFieldError as error:
            raise invalid_field(error) from None
        if request.dry_run:
            server = await self._jobs.find(request.name)
            require_serving(server)
            told = scale_preview(server.machine.state, event, server.clock())
            job = _job(server)
            return job_pb2.JobServiceScaleResponse(job=job, decisions=map(decision_message, told))
        return job_pb2.JobServiceScaleResponse(job=await self._ask(request.name, event))

    async def Suspend(
        self, request: job_pb2.JobServiceSuspendRequest, context: Context
    ) -> job_pb2.JobServiceSuspendResponse:
        event = SuspendRequested(checked_request_id(request.request_id))
        return job_pb2.JobServiceSuspendResponse(job=await self._ask(request.name, event))

    async def Resume(
        self, request: job_pb2.JobServiceResumeRequest, context: Context
    ) -> job_pb2.JobServiceResumeResponse:
        event = ResumeRequested(checked_request_id(request.request_id))
        return job_pb2.JobServiceResumeResponse(job=await self._ask(request.name, event))

    async def Cancel(
        self, request: job_pb2.JobServiceCancelRequest, context: Context
    ) -> job_pb2.JobServiceCancelResponse:
        event = CancelRequested(checked_request_id(request.request_id))
        return job_pb2.JobServiceCancelResponse(job=await self._ask(request.name, event))

    async def SetPrices(
        self, request: job_pb2.JobServiceSetPricesRequest, context: Context
    ) -> job_pb2.JobServiceSetPricesResponse:
        event = prices_requested(request, checked_request_id(request.request_id))
        return job_pb2.JobServiceSetPricesResponse(job=await self._ask(request.name, event))

    async def DrainWorker(
        self, request: job_pb2.JobServiceDrainWorkerRequest, context: Context
    ) -> job_pb2.JobServiceDrainWorkerResponse:
        worker = checked_name(request.worker_id, "worker_id")
        event = DrainRequested(checked_request_id(request.request_id), worker, shown(request.reason))
        return job_pb2.JobServiceDrainWorkerResponse(job=await self._ask(request.name, event))

    async def Checkpoint(
        self, request: job_pb2.JobServiceCheckpointRequest, context: Context
    ) -> job_pb2.JobServiceCheckpointResponse:
        server = await self._jobs.find(request.name)
        request_id = checked_request_id(request.request_id) or uuid.uuid4().hex
        event = CheckpointRequested(request_id)
        return await outcome_of(server, event, lambda: _outcome(server, request_id))

    async def Delete(
        self, request: job_pb2.JobServiceDeleteRequest, context: Context
    ) -> job_pb2.JobServiceDeleteResponse:
        request_id = checked_request_id(request.request_id)
        await self._jobs.delete(request.name, request_id=request_id, force=request.force)
        return job_pb2.JobServiceDeleteResponse()

    async def Repair(
        self, request: job_pb2.JobServiceRepairRequest, context: Context
    ) -> job_pb2.JobServiceRepairResponse:
        checked_request_id(request.request_id)
        server, accepted = await self._jobs.repair(request.name, accept_loss=request.accept_loss)
        return job_pb2.JobServiceRepairResponse(
            job=_job(server) if server is not None else None,
            removed=server is None and request.name != RUNS,
            accepted=[damage_message(damage) for damage in accepted],
        )

    async def _ask(self, name: str, event: AnyEvent) -> job_pb2.Job:
        server = await self._jobs.find(name)
        await server.submit(event)
        return await _durable_job(server)


def _job(server: JobServer) -> job_pb2.Job:
    return job_message(job_view(server.machine, server.clock()), server.liveness)


async def _durable_job(server: JobServer) -> job_pb2.Job:
    return await once_durable(server, partial(_job, server))


def _closed_job(closed: ClosedJob) -> job_pb2.Job:
    record = closed.record
    message = job_message(record.view, _NOBODY)
    message.closed.CopyFrom(timestamp(record.closed_at))
    return message


def _outcome(server: JobServer, request_id: str) -> job_pb2.JobServiceCheckpointResponse | None:
    """Outcome of a requested checkpoint; None while it is pending. Raises Rejection."""
    view = checkpoints_view(server.machine)
    for saved in view.saved:
        if request_id in saved.requests:
            return job_pb2.JobServiceCheckpointResponse(step=saved.step, url=saved.url)
    for failed in view.failed:
        if request_id in failed.requests:
            raise Rejection(
                "wrong_phase",
                f"the checkpoint could not be saved: {failed.error}",
                checkpoint=failed.checkpoint,
                step=failed.step,
            )
    if request_id not in view.pending:
        raise Rejection("not_found", "the outcome of this request is no longer known", request_id=request_id)
    return None
