"""ContextService: stored contexts of the ESTs, for inspection, audit and `job.gather`."""

from __future__ import annotations

from elastane_master.decisions.views import context_of, context_views
from elastane_master.jobs.job_servers import JobServers
from elastane_master.jobs.serving import once_durable
from elastane_master.servers.binding import Context
from elastane_master.servers.translate_job import context_info
from elastane_proto.contexts import context_to_proto
from elastane_proto.v1 import context_pb2


class ContextServicer:
    """Implementation of elastane.v1.ContextService."""

    def __init__(self, jobs: JobServers) -> None:
        self._jobs = jobs

    async def Get(
        self, request: context_pb2.ContextServiceGetRequest, context: Context
    ) -> context_pb2.ContextServiceGetResponse:
        server = await self._jobs.find(request.job)
        step = request.step if request.HasField("step") else None
        found, parts = await once_durable(
            server, lambda: context_of(server.machine, request.virtual_rank, step)
        )
        message = context_to_proto(request.virtual_rank, found, parts)
        return context_pb2.ContextServiceGetResponse(context=message)

    async def List(
        self, request: context_pb2.ContextServiceListRequest, context: Context
    ) -> context_pb2.ContextServiceListResponse:
        server = await self._jobs.find(request.job)
        infos = await once_durable(
            server, lambda: [context_info(view) for view in context_views(server.machine)]
        )
        return context_pb2.ContextServiceListResponse(contexts=infos)
