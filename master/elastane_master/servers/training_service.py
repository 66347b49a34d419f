"""TrainingService: runs of users, their logs and artifacts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import cast

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import views
from elastane_master.decisions.runs.events import (
    AnyRunsEvent,
    PriorityChanged,
    RunCancelRequested,
    RunDeleted,
    RunRetryRequested,
    Submitted,
)
from elastane_master.decisions.runs.run import OVER, RunState
from elastane_master.decisions.runs.spec import RunSpec
from elastane_master.runs.run_server import RunServer
from elastane_master.runs.service import TrainingRuns
from elastane_master.servers import callers
from elastane_master.servers.binding import Context, Malformed
from elastane_master.servers.errors import is_retryable, status_of
from elastane_master.servers.pipeline import Decided, Pipeline
from elastane_master.servers.run_logs import stream_log
from elastane_master.servers.run_submission import event_of, is_looked_up, submit, submit_many
from elastane_master.servers.translate import checked_length, checked_request_id
from elastane_master.servers.translate_run import (
    run_message,
    scheduling_message,
    service_message,
    spec_of,
    state_word,
)
from elastane_master.servers.visible_runs import run_of, unknown_run
from elastane_proto.v1 import training_pb2

WATCH_SECONDS_MIN = 0.05
"""Minimum interval between two states that a watcher is sent, however many changes there are."""

ARCHIVE_BYTES_MAX = 256 * 2**20
"""Limit on the size of a code archive, for clients."""

RUNS_AT_ONCE = 100
"""Limit on runs in one call of TrainMany."""

REQUESTS_IN_FLIGHT = 64
"""Limit on submissions of one stream without an outcome; further ones wait."""


class TrainingServicer:
    """Serves elastane.v1.TrainingService."""

    def __init__(self, runs: TrainingRuns) -> None:
        self._runs = runs

    async def Train(
        self, request: training_pb2.TrainingServiceTrainRequest, context: Context
    ) -> training_pb2.TrainingServiceTrainResponse:
        return self._submitted(await submit(self._runs, *_asked(request)))

    async def TrainMany(
        self, request: training_pb2.TrainingServiceTrainManyRequest, context: Context
    ) -> training_pb2.TrainingServiceTrainManyResponse:
        if not 0 < len(request.specs) <= RUNS_AT_ONCE:
            raise Rejection(
                "invalid_argument",
                f"{len(request.specs)} runs in one call",
                hint=f"submit 1 to {RUNS_AT_ONCE} of them at once",
                field="specs",
            )
        request_id = checked_request_id(request.request_id)
        ids = [f"{request_id}/{place}" if request_id else "" for place in range(len(request.specs))]
        run_ids = await submit_many(self._runs, request.specs, ids)
        server = self._runs.server
        runs = [self._message(server, run_id, whole=False) for run_id in run_ids]
        return training_pb2.TrainingServiceTrainManyResponse(runs=runs)

    async def TrainEach(
        self,
        requests: AsyncIterator[training_pb2.TrainingServiceTrainEachRequest | Malformed],
        context: Context,
    ) -> AsyncGenerator[training_pb2.TrainingServiceTrainEachResponse]:
        """Decide on submissions as they arrive, and give their outcomes in order, once these are durable.

        One whose dataset or code archive is looked up holds up the outcomes behind it, not the decisions.
        """
        async with Pipeline(requests, _requests_of, self._begin, REQUESTS_IN_FLIGHT) as outcomes:
            with self._runs.server.submitting(outcomes.end):
                is_first = True
                async for known in outcomes.batches():
                    yield training_pb2.TrainingServiceTrainEachResponse(outcomes=known, reads_more=is_first)
                    is_first = False

    def _begin(
        self, request: training_pb2.TrainingServiceTrainRequest
    ) -> Decided[training_pb2.TrainOutcome] | asyncio.Task[training_pb2.TrainOutcome]:
        """Decide on a submission at once, or begin to look up what it needs. Raises what ends the stream."""
        server = self._runs.server
        try:
            spec, request_id, client_key = _asked(request)
            if is_looked_up(spec):
                looking = partial(submit, self._runs, spec, request_id, client_key)
                return asyncio.create_task(self._outcome(looking))
            server.require_taking()
            result, durable = server.begin(event_of(self._runs, spec, request_id, client_key))
        except Rejection as refusal:
            return asyncio.create_task(self._outcome(partial(server.refuse, refusal)))
        response = self._submitted(cast("Submitted", result))
        return Decided(training_pb2.TrainOutcome(response=response), durable)

    async def _outcome(self, submission: Callable[[], Awaitable[Submitted]]) -> training_pb2.TrainOutcome:
        """Return the outcome of a submission. Raises what ends the stream."""
        try:
            return training_pb2.TrainOutcome(response=self._submitted(await submission()))
        except Rejection as refusal:
            if is_retryable(refusal):
                raise
            return training_pb2.TrainOutcome(refusal=status_of(refusal).SerializeToString())

    def _submitted(self, submitted: Submitted) -> training_pb2.TrainingServiceTrainResponse:
        run = self._message(self._runs.server, submitted.run_id)
        return training_pb2.TrainingServiceTrainResponse(run=run, created=submitted.created)

    async def Get(
        self, request: training_pb2.TrainingServiceGetRequest, context: Context
    ) -> training_pb2.TrainingServiceGetResponse:
        server = self._runs.server
        run_of(server, request.run_id)
        message = self._message(server, request.run_id)
        await server.log.settled()
        return training_pb2.TrainingServiceGetResponse(run=message)

    async def List(
        self, request: training_pb2.TrainingServiceListRequest, context: Context
    ) -> training_pb2.TrainingServiceListResponse:
        server, caller = self._runs.server, callers.principal.get()
        page = views.list_runs(
            server.machine,
            before=_page_token(request.page_token),
            page_size=request.page_size,
            states=[cast("RunState", state_word(number)) for number in request.states],
            owner=request.owner or None,
            labels=dict(request.labels),
            covers=caller.covers_owner,
        )
        response = training_pb2.TrainingServiceListResponse(
            runs=[self._message(server, run_id, whole=False) for run_id in page.run_ids],
            next_page_token=str(page.next_before) if page.next_before else "",
        )
        await server.log.settled()
        return response

    async def Watch(
        self, request: training_pb2.TrainingServiceWatchRequest, context: Context
    ) -> AsyncGenerator[training_pb2.TrainingServiceWatchResponse]:
        server = self._runs.server
        run_of(server, request.run_id)
        revision = -1
        with server.watching(request.run_id) as changed:
            while True:
                seen = changed.count
                server.require_serving()
                run = run_of(server, request.run_id)
                if run.revision != revision:
                    message = self._message(server, request.run_id)
                    # Nobody may act on a state that a crash takes back.
                    if await server.log.settled():
                        revision = message.revision
                        yield training_pb2.TrainingServiceWatchResponse(run=message)
                        if run.state in OVER and run.revision == revision:
                            return
                        await asyncio.sleep(WATCH_SECONDS_MIN)
                await changed.beyond(seen)

    async def Cancel(
        self, request: training_pb2.TrainingServiceCancelRequest, context: Context
    ) -> training_pb2.TrainingServiceCancelResponse:
        event = RunCancelRequested(
            request.run_id, checked_request_id(request.request_id), callers.principal.get().name
        )
        return training_pb2.TrainingServiceCancelResponse(run=await self._ask(request.run_id, event))

    async def Retry(
        self, request: training_pb2.TrainingServiceRetryRequest, context: Context
    ) -> training_pb2.TrainingServiceRetryResponse:
        event = RunRetryRequested(request.run_id, checked_request_id(request.request_id))
        return training_pb2.TrainingServiceRetryResponse(run=await self._ask(request.run_id, event))

    async def SetPriority(
        self, request: training_pb2.TrainingServiceSetPriorityRequest, context: Context
    ) -> training_pb2.TrainingServiceSetPriorityResponse:
        event = PriorityChanged(request.run_id, request.priority, checked_request_id(request.request_id))
        return training_pb2.TrainingServiceSetPriorityResponse(run=await self._ask(request.run_id, event))

    async def Delete(
        self, request: training_pb2.TrainingServiceDeleteRequest, context: Context
    ) -> training_pb2.TrainingServiceDeleteResponse:
        server = self._runs.server
        request_id = checked_request_id(request.request_id)
        if request.run_id in server.machine.state.runs:
            run_of(server, request.run_id)
        await server.submit(RunDeleted(request.run_id, request_id))
        if not request.keep_artifacts:
            await self._runs.artifacts.remove(request.run_id)
        return training_pb2.TrainingServiceDeleteResponse()

    async def StreamLogs(
        self, request: training_pb2.TrainingServiceStreamLogsRequest, context: Context
    ) -> AsyncGenerator[training_pb2.TrainingServiceStreamLogsResponse]:
        run = run_of(self._runs.server, request.run_id)
        async with aclosing(stream_log(self._runs, run, request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def ListArtifacts(
        self, request: training_pb2.TrainingServiceListArtifactsRequest, context: Context
    ) -> training_pb2.TrainingServiceListArtifactsResponse:
        run_of(self._runs.server, request.run_id)
        return training_pb2.TrainingServiceListArtifactsResponse(
            artifacts=[
                training_pb2.Artifact(
                    path=one.path, size_bytes=one.size_bytes, sha256=one.sha256, kind=one.kind
                )
                for one in await self._runs.artifacts.list(request.run_id)
            ]
        )

    async def GetService(
        self, request: training_pb2.TrainingServiceGetServiceRequest, context: Context
    ) -> training_pb2.TrainingServiceGetServiceResponse:
        server = self._runs.server
        response = service_message(views.service_view(server.machine, server.clock()), server.liveness)
        response.artifact_url = self._runs.options.artifact_url
        response.archive_bytes_max = ARCHIVE_BYTES_MAX
        return response

    async def GetScheduling(
        self, request: training_pb2.TrainingServiceGetSchedulingRequest, context: Context
    ) -> training_pb2.TrainingServiceGetSchedulingResponse:
        server, caller = self._runs.server, callers.principal.get()
        if request.run_id:
            run_of(server, request.run_id)
        found = views.scheduling(server.machine, request.run_id, request.limit, caller.covers_owner)
        response = scheduling_message(server.machine.state.settings.scheduling_policy, found)
        await server.log.settled()
        return response

    async def _ask(self, run_id: int, event: AnyRunsEvent) -> training_pb2.Run:
        server = self._runs.server
        run_of(server, run_id)
        await server.submit(event)
        return self._message(server, run_id)

    def _message(self, server: RunServer, run_id: int, whole: bool = True) -> training_pb2.Run:
        forecast = self._runs.forecasts.of(server, run_id)
        covers = callers.principal.get().covers_owner
        view = views.run_view(server.machine, run_id, server.clock(), whole, forecast, covers)
        if view is None:
            raise unknown_run(run_id)
        return run_message(view, self._runs.artifacts.run_url(run_id))


def _requests_of(
    message: training_pb2.TrainingServiceTrainEachRequest | Malformed,
) -> Iterable[training_pb2.TrainingServiceTrainRequest]:
    """Return the submissions in a message. Raises Rejection."""
    if isinstance(message, Malformed):
        raise message.rejection()
    return message.request, *message.more


def _asked(request: training_pb2.TrainingServiceTrainRequest) -> tuple[RunSpec, str, str]:
    """Return spec, request id and client key of a request. Raises Rejection."""
    if request.client_key:
        checked_length(request.client_key, "client_key")
    return spec_of(request.spec), checked_request_id(request.request_id), request.client_key


def _page_token(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) < 20):
        raise Rejection(
            "invalid_argument", "no token of a page", hint="use next_page_token", field="page_token"
        )
    return int(token)
