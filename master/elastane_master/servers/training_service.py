"""TrainingService: runs of users, their logs and artifacts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import cast

import msgspec

from elastane_master.decisions.events import Rejection
from elastane_master.decisions.runs import views
from elastane_master.decisions.runs.events import (
    AnyRunsEvent,
    AttemptKey,
    PriorityChanged,
    RunCancelRequested,
    RunDeleted,
    RunRetryRequested,
    RunSubmitted,
    Submitted,
)
from elastane_master.decisions.runs.requests import at_place, was_submitted
from elastane_master.decisions.runs.run import OVER, Run, RunState
from elastane_master.decisions.runs.spec import RunSpec, check, owner_of
from elastane_master.runs.run_server import RunnerSession, RunServer
from elastane_master.runs.service import TrainingRuns
from elastane_master.security.quotas import require_runs
from elastane_master.servers import callers
from elastane_master.servers.binding import Context, Malformed
from elastane_master.servers.errors import is_retryable, status_of
from elastane_master.servers.pipeline import Decided, Pipeline
from elastane_master.servers.translate import checked_length, checked_request_id
from elastane_master.servers.translate_run import (
    run_message,
    scheduling_message,
    service_message,
    spec_of,
    state_word,
)
from elastane_proto.v1 import training_pb2

WATCH_SECONDS_MIN = 0.05
LOG_STORED_SECONDS = 30.0
"""Time limit for a runner to store the logs of an attempt that is over, while a reader follows."""
LOG_LOOK_SECONDS = 0.2
"""A watcher gets the newest state at most so often, however many changes there are."""

ARCHIVE_BYTES_MAX = 256 * 2**20

RUNS_AT_ONCE = 100
"""Runs that one call submits at most."""

REQUESTS_IN_FLIGHT = 64
"""Submissions of one stream without an outcome; further ones wait."""


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
            if _is_looked_up(spec):
                looking = partial(submit, self._runs, spec, request_id, client_key)
                return asyncio.create_task(self._outcome(looking))
            server.require_taking()
            result, durable = server.begin(_event(self._runs, spec, request_id, client_key))
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


async def submit(runs: TrainingRuns, spec: RunSpec, request_id: str, client_key: str = "") -> Submitted:
    """Resolve the dataset of a run, and submit it on its owner's account. Raises Rejection."""
    event = await _submission(runs, _event(runs, spec, request_id, client_key))
    async with AsyncExitStack() as archives:
        await _hold_archive(runs, event, archives)
        if _is_looked_up(spec):
            _event(runs, spec, request_id, client_key)  # the quota counts what was submitted meanwhile
        return cast("Submitted", await runs.server.submit(event))


async def submit_many(
    runs: TrainingRuns, messages: Sequence[training_pb2.RunSpec], request_ids: Sequence[str]
) -> list[int]:
    """Submit all of these runs on their owners' accounts, or none; return their ids. Raises Rejection."""
    events: list[RunSubmitted] = []
    new: Counter[str] = Counter()
    async with AsyncExitStack() as archives:
        for place, (message, request_id) in enumerate(zip(messages, request_ids, strict=True)):
            try:
                event = await _submission(runs, _event(runs, spec_of(message), request_id, ahead=new))
                await _hold_archive(runs, event, archives)
            except Rejection as refusal:
                raise at_place(refusal, place) from None
            events.append(event)
        server = runs.server
        server.require_taking()
        try:
            server.machine.require_acceptable(events)
        except Rejection as refusal:
            await server.refuse(refusal)
        # Nothing else is decided in between, so none of them is refused now.
        begun = [server.begin(event) for event in events]
        if (durable := begun[-1][1]) is not None:
            await asyncio.shield(durable)
    return [cast("Submitted", result).run_id for result, _ in begun]


def _event(
    runs: TrainingRuns,
    spec: RunSpec,
    request_id: str,
    client_key: str = "",
    ahead: Counter[str] | None = None,
) -> RunSubmitted:
    """Return the event of a submission on its owner's account. Raises Rejection.

    ahead: new runs by owner that are submitted before it; counts it.
    """
    server, caller = runs.server, callers.principal.get()
    owner = owner_of(spec, caller.name, caller.covers_owner(spec.owner))
    if not was_submitted(server.machine.state, owner, request_id, client_key):
        before = ahead[owner] if ahead is not None else 0
        if caller.quotas.runs_max:
            require_runs(caller, server.machine.index.alive(owner) + before)
        if ahead is not None:
            ahead[owner] += 1
    # A token speaks for the quota of its own name only.
    slots_max = caller.quotas.slots_max if owner == caller.name else None
    return RunSubmitted(spec, owner, request_id, client_key, slots_max=slots_max)


async def _submission(runs: TrainingRuns, event: RunSubmitted) -> RunSubmitted:
    """Return the event with its dataset resolved. Raises Rejection."""
    if event.spec.dataset is None:
        return event
    verdict, url, reason = await runs.datasets.resolve(event.spec.dataset)
    return msgspec.structs.replace(event, data=verdict, data_url=url, data_reason=reason)


def _archive(spec: RunSpec) -> str | None:
    """Return the digest of the spec's code archive."""
    return spec.code.archive_sha256 if spec.code is not None else None


def _is_looked_up(spec: RunSpec) -> bool:
    """True if a submission waits for storage, or for the data service."""
    return spec.dataset is not None or _archive(spec) is not None


async def _hold_archive(runs: TrainingRuns, event: RunSubmitted, archives: AsyncExitStack) -> None:
    """Keep the code archive of a new run from being removed until `archives` is left. Raises Rejection."""
    spec, state = event.spec, runs.server.machine.state
    archive = _archive(spec)
    if archive is None or was_submitted(state, event.owner, event.request_id, event.client_key):
        return
    check(spec, state.settings.limits)
    await archives.enter_async_context(runs.code_archives.submitting(archive))


def run_of(server: RunServer, run_id: int) -> Run:
    """Return a run that the caller may know of. Raises Rejection("not_found") for any other."""
    run = server.machine.state.runs.get(run_id)
    if run is None or not callers.principal.get().covers_owner(run.owner):
        raise unknown_run(run_id)
    return run


def unknown_run(run_id: int) -> Rejection:
    return Rejection(
        "not_found",
        f"there is no run {run_id}",
        hint="elastane queue and elastane jobs list them",
        run_id=run_id,
    )


def _page_token(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) < 20):
        raise Rejection(
            "invalid_argument", "no token of a page", hint="use next_page_token", field="page_token"
        )
    return int(token)


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
    """Yield a stored log. Who follows comes between the end of an attempt and the time when it is stored."""
    clock = asyncio.get_running_loop().time
    waits = request.follow and request.rank < run.demand.instances
    deadline = clock() + (LOG_STORED_SECONDS if waits else 0.0)
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
        await asyncio.sleep(LOG_LOOK_SECONDS)


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
